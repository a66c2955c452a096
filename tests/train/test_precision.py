"""Every network learns under autocast, as it would on a GPU: weights stay in single precision, choices exact."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rlinit.train.core.config import OptimiserConfig, ReinforceConfig
from rlinit.train.tasks.protocol import TASKS, AnyTask, task_class
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.train.core.learner import Learner
    from rlinit.train.core.reinforce import Reinforce


SMALL: dict[tuple[str, str], dict[str, Any]] = {
    ("stages", "oneshot"): {"hidden": 8, "layers": 1, "real_models": False},
    ("stages", "pointer"): {"units": 8, "real_models": False, "reward": "value"},
    ("latency", "oneshot"): {"hidden": 8, "layers": 1, "layered": 1.0, "other_devices": 0.0},
}


def small_task(key: tuple[str, str]) -> AnyTask:
    """Return a task with a small network."""
    found = task_class(*key)
    return found(found.params_class(**SMALL[key]))


def test_every_task_is_here() -> None:
    """No combination of task and network is left out below."""
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("key", list(SMALL), ids="-".join)
def test_learns_in_bfloat16(key: tuple[str, str]) -> None:
    """A step of REINFORCE under bfloat16 moves the weights, which stay finite and in float32."""
    task = small_task(key)
    learner = Learner(task.network(0), OptimiserConfig(learning_rate=1e-2, warmup=0.0), "bfloat16", "cpu")
    learner.set_rate(0.5)
    before = copy.deepcopy(learner.network.state_dict())
    batch = task.generate(3, 12, 4)
    Reinforce(task, learner, ReinforceConfig(), 4).learn(batch, 0, 3)
    after = learner.network.state_dict()
    assert all(weight.dtype == torch.float32 for weight in after.values())
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert any(not torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize("key", list(SMALL), ids="-".join)
def test_half_precision_plays_and_replays(key: tuple[str, str]) -> None:
    """Outputs of half-precision passes are played as in single precision: finite values, choices in float32."""
    task = small_task(key)
    network, batch = task.network(1), task.generate(5, 12, 3)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = task.forward(network, batch, torch.device("cpu"))
    played = task.rollout(network, batch, outputs, samples=3, seed=0)
    choices = task.choices(network, batch, outputs, played)
    assert np.isfinite(played.reward).all()
    assert choices.log_prob.dtype == torch.float32
    assert bool((choices.log_prob <= 1e-5).all())
