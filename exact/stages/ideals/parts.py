"""The smallest bottleneck of a graph of several components, by the ideals of each that are worth keeping.

The ideals of several components together are all combinations of theirs. A pass goes from one set of filled stages to
the next with rows of ideals, one a component, and leaves out rows that another one dominates (`part_passes`) and rows
that the stages that are left cannot complete. Thresholds are bisected: a pass that completes no row proves its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, SAFETY, FloatArray, IntArray, inverse_of
from rlinit.budget import ROWS_A_LOOK, Budget
from rlinit.exact.effort import NARROW
from rlinit.exact.stages.bounds.convex_load import reach_bits
from rlinit.exact.stages.bounds.simple import allowed_classes, load_balance
from rlinit.exact.stages.ideals import part_passes
from rlinit.exact.stages.ideals.bottleneck_search import across_sums, stage_sums
from rlinit.exact.stages.ideals.enumeration import Ideals, enumerate_parts
from rlinit.exact.stages.ideals.passes import StageRates
from rlinit.exact.stages.ideals.table import IdealTable, quantized
from rlinit.stages.passes import FIRST_EXCESS
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value, evaluate, largest_cost
from rlinit.stages.states import StageStates, num_counted

_MOST_ROWS, _MOST_STATES = 1_000_000, 4_096
"""Rows by one more stage, before dominated ones are left out, and sets of devices used, beyond which it is given up."""

_MOST_ENTRIES = 40_000_000
"""Ideals times those that may dominate, beyond which some of the latter are left out; ends of stages of one class that
are kept at most, 24 bytes each."""

_GROWTH = 1.5
"""Growth of the excess above the lower bound: the pass that overshoots takes as long as all others."""

_WORK_PER_S = 20_000_000
"""Ends of stages that the rows between two looks at the budget may have for each second left."""

_OF_ENDS = {"ideal": np.int64, "seconds": np.float64, "held": np.float64}
"""Fields of `Ends` that grow, and what they hold."""

_WORK = 2_000
"""Ends of stages that are looked at for each ideal that may be enumerated."""


class _GiveUp(Exception):
    """Too many rows, too much work or no time left."""


class _Rows(NamedTuple):
    """(R, m) rows of ideals of one state, and (R,) the state, the row and the class that each came by."""

    ideals: IntArray
    state: IntArray
    source: IntArray
    via: IntArray


class PartSearch:
    """The smallest bottleneck by passes over rows of ideals of the m components of a problem.

    Parameters
    ----------
    ideals, label
        The ideals of the components, and the component of each node (`enumerate_parts`).
    ceiling
        Most seconds of a stage in any pass.
    most_work
        Ends of stages to look at.
    budget
        When to stop.
    """

    def __init__(self, ideals: Ideals, label: IntArray, ceiling: float, most_work: int, budget: Budget) -> None:
        self.problem = problem = ideals.merged.problem
        self.ceiling, self.budget, self.most_work, self.work = ceiling, budget, most_work, 0
        self.states = StageStates.counted(problem.class_count, min(problem.num_stages, problem.num_nodes))
        costs = problem.cost_arrays
        # What holds everything is never exceeded.
        overflow = np.where(costs.cache >= costs.param.sum(), 0.0, costs.overflow)
        memory = np.where(costs.memory >= costs.param.sum(), np.inf, costs.memory)
        # Multipliers of the classes turn seconds into weight; nodes weigh the least that they do on any class.
        self.balance = balance = load_balance(problem, budget)
        rate, allowed = balance.overflow_share * overflow, allowed_classes(problem)
        self.cached = np.where(rate > 0, costs.cache, 0.0) * rate
        seconds = np.where(allowed, costs.work, 0.0) + rate[:, None] * costs.param
        weights = np.where(allowed, balance.price[:, None] * seconds, np.inf).min(axis=0)
        self.table = table = IdealTable.build(ideals, quantized(weights)[0])
        # What components leave open for those that follow is a window of weight: large steps come first.
        step = np.bincount(label, weights) / np.bincount(label[table.node[1:]])
        label = inverse_of(np.argsort(-step, kind="stable"))[label]
        part = np.append(0, label[table.node[1:]])
        self.members = [1 + np.flatnonzero(part[1:] == i) for i in range(int(label.max()) + 1)]
        self.weight = table.sums(weights)
        self.into = table.crossing_sums((balance.price[:, None] * costs.in_s)[problem.class_count > 0].min(axis=0))
        self.most = np.append(np.cumsum(np.bincount(label, weights)[::-1])[::-1], 0.0)
        sums = stage_sums(table, costs, across_sums(table, costs), ceiling * (1 + ROUNDING))
        links = map(np.ascontiguousarray, (costs.in_s, costs.out_s))  # for which kernels are compiled once
        dominators = self._dominators(part, sums.all_in - sums.work)
        self.tables = part_passes.Tables(
            sums, StageRates(memory, costs.cache, overflow, *links), table.crossings, dominators
        )
        self._begin(0.0)

    def _dominators(self, part: IntArray, base: FloatArray) -> part_passes.Dominators:
        """Return what may dominate, evenly spaced where it is too much."""
        problem, table = self.problem, self.table
        before = reach_bits(np.ascontiguousarray(problem.order[::-1]), problem.pred_indptr, problem.pred)
        ancestors = np.unpackbits(before.view(np.uint8), axis=1).sum(axis=1)[::-1].astype(np.int64)
        size = table.sums(np.ones(problem.num_nodes))
        found = part_passes.single_sources(table.crossings, problem.in_s.max(axis=0) > 0, ancestors, size)
        found = found[:: 1 + len(found) * table.num_ideals // _MOST_ENTRIES]
        found = found[np.argsort(part[found], kind="stable")]
        column = np.full(table.num_ideals, -1)
        column[found] = np.arange(len(found))
        indptr = np.searchsorted(part[found], np.arange(len(self.members) + 1))
        return part_passes.Dominators(
            found, indptr, column, part_passes.dominated(table.crossings.bits, part, found, base)
        )

    def _goal(self, state: int, c: int, limit: float) -> part_passes.Goal:
        """Return what is done at least in a state: what is left fits the stages that are left, all up to the limit."""
        rooms = self.balance.price * (limit + self.cached)
        least = self.most[0] * (1 - SAFETY) - float(self.states.left[state] @ rooms) * (1 + SAFETY)
        room = rooms[c] * (1 + SAFETY) + self.most[0] * SAFETY
        return part_passes.Goal(self.weight, self.into, self.most, least, float(room))

    def _begin(self, limit: float) -> None:
        """Forget where stages end, which is known up to a limit, and go up to this one."""
        nothing = np.full((len(self.members), self.table.num_ideals), -1)
        some = np.zeros(0, np.int64), *np.zeros((4, 0))
        self.limit, self.ends = limit, [part_passes.Ends(nothing.copy(), nothing.copy(), *some) for _ in self.cached]

    def _ends(self, c: int, rows: IntArray) -> part_passes.Ends:
        """Return where stages of a class may end, those from ideals of these rows included."""
        ends, scratch = self.ends[c], np.empty(self.table.num_ideals)
        size = before = int(ends.stop.max(initial=0))
        for d, members in enumerate(self.members):
            begins = np.unique(rows[:, d])
            for i in begins[ends.start[d, begins] < 0]:
                if size > _MOST_ENTRIES or self.budget.expired:
                    raise _GiveUp
                more = len(members) + 1
                if size + more > len(ends.ideal):
                    more += size
                    ends = ends._replace(
                        **{
                            name: np.append(getattr(ends, name), np.empty(more, kind))
                            for name, kind in _OF_ENDS.items()
                        }
                    )
                ends.start[d, i] = size
                ends.stop[d, i] = size = part_passes.write_ends(
                    i, c, d, members, self.limit, self.tables, size, ends, scratch
                )
        if size > before:
            blocks, seconds = np.arange(0, size, part_passes.BLOCK), ends.seconds[:size]
            heavy = seconds + ends.held[:size] * self.tables.rates.overflow[c]
            least, worst = (np.minimum.reduceat(cost, blocks) for cost in (seconds, heavy))
            self.ends[c] = ends._replace(least=least, worst=worst)
        return self.ends[c]

    def _extended(self, rows: IntArray, c: int, state: int, limit: float) -> tuple[IntArray, IntArray]:
        """Return the rows of a state by one more stage of a class, and the row that each came from."""
        ends, goal = self._ends(c, rows), self._goal(state, c, limit)
        found, source, size = [rows[:0]], [np.zeros(0, np.int64)], 0
        for first in range(0, len(rows), ROWS_A_LOOK):
            if self.budget.expired or self.work > self.most_work:
                raise _GiveUp
            some = rows[first : first + ROWS_A_LOOK]
            quota = int(min(self.most_work - self.work, _WORK_PER_S * self.budget.remaining_s))
            more, of, met = part_passes.extend_rows(some, c, limit, quota, self.tables, ends, goal)
            self.work += met
            size += len(more)
            if met > quota or size > _MOST_ROWS:
                raise _GiveUp
            found.append(more)
            source.append(of + first)
        return np.concatenate(found), np.concatenate(source)

    def _kept(self, ideals: IntArray) -> IntArray:
        """Return the rows to keep: different ones that no other one dominates."""
        order: IntArray = np.lexsort(ideals.T)
        order = order[np.append(True, (ideals[order[1:]] != ideals[order[:-1]]).any(axis=1))[: len(order)]]
        ideals, keep = ideals[order], np.ones(len(order), np.bool_)
        for d in range(ideals.shape[1]):
            by_others = np.lexsort(np.delete(ideals, d, axis=1).T)
            part_passes.drop_dominated(ideals, by_others, d, self.tables.dominators, keep)
        return order[keep]

    def _completed(self, limit: float) -> StageAssignment | None:
        """Return an assignment of stages that cost at most `limit` seconds each, None where there is none."""
        if limit > self.limit:
            self._begin(limit)
        whole = np.array([members[-1] for members in self.members])
        reached = [_Rows(np.zeros((1, len(whole)), np.int64), *np.full((3, 1), -1))]
        for state in range(1, self.states.num_states):
            found: list[_Rows] = []
            for c in np.flatnonzero(self.states.fewer[state] >= 0).tolist():
                before = int(self.states.fewer[state, c])
                ideals, source = self._extended(reached[before].ideals, c, state, limit)
                found.append(_Rows(ideals, np.full(len(ideals), before), source, np.full(len(ideals), c)))
            rows = _Rows(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
            kept = self._kept(rows.ideals)
            reached.append(_Rows(*(array[kept] for array in rows)))
            done = np.flatnonzero((reached[-1].ideals == whole).all(axis=1))
            if len(done):
                return self._traced(reached, state, int(done[0]))
        return None

    def run(
        self, lower: float, upper: float, on_bound: Callable[[Value], None] | None
    ) -> tuple[StageAssignment | None, float]:
        """Return the best assignment below `upper` that was found, and what is proven: inf where nothing is better.

        Parameters
        ----------
        lower, upper
            A proven bound in seconds, and a value that only less is of interest than.
        on_bound
            Told of each proven bound.
        """
        best, top = None, min(upper * (1 - 2 * ROUNDING), self.ceiling)
        base = proven = min(max(lower, self.balance.bound), top)
        excess = FIRST_EXCESS * base if base > 0 else 2.0**-30 * top
        try:
            while proven < top or upper == np.inf:
                if best is None:
                    threshold = top if base + _GROWTH * excess >= top else base + excess
                    excess *= _GROWTH
                else:
                    threshold = top if top - proven <= NARROW * top else 0.5 * (proven + top)
                found = self._completed(threshold * (1 + ROUNDING))
                if found is None:
                    proven = threshold
                    if proven >= top:
                        break
                    if on_bound is not None:
                        on_bound((proven,))
                    continue
                value = evaluate(self.problem, found)[0]
                if value >= upper:  # by rounding
                    return best, proven
                best, upper, top = found, value, value * (1 - 2 * ROUNDING)
        except _GiveUp:
            return best, proven
        return best, np.inf

    def _traced(self, reached: list[_Rows], state: int, row: int) -> StageAssignment:
        """Return the assignment that a row came by."""
        chain, classes = [], []
        while state > 0:
            rows = reached[state]
            chain.append(rows.ideals[row])
            classes.append(int(rows.via[row]))
            state, row = int(rows.state[row]), int(rows.source[row])
        columns = np.array(chain[::-1]).T.tolist()
        stage = np.sum([self.table.stages(column) for column in columns], axis=0)
        return StageAssignment(stage, self.problem.completed_classes(classes[::-1]))


def solve_parts(
    problem: StageProblem,
    cap: int,
    *,
    budget: Budget,
    lower: float = 0.0,
    upper: float | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult[StageAssignment] | None:
    """Return the assignment of the smallest bottleneck of a `pipeline` of several components.

    Parameters
    ----------
    problem
        The problem.
    cap
        Most ideals of all components.
    lower, upper
        A proven bound in seconds, and the value of a schedule at hand, where there is one.
    budget, on_bound
        When to stop, and who hears of each proven bound.

    Returns
    -------
    StageResult or None
        As `solve_pipeline_ideals`, and ``feasible`` where it was given up with a better assignment; None where there is
        one component, more ideals, or more sets of devices than are affordable.
    """
    if num_counted(problem.class_count, min(problem.num_stages, problem.num_nodes)) > _MOST_STATES:
        return None
    found = enumerate_parts(problem, cap)
    if found is None:
        return None
    merged = found[0].merged.problem
    if not allowed_classes(merged).any(axis=0).all():
        return StageResult(None, None, (np.inf,), "infeasible", 0)
    cutoff = np.inf if upper is None else upper
    search = PartSearch(*found, min(cutoff, largest_cost(merged.cost_arrays)), _WORK * cap, budget)
    best, proven = search.run(lower, cutoff, on_bound)
    complete = proven == np.inf
    if best is None:
        bound = cutoff if complete else proven
        return StageResult(None, None, (bound,), "infeasible" if complete else "no_solution", search.work)
    best = found[0].merged.expand(best)
    value = evaluate(problem, best)
    return StageResult(
        best, value, value if complete else (proven,), "optimal" if complete else "feasible", search.work
    )
