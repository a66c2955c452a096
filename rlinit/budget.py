"""How long a computation may go on: a wall-clock limit and a switch anyone may throw."""

from __future__ import annotations

import threading
import time

__all__ = ["Budget"]


class Budget:
    """A wall-clock limit shared by the phases of one solve; Ctrl-C and callers end it early with `cancel`.

    Parameters
    ----------
    time_limit_s
        Seconds from now, or None for no limit.
    """

    __slots__ = ("_cancelled", "_deadline", "_started")

    def __init__(self, time_limit_s: float | None = None) -> None:
        self._started = time.monotonic()
        self._deadline = float("inf") if time_limit_s is None else self._started + time_limit_s
        self._cancelled = threading.Event()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the budget was opened."""
        return time.monotonic() - self._started

    @property
    def remaining_s(self) -> float:
        """Seconds left: 0 once cancelled, ``inf`` without a limit."""
        return 0.0 if self._cancelled.is_set() else max(0.0, self._deadline - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether nothing more should be started."""
        return self.remaining_s <= 0.0

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to stop, as opposed to time running out."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask everything that watches this budget to stop soon."""
        self._cancelled.set()

    def share(self, time_limit_s: float) -> Budget:
        """Return a budget of at most `time_limit_s` within this one, cancelled together with it."""
        part = Budget(min(time_limit_s, self._deadline - time.monotonic()))
        part._cancelled = self._cancelled
        return part
