"""The exact (peak, off-cache, traffic) value of the memory objective by dynamic programming over ideals.

First the smallest peak, then, under that peak, the smallest (off-cache, traffic) by labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlinit.arrays import ROUNDING
from rlinit.budget import Budget, reserve
from rlinit.exact.stages.ideals.bottleneck_search import BottleneckSearch, run_by_quota
from rlinit.exact.stages.ideals.enumeration import Ideals
from rlinit.exact.stages.ideals.passes import Fillings, StageRates, Sums, spill_pass
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.problem import (
    MemoryValue,
    StageAssignment,
    StageProblem,
    StageResult,
    Value,
    byte_costs,
    memory_value,
    sums_exactly,
)
from rlinit.stages.states import LABEL_CAP, StageStates

_NOTHING: MemoryValue = (np.inf, np.inf, np.inf)


def solve_memory_ideals(
    problem: StageProblem,
    ideals: Ideals,
    *,
    budget: Budget,
    lower: float = 0.0,
    upper: MemoryValue | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult[StageAssignment] | None:
    """Return the assignment of the lexicographically smallest (peak, off-cache, traffic), exact over all monotone ones.

    Parameters
    ----------
    problem
        A ``memory`` problem.
    ideals
        Its ideals (`enumerate_ideals`).
    budget
        When to stop; looked at several times a second.
    lower
        A proven lower bound on the peak in bytes, where one is known.
    upper
        Value of a schedule at hand: only better ones are looked for.
    on_bound
        Told of each proven bound.

    Returns
    -------
    StageResult or None
        ``optimal``; ``infeasible``: nothing is better than `upper`, which is then the bound, or nothing is allowed at
        all, and the bound is infinite; ``feasible``: the peak is optimal (and in the bound), but the budget
        ended before the rest was; ``no_solution``: it ended before any better schedule. None: it would take more than
        `LABEL_CAP` labels, one for each ideal and number of stages.

    Notes
    -----
    Sums of bytes that are multiples of one power of two (whole bytes are) are exact. Where they are not, off-cache
    sums that differ by no more than rounding count as equal.
    """
    if (problem.num_stages + 1) * ideals.num_ideals > LABEL_CAP:
        return None
    cutoff = _NOTHING if upper is None else upper
    merged = ideals.merged
    states = StageStates.in_order(problem.stage_class, problem.num_classes)
    search = BottleneckSearch(ideals, states, byte_costs(merged.problem), budget)

    def tell(bounds: MemoryValue) -> None:
        if on_bound is not None:
            on_bound(bounds)

    def offer(chain: list[int]) -> tuple[StageAssignment, MemoryValue]:
        stage = search.table.stages(chain)
        assignment = merged.expand(StageAssignment(stage, problem.stage_class))
        return assignment, memory_value(problem, assignment.stage)

    found = search.run(lower, cutoff[0], lambda peak: tell((peak, 0.0, 0.0)))
    if not found.complete:
        return StageResult(None, None, (found.proven, 0.0, 0.0), "no_solution", search.work)
    if found.value is None:
        return StageResult(None, None, cutoff, "infeasible", search.work)
    first, first_value = offer(found.chain)
    peak = min(found.value, first_value[0])
    bounds = (peak, _least_off_cache(problem), 0.0)
    tell(bounds)
    spill = _Spill(search, found.value)
    chain = spill.run()
    work = search.work + spill.work
    if chain is None:
        if first_value < cutoff:
            return StageResult(first, first_value, bounds, "feasible", work)
        return StageResult(None, None, min(bounds, cutoff), "no_solution", work)
    best, value = offer(chain)
    if value >= cutoff:
        return StageResult(None, None, cutoff, "infeasible", work)
    return StageResult(best, value, (min(peak, value[0]), *value[1:]), "optimal", work)


def _least_off_cache(problem: StageProblem) -> float:
    """Return what does not fit all caches together."""
    spare = problem.param_bytes.sum() * (1 - ROUNDING) - problem.cache_bytes[problem.stage_class].sum()
    return float(max(0.0, spare))


class _Spill:
    """The second step: the smallest (off-cache, traffic) of chains whose stages hold at most `peak` bytes."""

    def __init__(self, search: BottleneckSearch, peak: float) -> None:
        self.search = search
        self.work = 0
        problem = search.problem
        total = float(problem.param_bytes.sum())
        caches = problem.cache_bytes[np.isfinite(problem.cache_bytes)]
        exact = sums_exactly(np.concatenate([problem.param_bytes, caches]))
        self.tie = 0.0 if exact else total * problem.num_nodes * 2.0**-52
        self.peak = peak + self.tie

    def run(self) -> list[int] | None:
        """Return the chain of ideals of the first 1, 2, ..., k stages; None if the budget ended first."""
        search, problem, table = self.search, self.search.problem, self.search.table
        forbidden = ~np.isfinite(problem.work_s) | (
            problem.param_bytes > problem.memory_bytes[:, None] * CAPACITY_SLACK
        )
        num_forbidden = np.stack([table.sums(row) for row in forbidden.astype(np.float64)]).astype(np.int64)
        held = np.stack([table.sums(row) for row in np.where(forbidden, 0.0, problem.param_bytes)])
        reach = search.reach(self.peak)
        floor = search.weight_of.sum() - (search.states.left * reach).sum(axis=1)
        shape = (search.states.num_states, table.num_ideals)
        reserve(20 * shape[0] * shape[1], f"{shape[0] * shape[1]:,} labels of ideals")
        off_cache, traffic = np.full(shape, np.inf), np.full(shape, np.inf)
        off_cache[0, 0] = traffic[0, 0] = 0.0
        back = np.full(shape, -1, np.int32)
        out_bytes = np.ascontiguousarray(problem.tensor_bytes[None, :])
        all_out = table.crossing_sums(problem.tensor_bytes)[None, :]

        unused = np.zeros((1, 1))
        fillings = Fillings(reach, floor, search.states.step, search.states.fewer)
        sums = Sums(table.weight, unused, held, num_forbidden, unused, all_out)
        rates = StageRates(problem.memory_bytes, problem.cache_bytes, unused[0], unused, out_bytes)

        def call(first: int, quota: int) -> tuple[int, int]:
            next_first, met = spill_pass(
                self.peak,
                self.tie,
                first,
                quota,
                problem.stage_class,
                fillings,
                sums,
                rates,
                table.crossings,
                off_cache,
                traffic,
                back,
            )
            return int(next_first), int(met)

        through, self.work = run_by_quota(call, table.num_ideals, search.budget)
        if not through:
            return None
        return search.states.trace(problem.num_stages, table.num_ideals - 1, back, back)[0]
