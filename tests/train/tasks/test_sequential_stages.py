"""The pointer network's task: rewards, labels, learning, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit.agent.selection import load_stage_agent
from rlinit.datasets.random.stage_problems import ProblemParams
from rlinit.errors import InvalidConfig
from rlinit.stages.problem import memory_value
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.agent.stages.features import slice_orders
    from rlinit.train.tasks.sequential_stages import PointerParams, PointerTask
    from rlinit.train.tasks.stages import optimal_values


DRAW = ProblemParams(memory_share=1.0)


def tasks() -> dict[str, Any]:
    return {
        "cosine": PointerTask(PointerParams(DRAW, units=16, real_models=False)),
        "value": PointerTask(PointerParams(DRAW, reward="value", units=16, real_models=False)),
    }


@pytest.mark.parametrize("name", ["cosine", "value"])
def test_values_are_the_one_shot_tasks_and_choices_exact(name: str) -> None:
    """Rewards are finite, the same seed gives the same orders, and replaying gives probabilities."""
    task = tasks()[name]
    batch = task.generate(5, 12, 6)
    network = task.network(1)
    outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=4, seed=2)
    assert played.value.shape == played.reward.shape == (6, 4)
    assert np.isfinite(played.reward).all()
    again = task.rollout(network, batch, outputs, samples=4, seed=2)
    assert np.array_equal(played.orders, again.orders)
    choices = task.choices(network, batch, outputs, played)
    assert len(choices.log_prob) == 4 * 6 * 12
    assert bool((choices.log_prob <= 1e-6).all())
    assert torch.bincount(choices.trajectory).tolist() == [12] * 24


def test_cosine_reward_holds_against_exact_stages() -> None:
    """Labels are the stages of optimal schedules; where the natural order is one, slicing it is worth 1, the most."""
    task = tasks()["cosine"]
    batch = task.generate(9, 30, 24)
    problems, best = batch.problems, optimal_values(batch.problems)
    for g in range(24):
        stage = batch.label[problems.node_ptr[g] : problems.node_ptr[g + 1]] - 1
        assert memory_value(problems.problem(g), stage)[0] == pytest.approx(best[g])
    order = problems.natural[None, :]
    value, ends = slice_orders(problems, order)
    natural = task.rewards(batch, order, ends, value)[:, 0]
    optimal = batch.reference <= best * (1 + 1e-9)
    assert optimal.any()
    assert natural[optimal] == pytest.approx(1.0)
    assert (natural[~optimal] < 1.0).all()
    network = task.network(0)
    played = task.rollout(network, batch, task.forward(network, batch, torch.device("cpu")), samples=8, seed=0)
    assert (played.reward <= 1.0 + 1e-12).all()
    assert (played.reward > 0.0).all()


def test_export_is_an_agent(tmp_path: Path) -> None:
    """What a task exports loads as an agent that decodes as the network does."""
    for name, task in tasks().items():
        network = task.network(4)
        path = tmp_path / f"{name}.safetensors"
        task.export(network, path, {"training": {"seed": 4}, "quality": {}})
        batch = task.generate(7, 30, 3)
        outputs = task.forward(network, batch, torch.device("cpu"))
        played = task.rollout(network, batch, outputs, samples=1, seed=0, greedy=True)
        agent = load_stage_agent(path)
        found = [agent.propose(batch.problems.problem(g), 1, 0) for g in range(3)]
        assert np.array_equal(np.concatenate([one.orders[0] for one in found]), played.orders[0])


def test_parameters_are_checked() -> None:
    """Widths below 1 are errors that name the field."""
    with pytest.raises(InvalidConfig, match="units"):
        PointerParams(units=0)
