"""The phases of a placement: coarse start, local search, modules, windows, programs and bounds, joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlinit.errors import RlinitError
from rlinit.incumbent import PlacementIncumbent
from rlinit.placement import Placement, PlacementProblem, PlacementResult

if TYPE_CHECKING:
    from rlinit.exact.placement_bounds import PlacementBound

__all__ = ["PlacementLimits", "method_names", "placement_bound_phase", "placement_bounds", "solve_placement"]

_METHODS = ("auto", "sweep", "warm", "milp", "split", "branch-and-bound")

_STARTS = ("heft", "greedy", "best-device", "met")
"""Heuristics of milliseconds that the search begins from, the best of them."""

_NOTHING_FITS = "no placement respects memory, groups, exclusions and links together"

_PROGRAM_OPS = 60
"""Ops (times shards) up to which the full program is worth its time, unless it is asked for by name."""

_SPLIT_OPS = 3_000
"""Ops up to which the modules of a graph are solved on their own."""

_WINDOW_PROGRAM_OPS = 5_000
"""Ops up to which windows of the whole are solved on SCIP, unless it is asked for by name."""

_BRANCHING_OPS = 12
"""Ops up to which branch and bound over all schedules comes first."""

_WINDOW_OPS = 12
"""Ops that a window frees at first; doubled while windows find nothing better."""


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """How much work a phase may do where no time limit is set.

    Parameters
    ----------
    window_nodes, full_nodes
        Branch-and-bound nodes of the program of a window, and of the full one.
    split_work
        Partial schedules extended in modules.
    rounds
        Times that all windows are gone through.
    """

    window_nodes: int | None = 500
    full_nodes: int | None = 20_000
    split_work: int = 3_000_000
    rounds: int = 1


def method_names() -> tuple[str, ...]:
    """Return the names of all methods: those of phases joined, then the heuristics."""
    from rlinit.heuristics.placement import PLACEMENT_HEURISTICS

    return (*_METHODS, *PLACEMENT_HEURISTICS)


def placement_bounds() -> Mapping[str, PlacementBound]:
    """Return the bounds on the full problem by name, cheapest first."""
    from rlinit.exact.placement_bounds import PLACEMENT_BOUNDS

    return PLACEMENT_BOUNDS


def solve_placement(
    incumbent: PlacementIncumbent,
    *,
    method: str,
    agent: str,
    start: Placement | None,
    window: int | str | None,
    seed: int,
    jobs: int,
    timed: bool,
) -> None:
    """Run the phases a method consists of.

    Raises
    ------
    RlinitError
        An unknown method or agent.
    """
    from rlinit.heuristics.placement import PLACEMENT_HEURISTICS

    for what, name, others in (("method", method, _METHODS), ("agent", agent, ("auto",))):
        if name not in PLACEMENT_HEURISTICS and name not in others:
            raise RlinitError(f"unknown {what} {name!r}; expected {', '.join((*others, *PLACEMENT_HEURISTICS))}")
    limits = PlacementLimits(window_nodes=500, full_nodes=None) if timed else PlacementLimits()
    incumbent.offer(start, "plan")
    for name in ("path", "load"):
        placement_bound_phase(incumbent, name)
    if method in PLACEMENT_HEURISTICS:
        _heuristic(incumbent, method, seed)
    elif method == "milp":
        _milp(incumbent, limits)
    elif method == "branch-and-bound":
        _branch_and_bound(incumbent)
    elif method == "split":
        _split(incumbent, limits, jobs, "auto")
    else:
        if start is None:
            for name in _STARTS if agent == "auto" else (agent,):
                _heuristic(incumbent, name, seed)
        if method == "sweep":
            _sweep(incumbent, seed, jobs, share=1.0)
        elif method == "warm":
            _windows(incumbent, window, limits)
            _bounds(incumbent)
        else:
            _auto(incumbent, seed, limits, jobs)


def _auto(incumbent: PlacementIncumbent, seed: int, limits: PlacementLimits, jobs: int) -> None:
    """Search, prove by the cheapest means that can, and spend what is left on better schedules."""
    problem = incumbent.problem
    if problem.num_ops <= _BRANCHING_OPS and problem.num_shards == 1 and problem.transfers == "parallel":
        _branch_and_bound(incumbent, share=0.2)
    _sweep(incumbent, seed, jobs, share=0.05)
    if _falls_apart(problem):
        _split(incumbent, limits, jobs, 1, share=0.5)
    _bounds(incumbent, share=0.5)
    if problem.num_ops * problem.num_shards <= _PROGRAM_OPS:
        _milp(incumbent, limits)
    if incumbent.budget.remaining_s < np.inf:
        _sweep(incumbent, seed + 1, jobs, share=0.7)
    if problem.num_ops <= _WINDOW_PROGRAM_OPS:
        with incumbent.within(0.3):
            _windows(incumbent, "auto", limits)
    if incumbent.budget.remaining_s < np.inf:
        _sweep(incumbent, seed + 2, jobs, share=1.0)


def _falls_apart(problem: PlacementProblem) -> bool:
    """Return whether single ops separate a latency problem into modules small enough to be searched."""
    if problem.num_shards > 1 or problem.num_ops > _SPLIT_OPS:
        return False
    from rlinit.exact.module_search import MAX_MODULE_OPS
    from rlinit.exact.modules import channel_cuts

    return max(len(module) for module in channel_cuts(problem, 1)) <= MAX_MODULE_OPS


def _heuristic(incumbent: PlacementIncumbent, name: str, seed: int) -> None:
    """Phase 1: a named heuristic; where it finds nothing that fits, earliest finish."""
    from rlinit.heuristics.placement import PLACEMENT_HEURISTICS
    from rlinit.heuristics.sweeps import earliest_finish_start

    if incumbent.finished:
        return
    with incumbent.in_phase(f"coarse: {name}"):
        found = PLACEMENT_HEURISTICS[name](incumbent.problem, seed=seed, budget=incumbent.budget)
        if not incumbent.offer(found, name) and incumbent.values is None:
            incumbent.offer(earliest_finish_start(incumbent.problem), "earliest-finish")


def _sweep(incumbent: PlacementIncumbent, seed: int, jobs: int, share: float) -> None:
    """Phase 2: local search from the incumbent, runs side by side on threads (its kernels release the lock)."""
    if incumbent.finished:
        return
    from rlinit.heuristics.sweeps import sweep_placements

    with incumbent.in_phase("sweep"), incumbent.within(share):
        if jobs == 1:
            sweep_placements(
                incumbent.problem,
                seed=seed,
                budget=incumbent.budget,
                start=incumbent.assignment,
                on_better=lambda found: incumbent.offer(found, "sweep"),
            )
            return
        from joblib import Parallel, delayed

        runs = Parallel(n_jobs=jobs, backend="threading")(
            delayed(sweep_placements)(
                incumbent.problem, seed=seed + 7919 * run, budget=incumbent.budget, start=incumbent.assignment
            )
            for run in range(jobs)
        )
        for found in runs:
            incumbent.offer(found, "sweep")


def _split(
    incumbent: PlacementIncumbent, limits: PlacementLimits, jobs: int, channels: int | str, share: float = 1.0
) -> None:
    """Solve module by module; with one channel that is exact, and in any case it bounds the whole."""
    if incumbent.finished:
        return
    if incumbent.problem.num_shards > 1:
        raise RlinitError("method 'split' is for one shard: objective='latency', or throughput in one batch size")
    from rlinit.exact.split import solve_split

    with incumbent.in_phase("split"), incumbent.within(share):
        result = solve_split(
            incumbent.problem,
            budget=incumbent.budget,
            channels="auto" if channels == "auto" else int(channels),
            jobs=jobs,
            upper=incumbent.values[0] if incumbent.values else np.inf,
            max_work=limits.split_work if incumbent.budget.remaining_s == np.inf else 1 << 62,
        )
        incumbent.offer(result.placement, "split")
        incumbent.raise_bound((result.bound,), "split")


def _branch_and_bound(incumbent: PlacementIncumbent, share: float = 1.0) -> None:
    if incumbent.finished:
        return
    from rlinit.exact.branch_and_bound import branch_and_bound

    with incumbent.in_phase("branch and bound"), incumbent.within(share):
        _take(incumbent, branch_and_bound(incumbent.problem, budget=incumbent.budget), "branch-and-bound")


def _windows(incumbent: PlacementIncumbent, window: int | str | None, limits: PlacementLimits) -> None:
    """Phases 2 and 3: free the ops around cut edges, then along the critical path; solve, accept, move on, widen."""
    from rlinit.exact.placement_milp import solve_placement_milp
    from rlinit.placement_window import placement_windows

    if window is None:
        _milp(incumbent, limits)
        return
    size = _WINDOW_OPS if window == "auto" else int(window)
    rounds = limits.rounds if incumbent.budget.remaining_s == np.inf else 1 << 30
    while size > 0 and rounds > 0 and not incumbent.finished and incumbent.assignment is not None:
        rounds -= 1
        before = incumbent.values
        with incumbent.in_phase(f"window: {size} ops"):
            for free in placement_windows(incumbent.problem, incumbent.assignment, size):
                if incumbent.finished:
                    return
                with incumbent.within(0.2):
                    result = solve_placement_milp(
                        incumbent.problem,
                        budget=incumbent.budget,
                        start=incumbent.assignment,
                        free=free,
                        node_limit=limits.window_nodes,
                    )
                incumbent.offer(result.placement, "window")
        if window != "auto":
            rounds = rounds if incumbent.values != before else 0
        elif incumbent.values == before:
            size *= 2
            if size > 2 * incumbent.problem.num_ops:
                return


def _milp(incumbent: PlacementIncumbent, limits: PlacementLimits) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one."""
    from rlinit.exact.placement_milp import PlacementMilpSettings, solve_placement_milp

    if incumbent.finished:
        return

    def on_solution(placement: Placement, _value: float) -> None:
        incumbent.offer(placement, "milp")

    def on_bound(bound: float) -> None:
        incumbent.raise_bound((bound,), "milp")

    queued = incumbent.problem.transfers != "parallel"
    with incumbent.in_phase("milp"), incumbent.within(0.5 if queued else 1.0):
        # Placements queue their transfers first come, first served, and so does the program by default. Where that is a
        # restriction, what it proves is no bound on the problem.
        result = solve_placement_milp(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            lower=incumbent.bounds[0] if incumbent.bounds else None,
            node_limit=limits.full_nodes,
            on_solution=on_solution,
            on_bound=None if queued else on_bound,
        )
        if queued:
            incumbent.offer(result.placement, "milp")
        else:
            _take(incumbent, result, "milp")
    if queued and not incumbent.finished:
        with incumbent.in_phase("milp: any order of transfers"):
            result = solve_placement_milp(
                incumbent.problem,
                budget=incumbent.budget,
                start=incumbent.assignment,
                settings=PlacementMilpSettings(served=False),
                lower=incumbent.bounds[0] if incumbent.bounds else None,
                node_limit=limits.full_nodes,
                on_solution=on_solution,
                on_bound=on_bound,
            )
            _take(incumbent, result, "milp")


def _take(incumbent: PlacementIncumbent, result: PlacementResult, source: str) -> None:
    """Accept what a solver of the full problem found and proved."""
    incumbent.offer(result.placement, source)
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.infeasible = _NOTHING_FITS
    elif np.isfinite(result.bound):
        incumbent.raise_bound((result.bound,), source)


def _bounds(incumbent: PlacementIncumbent, share: float = 1.0) -> None:
    """Run the bounds on the full problem that hold the others, cheapest first, until the gap closes."""
    with incumbent.within(share):
        for name in ("around", "joined"):
            placement_bound_phase(incumbent, name)


def placement_bound_phase(incumbent: PlacementIncumbent, name: str) -> None:
    """Raise the bound by one named method, unless there is nothing left to do."""
    from rlinit.exact.placement_bounds import PLACEMENT_BOUNDS

    if incumbent.finished:
        return
    with incumbent.in_phase(f"bound: {name}"):
        bound = PLACEMENT_BOUNDS[name](
            incumbent.problem,
            upper=incumbent.values[0] if incumbent.values else np.inf,
            budget=incumbent.budget,
        )
        if np.isfinite(bound):
            incumbent.raise_bound((bound,), name)
        else:
            incumbent.infeasible = _NOTHING_FITS
