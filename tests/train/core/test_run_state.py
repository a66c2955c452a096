"""The full state of a run: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from safetensors import safe_open

from rlinit.errors import CheckpointError, TrainingFailure
from rlinit.train.core.config import OptimiserConfig, ReinforceConfig
from tests.late import late_imports
from tests.train.tiny_task import TinyParams, TinyTask

with late_imports():
    import torch
    from safetensors.torch import load_file, save_file

    from rlinit.train.core.learner import Learner
    from rlinit.train.core.reinforce import Reinforce
    from rlinit.train.core.run_state import Progress, load_state, load_weights, save_state
    from tests.train.runs import state_of


TASK = TinyTask(TinyParams())


def trained() -> Learner:
    """Return a learner after two steps, so that the optimiser has moments."""
    learner = Learner(TASK.network(0), OptimiserConfig(), "float32", "cpu")
    for step in range(2):
        Reinforce(TASK, learner, ReinforceConfig(), 4).learn(TASK.generate(step, 5, 8), step, step)
    return learner


def test_everything_comes_back(tmp_path: Path) -> None:
    """Weights, moments and progress come back bit by bit."""
    learner = trained()
    progress = Progress(7, 1.5, 70, 0.25, 5, False, [{"step": 5, "measures": {"a": {"gap": 0.5}}}])
    save_state(tmp_path, learner, progress)
    other = Learner(TASK.network(9), OptimiserConfig(), "float32", "cpu")
    assert load_state(tmp_path, other) == progress
    assert all(torch.equal(a, b) for a, b in zip(learner.network.parameters(), other.network.parameters(), strict=True))
    moments = [entry["exp_avg"] for entry in learner.optimiser.state.values()]
    assert all(torch.equal(a, b["exp_avg"]) for a, b in zip(moments, other.optimiser.state.values(), strict=True))
    fresh = TASK.network(11)
    load_weights(tmp_path, fresh)
    assert all(torch.equal(a, b) for a, b in zip(learner.evaluated.parameters(), fresh.parameters(), strict=True))


def test_progress_before_any_validation_comes_back(tmp_path: Path) -> None:
    """A best score of minus infinity survives the file."""
    learner = trained()
    save_state(tmp_path, learner, Progress())
    assert load_state(tmp_path, learner) == Progress()


def test_a_full_disk_leaves_the_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing fails, the error says so, the state saved before is untouched, and nothing else is left."""
    learner = trained()
    save_state(tmp_path, learner, Progress(3))
    before = state_of(tmp_path).read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingFailure, match=r"state of step 4 .*No space left.*make room and resume"):
        save_state(tmp_path, learner, Progress(4))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [state_of(tmp_path)]
    assert state_of(tmp_path).read_bytes() == before
    assert load_state(tmp_path, learner).step == 3


def rewritten(path: Path, **changes: object) -> None:
    """Change entries of a state's header."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["training"])
    save_file(load_file(path), path, {"training": json.dumps({**about, **changes})})


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Missing, truncated, of another format or architecture, or with NaN: an error that says so."""
    learner = trained()
    path = state_of(tmp_path)
    with pytest.raises(CheckpointError, match="nothing to resume from"):
        load_state(tmp_path, learner)
    save_state(tmp_path, learner, Progress())
    wide = Learner(TinyTask(TinyParams(hidden=9)).network(0), OptimiserConfig(), "float32", "cpu")
    with pytest.raises(CheckpointError, match="does not fit this network"):
        load_state(tmp_path, wide)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(tmp_path, learner)
    path.write_bytes(whole)
    rewritten(path, format=99)
    with pytest.raises(CheckpointError, match="format 99"):
        load_state(tmp_path, learner)
    with torch.no_grad():
        next(learner.network.parameters()).fill_(float("nan"))
    save_state(tmp_path, learner, Progress())
    with pytest.raises(CheckpointError, match="not finite"):
        load_state(tmp_path, learner)
