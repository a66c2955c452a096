"""Optimal slicing of one topological order into stages (MTPP, Algorithm 1).

A dynamic program in passes under a threshold: a pass that does not reach the end proves that no slicing costs at most
the threshold, and the first one that does has found the optimum, however far above it the threshold is. Thresholds
start near what longest-first slicing reaches. Where stages are of so many classes that the program is out of reach,
longest-first slicing takes its place, in the devices' own order.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rlinit.arrays import ROUNDING, IntArray
from rlinit.budget import Budget
from rlinit.kernels.stages.arrays import CostArrays
from rlinit.kernels.stages.slicing import (
    BottleneckLabels,
    Chain,
    MemoryLabels,
    States,
    longest_first,
    memory_pass,
    pipeline_pass,
    positions,
)
from rlinit.stages.passes import FIRST_EXCESS, HALVINGS, run_in_chunks
from rlinit.stages.problem import StageAssignment, StageProblem, Value, byte_costs, evaluate, largest_cost
from rlinit.stages.states import LABEL_CAP, MOST_STEPS, StageStates, num_counted

_EXTENSIONS = 300_000_000
"""Most extensions of labels (states times classes times stages) of a pass over stages of several classes: about 1 s."""


def slice_order(
    problem: StageProblem, order: IntArray, *, budget: Budget | None = None
) -> tuple[StageAssignment, Value] | None:
    """Return the best slicing of a topological order into the problem's stages and its value; None if none is allowed.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) a topological order.
    budget
        When to stop; then the result is what longest-first slicing found. None: never.

    Notes
    -----
    Exact for the order, except where stages are of so many classes that the states, one for each way to use up some of
    the stages of each class, are beyond `LABEL_CAP` or `_EXTENSIONS`: then it is what longest-first slicing into the
    devices' own order finds, or one device. No n x n table: time grows with the lengths of stages below the
    longest-first slicing, memory with states times n.

    References
    ----------
    MTPP, Algorithm 1 (SliceGraph).
    """
    allowed = np.isfinite(problem.work_s).any(axis=0).all()
    if not allowed or not len(order):
        return None
    slicing = _Slicing(problem, np.ascontiguousarray(order, np.int64), budget or Budget())
    found = slicing.memory() if problem.objective == "memory" else slicing.pipeline()
    return None if found is None else (found, evaluate(problem, found))


def _on_one_device(problem: StageProblem) -> StageAssignment | None:
    """Return everything on the class that needs the least work for it, None where it takes it all."""
    total = np.where(problem.param_bytes.sum() <= problem.memory_bytes, problem.work_s.sum(axis=1), np.inf)
    total = np.where(problem.class_count > 0, total, np.inf)
    c = int(np.argmin(total))
    if not np.isfinite(total[c]):
        return None
    return StageAssignment(np.zeros(problem.num_nodes, np.int64), problem.completed_classes([c]))


class _Slicing:
    """One order of a problem, with what the passes over it share."""

    def __init__(self, problem: StageProblem, order: IntArray, budget: Budget) -> None:
        self.problem = problem
        self.order = order
        self.budget = budget
        self.tensors = problem.tensor_arrays
        self.position = np.empty(len(order), np.int64)
        self.last_use = np.empty(problem.num_tensors, np.int64)
        positions(order, self.tensors, self.position, self.last_use)

    def chain(self, costs: CostArrays) -> Chain:
        """Return the order with the least cost of what lies after each prefix."""
        total = np.append(0.0, np.cumsum(costs.work.min(axis=0)[self.order]))
        return Chain(self.order, self.position, self.last_use, total[-1] - total)

    def pipeline(self) -> StageAssignment | None:
        """Return the slicing of the smallest bottleneck."""
        problem, costs = self.problem, self.problem.cost_arrays
        most = min(problem.num_nodes, problem.num_stages)
        states = num_counted(problem.class_count, most)
        extensions = states * problem.num_classes * problem.num_nodes * (problem.num_nodes / most)
        greedy, known = self.greedy(costs)
        if problem.num_classes > 1:
            found = [one for one in (greedy, _on_one_device(problem)) if one is not None]
            greedy = min(found, key=partial(evaluate, problem), default=None)
            known = np.inf if greedy is None else evaluate(problem, greedy)[0] * (1.0 + ROUNDING)
        too_many = problem.num_classes > 1 and extensions > _EXTENSIONS
        too_many = too_many or states * problem.num_classes > MOST_STEPS
        if too_many or states * (problem.num_nodes + 1) > LABEL_CAP:
            return greedy
        return self.bottleneck(costs, StageStates.counted(problem.class_count, most), known) or greedy

    def memory(self) -> StageAssignment | None:
        """Return the slicing of the lexicographically smallest (peak, off-cache, traffic)."""
        problem = self.problem
        costs = byte_costs(problem)
        greedy, known = self.greedy(costs)
        if (problem.num_stages + 1) * (problem.num_nodes + 1) > LABEL_CAP:
            return greedy
        found = self.bottleneck(costs, StageStates.in_order(problem.stage_class, problem.num_classes), known)
        if found is None:
            return greedy
        return self._least_traffic(costs, evaluate(problem, found)[0]) or found

    def greedy(self, costs: CostArrays) -> tuple[StageAssignment | None, float]:
        """Return what longest-first slicing into the stages in their order finds, and the threshold that it keeps."""
        problem, work = self.problem, costs.work.min(axis=0)
        ends = np.empty(problem.num_stages, np.int64)
        low = max(float(work.sum()) / problem.num_stages, float(work.max()))
        kept = longest_first(
            low, largest_cost(costs), HALVINGS, self.chain(costs), costs, self.tensors, problem.stage_class, ends
        )
        return (None, np.inf) if kept == np.inf else (self._assignment(ends, None), kept)

    def bottleneck(self, costs: CostArrays, stage_states: StageStates, known: float) -> StageAssignment | None:
        """Return the slicing of the smallest bottleneck; None if there is none, or the budget ended first.

        `known` is a bottleneck that some slicing keeps, or inf.
        """
        problem, n = self.problem, self.problem.num_nodes
        chain = self.chain(costs)
        ceiling = min(largest_cost(costs), known)
        lower = max(float(costs.work.min(axis=0).max()), float(chain.rest[0]) / problem.num_stages)
        near = 1.0 + FIRST_EXCESS
        threshold = min(max(lower * near, known / near if known < np.inf else 0.0), ceiling)
        states = States(stage_states.step, stage_states.left.sum(axis=1).astype(np.float64), stage_states.ordered)
        shape = (stage_states.num_states, n + 1)
        labels = BottleneckLabels(np.empty(shape), np.empty(shape, np.int32), np.empty(shape, np.int16))
        while True:
            labels.value.fill(np.inf)
            labels.value[0, 0] = 0.0
            call = partial(self._pass, threshold, chain, costs, states, labels)
            if not run_in_chunks(call, n + 1, self.budget):
                return None
            state = int(np.argmin(labels.value[:, -1]))
            if labels.value[state, -1] < np.inf:
                return self._read(state, labels, stage_states)
            if threshold >= ceiling:
                return None
            # Twice as far above the lower bound, so that all passes together cost little more than the last.
            excess = max(threshold - lower, 2.0**-30 * ceiling)
            threshold = min(threshold + excess, ceiling)

    def _pass(
        self,
        threshold: float,
        chain: Chain,
        costs: CostArrays,
        states: States,
        labels: BottleneckLabels,
        first: int,
        last: int,
    ) -> int:
        return int(pipeline_pass(threshold, first, last, chain, costs, self.tensors, states, labels))

    def _read(self, state: int, labels: BottleneckLabels, states: StageStates) -> StageAssignment:
        """Return the assignment that led to a state at the end of the order."""
        ends, classes = states.trace(state, self.problem.num_nodes, labels.back, labels.back_class)
        return self._assignment(ends, None if states.ordered else classes)

    def _assignment(self, ends: IntArray | list[int], classes: list[int] | None) -> StageAssignment:
        """Return the assignment of stages that end at these prefixes; unused stages of a class come last."""
        problem = self.problem
        stage = np.empty(problem.num_nodes, np.int64)
        stage[self.order] = np.searchsorted(ends, np.arange(problem.num_nodes), side="right")
        if classes is None:
            return StageAssignment(stage, problem.stage_class)
        return StageAssignment(stage, problem.completed_classes(classes))

    def _least_traffic(self, costs: CostArrays, peak: float) -> StageAssignment | None:
        """Return the best (off-cache, traffic) with stages of at most `peak` bytes; None if the budget ended first."""
        problem = self.problem
        shape = (problem.num_stages + 1, problem.num_nodes + 1)
        labels = MemoryLabels(np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, -1, np.int32))
        labels.off_cache[0, 0] = labels.traffic[0, 0] = 0.0
        sent = problem.tensor_bytes[None, :]
        chain, costs = self.chain(costs), costs._replace(out_s=sent)
        tie = ROUNDING * float(problem.param_bytes.sum())

        def call(first: int, last: int) -> int:
            return int(memory_pass(peak, tie, first, last, chain, costs, self.tensors, problem.stage_class, labels))

        if not run_in_chunks(call, problem.num_nodes + 1, self.budget):
            return None
        states = StageStates.in_order(problem.stage_class, problem.num_classes)
        ends, _ = states.trace(problem.num_stages, problem.num_nodes, labels.back, labels.back)
        return self._assignment(ends, None)
