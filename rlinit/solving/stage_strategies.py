"""Strategies of stage problems: what each method does, its phases, their shares of the time left, and when they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from rlinit.comparison.baselines import Baseline
from rlinit.comparison.stages import stage_baselines
from rlinit.errors import InvalidGraph
from rlinit.exact.effort import FEW_IDEALS
from rlinit.exact.stages.constraint_program import MOST_CLAUSES
from rlinit.exact.stages.ideals.node_merging import MergedProblem, merge_weightless
from rlinit.heuristics.stages import STAGE_HEURISTICS
from rlinit.solving import stage_phases
from rlinit.solving.common.incumbent import for_stages
from rlinit.solving.phases import NO_PLAN, NO_SCHEDULE, TIMED, Condition, Form, Kind, Phase, Strategy, follow
from rlinit.solving.plans import Request
from rlinit.solving.stage_bounds import bound_phase, stage_bounds
from rlinit.solving.stage_phases import FEW_LABELS, FEW_PLACES, StageSearch, exact_ideals
from rlinit.stages.lowering import LoweredStages, lower_stages
from rlinit.stages.plan_fields import stage_parts, stages_from_plan
from rlinit.stages.problem import StageAssignment, evaluate
from rlinit.stages.states import LABEL_CAP
from rlinit.stages.training.lowering import has_backward

_FEW_STAGES, _FEWER_STAGES = 4, 3
"""Stages up to which the full program often closes the gap, and does so within seconds on few nodes (`pipeline`)."""


def _bound(name: str) -> Callable[[StageSearch], None]:
    """Return the phase of one bound."""
    return lambda search: bound_phase(search.incumbent, name)


def _each_bound(objective: Literal["pipeline", "memory"]) -> Strategy[StageSearch]:
    """Return the bounds for an objective, cheapest first."""
    return tuple(Phase(f"bound {name}", _bound(name)) for name in stage_bounds(objective))


def _all_bounds(search: StageSearch) -> None:
    follow(_each_bound(search.incumbent.problem.objective), search)


def _pipeline(search: StageSearch) -> bool:
    return search.incumbent.problem.objective == "pipeline"


_PIPELINE: Condition[StageSearch] = Condition("the objective is pipeline", _pipeline)
_MEMORY: Condition[StageSearch] = Condition("the objective is memory", lambda search: not _pipeline(search))
_ALIKE: Condition[StageSearch] = Condition(
    "devices are alike", lambda search: search.incumbent.problem.num_classes == 1
)
_UNLIKE: Condition[StageSearch] = Condition("devices differ", lambda search: search.incumbent.problem.num_classes > 1)
_TRANSFERS: Condition[StageSearch] = Condition(
    "tensors cost something", lambda search: search.incumbent.problem.has_transfers
)
_NO_TRANSFERS: Condition[StageSearch] = Condition(
    "tensors cost nothing", lambda search: not search.incumbent.problem.has_transfers
)
_UP_TO_FEW: Condition[StageSearch] = Condition(
    f"at most {_FEW_STAGES} stages", lambda search: search.incumbent.problem.num_stages <= _FEW_STAGES
)
_SMALL: Condition[StageSearch] = Condition(
    f"at most {_FEWER_STAGES} stages and {FEW_PLACES} nodes times stages",
    lambda search: (
        (k := search.incumbent.problem.num_stages) <= _FEWER_STAGES
        and k * search.incumbent.problem.num_nodes <= FEW_PLACES
    ),
)

_MOST_OPENED = 5_000
"""Ops times classes up to which the first beam ends within a few seconds where nothing else ends it."""

_OPENED: Condition[StageSearch] = Condition(
    f"a pipeline of devices that differ, ops times kinds of devices at most {_MOST_OPENED:,}, and no agent named",
    lambda search: (
        _pipeline(search)
        and search.options.agent == "auto"
        and search.incumbent.problem.num_classes > 1
        and search.incumbent.problem.work_s.size <= _MOST_OPENED
    ),
)

_OTHERWISE: Condition[StageSearch] = Condition("otherwise", lambda search: not _OPENED.holds(search))

_FEW_CLAUSES: Condition[StageSearch] = Condition(
    f"CP-SAT is installed and needs at most {MOST_CLAUSES:,} clauses", stage_phases.has_stage_constraints
)

_OPENING: Strategy[StageSearch] = (
    Phase("bound simple", _bound("simple"), because="linear time; closes the gap where one op or the total decides"),
)
"""What every method begins with."""

_COARSE = Phase("coarse schedule", stage_phases.named_start, when=(NO_PLAN,), because="windows need a start")

_AUTO: Strategy[StageSearch] = (
    Phase(
        "coarse schedule",
        stage_phases.first_schedule,
        0.03,
        (NO_PLAN, _OPENED),
        because="slicing the natural order of 75 ops for 15 unlike devices takes 0.4 s, and a beam is far ahead of it",
    ),
    Phase(
        "coarse schedule",
        stage_phases.first_schedule,
        when=(NO_PLAN, _OTHERWISE),
        because="slicing the natural order of 1,000 ops costs 0.6 ms (benchmarks.components.slicing); "
        "ideals need no better",
    ),
    Phase(
        "few ideals",
        partial(exact_ideals, most=FEW_IDEALS),
        0.5,
        because=f"up to {FEW_IDEALS:,} ideals, {FEW_LABELS:,} times sets of devices used, it proves the optimum in a "
        "fraction of a second, sooner than any bound; on sparse graphs it may take a minute, and gives way",
    ),
    Phase(
        "full program",
        stage_phases.full_program,
        0.4,
        (_PIPELINE, _SMALL),
        because="small sparse graphs, 10 s: seven more of 14 are proven, gaps are 0.40 (0.10 to 1.00) of those without "
        "(benchmarks.ledger --problem stages --families 'small sparse graphs' --seconds 10 --only 'full program')",
    ),
    Phase(
        "bound chain-order",
        _bound("chain-order"),
        0.1,
        (_PIPELINE, _UNLIKE, _TRANSFERS),
        because="a wired network: gap 0.06 of that without it; 50,000 ops on eight unlike devices: 0.90 of the value "
        "within 2 s, where balancing alone proves 0.54 (benchmarks.ledger --problem stages --only 'bound chain-order')",
    ),
    Phase(
        "first beam",
        stage_phases.opening_beam,
        0.4,
        (_OPENED, TIMED),
        because="over the first second the primal integral is 43% smaller with it before the bounds than without "
        "(benchmarks.learning.strategy first-beam)",
    ),
    Phase(
        "constraint program",
        stage_phases.stage_constraint_program,
        0.5,
        (_PIPELINE, _UNLIKE, _FEW_CLAUSES),
        because="28 tasks for 4 to 7 unlike workers take 1 to 2 s (benchmarks.papers.alwabp), so bounds come later",
    ),
    Phase(
        "bound chain-order",
        _bound("chain-order"),
        0.1,
        (_PIPELINE, _UNLIKE, _NO_TRANSFERS),
        because="lines of 70 tasks have better values sooner where a schedule comes first",
    ),
    Phase(
        "bound convex-cover",
        _bound("convex-cover"),
        0.15,
        (_PIPELINE, _UNLIKE),
        because="lines of 25 to 75 tasks, 6 s: gaps are 0.35 (0.28 to 0.42) of those without it, in 1 s the same; "
        "ledger, 6 s: 0.73 (0.60 to 0.89) on 13 problems",
    ),
    Phase(
        "bound intervals",
        _bound("intervals"),
        0.1,
        (_PIPELINE, _ALIKE, _TRANSFERS),
        because="searched cells in 8 stages: gaps of 3 to 6% after 30 s, of 9 to 12% by cuts "
        "(benchmarks.families.pipelines)",
    ),
    Phase(
        "filling",
        stage_phases.fill,
        0.25,
        (_PIPELINE, _ALIKE, _NO_TRANSFERS),
        because="lines of 100 and 1,000 tasks: mostly optimal within 3 s, where annealing is 0.5 to 3% above",
    ),
    Phase(
        "ideals of many states",
        partial(exact_ideals, most=FEW_IDEALS, most_labels=LABEL_CAP),
        0.7,
        (_PIPELINE, _UNLIKE),
        because="networks of branches on seven and eight unlike GPUs, 20 s: the integral is 0.71 (0.43 to 0.95) of "
        "that without (benchmarks.ledger --problem stages --families 'many devices unlike' --seconds 20 "
        "--only 'ideals of many states'); where more time is needed, searches get the rest",
    ),
    Phase(
        "annealing",
        stage_phases.anneal,
        0.6,
        (_PIPELINE,),
        because="wide graphs end 32% closer with annealing than without, parameters that hardly fit 17% "
        "(benchmarks.ledger --problem stages --only annealing)",
    ),
    Phase(
        "bound spectral",
        _bound("spectral"),
        0.3,
        (_PIPELINE,),
        because="three wide graphs, 1 s: gaps 11% (1 to 26) smaller than without it "
        "(benchmarks.ledger --problem stages --only 'bound spectral')",
    ),
    Phase(
        "bound intervals",
        _bound("intervals"),
        0.8,
        (_PIPELINE, _ALIKE, _TRANSFERS),
        because="more intervals, below a better value; few devices alike, 10 s: the integral is 0.35 (0.24 to "
        "0.51) of that without "
        "(benchmarks.ledger --problem stages --families 'few devices alike' --seconds 10 --only 'bound intervals')",
    ),
    Phase(
        "all ideals",
        exact_ideals,
        because="with a good schedule and bound, most ideals are left out; 2 million fit into memory",
    ),
    Phase(
        "full program",
        stage_phases.full_program,
        when=(_UP_TO_FEW,),
        because="in more stages, auto is as good without (benchmarks.ledger --problem stages --only 'full program'); a "
        "wide graph of 40 ops in 2 stages is proven by it alone (tests.regression.recorded_plans)",
    ),
    Phase(
        "annealing",
        partial(stage_phases.anneal, turn=1),
        when=(_PIPELINE, TIMED),
        because="the last resort has all the time that is left",
    ),
    Phase("annealing", stage_phases.anneal, when=(_MEMORY,), because="where ideals are too many, all else is slices"),
)

STAGE_METHODS: dict[str, Strategy[StageSearch]] = {
    "auto": _AUTO,
    "warm": (
        _COARSE,
        Phase("windows", stage_phases.windows, because="Inc-ILP's second and third phase"),
        Phase(
            "bounds",
            _all_bounds,
            because="a window proves nothing of the whole",
            inside=lambda search: (_each_bound(search.incumbent.problem.objective), search),
        ),
    ),
    "milp": (Phase("full program", stage_phases.full_program, because="it was asked for by name"),),
    "ideals": (
        Phase("coarse schedule", stage_phases.natural, because="its value leaves out ideals that cannot matter"),
        Phase("all ideals", exact_ideals, because="it was asked for by name"),
    ),
    "cp-sat": (
        Phase("natural order", stage_phases.natural, when=(NO_SCHEDULE,), because="the program improves a schedule"),
        Phase(
            "filling",
            stage_phases.fill,
            0.2,
            (NO_SCHEDULE,),
            because="memory leaves no stretch of that order to a device",
        ),
        Phase("constraint program", stage_phases.stage_constraint_program, because="it was asked for by name"),
    ),
    "agent": (Phase("learned agent", stage_phases.agent_alone, because="it was asked for by name"),),
}
"""Methods of several phases by name."""


def stage_strategy(method: str) -> Strategy[StageSearch]:
    """Return the phases of a method: one of `STAGE_METHODS`, or a heuristic alone, after the cheapest bound."""
    run = partial(stage_phases.run_heuristic, name=method)
    heuristic = Phase(f"heuristic {method}", run, because="it was asked for by name")
    return (*_OPENING, *STAGE_METHODS.get(method, (heuristic,)))


def lowered_stages(request: Request) -> tuple[LoweredStages, StageAssignment | None]:
    """Return a stage problem as arrays, and the schedule of a plan to refine.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    InvalidGraph
        The graph has backward ops, and the request is not one of training.
    """
    graph, hardware, plan = request.graph, request.hardware, request.plan
    if has_backward(graph):
        raise InvalidGraph(
            f"graph {graph.name!r} has backward ops; name how it trains, such as training='1f1b' (--training 1f1b)"
        )
    lowered = lower_stages(graph, hardware, "memory" if request.options.objective == "memory" else "pipeline")
    if plan is None or lowered.infeasible:
        return lowered, None
    return lowered, stages_from_plan(plan, lowered, graph, hardware)


def stage_form(request: Request) -> Form[StageSearch]:
    """Return pipelines and the memory objective, one contiguous stage a device, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for.
    """
    graph, hardware, options, budget = request.graph, request.hardware, request.options, request.budget
    lowered, start = lowered_stages(request)
    merging = options.method == "auto" and options.objective == "pipeline"
    joined = merge_weightless(lowered.problem) if merging else MergedProblem.whole(lowered.problem)
    searched = replace(lowered, problem=joined.problem, node_of_op=joined.group[lowered.node_of_op])
    incumbent = for_stages(joined.problem, budget, options.gap, request.progress)

    def baselines(search: StageSearch) -> list[Baseline[StageAssignment]]:
        value_of = partial(evaluate, lowered.problem)
        found = stage_baselines(lowered, graph, hardware, value_of, search.incumbent.budget)
        return [replace(one, schedule=one.schedule and joined.contract(one.schedule)) for one in found]

    return Form(
        StageSearch.of(incumbent, options, start and joined.contract(start)),
        lowered.infeasible,
        checked_strategy,
        lambda known: stage_parts(known.assignment, joined.problem, searched, graph, hardware),
        baselines,
    )


def checked_strategy(search: StageSearch) -> Strategy[StageSearch]:
    """Return the phases of the method that was asked for.

    Parameters
    ----------
    search
        The search, with the options.

    Raises
    ------
    RlinitError
        The method does not take the problem.
    """
    method = search.options.method
    if method == "cp-sat":
        stage_phases.check_stage_constraints(search)
    return stage_strategy(method)


def bounding_phases(objective: Literal["pipeline", "memory"]) -> dict[str, Strategy[StageSearch]]:
    """Return the phases that prove each bound on an objective by name, and all that are affordable under ``auto``.

    Parameters
    ----------
    objective
        Of the stage problem.
    """
    few = Phase("bound ideals", partial(exact_ideals, most=FEW_IDEALS))
    ideals = (*_OPENING, Phase("bound ideals", exact_ideals))
    each = _each_bound(objective)
    named = dict(zip(stage_bounds(objective), ((phase,) for phase in each), strict=True))
    return {"auto": (*_OPENING, few, *ideals[1:], *each), **named, "ideals": ideals}


METHODS = (*STAGE_METHODS, *STAGE_HEURISTICS)
PIPELINES = Kind(stage_form, METHODS, STAGE_HEURISTICS, "stages", partial(bounding_phases, "pipeline"))
MEMORY = Kind(stage_form, METHODS, STAGE_HEURISTICS, "stages", partial(bounding_phases, "memory"))
