"""Problems ahead of training: worker processes generate the next batches while the network learns from this one."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from rlinit.errors import TrainingFailure
from rlinit.train.core.curriculum import Request
from rlinit.train.core.labels import Shards
from rlinit.train.tasks.protocol import AnyTask, Batch, Labels

Ask = TypeVar("Ask")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a batch is made from: a request to the generator, or a labelled shard."""

    request: Request
    shard: int | None


def make_batch(task: AnyTask, shards: Shards | None, asked: Asked) -> tuple[Batch, Labels | None]:
    """Return the problems asked for, and their labels if they are a shard's. Loads no torch.

    Parameters
    ----------
    task
        Makes the problems.
    shards
        Where labels are; None: there are none.
    asked
        What is asked for.
    """
    if shards is not None and asked.shard is not None:
        return shards.load(asked.shard)
    return task.generate(asked.request.seed, asked.request.size, asked.request.count), None


def _begin() -> None:
    """Make a worker outlive Ctrl-C, which the training process handles, but not the training process itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    # A killed parent closes nothing: without this its workers would wait for work for ever.
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


class Prefetcher(Generic[Ask, Made]):
    """Yields ``(ask, make(ask))`` for ask = plan(first), plan(first + 1), ..., in that order.

    What comes out depends on `plan` and `make` alone, not on how many workers there are.

    Parameters
    ----------
    plan
        Called in this process when a step's batch is begun, at most `ahead` steps before it is used.
    make
        Called in a worker; it and what it returns must pickle.
    first, last
        Steps first, ..., last - 1.
    workers
        Processes; 0: `make` runs here, when its result is asked for.
    ahead
        Batches ready or under way.
    """

    def __init__(
        self,
        plan: Callable[[int], Ask],
        make: Callable[[Ask], Made],
        first: int,
        last: int,
        *,
        workers: int,
        ahead: int,
    ) -> None:
        self.plan = plan
        self.make = make
        self.next_step = first
        self.last = last
        self.ahead = ahead
        # A forked child would inherit torch's threads and the compiler's locks in whatever state they are.
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin) if workers else None
        self.under_way: deque[tuple[Ask, Future[Made]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[tuple[Ask, Made]]:
        if self.pool is None:
            for step in range(self.next_step, self.last):
                ask = self.plan(step)
                yield ask, self.make(ask)
            return
        self._submit()
        while self.under_way:
            ask, future = self.under_way.popleft()
            try:
                made = future.result()
            except BrokenProcessPool as problem:
                raise TrainingFailure(
                    f"a worker process that generates problems died at {ask} (out of memory?); "
                    "resume the run, with fewer workers or workers=0"
                ) from problem
            self._submit()
            yield ask, made

    def _submit(self) -> None:
        while len(self.under_way) < self.ahead and self.next_step < self.last:
            ask = self.plan(self.next_step)
            assert self.pool is not None
            self.under_way.append((ask, self.pool.submit(self.make, ask)))
            self.next_step += 1
