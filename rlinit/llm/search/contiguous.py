"""Contiguous spans of a chain on an ordered choice of unlike devices, exactly: a dynamic program over sets of devices.

F[S, e, j] is the least cost of units 0 .. j-1 on the devices in S, all of them used, with e the last one:

    F[S, e, j] = min over d in S - e and i < j of   F[S - e, d, i]  (+)  transfer(d, e)  (+)  span(e, i, j)

where (+) adds for times and takes the larger for bottlenecks, and a span that does not fit its device costs infinity.
Devices that may be exchanged for each other (equal, with equal links) count as one class, so that S is a vector of
counts: 8 unlike devices are 256 of them, 16 equal ones 17. The cost is |S| classes (n^2 + n classes).

Rows of equal cost are told apart by the same program from their ends, over the steps (S - e, d, i) -> (S, e, j) of rows
within a limit: with C the least cost of what comes behind, those with

    F[S - e, d, i]  (+)  transfer(d, e)  (+)  span(e, i, j)  (+)  C[S, e, j]  <=  limit.

Among the rows of such steps the least headroom is made largest, then the sum of squares of how many units each device
has least, first and last unit apart. A step ends above F by no more than the limit is above the least cost, so that a
sum over k steps is above the least by k + 1 times as much at most: with `SAFETY` / (k + 1) as the limit's share,
no row within it is missed, and none above `SAFETY` is taken. What is equal even so begins with the first
devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rlinit.arrays import SAFETY, BoolArray, FloatArray, IntArray
from rlinit.errors import InvalidHardware
from rlinit.hardware import CAPACITY_SLACK

_ROUNDING = 1e-13
"""Relative to all bytes: the difference of two sums of some of them, where they are not whole."""

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

    seconds: FloatArray
    held_bytes: FloatArray
    cached_bytes: FloatArray
    shared_bytes: float
    room_bytes: FloatArray
    transfer_s: FloatArray
    bottleneck: bool
    only_first: BoolArray
    max_devices: int

    @property
    def num_units(self) -> int:
        """Number of units n."""
        return len(self.held_bytes)

    def span_costs(self, device: int) -> FloatArray:
        """Return (n+1, n+1): cost of units i .. j-1 on a device, inf where i >= j or where they do not fit."""
        ends = np.arange(self.num_units + 1)
        before = np.concatenate([[0.0], np.cumsum(self.seconds[device])])
        fits = self.span_bytes() <= self.room_bytes[device] * CAPACITY_SLACK
        with np.errstate(invalid="ignore"):  # where a device never takes the last unit
            return np.where(fits & (ends > ends[:, None]), before - before[:, None], np.inf)

    def span_bytes(self) -> FloatArray:
        """Return (n+1, n+1): bytes of units i .. j-1, cache included."""
        held = np.concatenate([[0.0], np.cumsum(self.held_bytes)])
        need: FloatArray = held - held[:, None]
        need[0, -1] -= self.shared_bytes
        return need


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

    seconds: FloatArray
    transfer_s: FloatArray
    weight_bytes: FloatArray
    cache_bytes: FloatArray
    weight_home: IntArray
    cache_home: IntArray
    buffer_bytes: FloatArray
    room_bytes: FloatArray
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

    def cost(self, walk: IntArray) -> float:
        """Return the seconds of a walk, (n,) places."""
        seconds = self.seconds[walk, np.arange(len(walk))].sum()
        return float(seconds + self.transfer_s[walk[:-1], walk[1:]].sum())

    def fits(self, walk: IntArray) -> bool:
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
    least_cost
        Of all spans; `cost` is within `SAFETY` of it.
    headroom_bytes, squared_units
        What is proven that spans of equal cost leave at most on the device that has least left of those that they use,
        and of those that leave as much the least sum of squared numbers of units, first and last apart.
    """

    cost: float
    spans: tuple[tuple[int, int, int], ...]
    least_cost: float = np.inf
    headroom_bytes: float = np.inf
    squared_units: float = 0.0


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


def solve_chain(problems: Sequence[ChainProblem]) -> ChainSolution:
    """Return the best spans of all in some problems, proven by exhausting the dynamic program.

    Parameters
    ----------
    problems
        With the same units and devices; caches and `ChainProblem.max_devices` may differ.

    Raises
    ------
    InvalidHardware
        More unlike devices than it can enumerate.
    """
    tables: list[_Table] = []
    least = np.inf
    for problem in problems:
        table = _Table(problem)
        least = min(least, table.least_cost)
        tables = [one for one in (*tables, table) if one.least_cost <= one.limit(least)]
    if not np.isfinite(least):
        return ChainSolution(np.inf, ())
    free = [table.free_bytes() for table in tables]
    most = max(table.best(least, some, np.minimum, np.inf)[0] for table, some in zip(tables, free, strict=True))
    enough = most - _ROUNDING * float(problems[0].held_bytes.sum())
    inner = np.clip(np.arange(problems[0].num_units + 1), 1, problems[0].num_units - 1)
    even = -np.square(inner - inner[:, None])
    worth, cost, spans = max(
        (table.best(least, np.where(some >= enough, even, -np.inf), np.add, 0.0)
         for table, some in zip(tables, free, strict=True)), key=lambda found: found[0],
    )  # fmt: skip
    return ChainSolution(cost, spans, least, most, -worth)


class _Table:
    """F by counts of devices used and class of the last one, and the best of the rows that cost least."""

    def __init__(self, problem: ChainProblem) -> None:
        self.problem, self.classes = problem, exchangeable_classes(problem)
        self.merge = np.maximum if problem.bottleneck else np.add
        sizes = [min(len(group), problem.max_devices, problem.num_units) for group in self.classes]
        if prod(size + 1 for size in sizes) > _MAX_STATES:
            raise InvalidHardware(
                f"{len(sizes)} kinds of devices in {len(problem.room_bytes)} are too many sets to go through; "
                "plan for fewer unlike devices (13 are possible, equal ones count less)"
            )
        self.first = [group[0] for group in self.classes]
        second = [group[1] if len(group) > 1 else group[0] for group in self.classes]
        self.spans = np.array([problem.span_costs(device) for device in self.first])
        self.transfer = problem.transfer_s[np.ix_(self.first, self.first)].copy()
        for at, (one, other) in enumerate(zip(self.first, second, strict=True)):
            self.transfer[at, at] = problem.transfer_s[one, other] if one != other else np.inf
        self.transfer[:, problem.only_first[self.first]] = np.inf
        self.values: dict[tuple[int, ...], FloatArray] = {}
        for counts in itertools.product(*(range(size + 1) for size in sizes)):
            if sum(counts) <= problem.max_devices:
                self._fill(counts)
        self.least_cost = min(float(values[:, -1].min()) for values in self.values.values())

    def _fill(self, counts: tuple[int, ...]) -> None:
        """Set the row of one vector of counts; those with one device less are set."""
        values = np.full((len(counts), self.problem.num_units + 1), np.inf)
        for e in np.flatnonzero(counts).tolist():
            entry = self._entries(counts, e).min(axis=0)
            open_at = np.flatnonzero(np.isfinite(entry))
            if len(open_at):
                values[e] = self.merge(entry[open_at, None], self.spans[e][open_at]).min(axis=0)
        self.values[counts] = values

    def _entries(self, counts: tuple[int, ...], e: int) -> FloatArray:
        """Return (classes, n+1): F of units before i without the last device, of class e, with the cut to it paid."""
        before = _less(counts, e)
        if any(before):
            entries: FloatArray = self.merge(self.values[before], self.transfer[:, e, None])
            return entries
        entries = np.full((len(counts), self.problem.num_units + 1), np.inf)
        entries[e, 0] = 0.0  # as if it came from itself
        return entries

    def limit(self, least_cost: float) -> float:
        """Return the cost up to which all rows are as good as the best ones."""
        share = 1 if self.problem.bottleneck else self.problem.max_devices + 1
        return least_cost * (1.0 + SAFETY / share)

    def free_bytes(self) -> FloatArray:
        """Return (classes, n+1, n+1): what a device has left beside units i .. j-1."""
        free: FloatArray = self.problem.room_bytes[self.first, None, None] - self.problem.span_bytes()
        return free

    def best(
        self, least_cost: float, worth: FloatArray, merge: np.ufunc, end: float
    ) -> tuple[float, float, tuple[tuple[int, int, int], ...]]:
        """Return the most that rows within the limit are worth, the cost of one that is, and its spans; -inf: none.

        Parameters
        ----------
        least_cost
            What the limit is for.
        worth
            (classes, n+1, n+1) of spans; -inf: forbidden.
        merge, end
            How the worth of a span and that of the row behind it are put together, and what no row is worth.
        """
        limit, shape = self.limit(least_cost), (len(self.classes), self.problem.num_units + 1)
        behind: dict[tuple[int, ...], _Behind] = {}
        for counts in sorted(self.values, key=lambda some: (sum(some), some), reverse=True):
            ends = self.values[counts][:, -1] <= limit
            if counts not in behind and not ends.any():
                continue
            here = behind.setdefault(counts, _Behind(shape))
            here.cost[ends, -1], here.worth[ends, -1] = 0.0, end
            for e in np.flatnonzero(counts).tolist():
                entries, j = self._entries(counts, e), np.flatnonzero(np.isfinite(here.cost[e]))
                d, i = np.nonzero(entries <= limit)
                if len(j) and len(d):
                    rest = self.merge(self.spans[e][i[:, None], j], here.cost[e, j])
                    found = merge(worth[e][i[:, None], j], here.worth[e, j])
                    found[self.merge(entries[d, i, None], rest) > limit] = -np.inf
                    cost = np.where(found > -np.inf, self.merge(self.transfer[d, e, None], rest), np.inf)
                    behind.setdefault(_less(counts, e), _Behind(shape)).offer(d, i, cost, found, e, j)
        start = behind.get((0,) * shape[0], _Behind(shape))
        first = int(start.worth[:, 0].argmax())
        if start.worth[first, 0] == -np.inf:
            return -np.inf, np.inf, ()
        return float(start.worth[first, 0]), *self._trace(behind, first)

    def _trace(self, behind: dict[tuple[int, ...], _Behind], d: int) -> tuple[float, tuple[tuple[int, int, int], ...]]:
        """Return the cost and the spans of the best row that begins with a class; equal devices in their order."""
        counts, i, cost, spans = [0] * len(self.classes), 0, 0.0, []
        while i < self.problem.num_units:
            e, j = behind[tuple(counts)].next[d, i].tolist()
            cut = self.transfer[d, e] if i else 0.0
            cost = float(self.merge(self.merge(cost, cut), self.spans[e, i, j]))
            spans.append((self.classes[e][counts[e]], i, j))
            counts[e] += 1
            d, i = e, j
        return cost, tuple(spans)


class _Behind:
    """What comes behind the rows of F for one vector of counts: least cost, most worth, and (class, end) to that."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.cost, self.worth = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.next = np.zeros((*shape, 2), np.int64)

    def offer(self, d: IntArray, i: IntArray, cost: FloatArray, worth: FloatArray, e: int, j: IntArray) -> None:
        """Keep for rows (d, i) what is better of (rows, ends) costs and worths, by steps to class e and ends j."""
        self.cost[d, i] = np.minimum(self.cost[d, i], cost.min(axis=1))
        better = worth.max(axis=1) > self.worth[d, i]
        d, i, best = d[better], i[better], worth[better].argmax(axis=1)
        self.worth[d, i] = worth[better, best]
        self.next[d, i, 0], self.next[d, i, 1] = e, j[best]


def _less(counts: tuple[int, ...], e: int) -> tuple[int, ...]:
    return (*counts[:e], counts[e] - 1, *counts[e + 1 :])
