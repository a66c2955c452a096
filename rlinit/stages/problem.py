"""The array form of a stage problem (`pipeline` or `memory`): what kernels, formulations and bounds work on.

A :class:`StageProblem` is built once from a validated graph and hardware, with costs resolved and colocated
ops merged, and is trusted afterwards. Because merged ops may own several tensors, tensors are first-class:
tensor ``t`` is produced by node ``tensor_src[t]`` and consumed by ``tensor_dst[tensor_indptr[t]:tensor_indptr[t+1]]``.

Stage cost (``pipeline``; MTPP eq. 3), for a set of nodes S on a stage of class c::

    f_c(S) = sum of in_s[c, t]   over tensors t produced outside S with a consumer in S   (once each)
           + sum of work_s[c, v] over v in S
           + overflow_s_per_byte[c] * max(0, param(S) - cache_bytes[c])
           + sum of out_s[c, t]  over tensors t produced in S with a consumer outside S   (once each)

and S is not allowed on c if param(S) > memory_bytes[c]. An empty stage costs nothing. Stages are numbered in a
topological order of the quotient graph, so assignments are *monotone*: stage(u) <= stage(v) on every edge. For
``pipeline`` any class may take any position; for ``memory`` stage j has class ``stage_class[j]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.orders import levels
from rlinit.kernels.stages.arrays import CostArrays, Precedence, TensorArrays


def _csr(num_rows: int, rows: IntArray, cols: IntArray) -> tuple[IntArray, IntArray]:
    """Group `cols` by `rows` into (indptr, indices), each row sorted ascending."""
    order = np.lexsort((cols, rows))
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
    return indptr, np.ascontiguousarray(cols[order])


@dataclass(frozen=True, slots=True, eq=False)
class StageProblem:
    """A stage problem as arrays. n nodes, m tensors, c stage classes, k stages.

    Parameters
    ----------
    objective
        ``"pipeline"`` or ``"memory"``.
    work_s
        (c, n) seconds of node v on a stage of class c; ``inf`` where the node may not run there. Zeros for
        ``memory`` (but ``inf`` still forbids).
    param_bytes
        (n,) parameter bytes of a node.
    tensor_src, tensor_indptr, tensor_dst
        (m,), (m+1,), consumers of each tensor in CSR form, distinct and never the producer. Tensors nobody
        consumes are left out.
    tensor_bytes
        (m,) size of each tensor.
    in_s, out_s
        (c, m) seconds to bring tensor t into, or send it out of, a stage of class c.
    stage_class
        (k,) class of each stage. The order binds for ``memory``; for ``pipeline`` only the counts matter.
    memory_bytes, cache_bytes, overflow_s_per_byte
        (c,) hard capacity (inf: none), fast memory (inf: no overflow), seconds per byte of overflow.
    order
        (n,) a topological order, the natural one.
    """

    objective: Literal["pipeline", "memory"]
    work_s: FloatArray
    param_bytes: FloatArray
    tensor_src: IntArray
    tensor_indptr: IntArray
    tensor_dst: IntArray
    tensor_bytes: FloatArray
    in_s: FloatArray
    out_s: FloatArray
    stage_class: IntArray
    memory_bytes: FloatArray
    cache_bytes: FloatArray
    overflow_s_per_byte: FloatArray
    order: IntArray
    # Derived below: node-level precedence without duplicates, and each node's tensors.
    succ_indptr: IntArray = field(init=False)
    succ: IntArray = field(init=False)
    pred_indptr: IntArray = field(init=False)
    pred: IntArray = field(init=False)
    out_indptr: IntArray = field(init=False)
    out_tensor: IntArray = field(init=False)
    in_indptr: IntArray = field(init=False)
    in_tensor: IntArray = field(init=False)
    level: IntArray = field(init=False)

    def __post_init__(self) -> None:
        n, m = self.num_nodes, self.num_tensors
        tensor_of = np.repeat(np.arange(m), np.diff(self.tensor_indptr))
        src, dst = self.tensor_src[tensor_of], self.tensor_dst
        edges = np.unique(src * n + dst) if len(src) else np.zeros(0, np.int64)
        u, v = edges // max(n, 1), edges % max(n, 1)
        succ_indptr, succ = _csr(n, u, v)
        pred_indptr, pred = _csr(n, v, u)
        level = levels(np.ascontiguousarray(self.order), pred_indptr, pred)
        out_indptr, out_tensor = _csr(n, self.tensor_src, np.arange(m, dtype=np.int64))
        in_indptr, in_tensor = _csr(n, dst, tensor_of)
        for name, value in (
            ("succ_indptr", succ_indptr),
            ("succ", succ),
            ("pred_indptr", pred_indptr),
            ("pred", pred),
            ("out_indptr", out_indptr),
            ("out_tensor", out_tensor),
            ("in_indptr", in_indptr),
            ("in_tensor", in_tensor),
            ("level", level),
        ):
            object.__setattr__(self, name, value)

    @property
    def num_nodes(self) -> int:
        """Number of nodes n, after merging colocated ops."""
        return len(self.param_bytes)

    @property
    def num_tensors(self) -> int:
        """Number of consumed tensors m."""
        return len(self.tensor_src)

    @property
    def num_stages(self) -> int:
        """Number of stages k."""
        return len(self.stage_class)

    @property
    def num_classes(self) -> int:
        """Number of distinct stage classes c."""
        return len(self.work_s)

    @property
    def class_count(self) -> IntArray:
        """(c,) how many stages of each class there are."""
        return np.bincount(self.stage_class, minlength=self.num_classes).astype(np.int64)

    @property
    def tensor_arrays(self) -> TensorArrays:
        """What each node makes and reads, for kernels."""
        return TensorArrays(
            self.out_indptr,
            self.out_tensor,
            self.in_indptr,
            self.in_tensor,
            self.tensor_src,
            self.tensor_indptr,
            self.tensor_dst,
        )

    @property
    def has_transfers(self) -> bool:
        """Whether any tensor costs something to bring in or to send out."""
        return bool(self.in_s.any() or self.out_s.any())

    @property
    def cost_arrays(self) -> CostArrays:
        """What stages cost, for kernels."""
        return CostArrays(
            self.work_s,
            self.param_bytes,
            self.cache_bytes,
            self.memory_bytes,
            self.overflow_s_per_byte,
            self.in_s,
            self.out_s,
        )

    @property
    def precedence(self) -> Precedence:
        """Successors and predecessors, for kernels."""
        return Precedence(self.succ_indptr, self.succ, self.pred_indptr, self.pred)

    def completed_classes(self, classes: list[int]) -> IntArray:
        """Return (k,) the classes of the first stages, then those of the stages that are left, in order of class."""
        first = np.array(classes, np.int64)
        unused = self.class_count - np.bincount(first, minlength=self.num_classes)
        return np.concatenate([first, np.repeat(np.arange(self.num_classes), unused)])


Value = tuple[float, ...]
"""What is minimised, compared lexicographically: ``(bottleneck_s,)`` for `pipeline`, a MemoryValue for `memory`.

As a lower bound, each entry is one for schedules that are optimal on all entries before it."""

MemoryValue = tuple[float, float, float]
"""Peak parameter bytes of a stage, total off-cache bytes, largest bytes leaving a stage (each tensor once)."""


@dataclass(frozen=True, slots=True, eq=False)
class StageAssignment:
    """A monotone assignment: `stage` (n,) position of each node, `classes` (k,) stage class at each position."""

    stage: IntArray
    classes: IntArray


ScheduleT = TypeVar("ScheduleT")


@dataclass(frozen=True, slots=True, eq=False)
class StageResult(Generic[ScheduleT]):
    """What a solver found and proved about the problem it was given.

    Parameters
    ----------
    assignment, value
        The best assignment and its value, or None where none was found.
    bound
        A proven lexicographic lower bound.
    status
        ``optimal`` (value proven best), ``feasible``, ``infeasible`` (proven: nothing at all, or nothing better
        than the cutoff that was given), ``no_solution`` (the budget ended first).
    work
        Deterministic count of the effort spent: branch-and-bound nodes, evaluations or transitions.
    """

    assignment: ScheduleT | None
    value: Value | None
    bound: Value
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    work: int


def byte_costs(problem: StageProblem) -> CostArrays:
    """Return costs by which a stage costs its parameter bytes, the first level of `memory`, and tensors nothing."""
    held = np.where(np.isfinite(problem.work_s), problem.param_bytes, np.inf)
    free = np.zeros((problem.num_classes, problem.num_tensors))
    return problem.cost_arrays._replace(work=held, in_s=free, out_s=free, overflow=np.zeros(problem.num_classes))


def largest_cost(costs: CostArrays) -> float:
    """Return a finite cost that no stage exceeds on a class that may run it."""
    finite = np.where(np.isfinite(costs.work), costs.work, 0.0).sum(axis=1)
    over = np.where(costs.overflow > 0, costs.overflow, 0.0) * costs.param.sum()
    return float((finite + costs.in_s.sum(axis=1) + costs.out_s.sum(axis=1) + over).max()) * (1.0 + 1e-9)


def whole_cost(problem: StageProblem) -> float:
    """Return a finite cost that no stage of any allowed assignment exceeds."""
    return largest_cost(problem.cost_arrays)


def average_work(problem: StageProblem) -> float:
    """Return seconds that no bottleneck is below: the costliest op, and the mean work, each op on its cheapest class.

    References
    ----------
    MTPP, Lemma 3.3.
    """
    work = problem.work_s[problem.class_count > 0].min(axis=0)
    return float(max(work.max(initial=0.0), work.sum() / problem.num_stages)) * (1.0 - ROUNDING)


def stage_cost(problem: StageProblem, member: NDArray[np.bool_], class_idx: int) -> float:
    """Return f_c(S) in seconds of the node set `member` ((n,) bool), ``inf`` where S may not run on the class.

    Parameters
    ----------
    problem
        The stage problem.
    member
        (n,) bool: the nodes of the stage.
    class_idx
        The class of its device.
    """
    if not member.any():
        return 0.0
    work = problem.work_s[class_idx, member].sum()
    param = problem.param_bytes[member].sum()
    if not np.isfinite(work) or param > problem.memory_bytes[class_idx] * CAPACITY_SLACK:
        return np.inf
    readers = np.diff(problem.tensor_indptr)
    tensor_of = np.repeat(np.arange(problem.num_tensors), readers)
    inside = np.bincount(tensor_of[member[problem.tensor_dst]], minlength=problem.num_tensors)
    made = member[problem.tensor_src]
    cost = float(work)
    cost += float(problem.out_s[class_idx, made & (inside < readers)].sum())
    cost += float(problem.in_s[class_idx, ~made & (inside > 0)].sum())
    over = param - problem.cache_bytes[class_idx]
    if over > 0:
        cost += over * problem.overflow_s_per_byte[class_idx]
    return float(cost)


def stage_value(problem: StageProblem, stage: IntArray, classes: IntArray) -> float:
    """Return the bottleneck of a monotone assignment: `stage` (n,), `classes` (k,) the class at each position.

    Parameters
    ----------
    problem
        The stage problem.
    stage
        (n,) stage of each node; no edge leads to a smaller one.
    classes
        (k,) class of the device at each stage.
    """
    return float(stage_costs(problem, StageAssignment(stage, classes)).max())


def stage_costs(problem: StageProblem, assignment: StageAssignment) -> FloatArray:
    """Return (k,) the seconds of each stage, ``inf`` where its parameters exceed the memory.

    Parameters
    ----------
    problem
        The problem.
    assignment
        A monotone assignment.
    """
    stage, classes = assignment.stage, assignment.classes
    k, n = problem.num_stages, problem.num_nodes
    class_of = classes[stage]
    held = np.bincount(stage, weights=problem.param_bytes, minlength=k)
    cost = np.bincount(stage, weights=problem.work_s[class_of, np.arange(n)], minlength=k)
    made, enters, leaves = crossings(problem, stage, k)
    cost += np.bincount(made[leaves], weights=problem.out_s[classes[made[leaves]], np.flatnonzero(leaves)], minlength=k)
    tensor, at = enters // k, enters % k
    cost += np.bincount(at, weights=problem.in_s[classes[at], tensor], minlength=k)
    over = np.maximum(held - problem.cache_bytes[classes], 0.0)
    cost += np.where(over > 0, over * problem.overflow_s_per_byte[classes], 0.0)
    return np.where(held > problem.memory_bytes[classes] * CAPACITY_SLACK, np.inf, cost)


def crossings(problem: StageProblem, stage: IntArray, k: int) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Return the stage each tensor is made in, tensor * k + stage for each stage it enters, and whether it leaves.

    Parameters
    ----------
    problem
        The problem, of which only the tensors count.
    stage
        (n,) stage of each node.
    k
        Number of stages.
    """
    m = problem.num_tensors
    tensor_of = np.repeat(np.arange(m, dtype=np.int64), np.diff(problem.tensor_indptr))
    made = stage[problem.tensor_src]
    used = stage[problem.tensor_dst]
    crosses = used != made[tensor_of]
    enters = np.unique(tensor_of[crosses] * k + used[crosses])
    leaves = np.zeros(m, np.bool_)
    leaves[enters // k] = True
    return made, enters, leaves


def memory_value(problem: StageProblem, stage: IntArray) -> MemoryValue:
    """Return the lexicographic value of a monotone assignment; infinite where a capacity is exceeded.

    Parameters
    ----------
    problem
        A problem of the objective `memory`.
    stage
        (n,) stage of each node; no edge leads to a smaller one.
    """
    k = problem.num_stages
    held = np.bincount(stage, weights=problem.param_bytes, minlength=k)
    if (held > problem.memory_bytes[problem.stage_class] * CAPACITY_SLACK).any() or not np.isfinite(
        problem.work_s[problem.stage_class[stage], np.arange(problem.num_nodes)]
    ).all():
        return (np.inf, np.inf, np.inf)
    off_cache = np.maximum(held - problem.cache_bytes[problem.stage_class], 0.0).sum()
    made, _, leaves = crossings(problem, stage, k)
    traffic = np.bincount(made[leaves], weights=problem.tensor_bytes[leaves], minlength=k)
    return (float(held.max()), float(off_cache), float(traffic.max()))


def evaluate(problem: StageProblem, assignment: StageAssignment) -> Value:
    """Return the value of a monotone assignment under the problem's objective.

    Parameters
    ----------
    problem
        The stage problem.
    assignment
        Stage of each node and class of each stage; no edge leads to a smaller stage.
    """
    if problem.objective == "memory":
        return memory_value(problem, assignment.stage)
    return (stage_value(problem, assignment.stage, assignment.classes),)


def sums_exactly(values: FloatArray) -> bool:
    """Return whether every sum of some of the values, none negative, is a float64 without rounding."""
    mantissa, exponent = np.frexp(values[values > 0])
    if not len(mantissa):
        return True
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64)) + exponent - 53
    return bool(np.log2(values.sum()) - lowest.min() < 53)
