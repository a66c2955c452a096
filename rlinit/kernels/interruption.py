"""Interruptions of a search: Ctrl-C ends it with what it has found, compiling kernels suspends its clock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from numba.core import event

from rlinit.budget import Budget
from rlinit.plan import HistoryEntry

COMPILING = "compiling kernels, once on this machine"
"""The phase that a progress callback is told of."""


@contextmanager
def interruptible(budget: Budget) -> Iterator[None]:
    """Make Ctrl-C end the budget while the body runs; a second Ctrl-C raises as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        budget.cancel()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class _Watch(event.Listener):
    """Stops the budget's clock from the start of a compilation to its end; they are nested and may overlap."""

    def __init__(self, budget: Budget, progress: Callable[[HistoryEntry], None] | None) -> None:
        self._budget = budget
        self._progress = progress
        self._pauses: list[ExitStack] = []

    def on_start(self, event: Any) -> None:
        """Begin a pause."""
        pause = ExitStack()
        pause.enter_context(self._budget.paused())
        self._pauses.append(pause)
        if self._progress is not None and len(self._pauses) == 1:
            self._progress(HistoryEntry(self._budget.elapsed_s, None, None, COMPILING))

    def on_end(self, event: Any) -> None:
        """End a pause."""
        self._pauses.pop().close()


@contextmanager
def compiling_paused(budget: Budget, progress: Callable[[HistoryEntry], None] | None) -> Iterator[None]:
    """Leave the compilation of kernels out of a budget while the body runs.

    Parameters
    ----------
    budget
        Its clock stands still meanwhile.
    progress
        Told that kernels are being compiled.
    """
    with event.install_listener("numba:compile", _Watch(budget, progress)):
        yield
