"""MILP-SPLIT: schedule a modular graph module by module, exactly where single ops join the modules.

With one channel (separators, :mod:`rlinit.exact.modules`) the part from one separator to the next depends on the rest
through the two devices alone, with transfers of any kind: everything before a separator ended, and arrived, when it
starts. Thus, with c(t, u, v) the least time from the end of separator t on device u to that of separator t+1 on v,

``dp(t+1, v) = min over u of dp(t, u) + c(t, u, v)``

is the optimum of `latency` where memory does not bind (DIVIML section IV-B, with com(t, v', u) inside c). The same sum
over lower bounds of c is a lower bound of the optimum, and memory, exclusive links or blocking transfers only raise
that, so `bound` holds for those too. Only the pairs on the shortest path by lower bounds are solved, the others stay as
they are: they cannot lead to anything better. Modules alike share their solutions.

With more channels, and where memory binds, partial schedules are carried from module to module, as many as a width
allows, so that modules overlap in time. A device then runs what it runs of a module before what it runs of the next.
The bound is that of :mod:`rlinit.exact.split_bound`, or of the longest path and the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from joblib import Parallel, delayed

from rlinit.budget import Budget
from rlinit.exact.module_search import (
    EXPANSIONS_PER_S,
    Frontier,
    SearchModel,
    SearchResult,
    Target,
    advance,
    root_bound,
    search,
    search_model,
    transfer_times,
)
from rlinit.exact.modules import channel_cuts, induced, separators
from rlinit.exact.split_bound import split_bound
from rlinit.placement import Placement, PlacementProblem, PlacementResult
from rlinit.stages import FloatArray, IntArray
from rlinit.timeline import makespan, placement_from_priority, timeline

__all__ = ["ModuleSolver", "SplitResult", "solve_split"]

ModuleSolver = Callable[[PlacementProblem, float, Budget], PlacementResult]
"""Solves a module as a problem of its own: of interest is only what is below the given seconds."""

_EXACT = 1.0 + 1e-9
"""Bound and value this close are one and the same sum, rounded in different orders."""
_BEAM_WIDTHS = (16, 256, 4096)
_CHUNK_OPS = 40
_RECURSION_OPS = 4000
_LEVELS: tuple[tuple[int, ...], ...] = ((16,), (16, 256), (16, 256, 4096), (256, 4096, 32768, 131072))


@dataclass(frozen=True, slots=True, eq=False)
class SplitResult:
    """What the modules gave.

    Parameters
    ----------
    placement, value
        The best placement and its makespan in seconds, by the timeline of the whole problem; None where none was found.
    bound
        A proven lower bound in seconds on the optimum of the whole problem, whatever the modules.
    exact
        Whether value is the optimum.
    modules
        The ops of each module.
    work
        Deterministic count of the effort spent.
    """

    placement: Placement | None
    value: float | None
    bound: float
    exact: bool
    modules: list[IntArray]
    work: int


def solve_split(
    problem: PlacementProblem,
    *,
    budget: Budget,
    channels: int | Literal["auto"] = "auto",
    module_solver: ModuleSolver | None = None,
    jobs: int = 1,
    upper: float = np.inf,
    min_ops: int = 4,
    max_work: int = 1 << 62,
) -> SplitResult:
    """Schedule a `latency` problem module by module.

    Parameters
    ----------
    problem
        With one shard.
    budget
        Wall-clock limit.
    channels
        Tensors that may pass between modules; ``auto`` takes one where that gives modules that can be searched, else
        the fewest of 2 to 8 that do.
    module_solver
        Solves the modules of one channel instead of the built-in search.
    jobs
        Modules solved at once.
    upper
        A known makespan in seconds; pairs that cannot beat it are not solved.
    min_ops
        Least size of a module with more than one channel.
    max_work
        Partial schedules extended at most, as a limit that does not depend on the machine.

    Returns
    -------
    The best schedule and bound. `value` may be above `upper`, if nothing better exists or was found.

    Raises
    ------
    ValueError
        If the problem has more than one shard.

    References
    ----------
    DIVIML section IV-B; thesis section 3.3.
    """
    if problem.num_shards != 1:
        raise ValueError(
            f"expected a latency problem (1 shard), got {problem.num_shards} shards; use solve_split_batched"
        )
    comm = transfer_times(problem)
    modules = _modules(problem, channels, min_ops)
    beam = _Beam(problem, comm, modules)
    placement, value, work = None, np.inf, 0
    for width in _BEAM_WIDTHS[:2]:
        carried = beam.run(width, min(value, upper), max_work - work, budget)
        placement, value = _better(problem, placement, value, carried)
        work += beam.work
    chain = _Chain(problem, comm, module_solver, jobs, max_work - work)
    if placement is not None:
        chain.adopt(placement)
    bound, found = chain.solve(min(upper, value), budget)
    work += chain.work
    placement, value = _better(problem, placement, value, found)
    splits_more = len(modules) > 1 and problem.num_ops <= _RECURSION_OPS and not beam.is_exact
    if bound * _EXACT < min(value, upper) and splits_more:
        bound = max(bound, split_bound(problem, modules, budget=budget.share(0.5 * min(budget.remaining_s, 1e9))))
    for width in _BEAM_WIDTHS[2:]:
        if min(upper, value) <= bound * _EXACT or beam.complete or budget.expired or work >= max_work:
            break
        carried = beam.run(width, min(value, upper), max_work - work, budget)
        placement, value = _better(problem, placement, value, carried)
        work += beam.work
    if beam.complete and beam.is_exact:
        bound = max(bound, min(value, upper))
    if placement is None:
        return SplitResult(None, None, bound, False, modules, work)
    return SplitResult(placement, value, min(bound, value), value <= bound * _EXACT, modules, work)


def _better(
    problem: PlacementProblem, placement: Placement | None, value: float, found: Placement | None
) -> tuple[Placement | None, float]:
    """Return the better of a placement of known makespan and one found."""
    candidate = np.inf if found is None else makespan(problem, found)
    return (found, candidate) if candidate < value else (placement, value)


def _modules(problem: PlacementProblem, channels: int | Literal["auto"], min_ops: int) -> list[IntArray]:
    if channels != "auto":
        return channel_cuts(problem, channels, min_ops if channels > 1 else 1)
    best = channel_cuts(problem, 1)
    for count in range(2, 9):
        if max(len(module) for module in best) <= _CHUNK_OPS:
            break
        best = channel_cuts(problem, count, min_ops)
    return best


class _Beam:
    """Carries partial schedules from module to module.

    Attributes
    ----------
    complete
        Whether the last run dropped nothing but what could not end below its cutoff.
    is_exact
        Whether every schedule is one that runs module after module on each device, up to transfers that exclude others:
        where each module but the last ends with a separator.
    work
        Partial schedules the last run extended.
    """

    def __init__(self, problem: PlacementProblem, comm: FloatArray, modules: list[IntArray]) -> None:
        self.problem, self.comm = problem, comm
        self.tail = _tails(problem, comm)
        self.order = np.concatenate(modules)
        self.chunks = [part for module in modules for part in np.array_split(module, -(-len(module) // _CHUNK_OPS))]
        position = np.empty(problem.num_ops, np.int64)
        position[self.order] = np.arange(problem.num_ops)
        self.last_use = position.copy()
        np.maximum.at(self.last_use, problem.edges[:, 0], position[problem.edges[:, 1]])
        last_member = np.zeros(problem.num_ops, np.int64)
        np.maximum.at(last_member, problem.group, position)
        self.last_use = np.maximum(self.last_use, last_member[problem.group])
        between = set(separators(problem).tolist())
        self.is_exact = problem.transfers == "parallel" and all(int(ops[-1]) in between for ops in self.chunks[:-1])
        self.complete, self.work = False, 0

    def run(self, width: int, cutoff: float, max_work: int, budget: Budget) -> Placement | None:
        """Return the best schedule found below `cutoff`, keeping `width` of each layer, and 1 once over budget."""
        n, d = self.problem.num_ops, self.problem.num_devices
        free, held = np.zeros((1, d)), np.zeros((1, d))
        end, device, rank = np.zeros((1, n)), np.full((1, n), -1, np.int8), np.zeros((1, n), np.int64)
        limit = np.array([cutoff])
        done, self.work, self.complete = 0, 0, True
        for ops in self.chunks:
            before = self.order[:done]
            externals = before[self.last_use[before] >= done]
            done += len(ops)
            rest = self.problem.op_time_s[self.order[done:]]
            model = search_model(self.problem, self.comm, externals, ops, [Target(-1, -1)], self.tail, rest)
            local = np.concatenate([externals, ops])
            empty = np.zeros((len(free), len(local)), np.int8)
            start = Frontier(free, end[:, local], device[:, local], held, empty, np.arange(len(free)))
            floor = root_bound(model, start)
            scale = np.where((floor > 0) & (floor < np.inf), floor, 1.0)
            keep = 1 if budget.expired else width
            affordable = min(max_work - self.work, budget.remaining_s * EXPANSIONS_PER_S, 1 << 62)
            after, dropped, extended = advance(model, start, limit, scale, keep, max(1, int(affordable)))
            self.work += extended
            self.complete = self.complete and bool(np.isinf(dropped).all())
            free, held = after.free_s, after.held_bytes
            end, device, rank = end[after.root], device[after.root], rank[after.root]
            end[:, local], device[:, local] = after.end_s, after.device
            rank[:, ops] = done + after.rank[:, len(externals) :].astype(np.int64)
            if len(free) == 0:
                return None
        best = int(free.max(axis=1).argmin())
        where = device[best][:, None].astype(np.int64)
        return placement_from_priority(self.problem, where, rank[best].astype(np.float64))


def _tails(problem: PlacementProblem, comm: FloatArray) -> FloatArray:
    """Return (n, d) seconds at least from the end of each op on each device to the end of everything."""
    tail = np.zeros((problem.num_ops, problem.num_devices))
    for v in problem.order[::-1]:
        for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]:
            tail[v] = np.maximum(tail[v], (comm[v] + problem.op_time_s[w] + tail[w]).min(axis=1))
    return tail


@dataclass(slots=True, eq=False)
class _Part:
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
    models: list[SearchModel]
    starts: list[Frontier]
    lower: FloatArray
    value: FloatArray
    solution: dict[tuple[int, int], tuple[IntArray, IntArray]]
    level: IntArray


class _Chain:
    """The parts between separators, with what is known of each pair of devices; parts alike share one entry."""

    def __init__(
        self,
        problem: PlacementProblem,
        comm: FloatArray,
        module_solver: ModuleSolver | None,
        jobs: int,
        max_work: int,
    ) -> None:
        self.problem, self.comm, self.module_solver = problem, comm, module_solver
        self.jobs, self.max_work, self.work = jobs, max_work, 0
        position = np.empty(problem.num_ops, np.int64)
        position[problem.order] = np.arange(problem.num_ops)
        cuts = separators(problem)
        at = position[cuts]
        begins, finishes = [0, *(at + 1).tolist()], [*at.tolist(), problem.num_ops]
        ends_with = [*cuts.tolist(), -1]
        starts_with = [-1, *cuts.tolist()]
        self.inner: list[IntArray] = []
        self.sinks: list[int] = []
        self.parts: list[_Part] = []
        alike: dict[bytes, _Part] = {}
        for begin, finish, source, sink in zip(begins, finishes, starts_with, ends_with, strict=True):
            if sink < 0 and begin == finish:
                continue
            inner = problem.order[begin:finish]
            key = self._key(source, inner, sink)
            if key not in alike:
                alike[key] = self._part(source, inner, sink)
            self.inner.append(inner)
            self.sinks.append(sink)
            self.parts.append(alike[key])
        self.distinct = list(alike.values())

    def _key(self, source: int, inner: IntArray, sink: int) -> bytes:
        """Return what the costs of a part depend on; equal for parts that are copies of each other."""
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
        return head.tobytes() + timed.tobytes() + problem.tensor_bytes[ops].tobytes()

    def _part(self, source: int, inner: IntArray, sink: int) -> _Part:
        d = self.problem.num_devices
        externals = np.array([source] if source >= 0 else [], np.int64)
        targets = [Target(sink, q) for q in range(d)] if sink >= 0 else [Target(-1, -1)]
        model = search_model(self.problem, self.comm, externals, inner, targets)
        lower = np.empty((d if source >= 0 else 1, len(targets)))
        starts, models = [], []
        n = len(externals) + len(inner)
        for u in range(len(lower)):
            device = np.full((1, n), -1, np.int8)
            device[0, : len(externals)] = u
            zeros = np.zeros((1, d))
            start = Frontier(zeros, np.zeros((1, n)), device, zeros, np.zeros((1, n), np.int8), np.zeros(1, np.int64))
            starts.append(start)
            models.append(model)
            lower[u] = root_bound(model, start)
        value = np.full(lower.shape, np.inf)
        return _Part(source, inner, sink, models, starts, lower, value, {}, np.zeros(len(lower), np.int64))

    def adopt(self, placement: Placement) -> None:
        """Take what a schedule does between separators as values of its pairs of devices."""
        problem, d = self.problem, self.problem.num_devices
        times = timeline(problem, placement)
        rank = np.empty(problem.num_ops, np.int64)
        rank[placement.sequence // d] = np.arange(problem.num_ops)
        where = placement.device[:, 0]
        begin = 0.0
        u = 0
        for part, inner, sink in zip(self.parts, self.inner, self.sinks, strict=True):
            v = int(where[sink]) if sink >= 0 else 0
            end = float(times.end_s[sink, v]) if sink >= 0 else times.makespan_s
            if end - begin < part.value[u, v] and problem.transfers == "parallel":
                part.value[u, v] = end - begin
                part.solution[u, v] = (where[inner], np.argsort(np.argsort(rank[inner])))
            begin, u = end, v

    def solve(self, upper: float, budget: Budget) -> tuple[float, Placement | None]:
        """Return the bound and the placement of the shortest path, solving the pairs on it until both agree."""
        for effort in range(len(_LEVELS) if self.module_solver is None else 1):
            while True:
                forward, backward = self._distances("lower")
                best = min(upper, float(self._distances("value")[0][-1].min()))
                if forward[-1].min() * _EXACT >= best or budget.expired or self.work >= self.max_work:
                    return self._answer()
                todo = self._open_rows(forward, backward, effort)
                if not todo:
                    break
                cutoffs = self._cutoffs(forward, backward, best)
                self._refine(todo, cutoffs, effort, budget)
        return self._answer()

    def _distances(self, which: str) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return shortest distances from the beginning to, and to the end from, each separator's devices."""
        costs = [getattr(part, which) for part in self.parts]
        forward, backward = [np.zeros(1)], [np.zeros(costs[-1].shape[1])]
        for cost in costs:
            forward.append((forward[-1][:, None] + cost).min(axis=0))
        for cost in reversed(costs):
            backward.append((cost + backward[-1][None, :]).min(axis=1))
        return forward, backward[::-1]

    def _path(self, which: str) -> list[tuple[int, int]]:
        """Return the pair of devices of each part on the shortest path."""
        costs = [getattr(part, which) for part in self.parts]
        forward = self._distances(which)[0]
        v = int(forward[-1].argmin())
        pairs: list[tuple[int, int]] = []
        for t in range(len(costs) - 1, -1, -1):
            u = int((forward[t] + costs[t][:, v]).argmin())
            pairs.append((u, v))
            v = u
        return pairs[::-1]

    def _open_rows(self, forward: list[FloatArray], backward: list[FloatArray], effort: int) -> list[tuple[_Part, int]]:
        """Return the (part, device) pairs of the shortest path by bounds that less than `effort` was spent on."""
        del forward, backward
        rows: dict[tuple[int, int], tuple[_Part, int]] = {}
        for part, (u, v) in zip(self.parts, self._path("lower"), strict=True):
            if part.lower[u, v] * _EXACT < part.value[u, v] and part.level[u] <= effort:
                rows[id(part), u] = (part, u)
        return list(rows.values())

    def _cutoffs(self, forward: list[FloatArray], backward: list[FloatArray], best: float) -> dict[int, FloatArray]:
        """Return for each distinct part the costs of its pairs below which some path beats `best`."""
        cutoffs: dict[int, FloatArray] = {}
        for t, part in enumerate(self.parts):
            with np.errstate(invalid="ignore"):
                room = best - forward[t][:, None] - backward[t + 1][None, :]
            room = np.where(np.isnan(room), -np.inf, room)
            cutoffs[id(part)] = np.maximum(cutoffs.get(id(part), np.full(room.shape, -np.inf)), room)
        return cutoffs

    def _refine(
        self, todo: list[tuple[_Part, int]], cutoffs: dict[int, FloatArray], effort: int, budget: Budget
    ) -> None:
        """Solve rows further."""

        def one(part: _Part, u: int) -> SearchResult:
            closed = part.lower[u] * _EXACT >= part.value[u]
            limit = np.minimum(cutoffs[id(part)][u] * _EXACT, part.value[u])
            limit = np.where(closed | (part.lower[u] >= limit), -np.inf, limit)
            if self.module_solver is not None:
                return self._solve_module(part, u, limit, budget)
            left = self.max_work - self.work
            return search(part.models[u], part.starts[u], limit, budget, widths=_LEVELS[effort], max_work=left)

        if self.jobs == 1:
            results = [one(part, u) for part, u in todo]
        else:
            results = Parallel(n_jobs=self.jobs, prefer="threads")(delayed(one)(part, u) for part, u in todo)
        for (part, u), result in zip(todo, results, strict=True):
            self.work += result.work
            part.level[u] = effort + 1
            part.lower[u] = np.maximum(part.lower[u], result.bound_s)
            for v in np.flatnonzero(result.value_s < part.value[u]):
                part.value[u, v] = result.value_s[v]
                part.solution[u, int(v)] = (result.device[v], result.rank[v])
            part.lower[u] = np.minimum(part.lower[u], part.value[u])

    def _solve_module(self, part: _Part, u: int, limit: FloatArray, budget: Budget) -> SearchResult:
        """Solve a row by the given solver: one problem for each sink device, with the source as an op of no time."""
        head = [part.source] if part.source >= 0 else []
        ops = np.array([*head, *part.inner.tolist(), *([part.sink] if part.sink >= 0 else [])], np.int64)
        columns, inner = len(limit), len(part.inner)
        value, bound = np.full(columns, np.inf), np.full(columns, -np.inf)
        device, rank = np.full((columns, inner), -1, np.int64), np.zeros((columns, inner), np.int64)
        work = 0
        d = self.problem.num_devices
        for v in range(columns):
            if not limit[v] > -np.inf or self.module_solver is None:
                continue
            module = induced(self.problem, ops)
            time_s = module.time_s.copy()
            if head:
                time_s[0, :, 1] = np.where(np.arange(d) == u, 0.0, np.inf)
            if part.sink >= 0:
                time_s[-1, np.arange(d) != v, 1] = np.inf
            result = self.module_solver(dataclasses.replace(module, time_s=time_s), float(limit[v]), budget)
            work += result.work + 1
            bound[v] = limit[v] if result.status == "infeasible" else min(result.bound, limit[v])
            if result.placement is not None and result.value is not None:
                value[v] = result.value
                bound[v] = min(bound[v], value[v])
                at = result.placement.sequence // d
                place = np.empty(len(ops), np.int64)
                place[at] = np.arange(len(ops))
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
        for part, inner, sink, (u, v) in zip(self.parts, self.inner, self.sinks, self._path("value"), strict=True):
            where, place = part.solution[u, v]
            device[inner, 0], rank[inner] = where, done + place
            done += len(inner)
            if sink >= 0:
                device[sink, 0], rank[sink] = v, done
            done += 1
        return bound, placement_from_priority(self.problem, device, rank)
