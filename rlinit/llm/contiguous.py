"""Contiguous spans of a chain on an ordered choice of unlike devices, exactly: a dynamic program over sets of devices.

F[S, e, j] is the least cost of units 0 .. j-1 on the devices in S, all of them used, with e the last one:

    F[S, e, j] = min over d in S - e and i < j of   F[S - e, d, i]  (+)  transfer(d, e)  (+)  span(e, i, j)

where (+) adds for times and takes the larger for bottlenecks, and a span that does not fit its device costs infinity.
Devices that may be exchanged for each other (equal, with equal links) count as one class, so that S is a vector of
counts: 8 unlike devices are 256 of them, 16 equal ones 17. The cost is |S| classes (n^2 + n classes).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import InvalidHardware
from rlinit.hardware import CAPACITY_SLACK

_MAX_STATES = 1 << 13
"""Vectors of counts; 13 unlike devices have as many, which takes some ten seconds for 100 layers."""


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Units in a row, devices, and what spans and cuts cost.

    Parameters
    ----------
    seconds
        (d, n) of each unit on each device.
    held_bytes
        (n,) of each unit, cache included.
    cached_bytes
        (n,) of each unit's cache.
    shared_bytes
        Bytes that the first and the last unit share on one device.
    room_bytes
        (d,) that units may fill.
    transfer_s
        (d, d) of a cut between two devices, from row to column; inf: no link.
    bottleneck
        Whether the largest of all spans and transfers counts, rather than their sum.
    only_first
        (d,) devices that may only come first.
    max_devices
        Most devices to use.
    """

    seconds: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    cached_bytes: NDArray[np.float64]
    shared_bytes: float
    room_bytes: NDArray[np.float64]
    transfer_s: NDArray[np.float64]
    bottleneck: bool
    only_first: NDArray[np.bool_]
    max_devices: int

    @property
    def num_units(self) -> int:
        """Number of units n."""
        return len(self.held_bytes)

    def span_costs(self, device: int) -> NDArray[np.float64]:
        """Return (n+1, n+1): cost of units i .. j-1 on a device, inf where i >= j or where they do not fit."""
        ends = np.arange(self.num_units + 1)
        before = np.concatenate([[0.0], np.cumsum(self.seconds[device])])
        held = np.concatenate([[0.0], np.cumsum(self.held_bytes)])
        need = held[None, :] - held[:, None]
        need[0, -1] -= self.shared_bytes
        fits = (need <= self.room_bytes[device] * CAPACITY_SLACK) & (ends[None, :] > ends[:, None])
        with np.errstate(invalid="ignore"):  # where a device never takes the last unit
            return np.where(fits, before[None, :] - before[:, None], np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Units in a row, each on any of some places, which draw on memories.

    Parameters
    ----------
    seconds
        (q, n) of each unit on each place; inf: not there.
    transfer_s
        (q, q) of a change of places, from row to column; inf: no link.
    weight_bytes, cache_bytes
        (n,) of each unit.
    weight_home, cache_home
        (q,) the memory where a place has them.
    buffer_bytes
        (q,) that a place takes of the memory of its caches once it is used at all.
    room_bytes
        (m,) of memories, with what rounding is allowed.
    shared_bytes
        Weights that the first and the last unit share in one memory.
    """

    seconds: NDArray[np.float64]
    transfer_s: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]
    cache_bytes: NDArray[np.float64]
    weight_home: NDArray[np.int64]
    cache_home: NDArray[np.int64]
    buffer_bytes: NDArray[np.float64]
    room_bytes: NDArray[np.float64]
    shared_bytes: float

    @classmethod
    def of_chain(cls, problem: ChainProblem) -> Places:
        """Return the devices of a chain problem as places, each with its own memory."""
        weight, shared = problem.held_bytes - problem.cached_bytes, problem.shared_bytes
        if problem.num_units == 1:
            weight, shared = weight - shared, 0.0
        d = len(problem.room_bytes)
        return cls(
            problem.seconds, problem.transfer_s, weight, problem.cached_bytes, np.arange(d), np.arange(d), np.zeros(d),
            problem.room_bytes * CAPACITY_SLACK, shared,
        )  # fmt: skip

    def cost(self, walk: NDArray[np.int64]) -> float:
        """Return the seconds of a walk, (n,) places."""
        seconds = self.seconds[walk, np.arange(len(walk))].sum()
        return float(seconds + self.transfer_s[walk[:-1], walk[1:]].sum())

    def fits(self, walk: NDArray[np.int64]) -> bool:
        """Return whether memories hold what a walk takes of them."""
        m = len(self.room_bytes)
        held = np.bincount(self.weight_home[walk], self.weight_bytes, minlength=m)
        held += np.bincount(self.cache_home[walk], self.cache_bytes, minlength=m)
        used = np.unique(walk)
        held += np.bincount(self.cache_home[used], self.buffer_bytes[used], minlength=m)
        ends = self.weight_home[walk[[0, -1]]]
        if ends[0] == ends[1]:
            held[ends[0]] -= self.shared_bytes
        return bool((held <= self.room_bytes).all())


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """The best spans: (device, first unit, end) in order, and their cost; no spans and inf where none fit.

    Parameters
    ----------
    cost
        By the dynamic program's sums.
    spans
        In the order of the chain.
    """

    cost: float
    spans: tuple[tuple[int, int, int], ...]


def exchangeable_classes(problem: ChainProblem) -> list[list[int]]:
    """Return the devices in classes whose members may swap places without a change of any cost."""
    classes: list[list[int]] = []
    for device in range(len(problem.room_bytes)):
        home = next((group for group in classes if all(_swappable(problem, device, other) for other in group)), None)
        if home is None:
            classes.append([device])
        else:
            home.append(device)
    return classes


def _swappable(problem: ChainProblem, a: int, b: int) -> bool:
    order = np.arange(len(problem.room_bytes))
    order[[a, b]] = b, a
    links = problem.transfer_s[np.ix_(order, order)]
    return bool(
        np.array_equal(problem.seconds[a], problem.seconds[b])
        and problem.room_bytes[a] == problem.room_bytes[b]
        and problem.only_first[a] == problem.only_first[b]
        and np.array_equal(links, problem.transfer_s)
    )


def solve_chain(problem: ChainProblem) -> ChainSolution:
    """Return the best spans, proven by exhausting the dynamic program.

    Raises
    ------
    InvalidHardware
        More unlike devices than it can enumerate.
    """
    classes = exchangeable_classes(problem)
    sizes = [min(len(group), problem.max_devices, problem.num_units) for group in classes]
    if prod(size + 1 for size in sizes) > _MAX_STATES:
        raise InvalidHardware(
            f"{len(classes)} kinds of devices in {len(problem.room_bytes)} are too many sets to go through; "
            "plan for fewer unlike devices (13 are possible, equal ones count less)"
        )
    table = _Table(problem, classes)
    for counts in itertools.product(*(range(size + 1) for size in sizes)):
        if 0 < sum(counts) <= problem.max_devices:
            table.fill(counts)
    return table.best()


class _Table:
    """F and the choices behind it, by counts of devices used and class of the last one."""

    def __init__(self, problem: ChainProblem, classes: Sequence[Sequence[int]]) -> None:
        self.problem, self.classes = problem, classes
        first = [group[0] for group in classes]
        self.spans = [problem.span_costs(device) for device in first]
        second = [group[1] if len(group) > 1 else group[0] for group in classes]
        self.transfer = problem.transfer_s[np.ix_(first, first)].copy()
        for at, (one, other) in enumerate(zip(first, second, strict=True)):
            self.transfer[at, at] = problem.transfer_s[one, other] if one != other else np.inf
        self.only_first = problem.only_first[first]
        self.values: dict[tuple[int, ...], NDArray[np.float64]] = {}
        self.starts: dict[tuple[int, ...], NDArray[np.int64]] = {}
        self.sources: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def fill(self, counts: tuple[int, ...]) -> None:
        """Set the row of one vector of counts; those with one device less are set."""
        shape = (len(self.classes), self.problem.num_units + 1)
        values = np.full(shape, np.inf)
        starts, sources = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
        for e, count in enumerate(counts):
            if count == 0:
                continue
            entry, source = self._entry(_less(counts, e), e)
            open_at = np.flatnonzero(np.isfinite(entry))
            if not len(open_at):
                continue
            spans, before = self.spans[e][open_at], entry[open_at, None]
            reached = np.maximum(before, spans) if self.problem.bottleneck else before + spans
            chosen = np.argmin(reached, axis=0)
            values[e] = reached[chosen, np.arange(shape[1])]
            starts[e], sources[e] = open_at[chosen], source[open_at[chosen]]
        self.values[counts], self.starts[counts], self.sources[counts] = values, starts, sources

    def _entry(self, counts: tuple[int, ...], e: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return for each i the least cost of units before i with the cut to class e paid, and the class it is from."""
        n = self.problem.num_units
        if sum(counts) == 0:
            entry = np.full(n + 1, np.inf)
            entry[0] = 0.0
            return entry, np.full(n + 1, -1, dtype=np.int64)
        if self.only_first[e]:
            return np.full(n + 1, np.inf), np.full(n + 1, -1, dtype=np.int64)
        before, cut = self.values[counts], self.transfer[:, e, None]
        reached = np.maximum(before, cut) if self.problem.bottleneck else before + cut
        source = np.argmin(reached, axis=0)
        return reached[source, np.arange(n + 1)], source

    def best(self) -> ChainSolution:
        """Return the best complete row, traced back; of equal ones that with the fewest devices."""
        ends = [
            (float(values[e, -1]), sum(counts), counts, e)
            for counts, values in self.values.items()
            for e in range(len(self.classes))
            if np.isfinite(values[e, -1])
        ]
        if not ends:
            return ChainSolution(np.inf, ())
        cost, _, counts, e = min(ends)
        end, left, spans = self.problem.num_units, [list(group) for group in self.classes], []
        while e >= 0:
            start, source = int(self.starts[counts][e, end]), int(self.sources[counts][e, end])
            spans.append((left[e].pop(0), start, end))
            counts, end, e = _less(counts, e), start, source
        return ChainSolution(cost, tuple(reversed(spans)))


def _less(counts: tuple[int, ...], e: int) -> tuple[int, ...]:
    return (*counts[:e], counts[e] - 1, *counts[e + 1 :])
