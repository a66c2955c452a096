"""The blocks between separators, with the least time of each for every pair of devices of its two ends.

A pair is solved only where it lies on the shortest path of the chain by lower bounds; the others stay as they are, for
they cannot lead to anything better. Blocks that are copies of each other share what is known of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import SAFETY, FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.split.search import (
    SearchModel,
    SearchResult,
    Target,
    root_bound,
    search,
    search_model,
)
from rlinit.exact.placements.split.separators import induced, separators
from rlinit.exact.placements.split.state_layers import Frontier
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, placement_from_priority, placement_of, timeline

_LEVELS: tuple[tuple[int, ...] | int, ...] = (
    (16,),
    (16, 256),
    1_000,
    (16, 256, 4096),
    10_000,
    (256, 4096, 32768, 131072),
)
"""Widths of the search by level of effort, or for trial makespans, which close blocks of long branches at once, choices
of devices and orders looked at for a pair of devices."""

_TRIAL_WORK = 3
"""Partial schedules that a choice takes the time of, for each op of the block."""


@dataclass(slots=True, eq=False)
class _Segment:
    """The ops from one separator (excluded; -1: the beginning) to the next (included; -1: the end).

    Parameters
    ----------
    lower, value
        (a, b) bounds and values found for each pair of devices of the two separators; one row, or column, where there
        is none.
    solution
        ``{(a, b): (device, rank) of inner}``.
    level
        (a,) passes made from each device, as an index of the levels of effort.
    """

    source: int
    inner: IntArray
    sink: int
    model: SearchModel
    starts: list[Frontier]
    lower: FloatArray
    value: FloatArray
    solution: dict[tuple[int, int], tuple[IntArray, IntArray]]
    level: IntArray


class BlockChain:
    """The segments between separators, with what is known of each pair of devices; segments alike share one entry."""

    def __init__(self, problem: PlacementProblem, comm: FloatArray, jobs: int, max_work: int) -> None:
        self.problem, self.comm = problem, comm
        self.jobs, self.max_work, self.work = jobs, max_work, 0
        cuts = separators(problem)
        at = inverse_of(problem.order)[cuts]
        begins, finishes = [0, *(at + 1).tolist()], [*at.tolist(), problem.num_ops]
        ends_with = [*cuts.tolist(), -1]
        starts_with = [-1, *cuts.tolist()]
        self.inner: list[IntArray] = []
        self.sinks: list[int] = []
        self.segments: list[_Segment] = []
        alike: dict[bytes, _Segment] = {}
        for begin, finish, source, sink in zip(begins, finishes, starts_with, ends_with, strict=True):
            if sink < 0 and begin == finish:
                continue
            inner = problem.order[begin:finish]
            key = self._key(source, inner, sink)
            if key not in alike:
                alike[key] = self._segment(source, inner, sink)
            self.inner.append(inner)
            self.sinks.append(sink)
            self.segments.append(alike[key])

    def _key(self, source: int, inner: IntArray, sink: int) -> bytes:
        """Return what the costs of a segment depend on; equal for segments that are copies of each other."""
        problem = self.problem
        ops = [*([source] if source >= 0 else []), *inner.tolist(), *([sink] if sink >= 0 else [])]
        index = {v: i for i, v in enumerate(ops)}
        edges = [
            (index[v], index[int(w)])
            for v in ops
            for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
            if int(w) in index
        ]
        first: dict[int, int] = {}
        group = [first.setdefault(int(problem.group[v]), i) for i, v in enumerate(ops)]
        timed = problem.op_time_s[ops[1 if source >= 0 else 0 :]]
        head = np.array([source >= 0, sink >= 0, len(ops), *group, *(x for edge in edges for x in edge)], np.int64)
        held = problem.weight_bytes + problem.num_shards * problem.shard_bytes
        if not (held.sum() > problem.capacity_bytes).any():
            held = np.zeros_like(held)  # Where all fits on each device, blocks may differ in what they hold.
        return b"".join(array.tobytes() for array in (head, timed, problem.tensor_bytes[ops], held[ops]))

    def _segment(self, source: int, inner: IntArray, sink: int) -> _Segment:
        d = self.problem.num_devices
        externals = np.array([source] if source >= 0 else [], np.int64)
        targets = [Target(sink, q) for q in range(d)] if sink >= 0 else [Target(-1, -1)]
        model = search_model(self.problem, self.comm, externals, inner, targets)
        lower = np.empty((d if source >= 0 else 1, len(targets)))
        starts = []
        n = len(externals) + len(inner)
        for u in range(len(lower)):
            device = np.full((1, n), -1, np.int8)
            device[0, : len(externals)] = u
            zeros = np.zeros((1, d))
            start = Frontier(zeros, np.zeros((1, n)), device, zeros, np.zeros((1, n), np.int8), np.zeros(1, np.int64))
            starts.append(start)
            lower[u] = root_bound(model, start)
            if source >= 0 and sink >= 0 and self.problem.group[source] == self.problem.group[sink]:
                lower[u, np.arange(d) != u] = np.inf
        value = np.full(lower.shape, np.inf)
        return _Segment(source, inner, sink, model, starts, lower, value, {}, np.zeros(len(lower), np.int64))

    def adopt(self, placement: Placement) -> None:
        """Take what a schedule does between separators as values of its pairs of devices."""
        problem, d = self.problem, self.problem.num_devices
        times = timeline(problem, placement)
        rank = inverse_of(placement.sequence // d)
        where = placement.device[:, 0]
        begin = 0.0
        u = 0
        for segment, inner, sink in zip(self.segments, self.inner, self.sinks, strict=True):
            v = int(where[sink]) if sink >= 0 else 0
            end = float(times.end_s[sink, v]) if sink >= 0 else times.makespan_s
            if end - begin < segment.value[u, v] and problem.transfers == "parallel":
                segment.value[u, v] = end - begin
                segment.solution[u, v] = (where[inner], np.argsort(np.argsort(rank[inner])))
            begin, u = end, v

    def solve(self, upper: float, budget: Budget) -> tuple[float, Placement | None]:
        """Return the bound and the placement of the shortest path, solving the pairs on it until both agree.

        Parameters
        ----------
        upper
            Seconds; placements that are not below it are not looked for.
        budget
            Ends the work between two pairs.
        """
        for effort in range(len(_LEVELS)):
            while True:
                forward, backward = self._distances("lower")
                best = min(upper, float(self._distances("value")[0][-1].min()))
                # This close they are one and the same sum, rounded in different orders.
                if forward[-1].min() * (1.0 + SAFETY) >= best or budget.expired or self.work >= self.max_work:
                    return self._answer()
                todo = self._open_rows(effort)
                if not todo:
                    break
                cutoffs = self._cutoffs(forward, backward, best)
                self._refine(todo, cutoffs, effort, budget)
        return self._answer()

    def _distances(self, which: str) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return shortest distances from the beginning to, and to the end from, each separator's devices."""
        costs = [getattr(segment, which) for segment in self.segments]
        forward, backward = [np.zeros(1)], [np.zeros(costs[-1].shape[1])]
        for cost in costs:
            forward.append((forward[-1][:, None] + cost).min(axis=0))
        for cost in reversed(costs):
            backward.append((cost + backward[-1][None, :]).min(axis=1))
        return forward, backward[::-1]

    def _path(self, which: str) -> list[tuple[int, int]]:
        """Return the pair of devices of each segment on the shortest path."""
        costs = [getattr(segment, which) for segment in self.segments]
        forward = self._distances(which)[0]
        v = int(forward[-1].argmin())
        pairs: list[tuple[int, int]] = []
        for t in range(len(costs) - 1, -1, -1):
            u = int((forward[t] + costs[t][:, v]).argmin())
            pairs.append((u, v))
            v = u
        return pairs[::-1]

    def _open_rows(self, effort: int) -> list[tuple[_Segment, int]]:
        """Return the (segment, device) pairs of the shortest path by bounds that less than `effort` was spent on."""
        rows: dict[tuple[int, int], tuple[_Segment, int]] = {}
        for segment, (u, v) in zip(self.segments, self._path("lower"), strict=True):
            if segment.lower[u, v] * (1.0 + SAFETY) < segment.value[u, v] and segment.level[u] <= effort:
                rows[id(segment), u] = (segment, u)
        return list(rows.values())

    def _cutoffs(self, forward: list[FloatArray], backward: list[FloatArray], best: float) -> dict[int, FloatArray]:
        """Return for each distinct segment the costs of its pairs below which some path beats `best`."""
        cutoffs: dict[int, FloatArray] = {}
        for t, segment in enumerate(self.segments):
            with np.errstate(invalid="ignore"):
                room = best - forward[t][:, None] - backward[t + 1][None, :]
            room = np.where(np.isnan(room), -np.inf, room)
            cutoffs[id(segment)] = np.maximum(cutoffs.get(id(segment), np.full(room.shape, -np.inf)), room)
        return cutoffs

    def _refine(
        self, todo: list[tuple[_Segment, int]], cutoffs: dict[int, FloatArray], effort: int, budget: Budget
    ) -> None:
        """Solve rows further."""

        def one(segment: _Segment, u: int) -> SearchResult:
            closed = segment.lower[u] * (1.0 + SAFETY) >= segment.value[u]
            limit = np.minimum(cutoffs[id(segment)][u] * (1.0 + SAFETY), segment.value[u])
            limit = np.where(closed | (segment.lower[u] >= limit), -np.inf, limit)
            level = _LEVELS[effort]
            if isinstance(level, int):
                return self._solve_block(segment, u, limit, budget, level)
            left = self.max_work - self.work
            return search(segment.model, segment.starts[u], limit, budget, widths=level, max_work=left)

        if self.jobs == 1:
            results = [one(segment, u) for segment, u in todo]
        else:
            from joblib import Parallel, delayed

            results = Parallel(n_jobs=self.jobs, prefer="threads")(delayed(one)(segment, u) for segment, u in todo)
        for (segment, u), result in zip(todo, results, strict=True):
            self.work += result.work
            segment.level[u] = effort + 1
            segment.lower[u] = np.maximum(segment.lower[u], result.bound_s)
            for v in np.flatnonzero((result.value_s < segment.value[u]) & (segment.lower[u] < np.inf)):
                segment.value[u, v] = result.value_s[v]
                segment.solution[u, int(v)] = (result.device[v], result.rank[v])
            segment.lower[u] = np.minimum(segment.lower[u], segment.value[u])

    def _solve_block(self, segment: _Segment, u: int, limit: FloatArray, budget: Budget, choices: int) -> SearchResult:
        """Solve a row by trial makespans: a problem for each sink device, with the source as an op of no time."""
        head = [segment.source] if segment.source >= 0 else []
        ops = np.array([*head, *segment.inner.tolist(), *([segment.sink] if segment.sink >= 0 else [])], np.int64)
        columns, inner = len(limit), len(segment.inner)
        value, bound = np.full(columns, np.inf), np.full(columns, -np.inf)
        device, rank = np.full((columns, inner), -1, np.int64), np.zeros((columns, inner), np.int64)
        work = 0
        d = self.problem.num_devices
        for v in range(columns):
            if not limit[v] > -np.inf or budget.expired:
                continue
            block = induced(self.problem, ops)
            time_s = block.time_s.copy()
            if head:
                time_s[0, :, 1] = np.where(np.arange(d) == u, 0.0, np.inf)
            if segment.sink >= 0:
                time_s[-1, np.arange(d) != v, 1] = np.inf
            result = _by_trials(dataclasses.replace(block, time_s=time_s), float(limit[v]), budget, choices)
            work += result.work + 1
            bound[v] = limit[v] if result.status == "infeasible" else min(result.bound, limit[v])
            if result.placement is not None and result.value is not None:
                value[v] = result.value
                bound[v] = min(bound[v], value[v])
                place = inverse_of(result.placement.sequence // d)
                chosen = slice(len(head), len(head) + inner)
                device[v], rank[v] = result.placement.device[chosen, 0], place[chosen]
        return SearchResult(value, bound, device, rank, work)

    def _answer(self) -> tuple[float, Placement | None]:
        bound = float(self._distances("lower")[0][-1].min())
        values = self._distances("value")[0][-1]
        if not values.min() < np.inf:
            return bound, None
        n = self.problem.num_ops
        device, rank = np.zeros((n, 1), np.int64), np.zeros(n)
        done = 0
        for segment, inner, sink, (u, v) in zip(
            self.segments, self.inner, self.sinks, self._path("value"), strict=True
        ):
            where, place = segment.solution[u, v]
            device[inner, 0], rank[inner] = where, done + place
            done += len(inner)
            if sink >= 0:
                device[sink, 0], rank[sink] = v, done
            done += 1
        return bound, placement_from_priority(self.problem, device, rank)


def _by_trials(problem: PlacementProblem, limit: float, budget: Budget, choices: int) -> PlacementResult:
    """Solve a block by refuted trial makespans: what the last one leaves standing mostly is a schedule."""
    trying = DestructiveSearch(problem, upper=limit)
    best, value = None, limit
    while not trying.exhausted and trying.bound_s < value and trying.nodes < choices and not budget.expired:
        trying.run(choices - trying.nodes, budget)
        found = None if trying.standing is None else placement_of(problem, *trying.standing)
        trying.standing = None
        if found is None or not makespan(problem, found) < value:
            break
        best, value = found, makespan(problem, found)
        trying.cut(value)
    work = _TRIAL_WORK * problem.num_ops * trying.nodes
    return PlacementResult(best, None if best is None else value, trying.bound_s, "feasible", work)
