"""The phases of a placement problem that prove: trials, programs, bounds, and turns with search."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.budget import SIDE_SHARE, WATCH_S, WorkShares
from rlinit.errors import RlinitError
from rlinit.exact.effort import CHOICES
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS, JoinedBound
from rlinit.exact.placements.constraint.solve import solve_constraints
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings
from rlinit.exact.placements.milp.solve import solve_placement_milp
from rlinit.exact.solvers.cp_sat import SHORT_WORK, ConstraintSettings, is_available, require_available
from rlinit.placements.problem import PlacementResult
from rlinit.placements.timeline import placement_of
from rlinit.solving.common.incumbent import PlacementIncumbent
from rlinit.solving.phases import Phase
from rlinit.solving.placement_phases import NOTHING_FITS, PlacementSearch, local_search, run_heuristic, take_bound

_FIRST_SHARE = 0.5
"""Of the time left, what the program first come, first served may take before that of any order of transfers, and in
which a chain that is behind the bound has to be ahead of it to go on at once."""

MAX_CONSTRAINT_OPS = 300
"""Ops up to which `auto` tries it: flexible job shops of 240 ops are closed, networks of 490 are hopeless."""

_TURN_SHARE, _LEAST_TURN_S = 0.12, 0.5
"""Of the time left, what a turn of search or proof takes, and seconds that it may take in any case."""

_IDLE_TURNS = 20
"""Turns between two looks at the clock, without a gain, after which no more are made."""


def trials(search: PlacementSearch) -> None:
    """Refute makespans below the incumbent's by propagation and branching; take what stands where it is better."""
    incumbent = search.incumbent
    if incumbent.finished or incumbent.values is None:
        return
    problem = incumbent.problem
    with incumbent.in_phase("destructive"):
        trying = DestructiveSearch(problem, upper=incumbent.values[0])
        if incumbent.bounds is not None:
            trying.raise_bound(incumbent.bounds[0])
        while not (incumbent.finished or trying.exhausted or trying.nodes >= search.limits.trial_choices):
            trying.run(CHOICES, incumbent.budget)
            if trying.standing is not None:
                incumbent.offer(placement_of(problem, *trying.standing), "destructive")
                trying.standing = None
                trying.cut(incumbent.values[0])
            incumbent.raise_bound((trying.bound_s,), "destructive")


def full_program(search: PlacementSearch) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one.

    Placements queue their transfers first come, first served, and so does the program by default. Where that is a
    restriction, what it proves is no bound on the problem, and the program of any order of transfers follows.
    """
    incumbent = search.incumbent
    if incumbent.finished:
        return
    queued = incumbent.problem.transfers != "parallel"
    with incumbent.in_phase("milp"), incumbent.within(_FIRST_SHARE if queued else 1.0):
        result = _program(search, PlacementMilpSettings(), "milp", bounds=not queued)
        if queued:
            incumbent.offer(result.placement, "milp")
        else:
            _take(incumbent, result, "milp")
    if queued and not incumbent.finished:
        with incumbent.in_phase("milp: any order of transfers"):
            result = _program(search, PlacementMilpSettings(served=False), "milp")
            _take(incumbent, result, "milp")


def _program(
    search: PlacementSearch, settings: PlacementMilpSettings, source: str, *, bounds: bool = True
) -> PlacementResult:
    """Solve a program of the whole problem, telling the incumbent of its solutions, and of its bounds if they count."""
    incumbent = search.incumbent
    on_solution, on_bound = incumbent.listeners(source)
    return solve_placement_milp(
        incumbent.problem,
        budget=incumbent.budget,
        start=incumbent.assignment,
        settings=dataclasses.replace(settings, node_limit=search.limits.full_nodes),
        lower=incumbent.bounds[0] if incumbent.bounds else None,
        on_solution=lambda placement, _value: on_solution(placement),
        on_bound=on_bound if bounds else None,
    )


def _take(incumbent: PlacementIncumbent, result: PlacementResult, source: str) -> None:
    """Accept what a solver of the full problem found and proved."""
    incumbent.offer(result.placement, source)
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.prove_infeasible(NOTHING_FITS, source)
    elif np.isfinite(result.bound):
        incumbent.raise_bound((result.bound,), source)


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
    require_available()


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
            settings=ConstraintSettings(None if search.options.timed else SHORT_WORK, search.options.seed),
            on_solution=on_solution,
            on_bound=on_bound,
        )
        incumbent.offer(result.placement, "cp-sat")
        incumbent.raise_bound((result.bound,), "cp-sat")


def _prove_on(search: PlacementSearch) -> None:
    """Go on with the bound that has begun."""
    incumbent = search.incumbent
    if search.joined is not None:
        with incumbent.in_phase("bound: joined"):
            take_bound(incumbent, search.joined.run(incumbent.budget), "joined")


def _search_on(search: PlacementSearch) -> None:
    """Search from another seed."""
    search.turns += 1
    local_search(search, search.turns)


TURNS = (
    Phase(
        "bound joined",
        _prove_on,
        _TURN_SHARE,
        because="goes on from turn to turn, and alone while its chain catches up",
    ),
    Phase("local search", _search_on, _TURN_SHARE, because="from the best schedule, with another seed each turn"),
)
"""What `by_turns` alternates."""


def by_turns(search: PlacementSearch) -> None:
    """Raise the bound and search by turns, see `TURNS`: what closes more of the gap gets more of the time.

    Parameters
    ----------
    search
        The search.
    """
    incumbent = search.incumbent
    if incumbent.finished:
        return
    problem = incumbent.problem
    upper = incumbent.values[0] if incumbent.values else np.inf
    joined = JoinedBound(problem, upper, incumbent.budget, with_chain=problem.num_shards == 1)
    search.joined = joined

    def behind() -> float:
        """Return by what part of the bound the chain is below it: until it is above, no gap tells of its work."""
        bound = incumbent.bounds[0] if incumbent.bounds else 0.0
        return max(0.0, 1.0 - joined.chain_s / bound) if bound > 0.0 else 0.0

    shares = WorkShares(len(TURNS), SIDE_SHARE)
    idle, catching_up = 0, False
    while not incumbent.finished and idle < _IDLE_TURNS:
        way = 0 if catching_up else shares.choose()
        gap, began, deficit = min(incumbent.gap, 1.0), incumbent.budget.elapsed_s, behind()
        with incumbent.within(max(TURNS[way].share, _LEAST_TURN_S / max(incumbent.budget.remaining_s, _LEAST_TURN_S))):
            TURNS[way].run(search)
        seconds = incumbent.budget.elapsed_s - began
        gain, caught_up = max(0.0, gap - incumbent.gap), deficit - behind()
        time_to_go = _FIRST_SHARE * incumbent.budget.remaining_s
        catching_up = behind() > 0.0 and caught_up * time_to_go > behind() * seconds
        idle = idle + 1 if seconds < WATCH_S and gain == 0.0 else 0
        shares.reward(way, gain, max(seconds, _LEAST_TURN_S))


def bound_phase(incumbent: PlacementIncumbent, name: str, late: bool = False) -> None:
    """Raise the bound by one named method, unless there is nothing left to do; `late`: although the time is over.

    Parameters
    ----------
    incumbent
        Takes what is proven.
    name
        One of `PLACEMENT_BOUNDS`.
    late
        Whether it runs although the time is over.
    """
    if incumbent.ended(late):
        return
    with incumbent.in_phase(f"bound: {name}"):
        bound = PLACEMENT_BOUNDS[name](
            incumbent.problem,
            upper=incumbent.values[0] if incumbent.values else np.inf,
            budget=incumbent.budget,
        )
        take_bound(incumbent, bound, name)
