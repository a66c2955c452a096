"""Facets of what memories have room for: whole numbers of small and large units, visits of a station, single units.

What a row has on one station is i small and j large units in some visits, which are stretches of the row. Where every
unit of a stretch is counted, it holds both sizes nearly in proportion: with n1 small and n2 large units in all,

    n1 j - n2 i  <=  D visits     and     n2 i - n1 j  <=  E visits,

D and E the most of the left-hand sides over all stretches. The same goes for those of i units that are of its smaller
sizes, which says how many bytes i units take at least. A direction (a, b, -c) with c >= 0 and the most of
a i + b j - c visits over all (i, j, visits) that there is room for make a row that holds for every walk; directions are
those of the convex hull's facets, made whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import lcm

import numpy as np
from scipy.spatial import ConvexHull

from rlinit.arrays import ROUNDING, FloatArray, IntArray

_VISITS = 60
"""Visits from which on sizes are in any proportion."""

_DENOMINATOR = 1000
"""Largest denominator of a direction."""

_Stairs = tuple[int, list[tuple[float, int, int]]]
"""Units of a class; and for each of its sizes: it, how many units are up to it, and their surplus a visit."""


@dataclass(frozen=True, slots=True)
class Facet:
    """small i + large j - visits v + singles . e - shared z <= limit, with z whether first and last unit share bytes.

    Parameters
    ----------
    small, large, visits, singles, shared, limit
        At least 0.
    """

    small: int
    large: int
    visits: int
    singles: tuple[int, ...]
    shared: int
    limit: int


@dataclass(slots=True, eq=False)
class Packing:
    """What units on a station take of a memory.

    Parameters
    ----------
    room
        Bytes of the memory.
    taken
        (n, q) bytes of each unit on each place of the station; 0: not there, or a single unit.
    stretched
        Whether every unit on the station but single ones takes bytes, and in one place only.
    singles
        Bytes of other units, each of which may be there.
    shared
        Bytes that the first two of these share; 0: none.
    """

    room: float
    taken: FloatArray
    stretched: bool
    singles: tuple[float, ...]
    shared: float
    split: float = field(init=False)
    _points: dict[tuple[int, ...], IntArray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        sizes = np.unique(self.taken[self.taken > 0])
        self.split = float(sizes[1 + int(np.argmax(sizes[1:] / sizes[:-1]))]) if len(sizes) > 1 else np.inf

    def facets(self, beside: tuple[int, ...]) -> Iterator[Facet]:
        """Return facets of what there is room for beside some single units, made facets of all.

        Single units are taken in one by one, each with the most that it takes off the limit whatever was taken in
        before; shared bytes give back what the first two take too much together.

        Parameters
        ----------
        beside
            Numbers of single units.
        """
        numbers = range(len(self.singles))
        chosen = [some for k in range(len(numbers) + 1) for some in combinations(numbers, k)]
        for direction in _directions(self._largest(beside)):
            most = {some: max(0, int((self._largest(some) @ direction).max(initial=0))) for some in chosen}
            lost: dict[tuple[int, ...], int] = {(): 0}
            singles: list[int] = []
            shared = 0
            for at in numbers:
                before = [some for some in lost if at != 1 or not self.shared or not some]
                singles.append(min(most[()] - lost[some] - most[(*some, at)] for some in before))
                lost |= {(*some, at): lost[some] + singles[at] for some in list(lost)}
                if at == 1 and self.shared:
                    shared = max(0, lost[0, 1] + most[0, 1] - most[()])
                    lost[0, 1] -= shared
            a, b, c = direction.tolist()
            yield Facet(a, b, -c, tuple(singles), shared, most[()])

    def _largest(self, beside: tuple[int, ...]) -> IntArray:
        """Return (i, j, visits), the most j of each i and visits that there is room for beside single units."""
        if beside not in self._points:
            taken = sum(self.singles[at] for at in beside)
            given = self.shared if beside[:2] == (0, 1) else 0.0
            room = self.room - taken * (1 - ROUNDING) + given + ROUNDING * (self.room + given)
            self._points[beside] = self._staircase(room) if room >= 0 else np.zeros((0, 3), np.int64)
        return self._points[beside]

    def _staircase(self, room: float) -> IntArray:
        most, last = self.taken.max(axis=1), _VISITS if self.stretched else 1
        small, large = (most > 0) & (most < self.split), most >= self.split
        n1, n2 = int(small.sum()), int(large.sum())
        classes = self._stairs(small=True), self._stairs(small=False)
        more_large, more_small = _surplus(n1 * large - n2 * small), _surplus(n2 * small - n1 * large)
        found, before = [], np.full(classes[0][0] + 1, -1)
        for visits in range(1, last + 1):
            free = visits == last
            i_bytes, j_bytes = (_least_bytes(stairs, None if free else visits) for stairs in classes)
            i, j = np.arange(len(i_bytes)), np.searchsorted(j_bytes, room - i_bytes, side="right") - 1
            if not free:
                j = np.minimum(j, (n2 * i + more_large * visits) // n1) if n1 else j
                j = np.where(n1 * j >= n2 * i - more_small * visits, j, -1)
            some = j > before
            spent = np.full(int(some.sum()), visits if self.stretched else 0)
            found.append(np.stack([i[some], j[some], spent], axis=1))
            before = np.maximum(before, j)
        return np.concatenate(found)

    def _stairs(self, *, small: bool) -> _Stairs:
        sizes = np.where((self.taken < self.split) == small, self.taken, 0.0)
        inner, stairs = (sizes > 0).any(axis=1), []
        n = int(inner.sum())
        for size in np.unique(sizes[sizes > 0]).tolist():
            lower = ((sizes > 0) & (sizes <= size)).any(axis=1)
            k = int(lower.sum())
            stairs.append((size, k, _surplus(n * lower - k * inner)))
        return n, stairs


def _least_bytes(stairs: _Stairs, visits: int | None) -> FloatArray:
    """Return the least bytes of 0, 1, 2, ... units of a class in some visits; None: in any number of them."""
    count = np.arange(stairs[0] + 1)
    total, before = np.zeros(len(count)), np.zeros(len(count), np.int64)
    for size, k, surplus in stairs[1]:
        most = np.minimum(count, k)
        if visits is not None:
            most = np.minimum(most, (k * count + surplus * visits) // stairs[0])
        most = np.maximum(most, before)
        total += size * (most - before)
        before = most
    return total


def _surplus(steps: IntArray) -> int:
    """Return the largest sum over a stretch, or 0."""
    sums = np.concatenate([[0], np.cumsum(steps)])
    return int((sums - np.minimum.accumulate(sums)).max())


def _directions(points: IntArray) -> list[IntArray]:
    """Return (3,) directions of facets of the convex hull of points and of all below, or with more visits."""
    top = points.max(axis=0, initial=0)
    used = np.flatnonzero(top)
    if not top[:2].any():
        return []
    if len(used) == 1:
        return [(top > 0).astype(np.int64)]
    beyond = np.array([0, 0, 1]) * (top + 1)
    below = [points * np.array(kept) for kept in ((1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1))]
    more = [beyond[None], points * np.array((1, 1, 0)) + beyond]
    cloud = np.unique(np.concatenate([*below, *more])[:, used], axis=0)
    found = set()
    for normal in np.unique(np.round(ConvexHull(cloud).equations[:, :-1], 12), axis=0).tolist():
        largest = max(map(abs, normal))
        whole = [Fraction(one / largest).limit_denominator(_DENOMINATOR) for one in normal]
        scale, full = lcm(*(one.denominator for one in whole)), [0, 0, 0]
        for at, one in zip(used.tolist(), whole, strict=True):
            full[at] = int(one * scale)
        if min(full[:2]) >= 0 and full[2] <= 0 and any(full[:2]):
            found.add(tuple(full))
    return [np.array(one) for one in sorted(found)]
