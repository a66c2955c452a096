"""The training loop: the same for every task and network."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rlinit.errors import InvalidConfig
from rlinit.files import write_atomically, write_json
from rlinit.train.core.config import TrainConfig, config_to_dict
from rlinit.train.core.curriculum import Request, batch_seed, request
from rlinit.train.core.data_loading import batches
from rlinit.train.core.learner import Learner
from rlinit.train.core.machine_info import machine
from rlinit.train.core.reinforce import Reinforce
from rlinit.train.core.run_state import STATE_FILE, Progress, load_state, load_weights, save_state
from rlinit.train.monitoring import Watcher, report
from rlinit.train.tasks.protocol import AnyTask, Batch
from rlinit.train.validation import score, validate

BEST_FILE = "best.safetensors"
CONFIG_FILE = "config.json"


def train(config: TrainConfig[Any], task: AnyTask, *, resume: bool = False, command: str = "") -> Progress:
    """Train a network and leave in ``config.run_dir`` its full state, its best checkpoint, curves and a report.

    Parameters
    ----------
    config
        Everything the run depends on.
    task
        The problem and the network, constructed from ``config.problem``.
    resume
        Go on from the state saved last in the folder. On one CPU thread, and without `minutes`, the weights at the end
        are those of a run that was never interrupted, bit by bit.
    command
        For the card and the report.

    Returns
    -------
    Progress
        Also where Ctrl-C or SIGTERM stopped it (after the step under way, with the state saved): then not `done`.

    Raises
    ------
    TrainingFailure
        A loss or gradient that is not finite, no room to save, or no GPU where one is asked for.
    InvalidConfig
        The folder holds a run already and `resume` is not set.
    CheckpointError
        The state to resume, or to start from, does not fit or is damaged.
    """
    torch.set_num_threads(config.threads)
    if (config.run_dir / STATE_FILE).exists() and not resume:
        raise InvalidConfig(f"{config.run_dir} holds a run already; pass --resume to go on, or another --run-dir")
    config.run_dir.mkdir(parents=True, exist_ok=True)
    write_json(config.run_dir / CONFIG_FILE, config_to_dict(config))
    run = _Run(config, task, resume, command)
    with closing(run.watcher), _stop_signals(run.stop):
        run.go()
    return run.progress


@contextmanager
def _stop_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first SIGINT or SIGTERM; a second SIGINT interrupts at once. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class _Run:
    """One sitting of a run."""

    def __init__(self, config: TrainConfig[Any], task: AnyTask, resume: bool, command: str) -> None:
        self.config, self.task, self.command = config, task, command
        self.stop = threading.Event()
        network = task.network(batch_seed(config.seed, 0))
        if config.init is not None and not resume:
            load_weights(config.init, network)
        self.learner = Learner(network, config.optimiser, config.precision, config.device)
        self.algorithm = Reinforce(task, self.learner, config.reinforce, config.samples)
        self.progress = load_state(config.run_dir, self.learner) if resume else Progress()
        self.before_s = self.progress.seconds
        self.fraction = 0.0
        self.sets: Mapping[str, Batch] = task.validation(small=config.validation.small)
        self.watcher = Watcher(config.run_dir, self.progress.step, task.selection)
        self.started = time.monotonic()

    def go(self) -> None:
        """Train to the end or to a signal."""
        config, progress = self.config, self.progress
        if progress.done and progress.step >= config.steps:
            self.watcher.say(f"{config.run_dir} has done its {progress.step} steps; raise --steps to go on")
            return
        progress.done = False
        if progress.step == 0 and not progress.history:
            self._validate()
        requests = map(self._request, range(progress.step, config.steps))
        with closing(batches(self.task, requests, config.workers, config.ahead)) as made:  # type: ignore[type-var]
            ended = progress.step >= config.steps
            while not ended and not self.stop.is_set():
                self._step(made)
                ended = progress.step >= config.steps or (config.minutes is not None and self.fraction >= 1.0)
                if ended or progress.step % config.validation.every == 0:
                    self._validate()
                elif progress.step % config.save_every == 0:
                    self._save()
        self._finish(ended)

    def _request(self, step: int) -> Request:
        """Return what the batch of a step is made from."""
        config = self.config
        # By step alone, unless there is a limit of time: batches must not depend on how far ahead they are made.
        return request(config.curriculum, max(step / config.steps, self.fraction), batch_seed(config.seed, 1, step))

    def _step(self, made: Iterator[tuple[Request, Batch]]) -> None:
        """Learn from one batch."""
        progress, config = self.progress, self.config
        waiting = time.perf_counter()
        asked, batch = next(made)
        waited = time.perf_counter() - waiting
        if config.minutes is not None:
            self.fraction = min(1.0, self._elapsed() / (60.0 * config.minutes))
        rate = self.learner.set_rate(max(progress.step / config.steps, self.fraction))
        scalars = self.algorithm.learn(batch, progress.step, asked.seed)
        progress.step += 1
        progress.graphs += len(batch)
        progress.seconds = self._elapsed()
        took = time.perf_counter() - waiting
        speed = {"speed/graphs_per_s": len(batch) / took, "speed/waiting_for_problems": waited / took}
        self.watcher.add({**scalars, **speed})
        if progress.step % config.log_every == 0:
            rates = {"train/learning_rate": rate, "train/nodes_per_graph": batch.num_nodes / len(batch)}
            self.watcher.flush(progress.step, rates)

    def _elapsed(self) -> float:
        """Return the seconds spent over all sittings."""
        return self.before_s + time.monotonic() - self.started

    def _validate(self) -> None:
        """Measure, keep the best checkpoint and save."""
        config, progress = self.config, self.progress
        measures = validate(self.task, self.learner, self.sets, config.validation.samples, config.seed)
        progress.seconds = self._elapsed()
        progress.history.append({"step": progress.step, "seconds": progress.seconds, "measures": measures})
        self.watcher.validation(progress.step, measures, progress.seconds)
        if progress.is_best(score(measures, self.task.selection)):
            card = {"training": self._card(), "quality": dict(measures)}
            self.task.export(self.learner.evaluated, Path(config.run_dir / BEST_FILE), card)
        self._save()

    def _card(self) -> dict[str, Any]:
        """Return what a checkpoint's card says of its training."""
        return {
            "command": self.command,
            "config": config_to_dict(self.config),
            "seed": self.config.seed,
            "steps": self.progress.step,
            "graphs": self.progress.graphs,
            "seconds": round(self.progress.seconds, 1),
            "machine": machine(),
        }

    def _save(self) -> None:
        save_state(self.config.run_dir, self.learner, self.progress)

    def _finish(self, ended: bool) -> None:
        """Save the state, and at the end of training write the report."""
        progress = self.progress
        progress.done = ended
        if ended:
            text = report(self._card(), progress)
            write_atomically(self.config.run_dir / "report.md", text)
            self.watcher.say(text)
        self._save()
        what = "done" if ended else "stopped; resume to go on"
        self.watcher.say(f"{what}: step {progress.step}, best at step {progress.best_step}; see {self.config.run_dir}")
