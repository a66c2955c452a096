"""Ctrl-C ends the search and not the program, so that the best schedule so far is returned."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rlinit.budget import Budget

__all__ = ["interruptible"]


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
