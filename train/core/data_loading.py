"""Problems ahead of training: worker processes generate the next batches while the network learns from this one."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from rlinit.errors import TrainingFailure
from rlinit.train.core.curriculum import Request
from rlinit.train.tasks.protocol import AnyTask, Batch


class _Generated(Dataset[tuple[Request, Batch]]):
    """The problems of a task by what is asked for."""

    def __init__(self, task: AnyTask) -> None:
        self.task = task

    def __getitem__(self, asked: Request) -> tuple[Request, Batch]:
        return asked, self.task.generate(asked.seed, asked.size, asked.count)


def _same(item: Any) -> Any:
    return item


def _ignore_interrupt(_worker: int) -> None:
    """Make a worker outlive Ctrl-C, which the training process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def batches(task: AnyTask, requests: Iterable[Request], workers: int, ahead: int) -> Iterator[tuple[Request, Batch]]:
    """Yield each request with its problems, in order, whatever the number of workers.

    Parameters
    ----------
    task
        Makes the problems; pickles.
    requests
        Asked for in this process when a batch is begun, about `ahead` batches before it is used.
    workers
        Processes; 0: problems are made here, when their turn comes.
    ahead
        Batches ready or under way.

    Raises
    ------
    TrainingFailure
        A worker died.
    """
    # A forked child would inherit torch's threads and the compiler's locks in whatever state they are.
    processes: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": -(-ahead // max(1, workers)),
        "multiprocessing_context": "spawn",
        "worker_init_fn": _ignore_interrupt,
    }
    loader: DataLoader[Any] = DataLoader(
        _Generated(task),
        batch_size=None,
        sampler=requests,
        collate_fn=_same,
        **(processes if workers else {}),
    )
    try:
        yield from loader
    except RuntimeError as problem:
        raise TrainingFailure(
            f"problems could not be generated (out of memory?): {problem}; resume the run, with fewer workers or "
            "workers=0"
        ) from problem
