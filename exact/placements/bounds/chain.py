"""A lower bound from a chain of ops: what lies between two of its neighbours runs between them, and is bounded alone.

For a_1 < ... < a_k on a path of the graph, the ops between a_j and a_{j+1} start when a_j has ended and end before
a_{j+1} starts. So ``start(a_{j+1}) - start(a_j)`` is at least the makespan of the problem *segment j*: these ops with
a_j, and with a_{j+1} taking no time, given the devices of both ends; also from the start to a_1, and from a_k to the
makespan. The bound is the least sum over the devices of the chain, a shortest path. Where the chain's ops separate the
graph (modules joined by one channel) nothing is lost but transfers that overlap; elsewhere what is not between any two
neighbours is left out.

Longer segments, which join two or three neighbours, level by level up to the whole, find it. A longer segment knows
the bounds of all that it is made of as least times between their ends (`lags`), so that its own is no less than their
sum, and has the ops beside its parts as well.

References
----------
DIVIML, section IV-B: the recursion over modules, here on lower bounds and without requiring modules.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlinit.arrays import ROUNDING, BoolArray, FloatArray, IntArray
from rlinit.budget import Budget, WorkShares
from rlinit.exact.placements.analysis.batches import data_flow
from rlinit.exact.placements.analysis.chains import segment_problem
from rlinit.exact.placements.analysis.open_propagation import carry_open
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.placements.problem import PlacementProblem

_CHOICES, _LONG_CHOICES = 1_000, 100
"""Choices of a turn: those of trials of a single segment, and those of a longer one, shared by what it is made of."""


def _fixed_ends(problem: PlacementProblem, ends: tuple[int, int], pair: tuple[int, int]) -> BoolArray:
    """Return (n, d, 2) the batches of a segment with devices of its ends."""
    allowed = np.isfinite(problem.time_s)
    allowed[:, :, 0] = False
    for at, device in zip(ends, pair, strict=True):
        if at >= 0:
            only = np.zeros_like(allowed[at])
            only[device] = allowed[at, device]
            allowed[at] = only
    return allowed


def _by_paths(problem: PlacementProblem, ends: tuple[int, int], budget: Budget) -> FloatArray:
    """Return (d, d) least times of a segment by paths and transfers, by the devices of its ends; 0 once time is up."""
    flow, least, d = data_flow(problem), problem.op_time_s, problem.num_devices
    before, after = ends
    able = np.isfinite(least)
    rows, columns = (able[at] if at >= 0 else np.arange(d) == 0 for at in ends)
    table = np.where(rows[:, None] & columns[None, :], 0.0, np.inf)
    for i in np.flatnonzero(rows).tolist():
        if budget.expired:
            break
        allowed, head = able.copy(), np.zeros(able.shape)
        if before >= 0:
            allowed[before] = np.arange(d) == i
        carry_open(flow, allowed, least, head, np.zeros(able.shape))
        if after >= 0:
            table[i] = np.where(columns, head[after], np.inf)
        else:
            table[i, 0] = np.where(allowed, head + least, np.inf).min(axis=1).max(initial=0.0)
    return table * (1.0 - ROUNDING)


def _pairs_alike(problem: PlacementProblem, ends: tuple[int, int]) -> IntArray:
    """Return (d, d) labels of devices of the ends, equal where exchanging alike devices makes one pair of another."""
    d = problem.num_devices
    label = np.arange(d * d).reshape(d, d)
    first = np.arange(d)
    for members in alike_devices(problem):
        first[[i for (i,) in members]] = members[0][0]
    if min(ends) < 0:  # device 0 stands for the start or the end, and nothing is exchanged with it
        rows, columns = (first if at >= 0 else np.arange(d) for at in ends)
        return label[np.ix_(rows, columns)]
    same = np.eye(d, dtype=np.bool_)
    unlike = label[np.ix_(first, first)]
    return np.where(same, unlike, d * d + unlike)


_Part = tuple[int, int, "_Segment"]
"""Where a segment begins and ends, and the segment."""


class _Segment:
    """Bounds of one segment for each pair of devices of its ends (device 0 stands for the start and for the end).

    Parameters
    ----------
    problem
        Of the segment.
    ends
        Which of its ops are the first and the last, -1 for the start and the end.
    inner
        Shorter segments that it is made of, by their ends among its ops, sorted by the second; none of a single one.
    parts
        Those of them that it joins, in order.
    size
        How many single segments it is made of.
    budget
        Of its first table, which is that of its parts where there are some.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        ends: tuple[int, int],
        inner: Sequence[_Part],
        parts: Sequence[_Segment],
        size: int,
        budget: Budget,
    ) -> None:
        self.problem, self.parts, self.size = problem, parts, size
        self._ends, self._inner = ends, inner
        self.bound_s = _by_paths(problem, ends, budget.share(0.0) if parts else budget)
        self._lag_s = np.zeros((len(inner), *self.bound_s.shape))
        lags = (np.array([part[:2] for part in inner], np.int64), self._lag_s)
        self._last = DestructiveSearch(problem, lags=lags if inner else None)
        self._alike = _pairs_alike(problem, ends)
        self._trials: dict[int, DestructiveSearch] = {}

    @property
    def work(self) -> int:
        """Choices looked at so far, those of longer segments as so many as take their time."""
        return self.size * sum(trials.nodes for trials in self._trials.values())

    def add_up(self) -> None:
        """Take what shorter segments prove: lags, and the least sum of the parts over the devices where they meet."""
        if not self.parts:
            return
        total = self.parts[0].bound_s
        for part in self.parts[1:]:
            total = (total[:, :, None] + part.bound_s[None]).min(axis=1)
        self.bound_s = np.maximum(self.bound_s, total)
        for lag, (_, _, segment) in zip(self._lag_s, self._inner, strict=True):
            lag[:] = segment.bound_s * (1.0 - ROUNDING)

    def alike(self, pair: tuple[int, int]) -> BoolArray:
        """Return (d, d) the pairs of devices of the ends that alike devices make of a pair, which have its bound."""
        same: BoolArray = self._alike == self._alike[pair]
        return same

    def effort(self, pair: tuple[int, int]) -> int | None:
        """Return the work for devices of the ends so far, -1 before any; None where nothing is left to do."""
        trials = self._trials.get(int(self._alike[pair]))
        if trials is None:
            return -1
        ended = trials.exhausted or trials.bound_s >= trials.upper
        return None if ended else self.size * trials.nodes

    def improve(self, pair: tuple[int, int], upper: float, budget: Budget) -> None:
        """Try makespans for devices of the ends, at first below `upper` and by propagation alone."""
        choices = _CHOICES if self.size == 1 else max(1, _LONG_CHOICES // self.size)
        label, alike = int(self._alike[pair]), self.alike(pair)
        if label not in self._trials:
            allowed, choices = _fixed_ends(self.problem, self._ends, pair), 0
            self._last = DestructiveSearch(self.problem, upper=upper, allowed=allowed, like=self._last)
            self._trials[label] = self._last
        trials = self._trials[label]
        trials.raise_bound(float(self.bound_s[alike].max()))
        self.bound_s[alike] = max(float(self.bound_s[alike].max()), trials.run(choices, budget))


def _key(problem: PlacementProblem, ends: tuple[int, ...], parts: Sequence[_Segment]) -> bytes:
    """Return what bounds of a segment depend on; equal for segments that are copies of each other."""
    numbers = [np.array([problem.num_ops, len(problem.edges), *ends]), problem.edges, problem.order, problem.group]
    sizes = [problem.time_s, problem.tensor_bytes, problem.weight_bytes, problem.shard_bytes]
    same = np.array([id(part) for part in parts])
    return b"".join(array.tobytes() for array in (*numbers, *sizes, same))


class _Level:
    """Segments one after another, from the start to the end.

    Parameters
    ----------
    spans
        Segments, copies of each other being one, in order, and where in the chain they begin and end.
    """

    def __init__(self, spans: list[_Part]) -> None:
        self.spans = spans
        self.segments = [segment for _, _, segment in spans]
        self._each = list(dict.fromkeys(self.segments))

    def add_up(self) -> None:
        """Take what shorter segments prove."""
        for segment in self._each:
            segment.add_up()

    @property
    def work(self) -> int:
        """What was done for its segments, in choices looked at."""
        return sum(segment.work for segment in self._each)

    def shortest(self) -> tuple[list[FloatArray], list[FloatArray], list[tuple[int, int]]]:
        """Return least sums up to and from each op between segments by device, and the pairs of a shortest path."""
        d = len(self.segments[0].bound_s)
        forward = [np.where(np.arange(d) == 0, 0.0, np.inf)]
        for segment in self.segments:
            forward.append((forward[-1][:, None] + segment.bound_s).min(axis=0))
        backward = [np.where(np.arange(d) == 0, 0.0, np.inf)]
        for segment in reversed(self.segments):
            backward.append((segment.bound_s + backward[-1][None, :]).min(axis=1))
        backward.reverse()
        device, path = 0, []
        for k, segment in enumerate(self.segments):
            following = int(np.argmin(segment.bound_s[device] + backward[k + 1]))
            path.append((device, following))
            device = following
        return forward, backward, path

    def open_pair(self) -> tuple[float, int, tuple[int, int]] | None:
        """Return the segment on the shortest path that had the least work, with that before it and its devices.

        What is done for copies of a segment counts for each of them in part; a segment not begun comes first.
        """
        path = self.shortest()[2]
        on_path = list(zip(self.segments, path, strict=True))
        efforts = [segment.effort(pair) for segment, pair in on_path]
        copies = Counter((id(segment), pair) for segment, pair in on_path)
        return min(
            (
                (work / copies[id(self.segments[k]), path[k]] if work > 0 else work, k, path[k])
                for k, work in enumerate(efforts)
                if work is not None
            ),
            default=None,
        )

    def improve(self, k: int, pair: tuple[int, int], upper: float, budget: Budget) -> None:
        """Improve segment k for devices of its ends."""
        forward, backward, _ = self.shortest()
        segment, alike = self.segments[k], self.segments[k].alike(pair)
        copies = [c for c, other in enumerate(self.segments) if other is segment]
        others = min(float((forward[c][:, None] + backward[c + 1])[alike].min()) for c in copies)
        segment.improve(pair, upper - others if upper < np.inf else np.inf, budget)


class ChainBound:
    """The bound of a chain, made better segment by segment; :attr:`bound_s` is a lower bound at all times.

    Segments that are copies of each other, as of repeated layers, are searched once.

    Parameters
    ----------
    problem, window
        The whole problem and what is left of its batches.
    chain
        Ops, each reachable from the one before it.
    upper
        Bounds are not raised beyond this.
    budget
        Of the first tables of its segments.
    """

    def __init__(
        self, problem: PlacementProblem, window: ShardWindows, chain: Sequence[int], upper: float, budget: Budget
    ) -> None:
        self.upper, self.bound_s = upper, 0.0
        self._problem, self._window = problem, window
        self._reach = reachability(problem.order, problem.succ_indptr, problem.succ)
        self._chain = np.array([-1, *chain, -1])
        self._turns = WorkShares(2)
        self.levels: list[_Level] = []
        self._add_level(list(range(len(self._chain))), budget)

    @property
    def work(self) -> int:
        """Choices looked at so far."""
        return sum(level.work for level in self.levels)

    @property
    def gaps(self) -> list[tuple[int, int, FloatArray]]:
        """Bounds on the time between ops of the chain by their devices, for a `PlacementLP`."""
        return [
            (int(self._chain[a]), int(self._chain[b]), segment.bound_s)
            for level in self.levels
            for a, b, segment in level.spans
        ]

    def run(self, work: int, budget: Budget) -> float:
        """Look at about `work` more choices and return the bound.

        Single segments and longer ones take turns; those that gained more for their work of late have more of them.

        Parameters
        ----------
        work
            At least 1.
        budget
            Ends the search between some choices.
        """
        last = self.work + work
        while self.bound_s < self.upper and self.work < last and not budget.expired:
            before, done, way = self.bound_s, self.work, self._turns.choose()
            if not self._improve(way, budget):
                way = 1 - way
                if not self._improve(way, budget):
                    break
            self._turns.reward(way, self.bound_s - before, max(1, self.work - done))
        return self.bound_s

    def _improve(self, way: int, budget: Budget) -> bool:
        """Improve a single segment (0) or a longer one (1), that with the least work; return whether any can be."""
        levels = self.levels[1:] if way else self.levels[:1]
        for level in levels:
            level.add_up()
            self._raise(level)
        chosen = [(*found, level) for level in levels if (found := level.open_pair()) is not None]
        last = self.levels[-1].spans
        if way and len(last) > 1 and all(work >= 0 for work, *_ in chosen):
            # Two segments are joined, and the last three of an odd number.
            self._add_level([*(a for a, _, _ in last[: len(last) // 2 * 2 : 2]), last[-1][1]], budget)
            return True
        if not chosen:
            return False
        _, k, pair, level = min(chosen, key=lambda each: each[0])
        level.improve(k, pair, self.upper, budget)
        self._raise(level)
        return True

    def _raise(self, level: _Level) -> None:
        self.bound_s = max(self.bound_s, min(self.upper, float(level.shortest()[0][-1].min())))

    def _add_level(self, first: list[int], budget: Budget) -> None:
        """Add the segments between some ops of the chain: single ones at first, then those that join the last ones."""
        alike: dict[bytes, _Segment] = {}
        spans: list[_Part] = []
        for a, b in itertools.pairwise(first):
            before, after = self._chain[[a, b]].tolist()
            problem, ops = segment_problem(self._problem, self._window, self._reach, before, after)
            local = np.where(self._chain >= 0, np.searchsorted(ops, self._chain), -1).tolist()
            within = [[each for each in level.spans if a <= each[0] and each[1] <= b] for level in self.levels]
            parts = [segment for _, _, segment in within[-1]] if within else []
            key = _key(problem, (local[a], local[b]), parts)
            if key not in alike:
                inner = sorted(itertools.chain(*within), key=lambda each: each[1])
                inner = [(local[p], local[q], segment) for p, q, segment in inner]
                alike[key] = _Segment(problem, (local[a], local[b]), inner, parts, b - a, budget)
            spans.append((a, b, alike[key]))
        self.levels.append(_Level(spans))
