"""A lower bound from a chain of ops: what lies between two of its neighbours runs between them, and is bounded alone.

For a_1 < ... < a_k on a path of the graph, the ops between a_j and a_{j+1} start when a_j has ended and end before
a_{j+1} starts. So ``start(a_{j+1}) - start(a_j)`` is at least the makespan of the problem *segment j*: these ops with
a_j, and with a_{j+1} taking no time, given the devices of both ends; also from the start to a_1, and from a_k to the
makespan. The bound is the least sum over the devices of the chain, a shortest path. Where the chain's ops separate the
graph (modules joined by one channel) nothing is lost but transfers that overlap; elsewhere what is not between any two
neighbours is left out.

References
----------
DIVIML, section IV-B: the recursion over modules, here on lower bounds and without requiring modules.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget, WorkShares, reserve
from rlinit.exact.placements.analysis.reachability import in_words, lengths_between, reachability
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.device_search import DeviceSearch
from rlinit.placements.problem import PlacementProblem

_STRIDE, _CHOICES = 12, 1_000
"""Relaxations that one search for the devices of a segment solves at a turn, or choices that the other looks at."""

_RELAXATION_WORK = 100
"""Choices that take about as long as a relaxation."""

_LEAST_SHARE = 0.15
"""Of all work, what each of the two searches gets at least."""

_ROWS_A_LOOK = 256
"""Ops whose distances to all others are found between two looks at the clock: a few milliseconds for 3,000 ops."""


def best_chain(
    problem: PlacementProblem,
    reach: NDArray[np.bool_],
    weight: FloatArray,
    least: FloatArray,
    most: int,
    gain: float,
    budget: Budget,
) -> list[int]:
    """Return the chain with the largest sum of `least` of its ops and what is known of the time between neighbours.

    That is the larger of the sum of `weight` and the longest path.

    Parameters
    ----------
    weight, least
        (n,) what an op adds between two ops of the chain, and as one of them.
    most
        Most ops between neighbours.
    gain
        What another op of the chain must add, relative to a mean op: segments that are not cut up are bounded better.
    budget
        Where it ends before all pairs of ops were looked at there is no chain.
    """
    n = problem.num_ops
    step = _between(problem, reach, weight, least, most, budget)
    if step is None:
        return []
    size_before, size_after = reach.sum(axis=0), reach.sum(axis=1)
    before, after = np.zeros(n), np.zeros(n)
    for v in problem.order.tolist():
        producers = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        before[v] = (before[producers] + least[producers]).max(initial=0.0)
    for v in problem.order[::-1].tolist():
        consumers = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        after[v] = (least[consumers] + after[consumers]).max(initial=0.0)
    before, after = np.maximum(weight @ reach, before), np.maximum(reach @ weight, after)
    least = least - gain * (least + weight).sum() / max(1, n)
    value, previous = np.full(n, -np.inf), np.full(n, -1)
    for v in problem.order.tolist():
        first = before[v] if size_before[v] <= most else -np.inf
        through = value + least + step[:, v]
        u = int(np.argmax(through))
        value[v], previous[v] = (first, -1) if first >= through[u] else (through[u], u)
    total = np.where(size_after <= most, value + least + after, -np.inf)
    last = int(np.argmax(total)) if n else -1
    if last < 0 or total[last] == -np.inf:
        return []
    chain = [last]
    while previous[chain[-1]] >= 0:
        chain.append(int(previous[chain[-1]]))
    return chain[::-1]


def _between(
    problem: PlacementProblem,
    reach: NDArray[np.bool_],
    weight: FloatArray,
    least: FloatArray,
    most: int,
    budget: Budget,
) -> FloatArray | None:
    """Return (n, n) what is known of the time between row and column, ``-inf`` where more than `most` ops lie there."""
    n, order = problem.num_ops, problem.order
    reserve(18.0 * n * n, f"the times between {n:,} ops")
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    ordered = reach[np.ix_(order, order)]
    descendants, ancestors = in_words(ordered), in_words(ordered.T)
    edges = place[problem.edges].reshape(-1, 2)
    edges = edges[np.argsort(edges[:, 1], kind="stable")]
    pred_indptr = np.searchsorted(edges[:, 1], np.arange(n + 1)).astype(np.int64)
    pred, weight, least = edges[:, 0].copy(), weight[order], least[order]
    length = np.full((n, n), -np.inf)
    for first in range(0, n, _ROWS_A_LOOK):
        if budget.expired:
            return None
        rows = (first, min(n, first + _ROWS_A_LOOK))
        lengths_between(rows, descendants, ancestors, pred_indptr, pred, weight, least, most, length)
    return length[np.ix_(place, place)]


def segment_problem(
    problem: PlacementProblem, window: ShardWindows, reach: NDArray[np.bool_], before: int, after: int
) -> tuple[PlacementProblem, IntArray]:
    """Return the `latency` problem of one shard of the ops between two ops, with these, and its ops in the whole.

    Parameters
    ----------
    before, after
        Ops, or -1 for the start and the end. `after` takes no time.
    """
    inside = np.ones(problem.num_ops, np.bool_)
    if before >= 0:
        inside &= reach[before]
    if after >= 0:
        inside &= reach[:, after]
    inside[[v for v in (before, after) if v >= 0]] = True
    ops = np.flatnonzero(inside)
    local = np.cumsum(inside) - 1
    time_s = np.zeros((len(ops), problem.num_devices, 2))
    time_s[:, :, 1] = window.least_s[ops]
    if after >= 0:
        own = time_s[local[after], :, 1]
        time_s[local[after], :, 1] = np.where(np.isfinite(own), 0.0, np.inf)
    edges = problem.edges[inside[problem.edges].all(axis=1)]
    leader: dict[int, int] = {}
    group = np.array([leader.setdefault(int(problem.group[v]), k) for k, v in enumerate(ops)], np.int64)
    segment = dataclasses.replace(
        problem,
        objective="latency",
        time_s=time_s,
        tensor_bytes=problem.tensor_bytes[ops],
        weight_bytes=problem.weight_bytes[ops],
        shard_bytes=problem.shard_bytes[ops],
        edges=local[edges].reshape(-1, 2),
        order=local[problem.order[inside[problem.order]]],
        group=group,
    )
    return segment, ops


class _Pair:
    """Bounds of a segment with devices of its ends by two searches: with trial makespans, and with linear relaxations.

    Relaxations know better what fractions of ops cost, trials what whole ones do; what gains more depends on the graph.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        upper: float,
        allowed: NDArray[np.bool_],
        weight: FloatArray | None,
        gains: WorkShares,
    ) -> None:
        self.upper, self._gains, self._begun = upper, gains, False
        self.trials = DestructiveSearch(problem, upper=upper, allowed=allowed, weight=weight)
        self.relaxations = DeviceSearch(problem, upper=upper, allowed=allowed)

    @property
    def work(self) -> int:
        """Choices looked at, and for relaxations as many as take their time."""
        return self.trials.nodes + _RELAXATION_WORK * self.relaxations.nodes

    @property
    def bound_s(self) -> float:
        """The better bound."""
        return max(self.relaxations.bound_s, self.trials.bound_s)

    @property
    def exhausted(self) -> bool:
        """Whether neither search gets further."""
        return self.relaxations.exhausted and self.trials.exhausted

    def run(self, budget: Budget) -> float:
        """Propagate at first, then go on with the search that gains more; return the bound."""
        if not self._begun:
            self._begun = True
            return self.trials.run(0, budget)
        way = 0 if self.relaxations.exhausted else 1 if self.trials.exhausted else self._gains.choose()
        before, done = self.bound_s, self.work
        if way == 0:
            self.trials.raise_bound(self.relaxations.bound_s)
            self.trials.run(_CHOICES, budget)
        else:
            self.relaxations.run(1 if self.relaxations.nodes == 0 else _STRIDE, budget)
        gain = self.bound_s - before
        self._gains.reward(way, gain if gain < np.inf else 0.0, max(1, self.work - done))
        return self.bound_s


class _Segment:
    """Bounds of one segment for each pair of devices of its ends (device 0 stands for the start and for the end).

    Parameters
    ----------
    problem
        Of the segment.
    ends
        Which of its ops are the first and the last, -1 for the start and the end.
    gains
        What all segments tell of the two ways to search, by seconds gained for work.
    """

    def __init__(self, problem: PlacementProblem, ends: tuple[int, int], gains: WorkShares) -> None:
        self.problem, self._ends, self._gains = problem, ends, gains
        start = np.arange(problem.num_devices) == 0
        rows, columns = (np.isfinite(problem.op_time_s[end]) if end >= 0 else start for end in ends)
        self.bound_s = np.where(rows[:, None] & columns[None, :], 0.0, np.inf)
        self.searches: dict[tuple[int, int], _Pair] = {}

    def search(self, pair: tuple[int, int], upper: float) -> _Pair:
        """Return the search for devices of the ends, making it if need be."""
        if pair not in self.searches:
            allowed = np.isfinite(self.problem.time_s)
            allowed[:, :, 0] = False
            for at, device in zip(self._ends, pair, strict=True):
                if at >= 0:
                    only = np.zeros_like(allowed[at])
                    only[device] = allowed[at, device]
                    allowed[at] = only
            known = next((search.trials.weight for search in self.searches.values()), None)
            self.searches[pair] = _Pair(self.problem, upper, allowed, known, self._gains)
        return self.searches[pair]


def _key(problem: PlacementProblem, ends: tuple[int, ...]) -> bytes:
    """Return what bounds of a segment depend on; equal for segments that are copies of each other."""
    numbers = [np.array([problem.num_ops, len(problem.edges), *ends]), problem.edges, problem.order, problem.group]
    sizes = [problem.time_s, problem.tensor_bytes, problem.weight_bytes, problem.shard_bytes]
    return b"".join(array.tobytes() for array in (*numbers, *sizes))


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
    """

    def __init__(self, problem: PlacementProblem, window: ShardWindows, chain: Sequence[int], upper: float) -> None:
        reach = reachability(problem.order, problem.succ_indptr, problem.succ)
        ends = [-1, *chain, -1]
        self.upper = upper
        self.ends = list(itertools.pairwise(ends))
        self.segments: list[_Segment] = []
        gains, alike = WorkShares(2, _LEAST_SHARE), dict[bytes, _Segment]()
        for before, after in self.ends:
            part, ops = segment_problem(problem, window, reach, before, after)
            first, last = (int(np.searchsorted(ops, op)) if op >= 0 else -1 for op in (before, after))
            key = _key(part, (first, last))
            alike[key] = alike.get(key) or _Segment(part, (first, last), gains)
            self.segments.append(alike[key])
        self.bound_s = 0.0

    @property
    def work(self) -> int:
        """Choices looked at so far, and relaxations solved as so many as take their time."""
        return sum(search.work for segment in dict.fromkeys(self.segments) for search in segment.searches.values())

    @property
    def gaps(self) -> list[tuple[int, int, FloatArray]]:
        """Bounds on the time between neighbours by their devices, for a `PlacementLP`."""
        return [(*ends, segment.bound_s) for ends, segment in zip(self.ends, self.segments, strict=True)]

    def run(self, work: int, budget: Budget) -> float:
        """Look at about `work` more choices, or solve relaxations for as long, and return the bound.

        Each round improves the segment on the shortest path that had the least work.

        Parameters
        ----------
        work
            At least 1.
        budget
            Ends the search between two relaxations, and between some choices.
        """
        last = self.work + work
        while True:
            forward, backward, path = self._shortest()
            self.bound_s = max(self.bound_s, min(self.upper, float(forward[-1].min())))
            if self.bound_s >= self.upper or self.work >= last or budget.expired:
                return self.bound_s
            chosen = self._weakest(path)
            if chosen is None:
                return self.bound_s
            k, (i, j) = chosen
            segment = self.segments[k]
            copies = [c for c, other in enumerate(self.segments) if other is segment]
            others = min(float(forward[c][i] + backward[c + 1][j]) for c in copies)
            search = segment.search((i, j), self.upper - others if self.upper < np.inf else np.inf)
            segment.bound_s[i, j] = search.run(budget)

    def _shortest(self) -> tuple[list[FloatArray], list[FloatArray], list[tuple[int, int]]]:
        """Return least sums up to and from each op of the chain by device, and the pairs of a shortest path."""
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

    def _weakest(self, path: list[tuple[int, int]]) -> tuple[int, tuple[int, int]] | None:
        """Return the segment of the path with the fewest nodes whose search can go on."""
        best: tuple[int, int] | None = None
        for k, (segment, pair) in enumerate(zip(self.segments, path, strict=True)):
            search = segment.searches.get(pair)
            if search is not None and (search.exhausted or search.bound_s >= search.upper):
                continue
            key = (search.work if search is not None else -1, k)
            best = key if best is None else min(best, key)
        return None if best is None else (best[1], path[best[1]])
