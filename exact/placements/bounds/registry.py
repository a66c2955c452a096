"""Lower bounds on the makespan of placements, cheapest first.

Every bound is a function ``bound(problem, *, upper=inf, budget=None)`` of the whole problem. It returns seconds that no
feasible placement is below, in any way of transferring; or, where nothing better than `upper` exists and that was
proven, at most `upper`. ``inf`` (with no `upper`): there is no feasible placement. Without a budget the effort is
limited by counts of relaxations, and the result is deterministic.

=================  ================================================================================================
path               longest path, with the best devices and the transfers these need; linear
load               fractional assignment of loads and memory, with the best split of each op
around             for each op, what must run before it and what after it, each as `load`; quadratic in bits
flow               dual ascent on the relaxation of paths, loads between ops of a chain and transfers: `flow`
relaxation         the linear relaxation with rows for what lies between ops: `lp_relaxation`
chain              branch and bound over the devices of segments of the network: `chain`
joined             the relaxation with what the chain proves
destructive        trial makespans refuted by propagation, and by branching over devices and orders: `destructive`
=================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from rlinit.arrays import MOST_CELLS, ROUNDING, BoolArray, FloatArray
from rlinit.budget import UNLIMITED, WATCH_S, Budget
from rlinit.exact.effort import CHOICES, PASSES, PROGRAM_SIZE
from rlinit.exact.placements.analysis.chains import best_chain
from rlinit.exact.placements.analysis.reachability import reachability, reachable_sums
from rlinit.exact.placements.analysis.time_windows import ShardWindows, latest_end, possible_batches, shard_windows
from rlinit.exact.placements.bounds.chain import ChainBound
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.flow import FlowBound
from rlinit.exact.placements.bounds.load import load_lagrangian
from rlinit.exact.placements.bounds.lp_relaxation import CutPool, PlacementLP
from rlinit.kernels.placements.list_scheduling import upward_rank
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import OPTIMALITY_TOLERANCE

_WINDOW_S = 2.5e-7  # Seconds that a window takes for each edge and device.
_LP_ENTRY_S = 1e-4  # Seconds that a relaxation takes for each op and device, in which HiGHS hardly looks at the clock.
_SIMPLEX_OPS = 100
"""Ops up to which relaxations are solved by the simplex method, beyond by the interior point method."""
_FLOW_ROUNDS = 1_000
"""Steps of the ascent."""
_CHOICES = 40_000
"""Choices of devices and orders, in a chain or for trial makespans, where no clock ends them."""
_CHAINS = ((40, 1.0), (60, 0.25), (100, 0.25))
"""Most ops between neighbours, and what a further op must gain: the first for which there are chains. Longer segments
come of shorter ones by themselves."""

_FIRST_SHARE, _CHAIN_SHARE, _BEHIND_SHARE = 0.25, 0.9, 0.4
"""Of what is left of the budget: for the relaxation, and then for what paths prove of every segment and pair of
devices, before the chain; for the chain; and for a chain that is behind."""

_TRIED, _LOOKS, _LOOK_S = 2, 5, 0.2
"""Chains of which that goes on which proves most after so many looks, each of some choices or, where a clock ends the
search, so many seconds: cells of 43 ops need segments of 60, those of 30 are better bounded in segments of 40."""


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
        Where it has no time for the windows of all ops and devices, transfers are left out.

    Notes
    -----
    Takes time linear in edges times number of devices.
    """
    if not _affords_windows(problem, budget):
        return min(_longest_path(problem, possible_batches(problem)), upper)
    window = _windows(problem, upper)
    return upper if window is None else min(window.floor_s, upper)


_LAST: WeakKeyDictionary[PlacementProblem, tuple[float, ShardWindows | None]] = WeakKeyDictionary()
"""By problem, the last value to beat and the windows below it: several bounds begin with the same."""


def _windows(problem: PlacementProblem, upper: float) -> ShardWindows | None:
    """Return the windows below `upper`; None if nothing is."""
    known = _LAST.get(problem)
    if known is None or known[0] != upper:
        _LAST[problem] = known = (upper, shard_windows(problem, upper, possible_batches(problem)))
    return known[1]


def _affords_windows(problem: PlacementProblem, budget: Budget | None) -> bool:
    """Return whether the windows of all ops and devices are known, or take no longer than there is."""
    seconds = _WINDOW_S * (problem.num_ops + len(problem.succ)) * problem.num_devices
    return problem in _LAST or budget is None or seconds <= max(WATCH_S, budget.remaining_s)


def _longest_path(problem: PlacementProblem, allowed: BoolArray) -> float:
    """Return the longest path where every op takes its fastest batch and transfers take no time."""
    least = np.where(allowed, problem.time_s, np.inf).min(axis=(1, 2), initial=np.inf)
    free = np.zeros(problem.num_ops)
    return float(upward_rank(problem.order, least, free, problem.succ_indptr, problem.succ).max(initial=0.0))


def load_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the best of `path_bound` and the loads of a fractional assignment within the memory.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search for weights early. Once it has ended, the first weights are tried alone, whatever `upper` is.
    """
    budget = budget or Budget()
    if budget.expired:
        if not _affords_windows(problem, budget):
            allowed = possible_batches(problem)
            load = load_lagrangian(problem, allowed, budget).bound_s if allowed.any(axis=(1, 2)).all() else np.inf
            return min(max(_longest_path(problem, allowed), load), upper)
        window = _windows(problem, np.inf)
        if window is None:
            return upper
        return min(max(window.floor_s, load_lagrangian(problem, window.allowed, budget).bound_s), upper)
    start = _start(problem, upper, budget)
    return upper if start is None else min(start.bound_s, upper)


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
    start = _start(problem, upper, budget)
    if start is None:
        return upper
    bound = start.bound_s
    if bound < upper and not budget.expired:
        tight = _tightened(problem, start, upper)
        bound = upper if tight is None else max(bound, tight.floor_s)
    return min(bound, upper)


@dataclass(frozen=True, slots=True, eq=False)
class FlowProblem:
    """A problem of one shard as the dual ascent begins with it: its windows, weights of devices, and a first bound."""

    problem: PlacementProblem
    window: ShardWindows
    weight: FloatArray
    bound_s: float


def flow_problem(problem: PlacementProblem, upper: float, budget: Budget) -> FlowProblem | None:
    """Return what the dual ascent begins with; None where nothing is better than `upper`.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search for weights early.
    """
    start = _start(problem, upper, budget)
    if start is None or start.bound_s >= upper:
        return None
    tight = _tightened(problem, start, upper)
    if tight is None:
        return None
    return FlowProblem(problem, tight, start.weight, max(start.bound_s, tight.floor_s))


def flow_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of the dual ascent, or of `around_bound` where that is better.

    Problems of several shards, and those too large for a table of all transfers, have `around_bound` alone.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the ascent; it has 1,000 rounds at most.
    """
    limited = budget or Budget()
    size = len(problem.edges) * problem.num_devices**2
    if problem.num_shards != 1 or not problem.num_ops or size > MOST_CELLS:
        return around_bound(problem, upper=upper, budget=budget)
    first = flow_problem(problem, upper, limited)
    if first is None:
        return upper
    ascent = FlowBound(problem, first.window, first.weight)
    bound = max(first.bound_s, ascent.run(_FLOW_ROUNDS, limited))
    return upper if _out_of_reach(bound, latest_end(problem, first.window.allowed)) else min(bound, upper)


def relaxation_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of the linear relaxation with cuts, or of `around_bound` where that is better.

    Rows for what lies between ops need n^2 numbers and are left out above some 3,000 ops; of problems too large for the
    LP only `around_bound` is returned.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the rounds of cuts; without one there are 8.
    """
    return _with_relaxation(problem, upper, budget, with_chain=False)


def chain_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of a chain of ops by branch and bound, or of `load_bound` where that is better.

    Only for problems of at most some 3,000 ops; for `throughput` it bounds the makespan of a single shard.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search; without a time limit it solves some 400 relaxations.
    """
    limited = budget or Budget()
    start = _start(problem, upper, limited)
    if start is None:
        return upper
    bound = start.bound_s
    if bound < upper and not limited.expired:
        search = _chain(problem, start.window, upper, limited)
        if search is not None:
            bound = max(bound, search.run(_CHOICES if limited.remaining_s == np.inf else UNLIMITED, limited))
    return min(bound, upper)


def joined_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the bound of the linear relaxation with what the chain proves about the time between its ops.

    It is the best of all bounds here where there is time for it: where modules are joined by several channels, what
    the chain leaves out still counts in the loads.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Shared by the relaxation, the chain and both together; without a time limit the counts of the others hold.
    """
    return _with_relaxation(problem, upper, budget, with_chain=problem.num_shards == 1)


def destructive_bound(problem: PlacementProblem, *, upper: float = np.inf, budget: Budget | None = None) -> float:
    """Return the largest trial makespan that is refuted, or what `load_bound` returns where that is better.

    Only for problems of one shard.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search; without a time limit it looks at some 40,000 choices of devices and orders.
    """
    limited = budget or Budget()
    start = _start(problem, upper, limited)
    if start is None:
        return upper
    bound = start.bound_s
    if problem.num_shards == 1 and bound < upper and not limited.expired:
        search = DestructiveSearch(problem, upper=upper, allowed=start.window.allowed, weight=start.weight)
        search.raise_bound(bound)
        bound = search.run(_CHOICES if limited.remaining_s == np.inf else UNLIMITED, limited)
    return min(bound, upper)


def _with_relaxation(problem: PlacementProblem, upper: float, budget: Budget | None, with_chain: bool) -> float:
    """Return the best of `around`, of the relaxation, and of the relaxation with the gaps of a chain."""
    limited = budget or Budget()
    joined = JoinedBound(problem, upper, limited, with_chain=with_chain)
    reached = joined.run(limited)
    while with_chain and limited.remaining_s < np.inf and joined.bound_s + joined.chain_s > reached:
        reached = joined.bound_s + joined.chain_s
        joined.run(limited)
    return joined.bound_s


class JoinedBound:
    """The relaxation and a chain by turns, which can be continued; :attr:`bound_s` is a lower bound at all times.

    Parameters
    ----------
    problem, upper
        As for `path_bound`.
    budget
        Ends the search for weights early.
    with_chain
        Whether there is a chain, too.
    """

    def __init__(self, problem: PlacementProblem, upper: float, budget: Budget, *, with_chain: bool = True) -> None:
        self._problem, self._upper, self._with_chain = problem, upper, with_chain
        self._pool = CutPool()
        self._program: PlacementLP | None = None
        self._chain: _BestChain | None = None
        self._begun = False
        self._start = _start(problem, upper, budget)
        self._window: ShardWindows | None = None
        self.bound_s = upper if self._start is None else min(self._start.bound_s, upper)
        if self._start is not None and self.bound_s < upper and not budget.expired:
            self._window = _tightened(problem, self._start, upper)
            self.bound_s = upper if self._window is None else max(self.bound_s, min(self._window.floor_s, upper))

    @property
    def chain_s(self) -> float:
        """What the chain proves alone: a lower bound that begins at 0."""
        return 0.0 if self._chain is None else self._chain.bound_s

    def run(self, budget: Budget) -> float:
        """Go on until the budget ends, or for a turn of counted work where it has no limit; return the bound.

        Parameters
        ----------
        budget
            Of this turn.
        """
        if self._window is None or self._start is None or self.bound_s >= self._upper or budget.expired:
            return self.bound_s
        if not self._begun:
            self._begun = True
            share = budget.share(budget.remaining_s * _FIRST_SHARE) if self._with_chain else budget
            self._relax(share)
            if self._with_chain and self.bound_s < self._upper:
                self._chain = _chain(self._problem, self._window, self._upper, budget)
        if self._chain is None or self.bound_s >= self._upper or budget.expired:
            return self.bound_s
        # Where the chain is behind, too much of the problem is beside it to catch up soon.
        ahead = self._chain.bound_s >= self.bound_s
        share = budget.share(budget.remaining_s * (_CHAIN_SHARE if ahead else _BEHIND_SHARE))
        counted = budget.remaining_s == np.inf  # Where no clock ends it, work does.
        self._raise(self._chain.run(_CHOICES if counted else UNLIMITED, share))
        if self.bound_s < self._upper:
            self._relax(budget)
        return self.bound_s

    def _relax(self, budget: Budget) -> None:
        """Solve the relaxation, with the gaps of the chain where there is one, and go on from the rows found before."""
        problem, window = self._problem, self._window
        n = problem.num_ops
        size = n * problem.num_devices * problem.num_shards
        if window is None or not n or size > PROGRAM_SIZE or budget.remaining_s < _LP_ENTRY_S * size:
            return
        reach = reachability(problem.order, problem.succ_indptr, problem.succ) if n * n <= MOST_CELLS else None
        horizon = latest_end(problem, window.allowed)
        gaps = () if self._chain is None else self._chain.gaps
        program = PlacementLP(problem, window, horizon, reach, self._pool, gaps=gaps, like=self._program)
        self._program = program
        for _ in range(PASSES):
            bound = program.solve(budget.remaining_s, interior=n > _SIMPLEX_OPS)
            program.forget_slack()
            self._raise(np.inf if _out_of_reach(bound, horizon) else bound)
            if self.bound_s >= self._upper or budget.expired or program.separate(budget) == 0:
                break

    def _raise(self, bound: float) -> None:
        self.bound_s = max(self.bound_s, min(bound, self._upper))


def _out_of_reach(bound: float, latest_end_s: float) -> bool:
    """Return whether a bound is above the latest end of any schedule, so that there is none."""
    return bound > latest_end_s * (1.0 + OPTIMALITY_TOLERANCE)


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """What every bound but the path starts from: windows, the weights of the devices, and the best bound so far."""

    window: ShardWindows
    weight: FloatArray
    bound_s: float


def _start(problem: PlacementProblem, upper: float, budget: Budget) -> _Start | None:
    """Return windows and loads; None where nothing is better than `upper`."""
    window = _windows(problem, upper)
    if window is None:
        return None
    loads = load_lagrangian(problem, window.allowed, budget)
    if _out_of_reach(loads.bound_s, latest_end(problem, window.allowed)):
        return None
    return _Start(window, loads.weight, max(window.floor_s, loads.bound_s))


def _chain(problem: PlacementProblem, window: ShardWindows, upper: float, budget: Budget) -> _BestChain | None:
    """Return the chains of a problem that is not too large, if it has any: those with the shortest segments."""
    if not 0 < problem.num_ops**2 <= MOST_CELLS:
        return None
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    least = window.least_s.min(axis=1)
    found: list[list[int]] = []
    for span, gain in _CHAINS:
        chain = best_chain(problem, reach, least, span, gain, budget) if len(found) < _TRIED else []
        if chain and chain not in found:
            found.append(chain)
    tables = budget.share(_FIRST_SHARE * budget.remaining_s)
    return _BestChain([ChainBound(problem, window, chain, upper, tables) for chain in found]) if found else None


class _BestChain:
    """The bounds of some chains, of which after a first look at each that goes on which proves most."""

    def __init__(self, chains: list[ChainBound]) -> None:
        self._chains, self._looks = chains, chains * _LOOKS if len(chains) > 1 else []

    @property
    def bound_s(self) -> float:
        """The best bound of any."""
        return max(chain.bound_s for chain in self._chains)

    @property
    def gaps(self) -> list[tuple[int, int, FloatArray]]:
        """Bounds on the time between ops of the best chain; see `ChainBound.gaps`."""
        return max(self._chains, key=lambda chain: chain.bound_s).gaps

    def run(self, work: int, budget: Budget) -> float:
        """Look at about `work` more choices and return the bound; see `ChainBound.run`.

        Parameters
        ----------
        work
            At least 1.
        budget
            Ends the search.
        """
        timed = budget.remaining_s < np.inf
        while self._looks and not budget.expired:
            self._looks.pop().run(CHOICES, budget.share(_LOOK_S) if timed else budget)
            if not self._looks:
                self._chains = [max(self._chains, key=lambda chain: chain.bound_s)]
        return self.bound_s if self._looks else self._chains[0].run(work, budget)


def _surrogate(window: ShardWindows, weight: FloatArray) -> FloatArray:
    """Return (n,) what the batch of one shard adds to the weighted mean of the loads, wherever it runs."""
    able = np.isfinite(window.least_s)
    cost: FloatArray = np.where(able, np.where(able, window.least_s, 0.0) * weight, np.inf).min(axis=1)
    return cost


def _tightened(problem: PlacementProblem, start: _Start, upper: float) -> ShardWindows | None:
    """Return windows in which nothing starts before the load of the ops that lead to it, and the same from the end."""
    weight = _surrogate(start.window, start.weight) * (1.0 - ROUNDING)
    before = reachable_sums(problem.order, problem.pred_indptr, problem.pred, weight)
    after = reachable_sums(problem.order[::-1].copy(), problem.succ_indptr, problem.succ, weight)
    return shard_windows(problem, upper, start.window.allowed, before, after)


PLACEMENT_BOUNDS: Mapping[str, PlacementBound] = MappingProxyType(
    {
        "path": path_bound,
        "load": load_bound,
        "around": around_bound,
        "flow": flow_bound,
        "relaxation": relaxation_bound,
        "chain": chain_bound,
        "joined": joined_bound,
        "destructive": destructive_bound,
    }
)
"""The bounds by name, cheapest first."""
