"""The phases that hand small problems to CP-SAT: latency, and pipelines over unlike devices."""

from __future__ import annotations

from rlinit.errors import BackendUnavailable, RlinitError
from rlinit.exact.placements.constraint.solve import solve_constraints
from rlinit.exact.solvers.cp_sat import ConstraintSettings, is_available
from rlinit.exact.stages.constraint_program import num_clauses, solve_constraint_program
from rlinit.solving.placement_phases import PlacementSearch, run_heuristic
from rlinit.solving.stage_phases import StageSearch, natural

__all__ = [
    "MAX_CLAUSES",
    "MAX_OPS",
    "check_constraints",
    "check_stage_constraints",
    "constraint_program",
    "has_constraints",
    "has_stage_constraints",
    "stage_constraint_program",
]

MAX_CLAUSES = 20_000
"""Clauses up to which `auto` tries it on pipelines: lines of 28 tasks have 1,000 to 3,000 and are closed, those of 70
have 80,000 and more and are hopeless."""

MAX_OPS = 300
"""Ops up to which `auto` tries it: flexible job shops of 240 ops are closed, networks of 490 are hopeless."""

_WORK = 0.5
"""CP-SAT's deterministic work where no time limit is set: some seconds of one core."""


def has_constraints(search: PlacementSearch) -> bool:
    """Return whether CP-SAT is there and takes the problem."""
    return search.problem.num_shards == 1 and is_available()


def check_constraints(search: PlacementSearch) -> None:
    """Refuse to run CP-SAT by name where it is absent or does not take the problem, saying why.

    Raises
    ------
    RlinitError
        Ops are split into batches.
    BackendUnavailable
        It is not installed, or cannot be loaded beside highspy.
    """
    if search.problem.num_shards != 1:
        raise RlinitError("method 'cp-sat' is for latency, where no op is split into batches; use 'auto' or 'milp'")
    _check_available()


def _check_available() -> None:
    """Refuse to run CP-SAT by name where it cannot be had, saying why.

    Raises
    ------
    BackendUnavailable
        It is not installed, or cannot be loaded beside highspy.
    """
    if not is_available():
        raise BackendUnavailable(
            "method 'cp-sat' needs OR-Tools, in a process that has not loaded highspy: pip install rlinit[cp]"
        )


def constraint_program(search: PlacementSearch) -> None:
    """Search and prove on CP-SAT, from the incumbent; where transfers queue, what it proves is a relaxation's bound."""
    incumbent = search.incumbent
    if incumbent.values is None:
        run_heuristic(search, "heft")
    if incumbent.finished or incumbent.assignment is None:
        return
    on_solution, on_bound = incumbent.listeners("cp-sat")
    with incumbent.in_phase("cp-sat"):
        result = solve_constraints(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            settings=ConstraintSettings(None if search.options.timed else _WORK, search.options.seed),
            on_solution=on_solution,
            on_bound=on_bound,
        )
        incumbent.offer(result.placement, "cp-sat")
        incumbent.raise_bound((result.bound,), "cp-sat")


def check_stage_constraints(search: StageSearch) -> None:
    """Refuse to run CP-SAT by name on a stage problem that it does not take, saying why.

    Raises
    ------
    RlinitError
        The objective is ``memory``.
    BackendUnavailable
        It is not installed, or cannot be loaded beside highspy.
    """
    if search.incumbent.problem.objective != "pipeline":
        raise RlinitError("method 'cp-sat' is for pipeline and latency; use 'auto', 'ideals' or 'milp' for memory")
    _check_available()


def has_stage_constraints(search: StageSearch) -> bool:
    """Return whether CP-SAT is there and the pipeline is small enough for it."""
    problem = search.incumbent.problem
    # Paths are counted only where the pairs of ops alone are few.
    small = problem.num_nodes**2 * problem.num_stages <= 10 * MAX_CLAUSES
    return small and is_available() and num_clauses(problem) <= MAX_CLAUSES


def stage_constraint_program(search: StageSearch) -> None:
    """Search and prove a pipeline on CP-SAT, from the incumbent."""
    incumbent = search.incumbent
    if incumbent.assignment is None:
        natural(search)
    if incumbent.finished or incumbent.assignment is None:
        return
    on_solution, on_bound = incumbent.listeners("cp-sat")
    with incumbent.in_phase("cp-sat"):
        solve_constraint_program(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            settings=ConstraintSettings(None if search.options.timed else _WORK, search.options.seed),
            quantum=incumbent.quantum,
            on_solution=on_solution,
            on_bound=on_bound,
        )
