"""How long a computation may go on, how much memory it may take, and which of several ways goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from rlinit.errors import OutOfMemory
from rlinit.units import format_bytes

_FREE_SHARE = 0.8
"""Of the memory that is free at first, what a computation may take where no limit is set."""

WATCH_S = 0.05
"""Seconds between two looks at the memory that the process has, or at the clock while a solver runs."""

ROWS_A_LOOK = 256
"""Rows that are made between two looks at the clock: a few milliseconds to 20 for programs and tables of 3,000 ops."""

UNLIMITED = 1 << 60
"""More work than any clock allows."""

SIDE_SHARE = 0.3
"""Of the time left, what something may take that is looked at beside the search or before it."""

TRY_SHARE = 0.2
"""Of the time left, what one of several tries may take, so that the last ones end."""

LEAST_SHARE, MEMORY = 0.1, 0.8
"""Of all work, what each of several ways to get on gets at least; what counts of gains and work, a turn later."""


class Budget:
    """A wall-clock limit shared by the phases of one solve; Ctrl-C and callers end it early with `cancel`.

    Parameters
    ----------
    time_limit_s
        Seconds from now, or None for no limit.
    """

    __slots__ = ("_cancelled", "_clock", "_deadline", "_given_up", "_started")

    def __init__(self, time_limit_s: float | None = None) -> None:
        self._clock = _Clock()
        self._started = self._clock.now()
        self._deadline = float("inf") if time_limit_s is None else self._started + time_limit_s
        self._cancelled = threading.Event()
        self._given_up: tuple[threading.Event, ...] = (threading.Event(),)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the budget was opened, pauses left out."""
        return self._clock.now() - self._started

    @property
    def remaining_s(self) -> float:
        """Seconds left: 0 once stopped, ``inf`` without a limit."""
        return 0.0 if self.stopped else max(0.0, self._deadline - self._clock.now())

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

    @property
    def stopped(self) -> bool:
        """Whether it is cancelled or given up, whatever time is left."""
        return self._cancelled.is_set() or any(each.is_set() for each in self._given_up)

    def cancel(self) -> None:
        """Ask everything that watches this budget to stop soon."""
        self._cancelled.set()

    def give_up(self) -> None:
        """Ask the phase that this budget is for, and all within it, to stop soon; others go on."""
        self._given_up[-1].set()

    def share(self, time_limit_s: float, *, phase: bool = False) -> Budget:
        """Return a budget of at most `time_limit_s` within this one, cancelled together with it.

        Parameters
        ----------
        time_limit_s
            Seconds from now.
        phase
            Whether it can be given up by itself.
        """
        part = Budget()
        part._clock, part._cancelled = self._clock, self._cancelled
        part._given_up = (*self._given_up, threading.Event()) if phase else self._given_up
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


_CEILING: ContextVar[tuple[float, float] | None] = ContextVar("memory", default=None)
"""Bytes that this process may have, and how many of them are the limit; None: no limit."""


def resident_bytes() -> float:
    """Return the bytes of memory that this process has; its peak, or 0, where a system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0.0
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1.0 if sys.platform == "darwin" else 1024.0)


def free_bytes() -> float:
    """Return the bytes that this process could still take: of the machine and of its container; inf if unknown."""
    free = _figures(Path("/proc/meminfo")).get("MemAvailable:", float("inf")) * 1024
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = (float((folder / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max"
        return free
    cached = _figures(folder / "memory.stat").get("inactive_file", 0.0)
    return max(0.0, min(free, most - used + cached))


def _figures(path: Path) -> dict[str, float]:
    """Return the figures of a file with a name and a number on each line; none where there is no such file."""
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return {}
    return {row[0]: float(row[1]) for row in rows}


@contextmanager
def limited_memory(limit_bytes: float | None = None) -> Iterator[None]:
    """Limit what `reserve` grants while the body runs, beyond what the process has at its beginning.

    Parameters
    ----------
    limit_bytes
        Bytes; None: 80% of what is free.
    """
    limit = _FREE_SHARE * free_bytes() if limit_bytes is None else limit_bytes
    token = _CEILING.set((resident_bytes() + limit, limit))
    try:
        yield
    finally:
        _CEILING.reset(token)


def memory_left() -> float:
    """Return the bytes of the limit that are left; inf where there is none."""
    ceiling = _CEILING.get()
    return float("inf") if ceiling is None else max(0.0, ceiling[0] - resident_bytes())


def reserve(num_bytes: float, what: str) -> None:
    """Ask for memory before it is taken; whoever takes little need not ask.

    Parameters
    ----------
    num_bytes
        About how much will be taken.
    what
        What for.

    Raises
    ------
    OutOfMemory
        So much is not left of the limit.
    """
    left = memory_left()
    if num_bytes > left:
        raise OutOfMemory(f"{what} would take {format_bytes(num_bytes)}; {format_bytes(left)} of the limit are left")


@contextmanager
def repeated(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call a function again and again, in a thread of its own, while the body runs.

    Parameters
    ----------
    action
        The function.
    every_s
        Seconds before each call.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            action()

    thread = threading.Thread(target=repeat, name="repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def memory_watched(budget: Budget) -> Iterator[None]:
    """Give a budget up once the process has more memory than its limit, and say so when the body has ended.

    Parameters
    ----------
    budget
        That of a phase.

    Raises
    ------
    OutOfMemory
        The budget was given up.
    """
    ceiling = _CEILING.get()
    if ceiling is None or ceiling[0] == float("inf"):
        yield
        return
    most = ceiling[0]

    def look() -> None:
        if resident_bytes() > most:
            budget.give_up()

    with repeated(look, WATCH_S):
        yield
    if budget.stopped and not budget.cancelled:
        raise OutOfMemory(f"it took more than the {format_bytes(ceiling[1])} of the limit")


class WorkShares:
    """Shares work among ways to get on: some to each, the rest to the one that gained most for its work of late.

    Parameters
    ----------
    ways
        How many there are.
    least
        Of all work, what each way gets at least.
    memory
        What counts of gains and work, a turn later; 1: all of it.
    """

    __slots__ = ("_all", "_gain", "_least", "_memory", "_work")

    def __init__(self, ways: int, least: float = LEAST_SHARE, memory: float = MEMORY) -> None:
        self._least, self._memory = least, memory
        self._gain, self._work, self._all = [0.0] * ways, [0.0] * ways, [0.0] * ways

    def choose(self) -> int:
        """Return the number of the way to go on with."""
        ways = range(len(self._all))
        poorest = min(ways, key=self._all.__getitem__)
        if self._all[poorest] <= self._least * sum(self._all):
            return poorest
        return max(ways, key=lambda way: self._gain[way] / self._work[way])

    def reward(self, way: int, gain: float, work: float) -> None:
        """Note what a way gained for its work.

        Parameters
        ----------
        way
            From `choose`.
        gain, work
            At least 0, and more than 0, each in one unit for all ways.
        """
        self._gain[way] = self._memory * self._gain[way] + gain
        self._work[way] = self._memory * self._work[way] + work
        self._all[way] += work
