"""Slicing one order into stages of many classes: a beam over the stages left of each class, under a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.kernels.stages.device_beam import BeamLabels, BeamRules, beam_pass
from rlinit.kernels.stages.slicing import Chain
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate, whole_cost

_SLOWEST = 10.0
"""A class counts as at most this much slower on a node than the fastest; so do nodes that it may not run."""


@dataclass(frozen=True, slots=True)
class _Width:
    """Entries kept of a prefix, ends kept of a start and class, and the relative precision of the threshold."""

    entries: int
    ends: int
    precision: float


_GREEDY = _Width(1, 1, 0.05)
"""First of all: something to return when the budget ends."""

_WIDTHS = tuple(_Width(entries, 4, 0.002) for entries in (64, 32, 16, 8, 4, 2))
"""The widest that is affordable refines it."""

_OFFERS = 10_000_000
"""Comparisons of a pass at most: some 20 ms."""

_ENTRIES = 20_000_000
"""Counts of stages kept at most (prefixes times entries times classes); 2 bytes each."""


def slice_by_beam(
    problem: StageProblem, chain: Chain, budget: Budget, start: StageAssignment | None = None
) -> StageAssignment | None:
    """Return a good slicing of an order into stages of several classes; None where the beam finds none.

    Parameters
    ----------
    problem
        A ``pipeline`` problem in which every node may run somewhere.
    chain
        The order.
    budget
        When to stop, with the best so far.
    start
        A slicing to improve, or None.

    Notes
    -----
    Not exact. Work is counted: a narrow beam first, then the widest whose passes stay within `_OFFERS` comparisons.
    """
    best = on_one_device(problem)
    if start is not None and (best is None or evaluate(problem, start) < evaluate(problem, best)):
        best = start
    for width in (_GREEDY, _affordable(problem)):
        if not budget.expired:
            best = _Beam(problem, chain, width, budget).bisect(best)
    return best


def is_narrow(problem: StageProblem) -> bool:
    """Return whether a beam can only keep one entry of each prefix."""
    return _affordable(problem) is _GREEDY


def on_one_device(problem: StageProblem) -> StageAssignment | None:
    """Return everything on the class that needs the least work for it, None where it takes it all."""
    total = np.where(problem.param_bytes.sum() <= problem.memory_bytes, problem.work_s.sum(axis=1), np.inf)
    total = np.where(problem.class_count > 0, total, np.inf)
    c = int(np.argmin(total))
    if not np.isfinite(total[c]):
        return None
    return StageAssignment(np.zeros(problem.num_nodes, np.int64), problem.completed_classes([c]))


def _affordable(problem: StageProblem) -> _Width:
    """Return the widest beam within the limits, or the narrowest there is."""
    n, c = problem.num_nodes, problem.num_classes
    for width in _WIDTHS:
        offers = n * width.entries * c * width.ends * (c + width.entries / 2)
        if offers <= _OFFERS and n * width.entries * c <= _ENTRIES:
            return width
    return _GREEDY


class _Beam:
    """One width of the beam over one order."""

    def __init__(self, problem: StageProblem, chain: Chain, width: _Width, budget: Budget) -> None:
        self.problem, self.chain, self.width, self.budget = problem, chain, width, budget
        self.rules = BeamRules(problem.class_count, _speeds(problem, chain), _cut_seconds(problem, chain), width.ends)
        shape = (problem.num_nodes + 1, width.entries)
        self.labels = BeamLabels(
            np.zeros(shape[0], np.int64),
            np.zeros((*shape, problem.num_classes), np.int16),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int16),
        )

    def bisect(self, known: StageAssignment | None) -> StageAssignment | None:
        """Return the best assignment that thresholds below that of a known one lead to, or the known one."""
        problem = self.problem
        cheapest = problem.work_s.min(axis=0)
        best, high = known, whole_cost(problem) if known is None else evaluate(problem, known)[0]
        low = max(float(cheapest.max()), float(cheapest.sum()) / problem.num_stages, 1e-6 * high)
        threshold = high if known is None else float(np.sqrt(low * high))
        while low * (1.0 + self.width.precision) < high and not self.budget.expired:
            found = self.within(threshold)
            if found is not None:
                best, high = found, min(threshold, evaluate(problem, found)[0])
            elif best is None:
                return None
            else:
                low = threshold
            threshold = float(np.sqrt(low * high))
        return best

    def within(self, threshold: float) -> StageAssignment | None:
        """Return an assignment of at most the threshold, None where the beam meets none or the budget ends."""
        labels, problem = self.labels, self.problem
        labels.size.fill(0)
        labels.size[0] = 1
        tensors, costs = problem.tensor_arrays, problem.cost_arrays

        def call(first: int, last: int) -> int:
            return int(beam_pass(threshold, first, last, self.chain, costs, tensors, self.rules, labels))

        if not run_in_chunks(call, problem.num_nodes, self.budget) or labels.size[-1] == 0:
            return None
        return self._read(int(np.argmin(labels.value[-1, : labels.size[-1]])))

    def _read(self, entry: int) -> StageAssignment:
        """Return the assignment that led to an entry of the last prefix."""
        labels, at, classes, ends = self.labels, self.problem.num_nodes, [], []
        while at > 0:
            ends.append(at)
            classes.append(int(labels.back_class[at, entry]))
            at, entry = int(labels.back[at, entry]), int(labels.back_entry[at, entry])
        stage = np.empty(self.problem.num_nodes, np.int64)
        stage[self.chain.order] = np.searchsorted(ends[::-1], np.arange(len(stage)), side="right")
        return StageAssignment(stage, self.problem.completed_classes(classes[::-1]))


def _speeds(problem: StageProblem, chain: Chain) -> FloatArray:
    """Return (c, n + 1) how fast a class is on what remains from each position: 1 is the fastest on all of it."""
    fastest = problem.work_s.min(axis=0)
    work = np.minimum(problem.work_s, _SLOWEST * fastest[None, :])[:, chain.order]
    rest = np.cumsum(work[:, ::-1], axis=1)[:, ::-1]
    speeds = np.ones((problem.num_classes, problem.num_nodes + 1))
    np.divide(chain.rest[None, :-1], rest, out=speeds[:, :-1], where=rest > 0)
    return speeds


def _cut_seconds(problem: StageProblem, chain: Chain) -> FloatArray:
    """Return (n + 1,) the mean seconds over classes to bring in the tensors that cross each position of the order."""
    seconds = problem.in_s.mean(axis=0)
    change = np.zeros(problem.num_nodes + 1)
    np.add.at(change, chain.position[problem.tensor_src] + 1, seconds)
    np.add.at(change, chain.last_use + 1, -seconds)
    return np.maximum(np.cumsum(change), 0.0)
