"""The latency task of training."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.placements.timeline import makespan, placement_of
from tests.late import late_imports
from tests.placement_cases import random_placement_problem

with late_imports():
    import torch

    from rlinit.train.core.reinforce import choice_weights, shared_advantage
    from rlinit.train.tasks.placements import PlacementBatch, PlacementTask, PlacementTaskParams, credits_of


@pytest.fixture
def task() -> PlacementTask:
    """Return a small task of layered graphs, which are made quickly."""
    return PlacementTask(PlacementTaskParams(hidden=16, layers=2, other_devices=0.0, layered=1.0))


def test_seeds_decide_the_problems(task: PlacementTask) -> None:
    """The same seed gives the same problems, another seed others; references are HEFT's makespans."""
    batch = task.generate(4, 20, 5)
    same, other = task.generate(4, 20, 5), task.generate(5, 20, 5)
    for one, two in zip(batch.arrays, same.arrays, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(batch.features.node, other.features.node)
    for problem, reference in zip(batch.problems, batch.reference, strict=True):
        heft = PLACEMENT_HEURISTICS["heft"](problem, seed=0)
        assert heft is not None
        assert makespan(problem, heft) == pytest.approx(reference, rel=1e-12)


def test_parts_of_networks_are_whole_problems() -> None:
    """Networks on the usual and on other devices: edges stay inside, every op has a finite time somewhere."""
    batch = PlacementTask(PlacementTaskParams(other_devices=0.5, layered=0.0)).generate(1, 70, 4)
    for problem in batch.problems:
        assert problem.num_ops > 30
        assert (problem.edges < problem.num_ops).all()
        assert np.isfinite(problem.op_time_s).all()
    assert np.isfinite(batch.reference).all()


def test_problems_have_every_rule_many_devices_and_memory_that_binds() -> None:
    """All three rules, up to dozens of devices, and limits of memory under which HEFT still finds a schedule."""
    batch = PlacementTask(PlacementTaskParams(other_devices=0.3, layered=0.5, shared_links=0.7)).generate(2, 90, 40)
    assert {problem.transfers for problem in batch.problems} == {"parallel", "exclusive", "blocking"}
    assert max(problem.num_devices for problem in batch.problems) > 16
    assert any(np.isfinite(problem.capacity_bytes).all() for problem in batch.problems)
    assert np.isfinite(batch.reference).all()


def test_what_is_played_is_valued_under_the_rule_of_transfers() -> None:
    """Values of schedules are their makespans under the rule of their problem."""
    task = PlacementTask(PlacementTaskParams(hidden=8, layers=1, layered=1.0, other_devices=0.0, shared_links=1.0))
    batch, network = task.generate(3, 15, 4), task.network(0)
    played = task.rollout(network, batch, task.forward(network, batch, torch.device("cpu")), samples=3, seed=0)
    for g, problem in enumerate(batch.problems):
        mine = slice(int(batch.arrays.ptr[g]), int(batch.arrays.ptr[g + 1]))
        for s in range(3):
            device = played.trace.device[s, mine][:, None]
            start = np.repeat(played.trace.start[s, mine][:, None], problem.num_devices, axis=1)
            assert makespan(problem, placement_of(problem, device, start)) == pytest.approx(played.value[g, s])


def test_an_untrained_network_is_heft(task: PlacementTask) -> None:
    """Greedy rewards of a fresh network are exactly zero."""
    batch, network = task.generate(1, 25, 8), task.network(0)
    with torch.no_grad():
        outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    np.testing.assert_array_equal(played.reward, 0.0)


def test_credits_of_an_endless_horizon_are_advantages() -> None:
    """Looked at to the end, the first choices' credit is how much better the sample ended than the others."""
    task = PlacementTask(PlacementTaskParams(hidden=8, layers=1, layered=1.0, other_devices=0.0, horizon=10**6))
    batch, network = task.generate(3, 15, 3), task.network(0)
    outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=6, seed=0)
    advantage = shared_advantage(-played.value / batch.arrays.scale[:, None])
    for at in range(18):
        g, s = divmod(at, 6)
        first = np.flatnonzero(played.trace.chosen[s] == 0)
        first = first[(first >= batch.arrays.ptr[g]) & (first < batch.arrays.ptr[g + 1])]
        credit = credits_of(batch, played.trace, 10**6)[s, first[0]]
        assert credit == pytest.approx(advantage[g, s], abs=1e-9)


def test_stuck_samples_are_punished_and_leave_the_gradient_finite() -> None:
    """Where memory leaves an op without a device the reward is that of failure, and nothing is NaN."""
    task = PlacementTask(PlacementTaskParams(hidden=8, layers=1))
    problems = [random_placement_problem(seed, 10, 2, memory_fraction=0.55, zero_fraction=0.0) for seed in range(20)]
    batch = PlacementBatch.of([p for p in problems if np.isfinite(PlacementBatch.of([p]).reference[0])])
    network = task.network(0)
    outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=8, seed=0)
    assert np.isinf(played.value).any()
    assert (played.reward[np.isinf(played.value)] == -1.0).all()
    choices = task.choices(network, batch, outputs, played)
    assert choices.credit is not None
    (choices.credit * choices.log_prob).sum().backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(weight.grad).all() for weight in network.parameters() if weight.grad is not None)


@pytest.mark.parametrize("horizon", [0, 20])
def test_training_on_a_few_problems_finds_better_placements(horizon: int) -> None:
    """With any credit, REINFORCE on eight problems makes greedy placements better than HEFT's, clearly."""
    params = PlacementTaskParams(hidden=16, layers=2, layered=1.0, other_devices=0.0, horizon=horizon)
    task = PlacementTask(params)
    batch, network = task.generate(1, 20, 8), task.network(0)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for step in range(120):
        outputs = task.forward(network, batch, torch.device("cpu"))
        played = task.rollout(network, batch, outputs, samples=12, seed=step)
        choices = task.choices(network, batch, outputs, played)
        weight = choices.credit
        if weight is None:
            weight = choice_weights(choices, shared_advantage(played.reward))
        loss = -(weight * choices.log_prob).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        outputs = task.forward(network, batch, torch.device("cpu"))
    greedy = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    assert greedy.reward.mean() > 0.025


def test_validation_looks_at_real_models_but_never_chooses_by_them() -> None:
    """Real models are among the validation sets, small and large, with HEFT's makespans, and not in the selection."""
    sets = PlacementTask(PlacementTaskParams()).validation(small=True)
    assert "imagenet" in sets
    assert "imagenet" not in PlacementTask.selection
    assert set(PlacementTask.selection) <= set(sets)
    assert np.isfinite(sets["imagenet"].reference).all()
    assert (np.diff(sets["imagenet"].arrays.ptr) > 100).all()
