"""The phase that hands a small or middling latency problem to CP-SAT."""

from __future__ import annotations

from rlinit.errors import BackendUnavailable, RlinitError
from rlinit.exact.placements.constraint.solve import ConstraintSettings, is_available, solve_constraints
from rlinit.placements.problem import Placement
from rlinit.solving.placement_phases import PlacementSearch, run_heuristic

__all__ = ["MAX_OPS", "check_constraints", "constraint_program", "has_constraints"]

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

    def on_solution(placement: Placement) -> None:
        incumbent.offer(placement, "cp-sat")

    def on_bound(bound: float) -> None:
        incumbent.raise_bound((bound,), "cp-sat")

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
