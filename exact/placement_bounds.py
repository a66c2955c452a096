"""Lower bounds on the makespan of placements, cheapest first.

Every bound is a function ``bound(problem, *, upper=inf, budget=None)`` of the whole problem. It returns seconds that no
feasible placement is below, in any way of transferring; or, where nothing better than `upper` exists and that was
proven, at most `upper`. ``inf`` (with no `upper`): there is no feasible placement. Without a budget the effort is
limited by counts of relaxations, and the result is deterministic.

=================  ================================================================================================
path               longest path, with the best devices and the transfers these need; linear
load               fractional assignment of loads and memory, with the best split of each op
around             for each op, what must run before it and what after it, each as `load`; quadratic in bits
relaxation         the linear relaxation with rows for what lies between ops, see :mod:`rlinit.exact.placement_lp`
chain              branch and bound over the devices of parts of the network, see :mod:`rlinit.exact.chain_bounds`
=================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from rlinit.budget import Budget
from rlinit.exact.bound_windows import Windows, latest_end, possible_batches, windows
from rlinit.exact.chain_bounds import ChainBound, best_chain
from rlinit.exact.placement_load import LoadBound, load_lagrangian
from rlinit.exact.placement_lp import CutPool, PlacementLP
from rlinit.kernels.placement_heads import reachability, reachable_sums
from rlinit.placement import PlacementProblem

__all__ = [
    "PLACEMENT_BOUNDS",
    "PlacementBound",
    "around_bound",
    "chain_bound",
    "load_bound",
    "path_bound",
    "relaxation_bound",
]

_ROUNDS = 8
_BETWEEN_OPS = 2_000
_LP_SIZE = 40_000
_CHAIN_OPS = 3_000
_CHAIN_NODES = 600
_CHAIN_SPAN = 60


class PlacementBound(Protocol):
    """What every bound of this module is."""

    def __call__(self, problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
        """Return a lower bound in seconds."""
        ...


def path_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the longest path with the best devices for its ops and the transfers that these need.

    Parameters
    ----------
    problem
        What to bound.
    upper
        A makespan; batches that only worse placements have are left out.
    budget
        Not used: this is linear.

    Notes
    -----
    Takes time linear in edges times squared number of devices.
    """
    window = windows(problem, upper, possible_batches(problem))
    return upper if window is None else min(window.floor_s, upper)


def load_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the best of `path_bound` and the loads of a fractional assignment within the memory.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search for weights early.
    """
    window = windows(problem, upper, possible_batches(problem))
    if window is None:
        return upper
    loads = load_lagrangian(problem, window.allowed, budget or Budget())
    return min(upper, max(window.floor_s, loads.bound_s))


def around_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the best of `load_bound` and, for each op, the load before it, its time, and the load after it.

    The ops that lead to an op run before it, so that its start is at least their load; heads and tails from these
    sums are passed on along the edges like those of `path_bound`.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search for weights early; leaves the sums out if it has expired.

    Notes
    -----
    n (n + m) / 64 word operations and n^2 / 8 bytes.
    """
    budget = budget or Budget()
    window = windows(problem, upper, possible_batches(problem))
    if window is None:
        return upper
    loads = load_lagrangian(problem, window.allowed, budget)
    bound = max(window.floor_s, loads.bound_s)
    if bound < upper and not budget.expired:
        tight = _tightened(problem, window, loads, upper)
        bound = upper if tight is None else max(bound, tight.floor_s)
    return min(bound, upper)


def relaxation_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of the linear relaxation with cuts, or of `around_bound` where that is better.

    Rows for what lies between ops need n^2 numbers and are left out above 2,000 ops; of problems too large for the
    LP only `around_bound` is returned.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the rounds of cuts; without one there are 8.
    """
    budget = budget or Budget()
    window = windows(problem, upper, possible_batches(problem))
    if window is None:
        return upper
    loads = load_lagrangian(problem, window.allowed, budget)
    bound = max(window.floor_s, loads.bound_s)
    if bound < upper and not budget.expired:
        tight = _tightened(problem, window, loads, upper)
        if tight is None:
            return upper
        bound = max(bound, _cut_relaxation(problem, tight, max(bound, tight.floor_s), upper, budget))
    return min(bound, upper)


def chain_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of a chain of ops by branch and bound, or of `load_bound` where that is better.

    Only for problems of at most 3,000 ops; for `throughput` it bounds the makespan of a single shard.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search; without one it solves some 600 relaxations.
    """
    limited = budget or Budget()
    window = windows(problem, upper, possible_batches(problem))
    if window is None:
        return upper
    loads = load_lagrangian(problem, window.allowed, limited)
    bound = max(window.floor_s, loads.bound_s)
    if bound >= upper or limited.expired or problem.num_ops > _CHAIN_OPS or not problem.num_ops:
        return min(bound, upper)
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    least = window.least_s.min(axis=1)
    chain = best_chain(problem, reach, _surrogate(window, loads), least, _CHAIN_SPAN)
    if chain:
        search = ChainBound(problem, window, chain, upper)
        bound = max(bound, search.run(_CHAIN_NODES if budget is None else 1 << 40, limited))
    return min(bound, upper)


def _surrogate(window: Windows, loads: LoadBound) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return (n,) what the batch of one shard adds to the weighted mean of the loads, wherever it runs."""
    with np.errstate(invalid="ignore"):
        cost = window.least_s * loads.weight
    surrogate: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.where(
        np.isfinite(window.least_s), cost, np.inf
    ).min(axis=1)
    return surrogate


def _tightened(problem: PlacementProblem, window: Windows, loads: LoadBound, upper: float) -> Windows | None:
    """Return windows in which nothing starts before the load of the ops that lead to it, and the same from the end."""
    weight = _surrogate(window, loads) * (1.0 - 1e-12)
    before = reachable_sums(problem.order, problem.pred_indptr, problem.pred, weight)
    after = reachable_sums(problem.order[::-1].copy(), problem.succ_indptr, problem.succ, weight)
    return windows(problem, upper, window.allowed, before, after)


def _cut_relaxation(problem: PlacementProblem, window: Windows, floor: float, upper: float, budget: Budget) -> float:
    """Return the bound of the linear relaxation after rounds of cuts."""
    n = problem.num_ops
    if not n or n * problem.num_devices * problem.num_shards > _LP_SIZE:
        return floor
    reach = reachability(problem.order, problem.succ_indptr, problem.succ) if n <= _BETWEEN_OPS else None
    horizon = latest_end(problem, window.allowed)
    program = PlacementLP(problem, window, horizon, reach, CutPool())
    bound = floor
    for _ in range(_ROUNDS):
        bound = max(bound, program.solve(budget.remaining_s))
        if bound >= upper or budget.expired or program.separate() == 0:
            break
    return upper if bound > horizon else bound


PLACEMENT_BOUNDS: Mapping[str, PlacementBound] = MappingProxyType(
    {
        "path": path_bound,
        "load": load_bound,
        "around": around_bound,
        "relaxation": relaxation_bound,
        "chain": chain_bound,
    }
)
"""The bounds by name, cheapest first."""
