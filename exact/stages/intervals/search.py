"""The interval bound: bottlenecks refuted by a dynamic program over intervals of ideals instead of ideals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlinit.arrays import MOST_CELLS, ROUNDING, FloatArray, inverse_of
from rlinit.budget import Budget, reserve
from rlinit.exact.effort import CLOSE, MORE
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.ideals.bottleneck_search import run_by_quota
from rlinit.exact.stages.ideals.node_merging import merge_weightless
from rlinit.exact.stages.intervals.cover import Cover, Lattice, undecided
from rlinit.exact.stages.intervals.crossings import crossings
from rlinit.exact.stages.intervals.passes import Leaves, Transfers, extents, furthest, least_needed
from rlinit.stages.problem import StageProblem

ENOUGH = 8_000
"""Intervals that are tried after a round that proves nothing, or where there is no time limit; where these prove
nothing, more seldom do."""

_TRIALS = 5
"""Bottlenecks tried in a round: each halves what lies between the refuted and the least one given up."""

_STEP = 1.25
"""What is proven times this is tried at most: without a good value to stay below, rounds would begin in vain."""

_NEAR = 0.005
"""Gap at which the value itself is tried."""


class _Out(Exception):
    """The budget ended."""


def _tried(lattice: Lattice, cover: Cover, bottleneck: float, budget: Budget) -> Cover | None:
    """Return the intervals in which a boundary of a schedule within the bottleneck may lie; None if there is none."""
    problem, limit = lattice.problem, lattice.room(bottleneck)
    at = np.argsort(cover.least, kind="stable")
    ranked = cover.kept(at)
    tensors = problem.tensor_arrays
    entering = crossings(ranked.inner, ranked.outer, tensors, lattice.in_s, budget)
    alike = lattice.out_s is lattice.in_s
    leaving = entering if alike else crossings(ranked.inner, ranked.outer, tensors, lattice.out_s, budget)
    if entering is None or leaving is None:
        raise _Out
    transfers = Transfers(entering, leaving, problem.tensor_indptr, problem.tensor_dst)
    spread = float((cover.most - cover.least).max()) + ROUNDING * float(cover.most[-1])
    extent = extents(ranked.inner, ranked.outer, leaving.indptr, leaving.tail)
    leaves = Leaves(ranked.inner, ranked.outer, ranked.least, ranked.most, at, inverse_of(at), spread, extent)
    k, last = problem.num_stages, leaves.at[-1]
    done = np.full((cover.size, k + 1), -np.inf)
    done[leaves.at[0], 0] = 0.0
    # So much is done before the stages that are left, or they do not suffice.
    floor = cover.least[-1] - limit * np.arange(k, -1.0, -1.0)
    need = np.maximum(ranked.need, floor)

    steps = k + (problem.num_nodes + 63) // 64  # of a pair, at most, beside what crosses

    def run(kernel: Callable[..., tuple[int, int]], need: FloatArray) -> None:
        def call(first: int, quota: int) -> tuple[int, int]:
            then, met = kernel(limit, first, 1 + quota // steps, leaves, transfers, need, done)
            return int(then), int(met) * steps

        if not run_by_quota(call, cover.size, budget)[0]:
            raise _Out

    run(furthest, need)
    if done[last, k] < need[last, k]:
        return None
    exact = np.full_like(need, np.inf)
    exact[last, k] = need[last, k]
    run(least_needed, exact)
    needed = np.empty_like(exact)
    needed[at] = exact
    cover = Cover(cover.inner, cover.outer, cover.least, cover.most, needed)
    return cover.kept(np.isfinite(needed).any(axis=1))


def refuted(lattice: Lattice, bottleneck: float, most: int, budget: Budget) -> bool | None:
    """Return whether it is proven that no schedule is within a bottleneck; None if the budget ended first.

    Parameters
    ----------
    lattice
        The ideals.
    bottleneck
        Seconds.
    most
        Intervals beyond which the trial is given up.
    budget
        When to stop.
    """
    cover: Cover | None = lattice.whole()
    try:
        while cover is not None:
            spread = np.where(undecided(cover), cover.most - cover.least, -1.0)
            chosen = (spread >= 0) & (2.0 * spread >= spread.max())  # the coarse ones
            if not chosen.any() or cover.size + chosen.sum() > most:
                return False
            halved = lattice.halved(cover, chosen, budget)
            if halved is None:
                return None
            cover = _tried(lattice, halved, bottleneck, budget)
    except _Out:
        return None
    return True


def interval_bound(
    problem: StageProblem,
    *,
    lower: float = 0.0,
    upper: float = np.inf,
    first: int = 500,
    most: int = ENOUGH,
    budget: Budget | None = None,
    on_bound: Callable[[float], object] | None = None,
) -> float:
    """Return the interval bound: the largest bottleneck found that no chain of intervals of ideals stays within.

    Parameters
    ----------
    problem
        A `pipeline` problem. Where devices differ, an op or a tensor counts with the cheapest; overflow is left out.
    lower, upper
        Seconds: a known lower bound, and the value of a known assignment, which the bound does not exceed.
    first, most
        Intervals of a trial in the first round and in the last. The time of a trial grows with their square.
    budget
        When to stop; looked at many times a second.
    on_bound
        Called with each better bound.
    """
    budget, low = budget or Budget(), max(lower, simple_bound(problem, budget)[0])
    if problem.num_nodes == 0 or not np.isfinite(low):
        return low
    lattice_of = merge_weightless(problem).problem
    n, words = lattice_of.num_nodes, (lattice_of.num_nodes + 63) // 64
    if n * n > MOST_CELLS or not low < upper:
        return min(low, upper)
    reserve(16.0 * n * words, f"what {n:,} ops lead to")
    lattice = Lattice(lattice_of)
    upper = min(upper, lattice.total)  # what fits into one stage, if anything does
    if low >= upper * (1 - CLOSE):
        return low
    intervals, given_up = first, upper
    while not budget.expired:
        reserve(intervals * (40.0 * words + 32.0 * (problem.num_stages + 1)), f"{intervals:,} intervals of ideals")
        began, trial = low, given_up if given_up < upper else _between(low, upper, upper)
        given_up = upper
        for _ in range(_TRIALS):
            gone = refuted(lattice, trial, intervals, budget)
            if gone is None:
                return low
            if gone:
                low = max(low, trial)
                if on_bound is not None:
                    on_bound(low)
            else:
                given_up = trial
            if given_up - low <= CLOSE * upper:
                break
            trial = _between(low, given_up, upper)
        vain = low == began
        if upper - low <= CLOSE * upper or intervals >= (min(most, ENOUGH) if vain else most):
            break
        intervals = min(most, ENOUGH if vain else intervals * MORE)
    return low


def _between(low: float, given_up: float, upper: float) -> float:
    """Return what to try next: what would close a small gap, or the middle, but little more than is proven."""
    if given_up == upper and upper - low < _NEAR * upper:
        return upper * (1 - CLOSE)
    middle = 0.5 * (low + given_up)
    return min(middle, _STEP * low) if low > 0 else middle
