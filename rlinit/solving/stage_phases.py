"""The phases of solving a stage problem: coarse schedule, annealing, ideals, windows, full program.

Every phase takes the search, improves the incumbent's value or bound, and returns when it is done, when the gap is
closed or when the budget is spent. Phases know nothing of graphs, files or plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.agent.selection import SHIPPED_STAGES, choose_for_stages
from rlinit.agent.stages.decoding import OrderProposer, decode_stages
from rlinit.arrays import DEFAULT_WORK, FloatArray
from rlinit.budget import UNLIMITED
from rlinit.errors import RlinitError
from rlinit.exact.solvers.cp_sat import SHORT_WORK, ConstraintSettings, is_available, require_available
from rlinit.exact.stages.constraint_program import MOST_CLAUSES, num_clauses, solve_constraint_program
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.exact.stages.milp.memory import solve_memory_milp
from rlinit.exact.stages.milp.pipeline import solve_pipeline_milp
from rlinit.heuristics.stages import STAGE_HEURISTICS
from rlinit.heuristics.stages.beam.search import Beam
from rlinit.heuristics.stages.excess.annealing import ExcessAnnealing
from rlinit.heuristics.stages.filling.search import Filler, bisect_from
from rlinit.heuristics.stages.filling.threshold_search import Attempt
from rlinit.solving.common.incumbent import Incumbent, StageIncumbent
from rlinit.solving.common.options import SEED_STRIDE, SolveOptions, Window
from rlinit.solving.stage_bounds import NOTHING_FITS, PROGRAM_NODES, fits_scip
from rlinit.stages.problem import StageAssignment, StageResult, Value
from rlinit.stages.states import num_counted
from rlinit.stages.window import free_nodes

FEW_LABELS = 3_000_000
"""Ideals times sets of devices used, up to which that holds."""

_IDEALS_PER_S = 200_000
"""Ideals that are enumerated in a second of the time left; enumeration itself cannot be interrupted."""

FEW_PLACES = 240
"""Nodes times stages up to which the full program often closes the gap within seconds (`pipeline`)."""

_OPENING_LOADS = 200
"""Loads of the first beam for each op and class: three attempts from either end."""

MOST_IDEALS = 2_000_000
"""Largest number of ideals to enumerate."""


@dataclass(slots=True)
class StageSearch:
    """What the phases of a stage problem share.

    Parameters
    ----------
    incumbent
        The best schedule and bound so far.
    options
        What was asked for.
    start
        The schedule of a plan to refine, where one was handed in.
    origin
        Where the coarse schedule came from.
    doubt
        (n,) how undecided an agent was about each node; None without one.
    """

    incumbent: StageIncumbent
    options: SolveOptions
    start: StageAssignment | None
    origin: str = "none"
    doubt: FloatArray | None = None

    @classmethod
    def of(cls, incumbent: StageIncumbent, options: SolveOptions, start: StageAssignment | None) -> StageSearch:
        """Return a search that has only `start`.

        Parameters
        ----------
        incumbent
            What is known so far.
        options
            What was asked for.
        start
            The schedule of a plan to refine, or None.
        """
        return cls(incumbent, options, start, "none" if start is None else "plan")


# -- coarse schedules ------------------------------------------------------------------------------------------


def coarse(search: StageSearch, heuristic: str, seed: int) -> None:
    """Phase 1: a full schedule from a heuristic by name; with several jobs, from as many seeds side by side.

    Parameters
    ----------
    search
        The search.
    heuristic
        One of `STAGE_HEURISTICS`.
    seed
        Seed of the first run.
    """
    incumbent, jobs = search.incumbent, search.options.jobs
    if incumbent.finished:
        return
    with incumbent.in_phase("coarse"):
        call = partial(STAGE_HEURISTICS[heuristic], incumbent.problem, budget=incumbent.budget)
        if jobs == 1 or heuristic == "natural":
            runs = [call(seed=seed)]
        else:
            from joblib import Parallel, delayed

            # Kernels release the interpreter lock, so threads share the problem and the budget without copies.
            runs = Parallel(n_jobs=jobs, prefer="threads")(
                delayed(call)(seed=seed + i * SEED_STRIDE) for i in range(jobs)
            )
        for found in runs:
            if found is not None:
                incumbent.offer(found[0], heuristic)


def run_heuristic(search: StageSearch, name: str, why: str = "") -> None:
    """Run a heuristic, and keep that the schedule came from it.

    Parameters
    ----------
    search
        The search.
    name
        One of `STAGE_HEURISTICS`.
    why
        What the provenance says of the choice.
    """
    coarse(search, name, search.options.seed)
    if search.start is None:
        search.origin = f"{name}: {why}" if why else name


def natural(search: StageSearch) -> None:
    """Slice the natural order."""
    run_heuristic(search, "natural")


def first_schedule(search: StageSearch) -> None:
    """Make the schedule that the agent option asks for; the natural order sliced where it leaves the choice."""
    name = search.options.agent
    if name == "auto":
        run_heuristic(search, "natural", "neither ideals nor annealing needs a better start")
    else:
        named_start(search)


def agent_alone(search: StageSearch) -> None:
    """Ask the learned agent by name, or the shipped one."""
    name = search.options.agent
    _agent_or(search, SHIPPED_STAGES if name == "auto" else name, "natural")


def named_start(search: StageSearch) -> None:
    """Make the schedule that the agent option asks for; the agent chosen by measurement where it leaves the choice."""
    name = search.options.agent
    if name in STAGE_HEURISTICS:
        run_heuristic(search, name)
    else:
        _agent_or(search, name, "anneal")


def _agent_or(search: StageSearch, name: str, otherwise: str) -> None:
    """Run the agent of this name; where ``auto`` chooses none, or it finds nothing, the heuristic `otherwise`."""
    choice = choose_for_stages(search.incumbent.problem, name)
    if choice.agent is None:
        run_heuristic(search, otherwise, choice.reason)
        return
    if search.start is None:
        search.origin = choice.reason
    search.doubt = _decode(search, choice.agent, choice.width)
    if search.doubt is None and search.incumbent.values is None:
        run_heuristic(search, otherwise, "no order of the agent can be sliced within the capacities")


def _decode(search: StageSearch, agent: OrderProposer, width: int) -> FloatArray | None:
    """Phase 1 by a learned agent; return (n,) its doubt about each node, None where it gave no schedule."""
    incumbent = search.incumbent
    if incumbent.finished:
        return None
    with incumbent.in_phase("agent"):
        found = decode_stages(agent, incumbent.problem, width, seed=search.options.seed, budget=incumbent.budget)
        if found is None:
            return None
        incumbent.offer(found.assignment, "agent")
        return found.entropy


def anneal(search: StageSearch, turn: int = 0) -> None:
    """Anneal what stages cost beyond thresholds below the incumbent: with a time limit, as long as it allows.

    Parameters
    ----------
    search
        Takes what is found.
    turn
        Which of several times this is; moves differ.
    """
    problem, seed = search.incumbent.problem, search.options.seed + turn * SEED_STRIDE
    for_good = search.options.timed and problem.objective == "pipeline"
    if not for_good or search.options.jobs > 1:
        coarse(search, "anneal", seed)
    if for_good:
        _fill_by(search, "anneal", ExcessAnnealing, seed)


def fill(search: StageSearch) -> None:
    """Fill stages from both ends under a bisected bottleneck, from the bound up and the incumbent down."""
    _fill_by(search, "fill", Filler)


def opening_beam(search: StageSearch) -> None:
    """Search a beam by times alone, for as much work as some attempts take."""
    size = search.incumbent.problem.work_s.size
    _fill_by(search, "first beam", Beam, search.options.seed + SEED_STRIDE, _OPENING_LOADS * size)


def _fill_by(
    search: StageSearch,
    name: str,
    searcher: Callable[..., Attempt[StageAssignment]],
    seed: int | None = None,
    loads: int | None = None,
) -> None:
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase(name):
        bisect_from(
            searcher,
            incumbent.problem,
            incumbent.assignment,
            seed=search.options.seed if seed is None else seed,
            loads=loads or (UNLIMITED if search.options.timed else DEFAULT_WORK),
            lower=incumbent.bounds[0] if incumbent.bounds else 0.0,
            quantum=incumbent.quantum,
            budget=incumbent.budget,
            on_solution=incumbent.listeners(name)[0],
        )


# -- proofs ----------------------------------------------------------------------------------------------------


def exact_ideals(search: StageSearch, most: int | None = None, most_labels: int = FEW_LABELS) -> bool:
    """Solve by dynamic programming over ideals; False if there are more than `most`, or than fit memory and time.

    Parameters
    ----------
    search
        Takes what is found and proven.
    most
        Ideals to enumerate at most; None: `MOST_IDEALS`.
    most_labels
        Where there is such a limit, these times the sets of devices used at most (`pipeline`).
    """
    incumbent, ideal_cap = search.incumbent, MOST_IDEALS
    if most is not None:
        problem = incumbent.problem
        pipeline = problem.objective == "pipeline"
        states = num_counted(problem.class_count, min(problem.num_stages, problem.num_nodes)) if pipeline else 1
        ideal_cap = max(1, min(most, most_labels // states))
    if incumbent.finished:
        return incumbent.closed

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
        take_result(incumbent, result, "ideals")
    return incumbent.closed


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
    require_available()


def has_stage_constraints(search: StageSearch) -> bool:
    """Return whether CP-SAT is there and the pipeline is small enough for it."""
    problem = search.incumbent.problem
    # Paths are counted only where the pairs of ops alone are few.
    small = problem.num_nodes**2 * problem.num_stages <= 10 * MOST_CLAUSES
    return small and is_available() and num_clauses(problem) <= MOST_CLAUSES


def stage_constraint_program(search: StageSearch) -> None:
    """Search and prove a pipeline on CP-SAT, from the incumbent."""
    incumbent = search.incumbent
    if incumbent.finished or incumbent.assignment is None:
        return
    on_solution, on_bound = incumbent.listeners("cp-sat")
    with incumbent.in_phase("cp-sat"):
        solve_constraint_program(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            settings=ConstraintSettings(None if search.options.timed else SHORT_WORK, search.options.seed),
            quantum=incumbent.quantum,
            on_solution=on_solution,
            on_bound=on_bound,
        )


def windows(search: StageSearch) -> None:
    """Free the nodes around the incumbent's boundaries, as far as the window option says, solve, accept, widen."""
    incumbent = search.incumbent
    if not fits_scip(incumbent):
        return
    depth = int(incumbent.problem.level.max()) + 1
    for gamma in _gammas(search.options.window, depth):
        if incumbent.finished or incumbent.assignment is None:
            return
        free = free_nodes(incumbent.problem, incumbent.assignment.stage, gamma, search.doubt)
        with incumbent.part(f"window of {gamma:g} levels"), incumbent.in_phase(f"window: gamma {gamma:g}"):
            result = _milp(incumbent, free, None if search.options.timed else PROGRAM_NODES)
            take_result(incumbent, result, "window", full=bool(free.all()))


def _gammas(window: Window, depth: int) -> tuple[float, ...]:
    """Return the sequence of window half-widths."""
    if window is None:
        return (np.inf,)
    if isinstance(window, int):
        return (float(window),)
    return (*(float(2**i) for i in range(max(depth - 1, 1).bit_length() + 1) if 2**i < depth), np.inf)


def full_program(search: StageSearch) -> None:
    """Solve the full mixed-integer program on SCIP, warm-started from the incumbent if there is one."""
    incumbent = search.incumbent
    if incumbent.finished or not fits_scip(incumbent):
        return
    with incumbent.in_phase("milp"):
        nodes = None if search.options.timed else PROGRAM_NODES
        take_result(incumbent, _milp(incumbent, None, nodes), "milp")


def _milp(
    incumbent: StageIncumbent, free: NDArray[np.bool_] | None, node_limit: int | None
) -> StageResult[StageAssignment]:
    """Run the objective's program, telling the incumbent of solutions, and of bounds where they are for the whole."""
    method = "milp" if free is None else "window"
    whole = free is None or bool(free.all())

    def on_solution(assignment: StageAssignment) -> None:
        incumbent.offer(assignment, method)

    def on_bound(bounds: Value) -> None:
        if whole:
            incumbent.raise_bound(bounds, "milp")

    if incumbent.problem.objective == "memory":
        return solve_memory_milp(
            incumbent.problem,
            budget=incumbent.budget,
            start=incumbent.assignment,
            free=free,
            node_limit=node_limit,
            on_solution=on_solution,
            on_bound=on_bound,
        )
    return solve_pipeline_milp(
        incumbent.problem,
        budget=incumbent.budget,
        start=incumbent.assignment,
        free=free,
        lower=incumbent.bounds[0] if whole and incumbent.bounds else None,
        node_limit=node_limit,
        on_solution=on_solution,
        on_bound=on_bound,
    )


def take_result(
    incumbent: Incumbent[Any, Any], result: StageResult[Any], source: str, *, full: bool = True, why: str = NOTHING_FITS
) -> None:
    """Accept what a solver found; its bound and its infeasibility count only where it solved the full problem.

    Parameters
    ----------
    incumbent
        Takes it.
    result
        What was found, and is proven of the problem that was solved.
    source
        Who found it.
    full
        Whether it solved the full problem.
    why
        What is said where nothing fits.
    """
    incumbent.offer(result.assignment, source)
    if not full:
        return
    if result.status == "infeasible" and incumbent.values is None:
        incumbent.prove_infeasible(why, source)
    elif np.isfinite(result.bound[0]):
        incumbent.raise_bound(result.bound, source if source != "window" else "milp")
    elif incumbent.values is not None:
        incumbent.raise_bound(incumbent.values, source)
