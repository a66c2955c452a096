"""The autoregressive agent's latency task: exact choices, values, labels, pictures, and a run of the whole program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rlinit
from rlinit.agent.sequential import decoding
from rlinit.agent.sequential.stepwise_placement import StepwisePlacementAgent
from rlinit.agent.stages.decoding import Decoding
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.errors import InvalidConfig
from rlinit.placements.timeline import makespan
from rlinit.train.run import main
from rlinit.train.tasks.autoregressive import AutoregressivePlacementParams, AutoregressivePlacementTask, _start
from rlinit.train.tasks.placements import PlacementBatch
from tests.placement_cases import random_placement_problem

CPU = torch.device("cpu")


@pytest.fixture
def task() -> AutoregressivePlacementTask:
    """Return a small task of layered graphs, which are made quickly."""
    params = AutoregressivePlacementParams(hidden=12, layers=1, other_devices=0.0, layered=1.0, label_evaluations=50)
    return AutoregressivePlacementTask(params)


def test_choices_are_those_of_stepping(task: AutoregressivePlacementTask) -> None:
    """What the vectorised replay says of drawn schedules is what drawing them step by step said."""
    batch, network = task.generate(3, 14, 4), task.network(2)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
        outputs = task.forward(network, batch, CPU)
        stepped = decoding.sample(_start(network, batch, outputs, 3), torch.Generator().manual_seed(5))
    played = task.rollout(network, batch, outputs, samples=3, seed=5)
    choices = task.choices(network, batch, outputs, played)
    assert len(choices.log_prob) == 2 * 3 * batch.num_nodes
    assert torch.allclose(choices.per_trajectory(12), stepped, atol=1e-4)
    assert choices.credit is not None
    assert len(choices.credit) == len(choices.log_prob)


def test_values_are_makespans_and_plans_have_them(task: AutoregressivePlacementTask) -> None:
    """Values and starts are those of the schedules drawn; a plan of one has its value; the same seed repeats them."""
    batch, network = task.generate(4, 14, 3), task.network(0)
    outputs = task.forward(network, batch, CPU)
    played = task.rollout(network, batch, outputs, samples=4, seed=1)
    assert np.array_equal(played.value, task.rollout(network, batch, outputs, samples=4, seed=1).value)
    for problem in range(3):
        for sample in range(4):
            assert task.plan(batch, played, problem, sample).value == played.value[problem, sample]
    ends = played.trace.start + np.stack(
        [
            np.concatenate(
                [p.op_time_s[np.arange(p.num_ops), one] for p, one in zip(batch.problems, each, strict=True)]
            )
            for each in (np.split(row, batch.arrays.ptr[1:-1]) for row in played.trace.device)
        ]
    )
    for g, (first, stop) in enumerate(zip(batch.arrays.ptr, batch.arrays.ptr[1:], strict=False)):
        assert ends[:, first:stop].max(axis=1) == pytest.approx(played.value[g], rel=1e-12)


def test_stuck_schedules_are_punished_and_have_no_choices() -> None:
    """Where memory leaves an op without a device the reward is that of failure, and gradients stay finite."""
    task = AutoregressivePlacementTask(AutoregressivePlacementParams(hidden=8, layers=1))
    problems = [random_placement_problem(seed, 10, 2, memory_fraction=0.55, zero_fraction=0.0) for seed in range(12)]
    batch = PlacementBatch.of([p for p in problems if np.isfinite(PlacementBatch.of([p]).reference[0])])
    network = task.network(0)
    outputs = task.forward(network, batch, CPU)
    played = task.rollout(network, batch, outputs, samples=6, seed=0)
    stuck = np.isinf(played.value)
    assert stuck.any()
    assert (played.reward[stuck] == -1.0).all()
    choices = task.choices(network, batch, outputs, played)
    assert not set(np.flatnonzero(stuck.ravel())) & set(choices.trajectory.tolist())
    assert choices.credit is not None
    (choices.credit * choices.log_prob).sum().backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(weight.grad).all() for weight in network.parameters() if weight.grad is not None)
    g, s = np.argwhere(stuck)[0].tolist()
    with pytest.raises(ValueError, match="fits nowhere"):
        task.plan(batch, played, g, s)


def test_imitation_learns_the_labels_and_leaves_out_what_has_none(task: AutoregressivePlacementTask) -> None:
    """A few dozen steps make the labelled schedules much more probable; an unlabelled problem adds nothing."""
    batch, network = task.generate(2, 12, 4), task.network(0)
    labels = dict(task.label(batch))
    optimiser, losses = torch.optim.Adam(network.parameters(), 1e-2), []
    for _ in range(40):
        loss = task.imitation_loss(network, batch, task.forward(network, batch, CPU), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    for name in ("device", "place"):
        labels[name] = np.full_like(labels[name], -1)
    assert float(task.imitation_loss(network, batch, task.forward(network, batch, CPU), labels).detach()) == 0.0


def test_smoke_run_makes_an_agent_that_schedules(tmp_path: Path) -> None:
    """The program trains it, and its checkpoint decodes as the network does and schedules by path, alone or first."""
    run = tmp_path / "run"
    given = ["--task", "latency", "--network", "autoregressive", "--smoke", "--run-dir", str(run), "--steps", "2"]
    given += ["--problem.hidden", "8", "--problem.layers", "1", "--samples", "2", "--workers", "0"]
    given += ["--problem.layered", "1", "--problem.other-devices", "0", "--validation.samples", "0"]
    given += ["--curriculum.sizes", "16", "--validation.every", "2"]
    assert main(given) == 0
    path = run / "best.safetensors"
    graph, hardware = rwnn("ws", seed=3, num_modules=1, nodes_per_module=12), rlinit.Hardware.preset("cpu-t4-a100")
    plan, again = (
        rlinit.schedule(graph, hardware, objective="latency", agent=str(path), method="agent") for _ in range(2)
    )
    assert plan.assignment == again.assignment
    assert plan.method == "agent"
    assert str(path) in str(plan.provenance["start"])
    swept = rlinit.schedule(graph, hardware, objective="latency", agent=str(path), method="sweep")
    assert swept.value <= plan.value


def test_export_is_an_agent(task: AutoregressivePlacementTask, tmp_path: Path) -> None:
    """What the task exports loads as an agent whose greedy placement is the network's."""
    network = task.network(4)
    task.export(network, tmp_path / "a.safetensors", {"training": {"seed": 4}, "quality": {}})
    agent = StepwisePlacementAgent.load(tmp_path / "a.safetensors")
    batch = task.generate(7, 15, 3)
    played = task.rollout(network, batch, task.forward(network, batch, CPU), samples=1, seed=0, greedy=True)
    for g, problem in enumerate(batch.problems):
        found = agent.propose(problem, Decoding(), 0)[0][0]
        assert found is not None
        assert makespan(problem, found) == played.value[g, 0]


def test_parameters_are_checked() -> None:
    """Widths below 1, and shares that are none, are errors that name the field."""
    with pytest.raises(InvalidConfig, match="layers"):
        AutoregressivePlacementParams(layers=0)
    with pytest.raises(ValueError, match="shares"):
        AutoregressivePlacementParams(layered=2.0)
