"""The training loop: the same for every task, network and algorithm, on one process or many."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from rlinit.errors import InvalidConfig
from rlinit.files import write_json
from rlinit.train.algorithms.imitation import Imitation
from rlinit.train.algorithms.ppo import PPO
from rlinit.train.algorithms.reinforce import Minibatch, Reinforce
from rlinit.train.core.config import TrainConfig, config_to_dict
from rlinit.train.core.curriculum import batch_seed, request
from rlinit.train.core.data_loading import Asked, Prefetcher, make_batch
from rlinit.train.core.distributed import Processes, processes
from rlinit.train.core.labels import Shards, shard_at, shards_of
from rlinit.train.core.learner import Learner
from rlinit.train.core.run_state import STATE_FILE, Progress, load_state, load_weights, save_state
from rlinit.train.monitoring import Watcher
from rlinit.train.report import report_rows, training_card, write_report
from rlinit.train.tasks.protocol import AnyTask, Batch, Labels
from rlinit.train.validation import score, validate

BEST_FILE = "best.safetensors"
CONFIG_FILE = "config.json"


class Algorithm(Protocol):
    """How a network learns from batches."""

    @property
    def num_minibatches(self) -> int:
        """Batches that `learn` takes at a time."""

    def learn(self, minibatches: list[Minibatch]) -> dict[str, float]:
        """Learn from some batches; return what to plot."""

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks besides the trained one that the full state must hold."""


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
    with processes(config.device) as group, ExitStack() as stack:
        if group.leads:
            _claim(config, resume)
        shards = shards_of(config, task) if config.algorithm == "imitation" else None
        if shards is not None:
            group.from_leader(shards.make(config.imitation.label_jobs) if group.leads else None)
            if config.imitation.labels_only:
                return Progress()
        run = _Run(config, task, group, shards, resume, command, stack)
        with _stop_signals(run.stop):
            run.go()
        return run.progress


def _claim(config: TrainConfig[Any], resume: bool) -> None:
    """Make the run's folder and write the configuration, unless another run is there."""
    state = config.run_dir / STATE_FILE
    if state.exists() and not resume:
        raise InvalidConfig(f"{config.run_dir} holds a run already; pass --resume to go on, or another --run-dir")
    config.run_dir.mkdir(parents=True, exist_ok=True)
    write_json(config.run_dir / CONFIG_FILE, config_to_dict(config))


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
    """One sitting of a run, in one of its processes."""

    def __init__(
        self,
        config: TrainConfig[Any],
        task: AnyTask,
        group: Processes,
        shards: Shards | None,
        resume: bool,
        command: str,
        stack: ExitStack,
    ) -> None:
        self.config, self.task, self.group, self.shards, self.command = config, task, group, shards, command
        self.plain = config_to_dict(config)
        self.stop = threading.Event()
        network = task.network(batch_seed(config.seed, 0))
        if config.init is not None and not resume:
            load_weights(config.init, network)
        self.learner = Learner(network, config.optimiser, config.precision, group)
        self.algorithm = self._algorithm()
        self.progress = Progress()
        if resume:
            self.progress = load_state(config.run_dir, self.learner, self.algorithm.networks())
        self.before_s = self.progress.seconds
        self.fraction = 0.0
        self.sets: Mapping[str, Batch] = task.validation(small=config.validation.small) if group.leads else {}
        self.watcher: Watcher | None = None
        if group.leads:
            watcher = Watcher(config.run_dir, self.progress.step, config.steps, task.selection)
            self.watcher = stack.enter_context(watcher)
        self.started = time.monotonic()

    def _algorithm(self) -> Algorithm:
        config = self.config
        if config.algorithm == "imitation":
            return Imitation(self.task, self.learner)
        if config.algorithm == "ppo":
            return PPO(self.task, self.learner, config.ppo, config.samples)
        return Reinforce(self.task, self.learner, config.reinforce, config.samples)

    def go(self) -> None:
        """Train to the end, to an early stop or to a signal."""
        config, progress = self.config, self.progress
        if progress.done and progress.step >= config.steps:
            if self.watcher is not None:
                self.watcher.say(f"{config.run_dir} has done its {progress.step} steps; raise --steps to go on")
            return
        progress.done = False
        if progress.step == 0 and not progress.history:
            self._validate()
        per = self.algorithm.num_minibatches
        loader: Prefetcher[Asked, tuple[Batch, Labels | None]] = Prefetcher(
            partial(self._ask, per),
            partial(make_batch, self.task, self.shards),
            progress.step * per,
            config.steps * per,
            workers=config.workers,
            ahead=max(config.ahead, per),
        )
        with loader:
            batches = iter(loader)
            ended = progress.step >= config.steps
            while not ended and not self._interrupted():
                self._step(batches, per)
                ended = self._ended()
                validated = ended or progress.step % config.validation.every == 0
                if validated:
                    ended = self._validate() or ended
                if self.group.leads and not ended and progress.step % config.save_every == 0:
                    self._save()
        self._finish(ended)

    def _ask(self, per: int, place: int) -> Asked:
        """Return what the batch at `place` (counted per process) is made from."""
        config, group = self.config, self.group
        everyones = place * group.size + group.rank
        seed = batch_seed(config.seed, 1, everyones)
        if self.shards is not None:
            shard = shard_at(everyones, len(self.shards), config.seed)
            return Asked(dataclasses.replace(self.shards.requests[shard], seed=seed), shard)
        # By step alone, unless there is a limit of time: batches must not depend on how far ahead they are made.
        fraction = place // per / config.steps
        return Asked(request(config.curriculum, max(fraction, self.fraction), seed), None)

    def _step(self, batches: Iterator[tuple[Asked, tuple[Batch, Labels | None]]], per: int) -> None:
        """Take one step of the algorithm."""
        progress, config = self.progress, self.config
        waiting = time.perf_counter()
        minibatches = []
        for _ in range(per):
            asked, (batch, labels) = next(batches)
            minibatches.append(Minibatch(progress.step, asked.request.seed, batch, labels))
        waited = time.perf_counter() - waiting
        done = progress.step / config.steps
        if config.minutes is not None:
            self.fraction = self.group.from_leader(self._elapsed() / (60.0 * config.minutes))
            done = max(done, min(1.0, self.fraction))
        rate = self.learner.set_rate(done)
        scalars = self.algorithm.learn(minibatches)
        count = sum(len(minibatch.batch) for minibatch in minibatches)
        progress.step += 1
        progress.graphs += int(self.group.total(count))
        progress.seconds = self._elapsed()
        if self.watcher is not None:
            took = time.perf_counter() - waiting
            speed = {"speed/graphs_per_s": count * self.group.size / took, "speed/waiting_for_problems": waited / took}
            self.watcher.add({**scalars, **speed})
            if progress.step % config.log_every == 0:
                size = minibatches[-1].batch.num_nodes / len(minibatches[-1].batch)
                self.watcher.flush(progress.step, {"train/learning_rate": rate, "train/nodes_per_graph": size})

    def _elapsed(self) -> float:
        """Return the seconds spent over all sittings."""
        return self.before_s + time.monotonic() - self.started

    def _ended(self) -> bool:
        config = self.config
        return self.progress.step >= config.steps or (config.minutes is not None and self.fraction >= 1.0)

    def _interrupted(self) -> bool:
        """Return whether any process was told to stop."""
        return self.group.total(float(self.stop.is_set())) > 0

    def _validate(self) -> bool:
        """Measure, keep the best checkpoint and save; return whether patience is at an end."""
        config, progress = self.config, self.progress
        exhausted = False
        if self.watcher is not None:
            measures = validate(self.task, self.learner, self.sets, config.validation.samples, config.seed)
            progress.seconds = self._elapsed()
            progress.history.append({"step": progress.step, "seconds": progress.seconds, "measures": measures})
            self.watcher.validation(progress.step, measures, progress.seconds)
            first = self.sets[self.task.selection[0]]
            self.watcher.pictures(progress.step, self.task, self.learner, first, config.validation.pictures)
            if progress.is_best(score(measures, self.task.selection)):
                self._export(measures)
            exhausted = 0 < config.validation.patience <= progress.since
            self._save()
        return bool(self.group.from_leader(exhausted))

    def _export(self, measures: Mapping[str, Any]) -> None:
        card = {"training": training_card(self.plain, self.command, self.progress), "quality": dict(measures)}
        self.task.export(self.learner.evaluated, Path(self.config.run_dir / BEST_FILE), card)

    def _save(self) -> None:
        save_state(self.config.run_dir, self.learner, self.algorithm.networks(), self.progress)

    def _finish(self, ended: bool) -> None:
        """Save the state, and at the end of training write what comes after it."""
        progress, watcher = self.progress, self.watcher
        progress.done = ended
        if watcher is None:
            return
        if ended:
            watcher.embeddings(progress.step, self.task, self.learner, self.sets[self.task.selection[0]])
            watcher.hyperparameters(self.plain, {"score": progress.best, "best_step": progress.best_step})
            write_report(self.config.run_dir, self.plain, self.command, progress)
            watcher.table(report_rows(progress))
        self._save()
        what = "done" if ended else "stopped; resume to go on"
        watcher.say(f"{what}: step {progress.step}, best at step {progress.best_step}; see {self.config.run_dir}")
