"""The stage task: problems from seeds, rewards, labels, and agents that learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlinit.agent.selection import load_stage_agent
from rlinit.agent.stages.decoding import Decoding
from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.errors import InvalidConfig
from rlinit.plan import Plan
from rlinit.stages.batch import StageBatch
from rlinit.stages.slicing import slice_order
from rlinit.train.tasks.protocol import AnyTask, unpadded
from rlinit.train.tasks.sequential_stages import PointerParams, PointerTask
from rlinit.train.tasks.stages import StageParams, StageProblems, StageTask, optimal_values
from tests.late import late_imports

with late_imports():
    import torch


TASK = StageTask(StageParams(hidden=32, layers=2, real_models=False))


def greedy_gap(network: torch.nn.Module, batch: StageProblems, optimum: np.ndarray) -> np.ndarray:
    """Return the gaps of greedy schedules."""
    with torch.no_grad():
        outputs = TASK.forward(network, batch, torch.device("cpu"))
    played = TASK.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    return np.asarray(played.value[:, 0] / optimum - 1.0)


def train(network: torch.nn.Module, batches: list[StageProblems], steps: int, rate: float, samples: int) -> None:
    """Take steps of REINFORCE with a shared baseline."""
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    for step in range(steps):
        batch = batches[step % len(batches)]
        outputs = TASK.forward(network, batch, torch.device("cpu"))
        played = TASK.rollout(network, batch, outputs, samples=samples, seed=step)
        advantage = played.reward - played.reward.mean(axis=1, keepdims=True)
        advantage /= advantage.std(axis=1, keepdims=True) + 1e-3
        choices = TASK.choices(network, batch, outputs, played)
        weight = torch.from_numpy(advantage.ravel()).to(choices.log_prob)[choices.trajectory]
        loss = -(weight * choices.log_prob).sum() / advantage.size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def test_problems_depend_on_their_seed_alone() -> None:
    """Equal seeds give equal problems, others give others, and problems rebuilt one by one have the same values."""
    params = ProblemParams(draws=2)
    one, same, other = (draw_problems(params, seed, 12, 9) for seed in (1, 1, 2))
    assert (one.load == same.load).all()
    assert (one.pred.tolist(), one.num_stages.tolist()) == (same.pred.tolist(), same.num_stages.tolist())
    assert one.load.tolist() != other.load.tolist()
    values, _ = slice_orders(one, one.natural[None, :])
    for g in range(len(one)):
        problem = one.problem(g)
        found = slice_order(problem, problem.order)
        assert found is not None
        assert values[g, 0] == pytest.approx(found[1][0], rel=1e-9)


def test_kept_problems_depend_on_the_order() -> None:
    """Drawing more problems than are kept makes more of them depend on the order."""

    def share(draws: int) -> float:
        batch = draw_problems(ProblemParams(draws=draws), 3, 24, 64)
        orders = np.concatenate([batch.natural[None, :], _random_orders(batch, 8)])
        values, _ = slice_orders(batch, orders)
        return float((values.max(axis=1) > values.min(axis=1) * (1.0 + 1e-6)).mean())

    assert share(4) > share(1) + 0.15


def _random_orders(batch: object, count: int) -> np.ndarray:
    from rlinit.agent.stages.log_prob import draw_orders
    from rlinit.stages.batch import StageBatch

    assert isinstance(batch, StageBatch)
    return draw_orders(torch.zeros(batch.num_nodes), batch, count, 11)


def test_the_rival_begins_at_the_natural_order_and_gets_better() -> None:
    """With no time the rival is the reference; with some it is no worse anywhere, and never below the optimum."""
    batch = TASK.validation(small=True)["memory-60"]
    assert TASK.rival(batch, 0.0) == pytest.approx(batch.reference, rel=1e-12)
    some = TASK.rival(batch, 0.5)
    assert (some <= batch.reference * (1 + 1e-12)).all()
    assert some.sum() < batch.reference.sum()
    known = np.isfinite(batch.optimum)
    assert (some[known] >= batch.optimum[known] * (1 - 1e-9)).all()


def test_rewards_are_relative_to_the_natural_order() -> None:
    """An untrained agent's greedy reward is zero, and a drawn one's is 1 - value / reference, from below cut off."""
    batch, network = TASK.generate(5, 20, 12), TASK.network(0)
    outputs = TASK.forward(network, batch, torch.device("cpu"))
    greedy = TASK.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    assert np.allclose(greedy.value[:, 0], batch.reference, rtol=1e-12)
    drawn = TASK.rollout(network, batch, outputs, samples=4, seed=1)
    expected = np.maximum(1.0 - drawn.value / batch.reference[:, None], TASK.params.least_reward)
    assert np.allclose(drawn.reward, expected)


def test_labels_reach_the_optimum() -> None:
    """Slicing a labelled order gives the optimal value, and the natural order is kept where it is optimal."""
    batch = TASK.generate(7, 16, 24)
    orders = TASK.label(batch)["order"].reshape(1, -1).astype(np.int64)
    optimum = optimal_values(batch.problems)
    assert np.allclose(slice_orders(batch.problems, orders)[0][:, 0], optimum, rtol=1e-9)
    kept = np.isclose(batch.reference, optimum, rtol=1e-9)
    natural = batch.problems.natural.reshape(24, 16)
    assert (orders.reshape(24, 16)[kept] == natural[kept]).all()


def test_imitation_makes_labels_more_likely() -> None:
    """A few steps down the imitation loss make it smaller."""
    batch, network = TASK.generate(8, 16, 32), TASK.network(1)
    labels = TASK.label(batch)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = TASK.imitation_loss(network, batch, TASK.forward(network, batch, torch.device("cpu")), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_an_agent_overfits_eight_graphs_to_the_optimum() -> None:
    """On eight graphs whose natural orders are not optimal, greedy schedules become optimal."""
    pool = TASK.generate(21, 16, 400)
    optimum = optimal_values(pool.problems)
    worse = np.flatnonzero(pool.reference > optimum * (1.0 + 1e-3))[:8]
    assert len(worse) == 8
    batch = _only(pool, worse)
    network = TASK.network(3)
    for _ in range(6):
        train(network, [batch], 60, 3e-3, 32)
        if greedy_gap(network, batch, optimum[worse]).max() < 1e-9:
            break
    assert greedy_gap(network, batch, optimum[worse]).max() < 1e-9


def _only(batch: StageProblems, kept: np.ndarray) -> StageProblems:
    from rlinit.agent.stages.features import featurise
    from rlinit.stages.batch import StageBatch

    problems = StageBatch.join([StageBatch.of_problem(batch.problems.problem(g)) for g in kept.tolist()])
    features, reference = featurise(problems)
    unknown = np.full(len(kept), np.nan)
    return StageProblems(problems, features, reference, unknown, unknown)


def test_a_trained_agent_beats_an_untrained_one_by_more_than_chance() -> None:
    """After some seconds of training, unseen problems come out better, by three standard errors of the difference."""
    network = TASK.network(4)
    train(network, [TASK.generate(100 + i, 24, 64) for i in range(40)], 160, 2e-3, 12)
    unseen = TASK.generate(5000, 24, 600)
    gain = -greedy_gap(network, unseen, unseen.reference)
    assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))


def test_plans_of_trajectories_have_the_values_claimed() -> None:
    """The checker's own arithmetic gives the value that the kernel gave, for both objectives."""
    batch, network = TASK.generate(9, 14, 16), TASK.network(2)
    played = TASK.rollout(network, batch, TASK.forward(network, batch, torch.device("cpu")), samples=2, seed=3)
    for g in range(16):
        plan = TASK.plan(batch, played, g, 1)
        assert isinstance(plan, Plan)
        held = max(use.param_bytes for use in plan.stages)
        found = held if plan.objective == "memory" else max(use.time_s for use in plan.stages)
        assert found == pytest.approx(played.value[g, 1], rel=1e-6)


def test_an_exported_agent_decides_as_the_trained_network(tmp_path: Path) -> None:
    """The product's agent, without torch, takes the orders that the network took greedily."""
    batch, network = TASK.generate(10, 18, 8), TASK.network(6)
    train(network, [batch], 5, 3e-3, 8)
    TASK.export(network, tmp_path / "a.safetensors", {"training": {"seed": 1}, "quality": {}})
    agent = load_stage_agent(tmp_path / "a.safetensors")
    outputs = TASK.forward(network, batch, torch.device("cpu"))
    orders = TASK.rollout(network, batch, outputs, samples=1, seed=0, greedy=True).orders[0].reshape(8, 18)
    for g in range(8):
        assert (agent.propose(batch.problems.problem(g), Decoding(), 0).orders[0] == orders[g]).all()


def test_parameters_out_of_range_are_refused() -> None:
    """Bad parameters are errors that name the field."""
    with pytest.raises(InvalidConfig, match="least_stages is 3, most_stages 2"):
        ProblemParams(least_stages=3, most_stages=2)
    for name, value in (("least_transfer", 0.0), ("memory_share", 2.0), ("least_power", 0.0), ("draws", 0)):
        with pytest.raises(InvalidConfig, match=name.removeprefix("least_")):
            ProblemParams(**{name: value})  # type: ignore[arg-type]
    for name, value in (("hidden", 0), ("least_reward", 0.1)):
        with pytest.raises(InvalidConfig, match=name):
            StageParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("network", ["oneshot", "pointer"])
def test_graphs_of_unequal_sizes_are_labelled_and_imitated(network: str) -> None:
    """Labels of a batch of unequal graphs end in -1 and are, for each graph, the labels it has alone."""
    parts = [TASK.generate(seed, size, 2) for seed, size in ((1, 9), (2, 23), (3, 1))]
    problems = StageBatch.join([StageBatch.of_problem(part.problems.problem(g)) for part in parts for g in range(2)])
    features, reference = featurise(problems)
    unknown = np.full(6, np.nan)
    batch = StageProblems(problems, features, reference, unknown, unknown)
    labels = TASK.label(batch)
    assert labels["order"].shape == (6, 23)
    for g, n in enumerate(np.diff(problems.node_ptr)):
        order = labels["order"][g]
        assert (order[n:] == -1).all()
        assert sorted(order[:n].tolist()) == list(range(n))
    together = unpadded(labels["order"], problems.node_ptr)[None, :]
    assert (slice_orders(problems, together)[0][:, 0] <= reference * (1 + 1e-9)).all()
    task: AnyTask = TASK if network == "oneshot" else PointerTask(PointerParams(units=8, real_models=False))
    outputs = task.forward(task.network(0), batch, torch.device("cpu"))
    loss = task.imitation_loss(task.network(0), batch, outputs, labels)
    assert np.isfinite(float(loss.detach()))
