"""The stage task: problems from seeds, rewards, labels, and agents that learn."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from rlinit.agent.selection import load_stage_agent
from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.errors import InvalidConfig
from rlinit.kernels.batches import disjoint_union
from rlinit.stages.batch import StageBatch
from rlinit.stages.slicing import slice_order
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.train.tasks.stages import StageParams, StageProblems, StageTask, optimal_values


@functools.cache
def task() -> StageTask:
    """Return the task of a small network."""
    return StageTask(StageParams(hidden=32, layers=2, real_models=False))


def greedy_gap(network: torch.nn.Module, batch: StageProblems, optimum: np.ndarray) -> np.ndarray:
    """Return the gaps of greedy schedules."""
    with torch.no_grad():
        outputs = task().forward(network, batch, torch.device("cpu"))
    played = task().rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    return np.asarray(played.value[:, 0] / optimum - 1.0)


def train(network: torch.nn.Module, batches: list[StageProblems], steps: int, rate: float, samples: int) -> None:
    """Take steps of REINFORCE with a shared baseline."""
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    for step in range(steps):
        batch = batches[step % len(batches)]
        outputs = task().forward(network, batch, torch.device("cpu"))
        played = task().rollout(network, batch, outputs, samples=samples, seed=step)
        advantage = played.reward - played.reward.mean(axis=1, keepdims=True)
        advantage /= advantage.std(axis=1, keepdims=True) + 1e-3
        choices = task().choices(network, batch, outputs, played)
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

    assert isinstance(batch, StageBatch)
    return draw_orders(torch.zeros(batch.num_nodes), batch, count, 11)


def test_rewards_are_relative_to_the_natural_order() -> None:
    """An untrained agent's greedy reward is zero, and a drawn one's is 1 - value / reference, from below cut off."""
    batch, network = task().generate(5, 20, 12), task().network(0)
    outputs = task().forward(network, batch, torch.device("cpu"))
    greedy = task().rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    assert np.allclose(greedy.value[:, 0], batch.reference, rtol=1e-12)
    drawn = task().rollout(network, batch, outputs, samples=4, seed=1)
    expected = np.maximum(1.0 - drawn.value / batch.reference[:, None], task().params.least_reward)
    assert np.allclose(drawn.reward, expected)


def test_an_agent_overfits_eight_graphs_to_the_optimum() -> None:
    """On eight graphs whose natural orders are not optimal, greedy schedules become optimal."""
    pool = task().generate(21, 16, 400)
    optimum = optimal_values(pool.problems)
    worse = np.flatnonzero(pool.reference > optimum * (1.0 + 1e-3))[:8]
    assert len(worse) == 8
    batch = _only(pool, worse)
    network = task().network(3)
    for _ in range(6):
        train(network, [batch], 60, 3e-3, 32)
        if greedy_gap(network, batch, optimum[worse]).max() < 1e-9:
            break
    assert greedy_gap(network, batch, optimum[worse]).max() < 1e-9


def _only(batch: StageProblems, kept: np.ndarray) -> StageProblems:
    from rlinit.stages.batch import StageBatch

    problems = disjoint_union([StageBatch.of_problem(batch.problems.problem(g)) for g in kept.tolist()])
    features, reference = featurise(problems)
    unknown = np.full(len(kept), np.nan)
    return StageProblems(problems, features, reference, unknown, unknown)


def test_a_trained_agent_beats_an_untrained_one_by_more_than_chance() -> None:
    """After some seconds of training, unseen problems come out better, by three standard errors of the difference."""
    network = task().network(4)
    train(network, [task().generate(100 + i, 24, 64) for i in range(40)], 160, 2e-3, 12)
    unseen = task().generate(5000, 24, 600)
    gain = -greedy_gap(network, unseen, unseen.reference)
    assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))


def test_an_exported_agent_decides_as_the_trained_network(tmp_path: Path) -> None:
    """The product's agent, without torch, takes the orders that the network took greedily."""
    batch, network = task().generate(10, 18, 8), task().network(6)
    train(network, [batch], 5, 3e-3, 8)
    task().export(network, tmp_path / "a.safetensors", {"training": {"seed": 1}, "quality": {}})
    agent = load_stage_agent(tmp_path / "a.safetensors")
    outputs = task().forward(network, batch, torch.device("cpu"))
    orders = task().rollout(network, batch, outputs, samples=1, seed=0, greedy=True).orders[0].reshape(8, 18)
    for g in range(8):
        assert (agent.propose(batch.problems.problem(g), 1, 0).orders[0] == orders[g]).all()


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
