"""How long a computation may go on: a wall-clock limit and a switch anyone may throw."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Budget"]


class Budget:
    """A wall-clock limit shared by the phases of one solve; Ctrl-C and callers end it early with `cancel`.

    Parameters
    ----------
    time_limit_s
        Seconds from now, or None for no limit.
    """

    __slots__ = ("_cancelled", "_clock", "_deadline", "_started")

    def __init__(self, time_limit_s: float | None = None) -> None:
        self._clock = _Clock()
        self._started = self._clock.now()
        self._deadline = float("inf") if time_limit_s is None else self._started + time_limit_s
        self._cancelled = threading.Event()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the budget was opened, pauses left out."""
        return self._clock.now() - self._started

    @property
    def remaining_s(self) -> float:
        """Seconds left: 0 once cancelled, ``inf`` without a limit."""
        return 0.0 if self._cancelled.is_set() else max(0.0, self._deadline - self._clock.now())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass for this budget and all its shares while the body runs, in whatever thread."""
        self._clock.stop()
        try:
            yield
        finally:
            self._clock.go_on()

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
        part = Budget()
        part._clock, part._cancelled = self._clock, self._cancelled
        part._started = self._clock.now()
        part._deadline = min(part._started + time_limit_s, self._deadline)
        return part


class _Clock:
    """Monotonic seconds, those left out during which it stood still."""

    __slots__ = ("_left_out_s", "_lock", "_stopped_at", "_stops")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops = 0
        self._stopped_at = self._left_out_s = 0.0

    def now(self) -> float:
        """Return the time."""
        with self._lock:
            return (self._stopped_at if self._stops else time.monotonic()) - self._left_out_s

    def stop(self) -> None:
        """Stand still; stops may be nested and come from several threads."""
        with self._lock:
            self._stops += 1
            if self._stops == 1:
                self._stopped_at = time.monotonic()

    def go_on(self) -> None:
        """End a stop."""
        with self._lock:
            self._stops -= 1
            if self._stops == 0:
                self._left_out_s += time.monotonic() - self._stopped_at
