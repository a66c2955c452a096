"""The phases of solving a stage problem: coarse schedule, bounds, ideals, windows, full program.

Every phase takes the incumbent, improves its value or its bound, and returns when it is done, when the gap is
closed or when the budget is spent. Phases know nothing of graphs, files or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.solving.incumbent import StageIncumbent
from rlinit.stages.problem import StageAssignment, StageResult, Value
from rlinit.stages.window import free_nodes

if TYPE_CHECKING:
    from rlinit.agent.stages.decoding import Decoding, OrderProposer

__all__ = ["BOUNDS", "PhaseLimits", "agent_coarse", "bound_phase", "coarse", "exact_ideals", "full_program", "windows"]


@dataclass(frozen=True, slots=True)
class PhaseLimits:
    """How much work the phases may spend; what keeps runs without a time limit finite and repeatable.

    Parameters
    ----------
    evaluations
        Evaluations (orders sliced, or moves tried) of a heuristic; None: its own default.
    ideal_cap
        Largest number of ideals to enumerate.
    window_nodes, full_nodes
        Branch-and-bound nodes of one window, and of the full program; None: no limit.
    """

    evaluations: int | None = None
    ideal_cap: int = 2_000_000
    window_nodes: int | None = 500
    full_nodes: int | None = 5_000


def coarse(incumbent: StageIncumbent, heuristic: str, seed: int, limits: PhaseLimits, jobs: int = 1) -> None:
    """Phase 1: a full schedule from a heuristic by name; with several jobs, from as many seeds side by side."""
    from rlinit.heuristics.stages import STAGE_HEURISTICS

    if incumbent.finished:
        return
    with incumbent.in_phase("coarse"):
        call = STAGE_HEURISTICS[heuristic]
        if jobs == 1 or heuristic == "natural":
            runs = [call(incumbent.problem, seed=seed, evaluations=limits.evaluations, budget=incumbent.budget)]
        else:
            import joblib

            # Kernels release the interpreter lock, so threads share the problem and the budget without copies.
            runs = joblib.Parallel(n_jobs=jobs, prefer="threads")(
                joblib.delayed(call)(
                    incumbent.problem,
                    seed=seed + i * _SEED_STRIDE,
                    evaluations=limits.evaluations,
                    budget=incumbent.budget,
                )
                for i in range(jobs)
            )
        for found in runs:
            if found is not None:
                incumbent.offer(found[0], heuristic)


def agent_coarse(incumbent: StageIncumbent, agent: OrderProposer, decoding: Decoding, seed: int) -> FloatArray | None:
    """Phase 1 by a learned agent; return (n,) its doubt about each node, None where it gave no schedule."""
    from rlinit.agent.stages.decoding import decode_stages

    if incumbent.finished:
        return None
    with incumbent.in_phase("agent"):
        found = decode_stages(agent, incumbent.problem, decoding, seed=seed, budget=incumbent.budget)
        if found is None:
            return None
        incumbent.offer(found.assignment, "agent")
        return found.entropy


# -- bounds ----------------------------------------------------------------------------------------------------


_MOST_PROGRAM_NODES = 5_000
"""Nodes of a problem that is given to SCIP at most; beyond, building the program alone takes minutes."""

_IDEALS_PER_S = 200_000
"""Ideals that are enumerated in a second of the time left; enumeration itself cannot be interrupted."""

_SEED_STRIDE = 1_000_003
"""Between the seeds of runs side by side, so that they do not meet those of later rounds."""

_NOTHING_FITS = "no assignment respects precedence, memory and exclusions together"

_BOUND_NODES = 2_000
"""Branch-and-bound nodes of a bound that is a program of its own, where no time limit is set."""


def _upper(incumbent: StageIncumbent) -> float:
    """Return the incumbent's value, which lets a bound stop early and leave out what cannot matter; inf without one."""
    return incumbent.values[0] if incumbent.values else np.inf


def _simple(incumbent: StageIncumbent) -> Value:
    from rlinit.exact.stages.bounds.simple import simple_bound

    return simple_bound(incumbent.problem)


def _parametric(incumbent: StageIncumbent) -> Value:
    from rlinit.exact.stages.bounds.minimum_cut import parametric_cut_bound

    return (parametric_cut_bound(incumbent.problem, upper=_upper(incumbent), budget=incumbent.budget),)


def _anchored(incumbent: StageIncumbent) -> Value:
    from rlinit.exact.stages.bounds.minimum_cut import anchored_cut_bound

    return (anchored_cut_bound(incumbent.problem, upper=_upper(incumbent), budget=incumbent.budget),)


def _spectral(incumbent: StageIncumbent) -> Value:
    from rlinit.exact.stages.bounds.spectral import spectral_bound

    return (spectral_bound(incumbent.problem, upper=_upper(incumbent), budget=incumbent.budget),)


def _merged(incumbent: StageIncumbent, num_groups: int) -> Value:
    if not _fits_scip(incumbent):
        return (0.0,)
    from rlinit.exact.stages.bounds.merged_stages import even_groups, merged_bound

    problem = incumbent.problem
    proven = merged_bound(
        problem,
        even_groups(problem.num_stages, min(num_groups, problem.num_stages)),
        budget=incumbent.budget,
        start=incumbent.assignment,
        upper=incumbent.values[0] if incumbent.values else None,
        node_limit=None if incumbent.budget.remaining_s < np.inf else _BOUND_NODES,
    )
    return (proven,)


def _superblock(incumbent: StageIncumbent) -> Value:
    if not _fits_scip(incumbent):
        return (0.0,)
    from rlinit.exact.stages.bounds.superblock import three_superblock_bound

    return (
        three_superblock_bound(
            incumbent.problem, budget=incumbent.budget, upper=_upper(incumbent), node_limit=_BOUND_NODES
        ),
    )


def _guess(incumbent: StageIncumbent) -> Value:
    if not _fits_scip(incumbent):
        return (0.0,)
    from rlinit.exact.stages.bounds.superblock import guess_bound

    return (guess_bound(incumbent.problem, budget=incumbent.budget, upper=_upper(incumbent), node_limit=_BOUND_NODES),)


def _lp_root(incumbent: StageIncumbent) -> Value:
    if not _fits_scip(incumbent):
        return (0.0,)
    from rlinit.exact.stages.pipeline_milp import pipeline_lp_bound

    return (pipeline_lp_bound(incumbent.problem, budget=incumbent.budget),)


BOUNDS: Mapping[str, Callable[[StageIncumbent], Value]] = {
    "simple": _simple,
    "parametric-cut": _parametric,
    "anchored-cut": _anchored,
    "spectral": _spectral,
    "lp-root": _lp_root,
    "merged-2": partial(_merged, num_groups=2),
    "merged-4": partial(_merged, num_groups=4),
    "three-superblock": _superblock,
    "guess": _guess,
}
"""Bounds on the full problem by name, cheapest first. All but `simple` are for `pipeline` only."""


def bound_phase(incumbent: StageIncumbent, name: str, share: float = 1.0) -> None:
    """Raise the bound by one named method, in at most a share of the time left, unless there is nothing left to do."""
    if incumbent.finished:
        return
    with incumbent.in_phase(f"bound: {name}"), incumbent.within(share):
        bounds = BOUNDS[name](incumbent)
        if np.isfinite(bounds[0]):
            incumbent.raise_bound(bounds, name)
        else:
            incumbent.infeasible = _NOTHING_FITS


# -- exact -----------------------------------------------------------------------------------------------------


def exact_ideals(incumbent: StageIncumbent, ideal_cap: int) -> bool:
    """Solve the full problem by dynamic programming over its ideals; False if there are more than `ideal_cap`."""
    if incumbent.finished:
        return incumbent.closed
    from rlinit.exact.stages.ideals.solve import solve_ideals

    def on_bound(bounds: Value) -> None:
        incumbent.raise_bound(bounds, "ideals")

    with incumbent.in_phase("ideals"):
        affordable = _IDEALS_PER_S * incumbent.budget.remaining_s
        result = solve_ideals(
            incumbent.problem,
            ideal_cap if affordable >= ideal_cap else max(1, int(affordable)),
            lower=incumbent.bounds[0] if incumbent.bounds else 0.0,
            upper=incumbent.values,
            budget=incumbent.budget,
            on_bound=on_bound,
        )
        if result is None:
            return False
        _take(incumbent, result, "ideals", full=True)
    return incumbent.closed


def windows(
    incumbent: StageIncumbent, gammas: list[float], limits: PhaseLimits, doubt: FloatArray | None = None
) -> None:
    """Phases 2 and 3: free the nodes around the incumbent's boundaries, solve, accept, widen.

    `doubt` (n,) is how undecided an agent was about each node; see `free_nodes`.
    """
    if not _fits_scip(incumbent):
        return
    for gamma in gammas:
        if incumbent.finished or incumbent.assignment is None:
            return
        free = free_nodes(incumbent.problem, incumbent.assignment.stage, gamma, doubt)
        with incumbent.in_phase(f"window: gamma {gamma:g}"):
            result = _milp(incumbent, incumbent.assignment, free, limits.window_nodes)
            _take(incumbent, result, "window", full=bool(free.all()))


def full_program(incumbent: StageIncumbent, limits: PhaseLimits) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one."""
    if incumbent.finished or not _fits_scip(incumbent):
        return
    with incumbent.in_phase("milp"):
        _take(incumbent, _milp(incumbent, incumbent.assignment, None, limits.full_nodes), "milp", full=True)


def _fits_scip(incumbent: StageIncumbent) -> bool:
    """Return whether the problem is small enough for a program on SCIP; leave a note where it is not."""
    if incumbent.problem.num_nodes <= _MOST_PROGRAM_NODES:
        return True
    incumbent.note = f"programs on SCIP were left out: more than {_MOST_PROGRAM_NODES:,} ops"
    return False


def _milp(
    incumbent: StageIncumbent, start: StageAssignment | None, free: NDArray[np.bool_] | None, node_limit: int | None
) -> StageResult:
    """Run the objective's program, telling the incumbent of solutions, and of bounds where they are for the whole."""
    from rlinit.exact.stages.memory_milp import solve_memory_milp
    from rlinit.exact.stages.pipeline_milp import solve_pipeline_milp

    method = "milp" if free is None else "window"
    whole = free is None or bool(free.all())

    def on_solution(assignment: StageAssignment, _value: Value) -> None:
        incumbent.offer(assignment, method)

    def on_bound(bounds: Value) -> None:
        if whole:
            incumbent.raise_bound(bounds, "milp")

    if incumbent.problem.objective == "memory":
        return solve_memory_milp(
            incumbent.problem,
            budget=incumbent.budget,
            start=start,
            free=free,
            node_limit=node_limit,
            on_solution=on_solution,
            on_bound=on_bound,
        )
    return solve_pipeline_milp(
        incumbent.problem,
        budget=incumbent.budget,
        start=start,
        free=free,
        lower=incumbent.bounds[0] if whole and incumbent.bounds else None,
        node_limit=node_limit,
        on_solution=on_solution,
        on_bound=on_bound,
    )


def _take(incumbent: StageIncumbent, result: StageResult, source: str, *, full: bool) -> None:
    """Accept what a solver found; its bound and its infeasibility count only where it solved the full problem."""
    incumbent.offer(result.assignment, source)
    if not full:
        return
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.infeasible = _NOTHING_FITS
    elif np.isfinite(result.bound[0]):
        incumbent.raise_bound(result.bound, source if source != "window" else "milp")
    elif incumbent.values is not None:
        incumbent.raise_bound(incumbent.values, source)
