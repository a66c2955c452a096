"""The training loop from end to end: resuming, stopping, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinit.agent.network.checkpoint import load_checkpoint
from rlinit.errors import InvalidConfig, TrainingFailure
from rlinit.train.core.config import ValidationConfig
from rlinit.train.core.curriculum import batch_seed
from tests.late import late_imports
from tests.train.tiny_task import TinyBatch, TinyParams, TinyTask

with late_imports():
    from rlinit.train.core.run_state import Progress
    from rlinit.train.loop import train
    from tests.train.runs import assert_same_state, long_config, state_of, tiny_config


ROOT = Path(__file__).resolve().parent.parent.parent
TASK = TinyTask(TinyParams())


class StoppingTask(TinyTask):
    """Sends this process SIGTERM at some forward pass."""

    def __init__(self, params: TinyParams, call: int) -> None:
        super().__init__(params)
        self.left = call

    def forward(self, network: Any, batch: TinyBatch, device: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(network, batch, device)


def test_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    """Stopped by SIGTERM in the middle and resumed, a run ends with the same bits and the same measures."""
    config = tiny_config(tmp_path / "whole")
    whole = train(config, TASK)
    broken = dataclasses.replace(config, run_dir=tmp_path / "broken")
    stopped = train(broken, StoppingTask(TinyParams(), 13))
    assert not stopped.done
    assert 0 < stopped.step < config.steps
    resumed = train(broken, TASK, resume=True)
    assert (resumed.done, resumed.step, resumed.best, resumed.best_step) == (
        True,
        whole.step,
        whole.best,
        whole.best_step,
    )
    assert_same_state(config.run_dir, broken.run_dir)


def saved_step(folder: Path) -> int:
    """Return the step of the state in a run's folder, -1 if there is none."""
    if not state_of(folder).exists():
        return -1
    with safe_open(state_of(folder), "pt") as file:
        return int(json.loads(file.metadata()["training"])["progress"]["step"])


def test_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """After kill -9, with a worker generating, the state on disk leads to an unbroken run's bits; no worker stays."""
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "tests.train.runs", str(run)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    while saved_step(run) < 10 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    config = long_config(run)
    assert 10 <= saved_step(run) < config.steps
    assert train(config, TASK, resume=True).done
    unbroken = dataclasses.replace(config, run_dir=tmp_path / "unbroken", workers=0)
    train(unbroken, TASK)
    assert_same_state(run, unbroken.run_dir)
    deadline = time.monotonic() + 30
    while is_running(process.pid) and time.monotonic() < deadline:  # A worker that was still starting ends once it has.
        time.sleep(0.05)
    assert not is_running(process.pid)


def is_running(group: int) -> bool:
    """Return whether any process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_nan_stops_training_and_says_where(tmp_path: Path) -> None:
    """A NaN loss ends training with the step and the batch's seed, and the state saved before is whole."""
    seed = batch_seed(0, 1, 7)
    config = tiny_config(tmp_path, problem=TinyParams(poison_seed=seed))
    with pytest.raises(TrainingFailure, match=rf"nan at step 7, on the batch of seed {seed}"):
        train(config, TinyTask(config.problem))
    resumed = train(dataclasses.replace(config, problem=TinyParams()), TASK, resume=True)
    assert resumed.done


def test_time_limit_ends_training(tmp_path: Path) -> None:
    """Training ends when its minutes are over, done, with a report."""
    ended = train(tiny_config(tmp_path, steps=10**6, minutes=0.01), TASK)
    assert ended.done
    assert (tmp_path / "report.md").exists()


def test_folder_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    """Starting where a run is already is an error that names the way on."""
    train(tiny_config(tmp_path, steps=2), TASK)
    with pytest.raises(InvalidConfig, match="holds a run already; pass --resume"):
        train(tiny_config(tmp_path, steps=2), TASK)


def test_weights_of_another_run_start_a_new_one(tmp_path: Path) -> None:
    """With `init` the first validation is the other run's last, or that of its best checkpoint."""
    first = train(tiny_config(tmp_path / "first"), TASK)
    config = tiny_config(tmp_path / "second", steps=1, init=tmp_path / "first")
    second = train(config, TASK)
    assert second.history[0]["measures"]["jobs-8"]["reward"] == first.history[-1]["measures"]["jobs-8"]["reward"]
    config = tiny_config(tmp_path / "third", steps=1, init=tmp_path / "first" / "best.safetensors")
    assert train(config, TASK).history[0]["measures"]["jobs-8"]["reward"] == first.best


def test_cuda_that_is_absent_is_an_error(tmp_path: Path) -> None:
    """Asking for a GPU where there is none never trains on the CPU."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(TrainingFailure, match="cuda, but torch finds no usable GPU"):
        train(tiny_config(tmp_path, device="cuda"), TASK)
    assert not state_of(tmp_path).exists()


def test_a_run_can_be_watched_and_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Curves, best checkpoint with card, and report are all there."""
    config = tiny_config(tmp_path, validation=ValidationConfig(every=10, samples=4, small=True))
    progress: Progress = train(config, TASK, command="python train/run.py --smoke")
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()
    for name in (
        "reward/mean",
        "train/entropy",
        "train/gradient_norm",
        "train/learning_rate",
        "speed/graphs_per_s",
        "validation_gap_to_optimum/jobs-8",
        "validation_at_optimum/jobs-8",
        "validation_entropy/jobs-20",
        "validation_gap_to_bound/jobs-20",
    ):
        assert name in tags["scalars"], name
    assert [event.step for event in events.Scalars("validation_reward/jobs-8")] == [0, 10, 20]
    card = load_checkpoint(tmp_path / "best.safetensors").card
    assert card.training["command"] == "python train/run.py --smoke"
    assert card.quality["jobs-8"]["gap_to_optimum"] < 0.1
    report = (tmp_path / "report.md").read_text()
    assert f"step {progress.best_step}" in report
    assert "| jobs-20 |" in report
    printed = capsys.readouterr().err
    for title in ("gain", "at optimum", "| jobs-20 |"):
        assert title in report
        assert title in printed
