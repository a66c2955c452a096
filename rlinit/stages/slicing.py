"""Optimal partition of a chain of prefixes into stages: slicing one topological order (MTPP, Algorithm 1).

A dynamic program in passes under a threshold: a pass that does not reach the end proves that no partition costs at most
the threshold, and the first one that does has found the optimum. Prefixes may branch, so any lattice of them will do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.kernels.stages.slicing import greedy_slices, memory_pass, pipeline_pass, prefix_sums, stages_of_cuts
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value, evaluate

__all__ = ["LABEL_CAP", "Lattice", "counted_states", "partition", "slice_order"]

LABEL_CAP = 60_000_000
"""Most labels (states times prefixes) a dynamic program may keep; 13 bytes each."""

_FIRST_STEP, _GROWTH = 1.01, 1.04
"""Thresholds start this far above the lower bound and grow by this factor from pass to pass."""

_CHUNK_S = 0.1
"""Seconds of compiled work between looks at the budget."""

OnBound = Callable[[Value], None]


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Prefixes of a stage problem and the transitions between them, successors after predecessors.

    Parameters
    ----------
    indptr
        (p + 1,) transitions of each prefix. Prefix 0 is empty, prefix p - 1 holds every node.
    added, next_prefix
        (e,) node added by a transition, and the prefix it leads to.
    """

    indptr: IntArray
    added: IntArray
    next_prefix: IntArray

    @property
    def num_prefixes(self) -> int:
        """Number of prefixes p."""
        return len(self.indptr) - 1

    @classmethod
    def of_order(cls, order: IntArray) -> Lattice:
        """Return the chain of prefixes of one topological order."""
        n = len(order)
        indptr = np.minimum(np.arange(n + 2, dtype=np.int64), n)
        return cls(indptr, np.ascontiguousarray(order, np.int64), np.arange(1, n + 1, dtype=np.int64))


def partition(
    problem: StageProblem,
    lattice: Lattice,
    *,
    lower: float = 0.0,
    upper: Value | None = None,
    budget: Budget | None = None,
    on_bound: OnBound | None = None,
) -> StageResult | None:
    """Return the best partition of a lattice into the problem's stages, or what was proven when the budget ended.

    Parameters
    ----------
    problem, lattice
        The problem, and the prefixes at which stages may end.
    lower
        A value on the first level that no partition of the lattice is below; 0 where nothing is known.
    upper
        Value of a schedule at hand: partitions no better need not be found.
    budget
        When to stop.
    on_bound
        Told of each proven lower bound *on partitions of this lattice*.

    Returns
    -------
    StageResult or None
        ``optimal`` with the best partition, or ``infeasible`` where none is better than `upper` (then its bound is
        `upper`) or none exists (then its bound is infinite), or ``no_solution`` with the bound reached. None where
        the states needed exceed `LABEL_CAP`.

    Notes
    -----
    A pass costs one walk over all stages below its threshold. Thresholds grow by 4%, so all passes together cost a
    small multiple of the last.
    """
    if problem.objective == "memory":
        return _MemoryPartition(problem, lattice, budget or Budget(), on_bound).solve(lower, upper)
    return _PipelinePartition(problem, lattice, budget or Budget(), on_bound).solve(lower, upper)


def slice_order(problem: StageProblem, order: IntArray) -> tuple[StageAssignment, Value] | None:
    """Return the best slicing of a topological order into the problem's stages and its value; None if none is allowed.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) a topological order.

    Notes
    -----
    Exact for the order. No n x n table: time grows with the lengths of stages below the best longest-first slicing,
    memory with states times n.

    References
    ----------
    MTPP, Algorithm 1 (SliceGraph).
    """
    result = partition(problem, Lattice.of_order(order), upper=_greedy_value(problem, order))
    if result is None or result.assignment is None:
        return None
    return result.assignment, result.value or evaluate(problem, result.assignment)


def _greedy_value(problem: StageProblem, order: IntArray) -> Value | None:
    """Return a bottleneck that longest-first slicing of the order reaches, or None where there is no quick one."""
    if problem.objective == "memory" or problem.num_classes > 1 or len(order) < 2:
        return None
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    k = problem.num_stages
    low = max(float(problem.work_s.sum()) / k, float(problem.work_s.max()))
    high = _everything(problem.work_s, problem.param_bytes, problem.overflow_s_per_byte, problem.in_s, problem.out_s)

    def fits(threshold: float) -> bool:
        stages = greedy_slices(
            threshold,
            order,
            position,
            problem.work_s[0],
            problem.param_bytes,
            float(problem.cache_bytes[0]),
            float(problem.memory_bytes[0]),
            float(problem.overflow_s_per_byte[0]),
            problem.in_s[0],
            problem.out_s[0],
            problem.out_indptr,
            problem.out_tensor,
            problem.in_indptr,
            problem.in_tensor,
            problem.tensor_src,
            problem.tensor_indptr,
            problem.tensor_dst,
            k,
        )
        return stages <= k

    if not fits(high):
        return None
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return (high,)


class _Partition:
    """What both objectives share: states, chunked passes under a budget, and reading a schedule off the labels."""

    def __init__(self, problem: StageProblem, lattice: Lattice, budget: Budget, on_bound: OnBound | None) -> None:
        self.problem = problem
        self.lattice = lattice
        self.budget = budget
        self.on_bound = on_bound
        self.num_consumers = np.diff(problem.tensor_indptr)
        self.work = 0

    def rest(self, weight: FloatArray) -> FloatArray:
        """Return (p,) the sum of a node weight over what lies after each prefix."""
        total = prefix_sums(self.lattice.indptr, self.lattice.added, self.lattice.next_prefix, weight)
        return np.asarray(total[-1] - total)

    def run_pass(self, call: Callable[[int, int], int]) -> bool:
        """Run a pass in chunks of start prefixes; False if the budget ended before it was through."""
        first, size, p = 0, 64, self.lattice.num_prefixes
        while first < p:
            if first and self.budget.expired:
                return False
            started = time.monotonic()
            last = min(first + size, p)
            self.work += call(first, last)
            size = max(1, min(4 * size, int(size * _CHUNK_S / max(time.monotonic() - started, 1e-4))))
            first = last
        return True

    def bottleneck(
        self, lower: float, upper: float, work: FloatArray, in_s: FloatArray, out_s: FloatArray, overflow: FloatArray
    ) -> tuple[float, StageAssignment | None, bool]:
        """Return (value, assignment, through): the smallest bottleneck of the given costs at most `upper`.

        The value is inf with no assignment where a complete pass found nothing; `through` is False where the budget
        ended first, and then the value is a proven lower bound.
        """
        problem, lattice = self.problem, self.lattice
        ordered = problem.objective == "memory"
        step, left = _ordered_states(problem) if ordered else counted_states(problem)
        cheapest = work.min(axis=0)
        if not np.isfinite(cheapest).all():
            return np.inf, None, True
        rest = self.rest(cheapest)
        ceiling = min(upper, _everything(work, problem.param_bytes, overflow, in_s, out_s))
        threshold = min(max(lower, float(cheapest.max()), float(rest[0]) / problem.num_stages) * _FIRST_STEP, ceiling)
        proven = lower
        shape = (len(left), lattice.num_prefixes)
        label, back = np.empty(shape), np.empty(shape, np.int32)
        back_class = np.empty(shape, np.int8)
        visited = np.empty(lattice.num_prefixes, np.int64)
        while True:
            label.fill(np.inf)
            visited.fill(-1)
            label[0, 0] = 0.0
            through = self.run_pass(
                lambda first, last, most=threshold: pipeline_pass(  # type: ignore[misc]
                    most,
                    first,
                    last,
                    ordered,
                    lattice.indptr,
                    lattice.added,
                    lattice.next_prefix,
                    rest,
                    step,
                    left,
                    work,
                    problem.param_bytes,
                    problem.cache_bytes,
                    problem.memory_bytes,
                    overflow,
                    in_s,
                    out_s,
                    problem.out_indptr,
                    problem.out_tensor,
                    problem.in_indptr,
                    problem.in_tensor,
                    problem.tensor_src,
                    self.num_consumers,
                    label,
                    back,
                    back_class,
                    visited,
                )
            )
            if not through:
                return proven, None, False
            state = int(np.argmin(label[:, -1]))
            if label[state, -1] < np.inf:
                value = float(label[state, -1])
                return value, self.read(state, back, back_class, step), True
            if threshold >= ceiling:
                return np.inf, None, True
            proven = threshold
            if self.on_bound is not None:
                self.on_bound((proven,) if not ordered else (proven, 0.0, 0.0))
            threshold = min(threshold * _GROWTH, ceiling) if threshold > 0 else ceiling

    def read(
        self, state: int, back: NDArray[np.int32], back_class: NDArray[np.int8], step: IntArray
    ) -> StageAssignment:
        """Return the assignment that led to `state` at the last prefix; back_class -1 marks an empty stage."""
        problem = self.problem
        ordered = problem.objective == "memory"
        at = self.lattice.num_prefixes - 1
        classes, ends = [], []
        while at > 0 or (ordered and state > 0):
            before, c = int(back[state, at]), int(back_class[state, at])
            ends.append(at)
            if ordered:
                classes.append(int(problem.stage_class[state - 1]))
                state -= 1
            else:
                classes.append(c)
                state = int(np.flatnonzero(step[:, c] == state)[0])
            at = before
        lattice = self.lattice
        cuts = np.array(ends[::-1], np.int64)
        stage = stages_of_cuts(lattice.indptr, lattice.added, lattice.next_prefix, cuts, problem.num_nodes)
        classes.reverse()
        unused = problem.class_count - np.bincount(np.array(classes, np.int64), minlength=problem.num_classes)
        if not ordered:
            classes += np.repeat(np.arange(problem.num_classes), unused).tolist()
        else:
            classes = problem.stage_class.tolist()
        return StageAssignment(stage, np.array(classes, np.int64))


class _PipelinePartition(_Partition):
    """The smallest bottleneck."""

    def solve(self, lower: float, upper: Value | None) -> StageResult | None:
        """Return the result as `partition` describes it."""
        problem = self.problem
        if int(np.prod(problem.class_count + 1)) * self.lattice.num_prefixes > LABEL_CAP:
            return None
        value, assignment, through = self.bottleneck(
            lower,
            upper[0] if upper is not None else np.inf,
            problem.work_s,
            problem.in_s,
            problem.out_s,
            problem.overflow_s_per_byte,
        )
        if not through:
            return StageResult(None, None, (value,), "no_solution", self.work)
        if assignment is None:
            return StageResult(None, None, upper or (np.inf,), "infeasible", self.work)
        found = evaluate(problem, assignment)
        return StageResult(assignment, found, (min(value, found[0]),), "optimal", self.work)


class _MemoryPartition(_Partition):
    """The lexicographically smallest (peak, off-cache, traffic): one pass for the peak, one for the rest."""

    def solve(self, lower: float, upper: Value | None) -> StageResult | None:
        """Return the result as `partition` describes it."""
        problem, p = self.problem, self.lattice.num_prefixes
        if (problem.num_stages + 1) * p > LABEL_CAP:
            return None
        bytes_on = np.where(np.isfinite(problem.work_s), problem.param_bytes[None, :], np.inf)
        no_time = np.zeros((problem.num_classes, problem.num_tensors))
        no_overflow = np.zeros(problem.num_classes)
        peak, assignment, through = self.bottleneck(
            lower, upper[0] if upper is not None else np.inf, bytes_on, no_time, no_time, no_overflow
        )
        if not through:
            return StageResult(None, None, (peak, 0.0, 0.0), "no_solution", self.work)
        if assignment is None:
            return StageResult(None, None, upper or (np.inf, np.inf, np.inf), "infeasible", self.work)
        found = evaluate(problem, assignment)
        best = self._under(peak)
        if best is None:
            return StageResult(assignment, found, (peak, 0.0, 0.0), "feasible", self.work)
        found = evaluate(problem, best)
        return StageResult(best, found, found, "optimal", self.work)

    def _under(self, peak: float) -> StageAssignment | None:
        """Return the best (off-cache, traffic) with stages of at most `peak` bytes; None if the budget ended first."""
        problem, lattice = self.problem, self.lattice
        shape = (problem.num_stages + 1, lattice.num_prefixes)
        off_cache, traffic = np.full(shape, np.inf), np.full(shape, np.inf)
        off_cache[0, 0] = traffic[0, 0] = 0.0
        back = np.full(shape, -1, np.int32)
        visited = np.full(lattice.num_prefixes, -1, np.int64)
        rest = self.rest(problem.param_bytes)
        allowed = np.isfinite(problem.work_s)
        through = self.run_pass(
            lambda first, last: memory_pass(
                peak,
                1e-12 * float(rest[0]),
                first,
                last,
                lattice.indptr,
                lattice.added,
                lattice.next_prefix,
                rest,
                problem.stage_class,
                allowed,
                problem.param_bytes,
                problem.cache_bytes,
                problem.memory_bytes,
                problem.tensor_bytes,
                problem.out_indptr,
                problem.out_tensor,
                problem.in_indptr,
                problem.in_tensor,
                problem.tensor_src,
                self.num_consumers,
                off_cache,
                traffic,
                back,
                visited,
            )
        )
        if not through:
            return None
        step, _ = _ordered_states(problem)
        return self.read(problem.num_stages, back, np.full(shape, -1, np.int8), step)


def counted_states(problem: StageProblem) -> tuple[IntArray, FloatArray]:
    """Return (step, left) for states that count the stages used of each class, in mixed radix."""
    counts = problem.class_count
    radix = np.concatenate([[1], np.cumprod(counts + 1)])
    states = np.arange(radix[-1])
    used = states[:, None] // radix[:-1] % (counts + 1)
    step = np.where(used < counts, states[:, None] + radix[:-1], -1)
    return np.ascontiguousarray(step, np.int64), (counts.sum() - used.sum(axis=1)).astype(np.float64)


def _ordered_states(problem: StageProblem) -> tuple[IntArray, FloatArray]:
    """Return (step, left) for states that say how many of the stages, in order, are done."""
    k = problem.num_stages
    step = np.full((k + 1, problem.num_classes), -1, np.int64)
    step[np.arange(k), problem.stage_class] = np.arange(1, k + 1)
    return step, np.arange(k, -1, -1, dtype=np.float64)


def _everything(
    work: FloatArray, param: FloatArray, overflow: FloatArray, in_s: FloatArray, out_s: FloatArray
) -> float:
    """Return a cost that no stage exceeds on a class that may run it."""
    finite = np.where(np.isfinite(work), work, 0.0)
    over = np.where(overflow > 0, overflow, 0.0) * param.sum()
    per_class = finite.sum(axis=1) + in_s.sum(axis=1) + out_s.sum(axis=1) + over
    return float(per_class.max()) * (1.0 + 1e-9)
