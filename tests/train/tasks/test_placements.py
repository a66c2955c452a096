"""The latency task of training."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.placements.timeline import makespan
from rlinit.train.core.labels import fingerprint
from rlinit.train.tasks.placements import PlacementBatch, PlacementTask, PlacementTaskParams, credits_of
from tests.late import late_imports
from tests.placement_cases import random_placement_problem

with late_imports():
    import torch

    from rlinit.train.algorithms.reinforce import shared_advantage, standardised


@pytest.fixture
def task() -> PlacementTask:
    """Return a small task of layered graphs, which are made quickly."""
    return PlacementTask(PlacementTaskParams(hidden=16, layers=2, other_devices=0.0, layered=1.0, label_evaluations=50))


def test_seeds_decide_the_problems(task: PlacementTask) -> None:
    """The same seed gives the same problems, another seed others; references are HEFT's makespans."""
    batch = task.generate(4, 20, 5)
    assert fingerprint(batch) == fingerprint(task.generate(4, 20, 5)) != fingerprint(task.generate(5, 20, 5))
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


def test_an_untrained_network_is_heft(task: PlacementTask) -> None:
    """Greedy rewards of a fresh network are exactly zero."""
    batch, network = task.generate(1, 25, 8), task.network(0)
    with torch.no_grad():
        outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    np.testing.assert_array_equal(played.reward, 0.0)


def test_the_rival_gets_better_with_time(task: PlacementTask) -> None:
    """With no time the rival is earliest finish; with some it is no worse anywhere, better somewhere, and never wins
    over an optimum.
    """
    batch = task.generate(1, 30, 6)
    none, some = task.rival(batch, 0.0), task.rival(batch, 0.3)
    assert (some <= none * (1 + 1e-12)).all()
    assert (some < none * (1 - 1e-9)).any()
    proven = task.validation(small=True)["layered-8"]
    assert (task.rival(proven, 0.1) >= proven.optimum * (1 - 1e-9)).all()


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
        advantage = torch.from_numpy(standardised(shared_advantage(played.reward)).ravel())
        weight = choices.credit if choices.credit is not None else advantage[choices.trajectory]
        loss = -(weight * choices.log_prob).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        outputs = task.forward(network, batch, torch.device("cpu"))
    greedy = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
    assert greedy.reward.mean() > 0.025


def test_labels_are_schedules_and_can_be_imitated(task: PlacementTask) -> None:
    """Labels are at most HEFT's makespan, and a step down the imitation loss lowers it."""
    batch, network = task.generate(2, 20, 4), task.network(0)
    labels = task.label(batch)
    assert (labels["value"] <= batch.reference * (1 + 1e-9)).all()
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        loss = task.imitation_loss(network, batch, task.forward(network, batch, torch.device("cpu")), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_plans_show_what_was_played(task: PlacementTask) -> None:
    """A plan has the makespan of its rollout."""
    batch, network = task.generate(6, 12, 2), task.network(0)
    with torch.no_grad():
        outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=2, seed=0)
    plan = task.plan(batch, played, 1, 1)
    assert plan.value == pytest.approx(played.value[1, 1])
    assert len(plan.batches) == 12


def test_validation_looks_at_real_models_but_never_chooses_by_them() -> None:
    """Real models are among the validation sets, small and large, with HEFT's makespans, and not in the selection."""
    sets = PlacementTask(PlacementTaskParams()).validation(small=True)
    assert "imagenet" in sets
    assert "imagenet" not in PlacementTask.selection
    assert set(PlacementTask.selection) <= set(sets)
    assert np.isfinite(sets["imagenet"].reference).all()
    assert (np.diff(sets["imagenet"].arrays.ptr) > 100).all()
