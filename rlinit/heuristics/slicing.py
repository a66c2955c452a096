"""Optimal slicing of topological orders into the stages of a problem."""

from __future__ import annotations

import numpy as np

from rlinit.kernels.arrays import memory_arrays, stage_arrays
from rlinit.kernels.decoding import sliced_values
from rlinit.kernels.slicing import Slots, memory_slices, pipeline_slices, slice_space
from rlinit.stages import FloatArray, IntArray, StageAssignment, StageProblem, Value, evaluate

__all__ = ["STATE_CAP", "Slicer", "reslice", "slice_order"]

STATE_CAP = 4_096
"""Most states (products of stages used of each class) for which every sequence of classes is considered."""

_LABEL_CAP = 30_000_000
"""Most labels (states times cuts) for which every sequence of classes is considered; 8 bytes each."""


class Slicer:
    """Slices many orders of one problem; keeps the compiled form of the problem and scratch memory.

    Parameters
    ----------
    problem
        The problem.

    Notes
    -----
    For `pipeline` a slicing may use the stage classes in any sequence, unless that takes more than `STATE_CAP` states
    (or too much memory): then stage j has class ``problem.stage_class[j]``. For `memory` that is the rule.
    """

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self._memory = problem.objective == "memory"
        states = int(np.prod(problem.class_count + 1.0))
        self.ordered = self._memory or states > STATE_CAP or states * (problem.num_nodes + 1) > _LABEL_CAP
        self._slots = _ordered_slots(problem) if self.ordered else _counted_slots(problem)
        self._arrays = memory_arrays(problem) if self._memory else stage_arrays(problem)
        nothing = np.zeros(problem.num_nodes + 1, np.int64)
        self._by_bytes = self._arrays._replace(
            work=np.where(np.isfinite(problem.work_s), problem.param_bytes[None, :], np.inf),
            in_indptr=nothing,
            out_indptr=nothing,
            cache=np.full(problem.num_classes, np.inf),
            overflow=np.zeros(problem.num_classes),
        )
        self._slot_class = np.require(problem.stage_class, np.int64, "CW")
        uses = len(problem.in_tensor)
        self._space = slice_space(
            problem.num_nodes, problem.num_tensors, uses, self._slots, memory=self._memory
        )

    def slice(self, order: IntArray) -> tuple[StageAssignment, Value] | None:
        """Return the best slicing of a topological order, (n,), and its value; None where none is allowed."""
        order = np.require(order, np.int64, "CW")
        problem = self.problem
        stage = np.zeros(problem.num_nodes, np.int64)
        if self._memory:
            value, cuts = memory_slices(
                order, self._arrays, self._by_bytes, self._slots, self._slot_class, self._space
            )
            classes = self._slot_class.copy()
        else:
            value, stages, cuts, chosen = pipeline_slices(order, self._arrays, self._slots, self._space)
            cuts, classes = cuts[: stages + 1], self._slot_class.copy()
            if not self.ordered:
                used = np.bincount(chosen[:stages], minlength=problem.num_classes)
                unused = np.repeat(np.arange(problem.num_classes), problem.class_count - used)
                classes = np.concatenate([chosen[:stages], unused])
        if value == np.inf:
            return None
        stage[order] = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        assignment = StageAssignment(stage, classes)
        found = evaluate(problem, assignment)
        return None if found[0] == np.inf else (assignment, found)

    def values(self, priorities: FloatArray, cutoff: float = np.inf) -> FloatArray:
        """Return the values of the best slicings of Kahn's orders by node priorities.

        Parameters
        ----------
        priorities
            (p, n) one row of node priorities for each order.
        cutoff
            Orders whose first value is above it need not be told apart: their values are inf.

        Returns
        -------
        FloatArray
            (p, 1) bottlenecks for `pipeline`, (p, 3) values for `memory`.
        """
        values: FloatArray = sliced_values(
            np.require(priorities, np.float64, "CW"),
            cutoff,
            self._memory,
            self._arrays,
            self._by_bytes,
            self._slots,
            self._slot_class,
            self._space,
        )
        return values


def slice_order(problem: StageProblem, order: IntArray) -> tuple[StageAssignment, Value] | None:
    """Return the best slicing of a topological order into the problem's stages and its value; None if none is allowed.

    Optimal for the order (and, see `Slicer`, for every sequence of stage classes), up to rounding.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) a topological order.

    Notes
    -----
    No n x n table: time grows with n times the length of a stage, memory with states times n.

    References
    ----------
    MTPP, Algorithm 1 (SliceGraph) and Lemma 4.2.
    """
    return Slicer(problem).slice(order)


def reslice(
    problem: StageProblem, assignment: StageAssignment, slicer: Slicer | None = None
) -> tuple[StageAssignment, Value]:
    """Slice the order an assignment induces (by stage, then by natural position); never worse than the assignment."""
    position = np.empty(problem.num_nodes, np.int64)
    position[problem.order] = np.arange(problem.num_nodes)
    found = (slicer or Slicer(problem)).slice(np.lexsort((position, assignment.stage)))
    value = evaluate(problem, assignment)
    return found if found is not None and found[1] < value else (assignment, value)


def _counted_slots(problem: StageProblem) -> Slots:
    """Return states that count the stages used of each class, in mixed radix."""
    counts = problem.class_count
    radix = np.concatenate([[1], np.cumprod(counts + 1)])
    states = np.arange(radix[-1])
    used = states[:, None] // radix[:-1] % (counts + 1)
    step = np.where(used < counts, states[:, None] + radix[:-1], -1)
    left = (counts.sum() - used.sum(axis=1)).astype(np.float64)
    return Slots(np.ascontiguousarray(step, np.int64), left, 0)


def _ordered_slots(problem: StageProblem) -> Slots:
    """Return states that say how many of the stages, in the problem's order, are done."""
    k = problem.num_stages
    step = np.full((k + 1, problem.num_classes), -1, np.int64)
    step[np.arange(k), problem.stage_class] = np.arange(1, k + 1)
    return Slots(step, np.arange(k, -1, -1, dtype=np.float64), 1)
