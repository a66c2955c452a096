"""The exact bottleneck of a training pipeline by dynamic programming over ideals, or over the prefixes of one order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray, WordArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.stages.ideals.bottleneck_search import Bottleneck, ThresholdPasses
from rlinit.exact.stages.ideals.enumeration import Ideals, enumerate_ideals
from rlinit.exact.stages.ideals.node_merging import MergedProblem
from rlinit.exact.stages.ideals.table import crossing_links
from rlinit.exact.stages.ideals.training_pass import (
    BlockArrays,
    IdealArrays,
    LabelArrays,
    LinkArrays,
    MemoryArrays,
    StateArrays,
    training_pass,
)
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.problem import StageAssignment, StageResult, largest_cost
from rlinit.stages.states import LABEL_CAP, MOST_STEPS, StageStates, num_counted
from rlinit.stages.training.problem import Blocks, StageTraining, training_value
from rlinit.stages.training.rules import droppable, in_flight

_MODES = {"none": 0, "auto": 1, "all": 2}


def solve_training_ideals(
    training: StageTraining,
    cap: int,
    *,
    lower: float,
    upper: float,
    budget: Budget,
    on_bound: Callable[[float], None] | None = None,
) -> StageResult[StageAssignment] | None:
    """Return the assignment of the smallest bottleneck, exact over monotone assignments, classes and recomputation.

    Parameters
    ----------
    training
        The problem.
    cap
        Ideals to enumerate at most.
    lower
        A proven lower bound in seconds.
    upper
        Value of a schedule at hand: only better ones are looked for.
    budget, on_bound
        When to stop, and who hears of each proven bound.

    Returns
    -------
    StageResult or None
        ``optimal``; ``infeasible``: nothing is better than `upper`, which is the bound then; ``feasible`` or
        ``no_solution``: the budget ended, or a choice of blocks was too hard to prove. None beyond `cap`, or beyond the
        labels that fit.

    References
    ----------
    Tarnawski et al., NeurIPS 2020, for ideals with the backward pass folded onto the forward one; memory that depends
    on the place of a stage, and recomputation, are this project's.
    """
    ideals = enumerate_ideals(training.problem, cap, budget, merge=False)
    return None if ideals is None else _solve(training, ideals, lower, upper, budget, on_bound)


def slice_training_order(
    training: StageTraining, order: IntArray, *, lower: float, upper: float, budget: Budget
) -> StageAssignment | None:
    """Return the best way to cut one topological order into stages, if it is better than `upper`.

    Parameters
    ----------
    training
        The problem.
    order
        (n,) a topological order of the nodes.
    lower
        A proven lower bound in seconds.
    upper
        Value of a schedule at hand.
    budget
        When to stop.
    """
    n = len(order)
    whole = MergedProblem.whole(training.problem)
    ideals = Ideals(whole, np.arange(-1, n, dtype=np.int64), np.append(np.int64(-1), order))
    found = _solve(training, ideals, lower, upper, budget, None)
    return None if found is None else found.assignment


def slicing_entries(training: StageTraining, order: IntArray) -> int:
    """Return the entries of the tables that `slice_training_order` builds before it looks at the budget.

    Parameters
    ----------
    training
        The problem.
    order
        (n,) a topological order of the nodes.
    """
    place, problem = inverse_of(order), training.problem
    entries = len(order) * len(order) // 64
    for src, indptr, dst in (
        (problem.tensor_src, problem.tensor_indptr, problem.tensor_dst),
        (training.links.src, training.links.indptr, training.links.dst),
    ):
        last = place[src]
        np.maximum.at(last, np.repeat(np.arange(len(src)), np.diff(indptr)), place[dst])
        entries += int((last - place[src]).sum())
    return entries


def _solve(
    training: StageTraining,
    ideals: Ideals,
    lower: float,
    upper: float,
    budget: Budget,
    on_bound: Callable[[float], None] | None,
) -> StageResult[StageAssignment] | None:
    problem = training.problem
    most = min(problem.num_stages, problem.num_nodes)
    num_states = num_counted(problem.class_count, most)
    if num_states * ideals.num_ideals > LABEL_CAP or num_states * problem.num_classes > MOST_STEPS:
        return None
    if not np.isfinite(problem.work_s.min(axis=0)).all():
        return StageResult(None, None, (upper,), "infeasible", 0)
    search = _Search(training, ideals, StageStates.counted(problem.class_count, most), budget)
    found = search.run(lower, upper * (1 - 2 * ROUNDING), on_bound)
    if not found.complete:
        return StageResult(None, None, (found.proven,), "no_solution", search.work)
    if found.value is None:
        if search.exact:
            return StageResult(None, None, (upper,), "infeasible", search.work)
        return StageResult(None, None, (lower,), "no_solution", search.work)
    assignment = search.assignment(found)
    value = training_value(training, assignment)
    if value[0] >= upper:
        return StageResult(None, None, (upper if search.exact else lower,), "infeasible", search.work)
    bound = min(value[0], found.value) if search.exact else lower
    return StageResult(assignment, value, (bound,), "optimal" if search.exact else "feasible", search.work)


class _Search(ThresholdPasses):
    """Passes from the last stage to the first."""

    def __init__(self, training: StageTraining, ideals: Ideals, states: StageStates, budget: Budget) -> None:
        problem = training.problem
        again = problem.work_s + training.forward_s
        most = largest_cost(
            problem.cost_arrays._replace(work=again, in_s=training.links.in_s, out_s=training.links.out_s)
        )
        super().__init__(ideals, problem.work_s.min(axis=0), most, states, budget, backwards=True)
        self.training, table = training, self.table
        bit_of = inverse_of(problem.order)
        links, rules = training.links, training.rules
        src, dst = bit_of[links.src], bit_of[links.dst]
        cut = crossing_links(table.parent, table.node, table.crossings.bits, src, links.indptr, dst, bit_of)
        self.links = LinkArrays(src, links.indptr, dst, links.in_s, links.out_s, *cut)
        width = np.empty(problem.num_nodes)
        width[bit_of] = training.width_bytes
        self.memory = MemoryArrays(
            table.sums(rules.state_factor * problem.param_bytes),
            table.sums(training.made_bytes),
            table.crossing_sums(problem.tensor_bytes),
            width,
            training.memory_bytes * CAPACITY_SLACK,
            problem.cache_bytes,
            problem.overflow_s_per_byte,
            rules.microbatches,
        )
        self.blocks = BlockArrays(
            _bits(training.blocks, bit_of, table.crossings.bits.shape[1]),
            training.blocks.saved_bytes,
            training.blocks.seconds,
            np.argsort(training.blocks.seconds / training.blocks.saved_bytes, axis=1, kind="stable"),
            _MODES[rules.recompute],
        )
        self.filled = (problem.class_count - states.left).sum(axis=1)
        flying = [in_flight(rules, problem.num_stages, r) for r in range(int(self.filled.max()) + 1)]
        self.in_flight = np.array(flying, np.float64)
        self.droppable = np.array([droppable(rules, f, r) for r, f in enumerate(flying)], np.float64)

    def extension(
        self, threshold: float, label: FloatArray, back: NDArray[np.int32], back_class: NDArray[np.int8]
    ) -> Callable[[int, int], tuple[int, int]]:
        """Return the pass from the last ideal to the first; see `ThresholdPasses.extension`."""
        problem, table, states = self.training.problem, self.table, self.states
        limit = threshold * (1 + ROUNDING)
        bars = problem.work_s > limit
        ideals = IdealArrays(
            table.weight,
            table.crossings.bits,
            np.stack([table.sums(row) for row in np.where(bars, 0.0, problem.work_s)]),
            np.stack([table.sums(row) for row in bars.astype(np.float64)]).astype(np.int64),
            table.sums(problem.param_bytes),
        )
        most = int(np.floor(limit * (1 + ROUNDING) / self.unit)) if limit < self.unit * 2.0**60 else 2**60
        reach = np.full(problem.num_classes, min(most, int(self.weight_of.sum())), np.int64)
        rest = (states.left * reach).sum(axis=1)
        arrays = StateArrays(states.step, self.filled, rest, self.in_flight, self.droppable)
        last, labels = table.num_ideals - 1, LabelArrays(label, back, back_class)

        def call(first: int, quota: int) -> tuple[int, int]:
            at, met, exact = training_pass(
                limit, last - first, quota, reach, ideals, self.links, self.memory, self.blocks, arrays, labels
            )
            self.exact = self.exact and exact
            return (last - at if at > 0 else table.num_ideals), met

        return call

    def assignment(self, found: Bottleneck) -> StageAssignment:
        """Return the assignment that was found."""
        return StageAssignment(self.table.stages(found.chain), self.training.problem.completed_classes(found.classes))


def _bits(blocks: Blocks, bit_of: IntArray, words: int) -> WordArray:
    """Return (b, w) the nodes of each block as bits."""
    bits = np.zeros((len(blocks.names), words), np.uint64)
    block, bit = np.repeat(np.arange(len(bits)), np.diff(blocks.indptr)), bit_of[blocks.node]
    np.bitwise_or.at(bits, (block, bit >> 6), np.uint64(1) << (bit & 63).astype(np.uint64))
    return bits
