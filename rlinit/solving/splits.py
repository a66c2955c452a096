"""Pipelines with several chunks a device, or with devices that hold any ops: starts, annealing, bounds, programs.

Both are bounded by what holds for any partition of the ops among the devices: a device with chunks costs at least what
one stage of all its ops would. So no bound here supposes that a device's ops are convex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rlinit.budget import UNLIMITED, Budget
from rlinit.comparison.baselines import Baseline, cut_order
from rlinit.comparison.stages import stage_baselines
from rlinit.exact.effort import FEW_IDEALS, PROGRAM_SIZE
from rlinit.exact.stages.bounds.anchored_cut import anchored_cut_bound
from rlinit.exact.stages.bounds.rounding import value_quantum
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.bounds.spectral import spectral_bound
from rlinit.exact.stages.milp.loose import loose_program
from rlinit.exact.stages.milp.pipeline import chunk_program
from rlinit.exact.stages.milp.program import StageProgram
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.heuristics.stages import STAGE_HEURISTICS
from rlinit.heuristics.stages.excess.annealing import default_moves
from rlinit.heuristics.stages.excess.slots import anneal_chunks, packed
from rlinit.plan import Plan
from rlinit.solving import stage_phases
from rlinit.solving.common.incumbent import Incumbent, Progress, for_stages
from rlinit.solving.common.options import SolveOptions
from rlinit.solving.phases import NO_PLAN, NO_SCHEDULE, Condition, Form, Kind, Phase, Strategy, follow
from rlinit.solving.plans import Request
from rlinit.solving.stage_bounds import PROGRAM_NODES, TOO_LARGE
from rlinit.solving.stage_phases import FEW_PLACES, StageSearch, take_result
from rlinit.stages.lowering import LoweredStages, lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate
from rlinit.stages.splits.chunks import (
    ChunkAssignment,
    ChunkedStages,
    chunk_parts,
    chunk_value,
    chunks_from_plan,
    from_contiguous,
)

_NOTHING_FITS = "no assignment respects memory and exclusions together"

CONTIGUOUS = "contiguous"
"""The baseline of one stage a device in the order of the data."""

BoundOf = Callable[[StageProblem, float, Budget], float]


def _cut(bound: Callable[..., float], problem: StageProblem, upper: float, budget: Budget) -> float:
    return bound(problem, upper=upper, budget=budget, contiguous=False)


SPLIT_BOUNDS: Mapping[str, BoundOf] = {
    "simple": lambda problem, upper, budget: simple_bound(problem, budget)[0],
    "anchored-cut": partial(_cut, anchored_cut_bound),
    "spectral": partial(_cut, spectral_bound),
}
"""Bounds by name, cheapest first: name -> call(problem, upper, budget). None supposes that devices hold convex sets."""


class SplitProblem:
    """Devices that run several stages in the order of the data, or hold any ops.

    Where a device holds any ops it runs one stage, the ops of device j, which costs what a stage costs: stages need not
    be monotone, tensors may go to and fro, and classes are those of the devices, in the hardware's order.

    Parameters
    ----------
    contiguous
        The problem of one contiguous stage a device.
    graph, hardware
        What it was lowered from.
    options
        Chunks, and whether stages are contiguous.
    """

    def __init__(self, contiguous: LoweredStages, graph: Graph, hardware: Hardware, options: SolveOptions) -> None:
        self.contiguous, self.graph, self.hardware, self.loose = contiguous, graph, hardware, not options.contiguous
        self.lowered = lower_stages(graph, hardware, "pipeline", contiguous=False) if self.loose else contiguous
        self.base = self.lowered.problem
        self.problem = ChunkedStages(self.base, options.chunks, options.chunk_order)
        self.num_places = self.base.num_nodes * self.problem.num_stages

    def incumbent(self, budget: Budget, options: SolveOptions, progress: Progress | None) -> Incumbent[Any, Any]:
        """Return what is known at first.

        Parameters
        ----------
        budget
            When to stop.
        options
            What was asked for.
        progress
            Called with each entry of the history, or None.
        """
        quantum = value_quantum(self.base)
        return Incumbent(self.problem, chunk_value, budget, options.gap, progress, quantum=quantum)

    def program(self) -> StageProgram[ChunkAssignment]:
        """Return the exact program."""
        return loose_program(self.problem) if self.loose else chunk_program(self.problem)

    def from_plan(self, plan: Plan) -> ChunkAssignment:
        """Return the assignment of a plan to refine."""
        contiguous = not self.loose
        return chunks_from_plan(plan, self.problem, self.lowered, self.graph, self.hardware, contiguous=contiguous)

    def from_contiguous(self, assignment: StageAssignment) -> ChunkAssignment:
        """Return a contiguous assignment as one of this problem."""
        # Contiguous nodes hold what lies between colocated ops as well.
        _, first = np.unique(self.lowered.node_of_op, return_index=True)
        stage = assignment.stage[self.contiguous.node_of_op[first]]
        return from_contiguous(self.problem, StageAssignment(stage, assignment.classes))

    def simple_start(self) -> ChunkAssignment | None:
        """Return ops packed onto devices, the largest first, or the natural order cut into chunks of equal work."""
        base, problem = self.base, self.problem
        if self.loose:
            found = packed(base)
            return None if found is None else from_contiguous(problem, found)
        work = np.where(np.isfinite(base.work_s), base.work_s, np.inf).min(axis=0)
        stage = cut_order(base.order, work, np.ones(problem.num_stages))
        return ChunkAssignment(stage, problem.interleaved_slots, base.stage_class)

    def parts(self, assignment: ChunkAssignment | None) -> dict[str, Any]:
        """Return the fields of a plan."""
        return chunk_parts(assignment, self.problem, self.lowered, self.graph, self.hardware)


@dataclass(slots=True)
class SplitSearch:
    """What the phases share.

    Parameters
    ----------
    incumbent
        The best schedule and bound so far.
    options
        What was asked for.
    form
        The problem.
    start
        The schedule of a plan to refine, or None.
    origin
        Where the first schedule came from.
    baselines
        What the schedule is compared with; the best contiguous one among them once it was looked for.
    """

    incumbent: Incumbent[Any, Any]
    options: SolveOptions
    form: SplitProblem
    start: Any
    origin: str = "none"
    baselines: list[Baseline[Any]] = field(default_factory=list)


def _contiguous_start(search: SplitSearch) -> None:
    """Solve with one contiguous stage a device, by the first phases of stages, and take that as a start."""
    incumbent, lowered = search.incumbent, search.form.contiguous
    if incumbent.finished or lowered.infeasible:
        return
    with incumbent.in_phase("contiguous stages"):
        base = for_stages(lowered.problem, incumbent.budget, search.options.gap, None)
        below = StageSearch.of(base, search.options, None)
        follow(_CONTIGUOUS, below)
        search.origin = below.origin
        if base.values is not None and base.assignment is not None:
            proven = "proven optimal" if base.gap == 0.0 else f"gap {base.gap:.2%}"
            schedule = search.form.from_contiguous(base.assignment)
            search.baselines.append(Baseline(CONTIGUOUS, schedule, base.values[0], proven))
            incumbent.offer(schedule, CONTIGUOUS)


def _simple_start(search: SplitSearch) -> None:
    """Pack ops on devices, or cut the natural order into chunks."""
    with search.incumbent.in_phase("simple start"):
        if search.incumbent.offer(search.form.simple_start(), "packing" if search.form.loose else "equal chunks"):
            search.origin = search.incumbent.method


def _anneal(search: SplitSearch) -> None:
    """Anneal from the best schedule; with a time limit, as long as it allows."""
    incumbent, options = search.incumbent, search.options
    if incumbent.assignment is None or incumbent.finished:
        return
    moves = UNLIMITED if options.timed else default_moves(search.form.base.num_nodes)
    with incumbent.in_phase("anneal"):
        anneal_chunks(
            search.form.problem,
            incumbent.assignment,
            seed=options.seed,
            moves=moves,
            lower=incumbent.bounds[0] if incumbent.bounds else 0.0,
            budget=incumbent.budget,
            monotone=not search.form.loose,
            on_solution=lambda found: incumbent.offer(found, "anneal"),
        )


def _bound(search: SplitSearch, name: str) -> None:
    """Raise the bound by one of `SPLIT_BOUNDS`."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    upper = incumbent.values[0] if incumbent.values else np.inf
    with incumbent.in_phase(f"bound: {name}"):
        bound = SPLIT_BOUNDS[name](search.form.base, upper, incumbent.budget)
        if np.isfinite(bound):
            incumbent.raise_bound((bound,), name)
        else:
            incumbent.prove_infeasible(_NOTHING_FITS, name)


def _program(search: SplitSearch) -> None:
    """Solve the exact program on SCIP, from the best schedule if there is one."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    if search.form.num_places > PROGRAM_SIZE:
        incumbent.note = TOO_LARGE
        return
    with incumbent.in_phase("milp"):
        result = search.form.program().solve(
            budget=incumbent.budget,
            start=incumbent.assignment,
            lower=incumbent.bounds[0] if incumbent.bounds else 0.0,
            node_limit=None if search.options.timed else PROGRAM_NODES,
            on_solution=lambda found: incumbent.offer(found, "milp"),
            on_bound=lambda bounds: incumbent.raise_bound(bounds, "milp"),
        )
        take_result(incumbent, result, "milp", why=_NOTHING_FITS)


_MANY_PLACES: Condition[SplitSearch] = Condition(
    f"more than {FEW_PLACES} nodes times stages, where the program is soon done",
    lambda search: search.form.num_places > FEW_PLACES,
)

_CONTIGUOUS: Strategy[StageSearch] = (
    Phase("coarse schedule", stage_phases.first_schedule),
    Phase("few ideals", partial(stage_phases.exact_ideals, most=FEW_IDEALS)),
    Phase("annealing", stage_phases.anneal, 0.5),
)
"""What makes the contiguous start."""


def _bound_phase(name: str, share: float = 1.0, *, because: str = "") -> Phase[SplitSearch]:
    return Phase(f"bound {name}", partial(_bound, name=name), share, because=because)


_SIMPLE = _bound_phase("simple", because="linear time; closes the gap where one op or the total decides")
_START = Phase(
    "contiguous stages",
    _contiguous_start,
    0.25,
    (NO_PLAN,),
    because="a start, proven best where ideals are few; ledger, 4 s: 0.69 (0.32 to 1.37) on 15 problems",
)
_PACK = Phase(
    "simple start",
    _simple_start,
    when=(NO_SCHEDULE,),
    because="where memory or colocated ops leave no contiguous schedule",
)
_ANNEAL = Phase(
    "annealing",
    _anneal,
    0.4,
    (_MANY_PLACES,),
    because="moves, exchanges; ledger, 4 s: 0.89 (0.83 to 0.96) on 6 problems",
)
_PROGRAM = Phase("full program", _program, because="exact; ledger, 4 s: 0.80 (0.64 to 0.96) on 10 problems")

SPLIT_METHODS: dict[str, Strategy[SplitSearch]] = {
    "auto": (
        _SIMPLE,
        _START,
        _PACK,
        _bound_phase("anchored-cut", 0.2, because="minimum cuts; ledger, 4 s: 0.23 (0.10 to 0.49) on 13 problems"),
        _ANNEAL,
        _bound_phase("spectral", 0.3, because="balance, and the transfers that no partition avoids"),
        _PROGRAM,
    ),
    "anneal": (_SIMPLE, _START, _PACK, replace(_ANNEAL, share=1.0, when=())),
    "milp": (_SIMPLE, replace(_PROGRAM, because="it was asked for by name")),
}
"""Phases by method."""

_BOUNDING = {name: (_bound_phase(name),) for name in SPLIT_BOUNDS}

SPLIT_BOUNDING: Mapping[str, Strategy[SplitSearch]] = {
    "auto": tuple(phase for strategy in _BOUNDING.values() for phase in strategy),
    **_BOUNDING,
}
"""Phases of each bound by name."""


def split_form(request: Request) -> Form[SplitSearch]:
    """Return pipelines with several chunks a device, or with loose ops, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for.
    """
    graph, hardware, options, plan = request.graph, request.hardware, request.options, request.plan
    problem = SplitProblem(lower_stages(graph, hardware, "pipeline"), graph, hardware, options)
    incumbent = problem.incumbent(request.budget, options, request.progress)
    start = None if plan is None or problem.lowered.infeasible else problem.from_plan(plan)
    return Form(
        SplitSearch(incumbent, options, problem, start, "none" if plan is None else "plan"),
        problem.lowered.infeasible,
        lambda search: SPLIT_METHODS[options.method],
        lambda known: problem.parts(known.assignment),
        partial(_baselines, request),
    )


def _baselines(request: Request, search: SplitSearch) -> list[Baseline[Any]]:
    """Return what simple rules reach with one contiguous stage a device; a phase adds the best of those."""
    contiguous = search.form.contiguous
    if not contiguous.infeasible:
        value_of = partial(evaluate, contiguous.problem)
        budget = search.incumbent.budget
        for one in stage_baselines(contiguous, request.graph, request.hardware, value_of, budget):
            schedule = None if one.schedule is None else search.form.from_contiguous(one.schedule)
            search.baselines.append(Baseline(one.name, schedule, one.value, one.note))
    return search.baselines


SPLITS = Kind(split_form, SPLIT_METHODS, STAGE_HEURISTICS, "stages", lambda: SPLIT_BOUNDING)
