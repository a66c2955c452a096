"""The smallest bottleneck over chains of ideals, by passes under a threshold.

A pass that does not reach the last ideal proves that no assignment costs at most its threshold, and the first one
that does has found the optimum. Close to the optimum hardly any ideal can be the end of a stage: what is left has to
fit the stages that are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.budget import Budget, reserve
from rlinit.exact.effort import QUOTA
from rlinit.exact.stages.ideals.chain_order import ChainOrder
from rlinit.exact.stages.ideals.enumeration import Ideals
from rlinit.exact.stages.ideals.passes import Fillings, StageRates, Sums, bottleneck_pass
from rlinit.exact.stages.ideals.table import IdealTable, quantized
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.arrays import CostArrays
from rlinit.stages.passes import FIRST_EXCESS
from rlinit.stages.problem import largest_cost
from rlinit.stages.states import StageStates


@dataclass(frozen=True, slots=True, eq=False)
class Bottleneck:
    """Outcome of a search.

    Parameters
    ----------
    value
        The smallest bottleneck; None where there is none below the ceiling, or the budget ended first.
    proven
        A lower bound; the ceiling, where nothing is below.
    complete
        Whether the search came to its end.
    chain, classes
        What the first 1, 2, ... stages hold (ideals of the table), and the class of each.
    """

    value: float | None
    proven: float
    complete: bool
    chain: list[int]
    classes: list[int]


class ThresholdPasses(ABC):
    """Passes over the ideals of a table under a threshold that grows, until one finds the smallest bottleneck.

    Parameters
    ----------
    ideals
        The ideals of a problem, merged, and that problem.
    cheapest, most
        (n,) the least seconds of each node, and seconds that no stage exceeds.
    states
        Which stages are filled.
    budget
        When to stop.
    backwards
        Whether stages are filled from the last one on: a label tells what is filled behind an ideal.
    """

    def __init__(
        self,
        ideals: Ideals,
        cheapest: FloatArray,
        most: float,
        states: StageStates,
        budget: Budget,
        *,
        backwards: bool = False,
    ) -> None:
        self.cheapest, self.most, self.states, self.budget = cheapest, most, states, budget
        self.backwards, self.work, self.exact = backwards, 0, True
        self.weight_of, self.unit = quantized(cheapest)
        self.table = IdealTable.build(ideals, self.weight_of)

    @abstractmethod
    def extension(
        self, threshold: float, label: FloatArray, back: NDArray[np.int32], back_class: NDArray[np.int8]
    ) -> Callable[[int, int], tuple[int, int]]:
        """Return the call of `run_by_quota` that fills the labels of stages within the threshold.

        Parameters
        ----------
        threshold
            Most seconds of a stage.
        label, back, back_class
            (S, p) the least bottleneck of a state at an ideal, inf where none is known, where its last stage begins,
            and the class of that; changed in place.
        """

    def run(self, lower: float, upper: float, on_bound: Callable[[float], None] | None) -> Bottleneck:
        """Return the smallest bottleneck of at most `upper`.

        Parameters
        ----------
        lower
            A known lower bound, 0 if there is none.
        upper
            The ceiling; it counts as reached within `ROUNDING`.
        on_bound
            Told of each proven lower bound.

        Raises
        ------
        OutOfMemory
            The memory that is left has no room for the labels.
        """
        if not np.isfinite(self.cheapest).all():
            return Bottleneck(None, np.inf, True, [], [])
        simple = max(lower, float(self.cheapest.max()))
        if simple > upper:
            return Bottleneck(None, upper, True, [], [])
        ceiling = min(upper, self.most)
        base = proven = min(simple, ceiling)
        excess = FIRST_EXCESS * base if base > 0 else 2.0**-30 * ceiling
        shape = (self.states.num_states, self.table.num_ideals)
        reserve(13 * shape[0] * shape[1], f"{shape[0] * shape[1]:,} labels of ideals")
        label, back, back_class = np.empty(shape), np.empty(shape, np.int32), np.empty(shape, np.int8)
        last = shape[1] - 1
        start, end = (last, 0) if self.backwards else (0, last)
        while True:
            threshold = ceiling if base + 1.5 * excess >= ceiling else base + excess
            label.fill(np.inf)
            label[0, start] = 0.0
            through, met = run_by_quota(self.extension(threshold, label, back, back_class), shape[1], self.budget)
            self.work += met
            if not through:
                return Bottleneck(None, proven, False, [], [])
            state = int(np.argmin(label[:, end]))
            if label[state, end] < np.inf:
                value, (ends, classes) = float(label[state, end]), self.states.trace(state, end, back, back_class)
                if self.backwards:  # where a stage ends is where the next begins
                    ends, classes = [*ends[-2::-1], last], classes[::-1]
                return Bottleneck(value, value, True, ends, classes)
            if threshold >= ceiling:
                return Bottleneck(None, upper, True, [], [])
            proven = threshold
            if on_bound is not None and self.exact:
                on_bound(proven)
            excess *= 2.0


class BottleneckSearch(ThresholdPasses):
    """Minimise the largest stage cost of a problem over ideals of it.

    Parameters
    ----------
    ideals
        The ideals of a problem, merged, and that problem.
    states
        Which stages there are.
    costs
        What stages of the (merged) problem cost.
    budget
        When to stop.
    order
        Tells which devices cannot do what an ideal leaves; its states are `states`.
    """

    def __init__(
        self,
        ideals: Ideals,
        states: StageStates,
        costs: CostArrays,
        budget: Budget,
        order: ChainOrder | None = None,
    ) -> None:
        super().__init__(ideals, costs.work.min(axis=0), largest_cost(costs), states, budget)
        self.problem, self.costs, self.order = ideals.merged.problem, costs, order
        self.across = across_sums(self.table, costs)
        # Where tensors cost nothing, no pair needs a look at them.
        free = not (costs.in_s.any() or costs.out_s.any())
        crossings = self.table.crossings
        self.crossings = crossings._replace(cross_indptr=np.zeros_like(crossings.cross_indptr)) if free else crossings

    def reach(self, threshold: float) -> IntArray:
        """Return (c,) the largest weight of a stage of each class that costs at most `threshold`.

        A stage's work is at most the threshold and its parameters at most the memory; each alone makes a fractional
        knapsack problem.
        """
        problem = self.problem
        cheapest = np.asarray(self.weight_of * self.unit, np.float64)
        room = 1 + 2 * ROUNDING
        most = [
            min(
                _knapsack(cheapest, self.costs.work[c], threshold * room),
                _knapsack(cheapest, problem.param_bytes, float(problem.memory_bytes[c]) * room),
            )
            for c in range(problem.num_classes)
        ]
        return np.floor(np.array(most) * (1 + ROUNDING) / self.unit).astype(np.int64)

    def extension(
        self, threshold: float, label: FloatArray, back: NDArray[np.int32], back_class: NDArray[np.int8]
    ) -> Callable[[int, int], tuple[int, int]]:
        """Mark labels that nothing completes, and return the pass over all others; see `ThresholdPasses.extension`."""
        problem, table, states = self.problem, self.table, self.states
        limit = threshold * (1 + ROUNDING)
        costs = self.costs
        if self.order is not None:
            self.order.mark(limit, table.sums, label)
        reach = self.reach(limit)
        floor = self.weight_of.sum() - (states.left * reach).sum(axis=1)

        fillings = Fillings(reach, floor, states.step, states.fewer)
        sums = stage_sums(table, costs, self.across, limit)
        links = map(np.ascontiguousarray, (costs.in_s, costs.out_s))  # for which kernels are compiled once
        rates = StageRates(problem.memory_bytes, problem.cache_bytes, costs.overflow, *links)

        return partial(
            bottleneck_pass,
            limit,
            ordered=states.ordered,
            fillings=fillings,
            sums=sums,
            rates=rates,
            crossings=self.crossings,
            label=label,
            back=back,
            back_class=back_class,
        )


def across_sums(table: IdealTable, costs: CostArrays) -> tuple[FloatArray, FloatArray]:
    """Return (c, p) seconds on a class to bring in, and to send out, all tensors that leave an ideal.

    Parameters
    ----------
    table, costs
        The ideals, and what stages cost.
    """
    in_s, out_s = (np.stack([table.crossing_sums(row) for row in rows]) for rows in (costs.in_s, costs.out_s))
    return in_s, out_s


def stage_sums(table: IdealTable, costs: CostArrays, across: tuple[FloatArray, FloatArray], limit: float) -> Sums:
    """Return the sums that stages of cost at most `limit` are made of.

    Parameters
    ----------
    table
        The ideals.
    costs, across
        What stages cost, and `across_sums` of it.
    limit
        Seconds; nodes that cost more alone are forbidden, as those are that exceed the memory.
    """
    bars = (costs.work > limit) | (costs.param > costs.memory[:, None] * CAPACITY_SLACK)
    each = np.where(bars, 0.0, costs.work), np.where(bars, 0.0, costs.param), bars.astype(np.float64)
    work, held, forbidden = (np.stack([table.sums(row) for row in rows]) for rows in each)
    return Sums(table.weight, work, held, forbidden.astype(np.int64), *across)


def run_by_quota(call: Callable[[int, int], tuple[int, int]], size: int, budget: Budget) -> tuple[bool, int]:
    """Call with (first, quota), which returns (next first, work), until `size` is reached or the budget ends.

    Returns whether it got through, and the work.

    Parameters
    ----------
    call
        Does about `quota` of work from `first` on.
    size
        Where it ends.
    budget
        Looked at between two calls.
    """
    first, work = 0, 0
    while first < size:
        if budget.expired:
            return False, work
        then, more = call(first, QUOTA)
        first, work = int(then), work + int(more)
    return True, work


def _knapsack(value: FloatArray, size: FloatArray, capacity: float) -> float:
    """Return the largest value of things, or parts of them, whose sizes add up to at most `capacity`."""
    fits = (size <= capacity) & (value > 0)
    value, size = value[fits], size[fits]
    if size.sum() <= capacity:
        return float(value.sum())
    with np.errstate(divide="ignore"):
        order = np.argsort(-(value / size), kind="stable")
    filled = np.cumsum(size[order])
    i = int(np.searchsorted(filled, capacity, side="right"))
    room = capacity - (filled[i - 1] if i else 0.0)
    return float(value[order[:i]].sum() + value[order[i]] * (room / size[order[i]]))
