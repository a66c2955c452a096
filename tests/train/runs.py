"""Short trainings of the tiny task, for the tests, and one as a program that can be killed."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlinit.train.core.config import OptimiserConfig, TrainConfig, ValidationConfig
from rlinit.train.core.curriculum import CurriculumConfig
from rlinit.train.core.run_state import STATE_FILE
from tests.train.tiny_task import TinyParams, TinyTask


def tiny_config(run_dir: Path, **changes: Any) -> TrainConfig[TinyParams]:
    """Return a configuration of a training that takes about a second."""
    config = TrainConfig(
        TinyParams(),
        run_dir=run_dir,
        steps=20,
        workers=0,
        log_every=5,
        save_every=5,
        curriculum=CurriculumConfig((6, 9), batch_nodes=200),
        optimiser=OptimiserConfig(learning_rate=3e-2),
        validation=ValidationConfig(every=10, samples=4, small=True),
    )
    return dataclasses.replace(config, **changes)


def state_of(run_dir: Path) -> Path:
    """Return where a run saves its state."""
    return run_dir / STATE_FILE


def tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a run's saved state."""
    return load_file(state_of(run_dir))


def assert_same_state(one: Path, other: Path) -> None:
    """Assert that two runs ended with the same weights and moments, bit by bit."""
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def long_config(run_dir: Path) -> TrainConfig[TinyParams]:
    """Return a configuration of a training long enough to be killed in the middle."""
    seldom = ValidationConfig(every=200, samples=4, small=True)
    return tiny_config(run_dir, steps=400, workers=1, validation=seldom)


if __name__ == "__main__":
    from rlinit.train.loop import train

    train(long_config(Path(sys.argv[1])), TinyTask(TinyParams()))
