"""Solving `pipeline` problems whose memory counts activations, those of overflow and those of training.

Either is a problem without them, slices of orders, and ideals, which price stages as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.comparison.baselines import cut_order
from rlinit.comparison.stages import stage_baselines
from rlinit.errors import RlinitError
from rlinit.exact.effort import FEW_IDEALS
from rlinit.exact.stages.ideals.activations import solve_activation_ideals
from rlinit.exact.stages.ideals.training import slice_training_order, slicing_entries, solve_training_ideals
from rlinit.heuristics.stages import STAGE_HEURISTICS
from rlinit.heuristics.stages.activations.slicing import slice_with_peaks
from rlinit.heuristics.stages.slicing.orders import staged_order
from rlinit.kernels.orders import kahn
from rlinit.plan import HistoryEntry
from rlinit.solving.common.incumbent import Incumbent, Progress, for_stages
from rlinit.solving.common.options import SolveOptions
from rlinit.solving.phases import TIMED, Condition, Form, Kind, Phase, Strategy, follow
from rlinit.solving.plans import Request
from rlinit.solving.splits import SPLIT_BOUNDING, SPLIT_METHODS, SplitProblem, SplitSearch
from rlinit.solving.stage_bounds import NOTHING_FITS
from rlinit.solving.stage_phases import MOST_IDEALS, StageSearch, take_result
from rlinit.solving.stage_strategies import METHODS, bounding_phases, checked_strategy, lowered_stages, stage_strategy
from rlinit.stages.activation_problem import StageActivations, activation_value, with_activations
from rlinit.stages.passes import HALVINGS
from rlinit.stages.plan_fields import stage_parts, stages_from_plan
from rlinit.stages.problem import StageAssignment
from rlinit.stages.splits.chunks import ChunkAssignment
from rlinit.stages.training.lowering import lower_training
from rlinit.stages.training.plan_fields import training_parts
from rlinit.stages.training.problem import StageTraining, training_shortfall, training_value
from rlinit.units import format_bytes

_SLICE_S = 0.2
"""Seconds that one slicing may take however little time is left."""

_RESTARTS = 20
"""Descents of the cuts of interleaved stages from one schedule: each takes a hundred evaluations or more."""

_ENTRIES_A_S = 1e7
"""Entries of the tables of a slicing that are made and used in a second."""

_FEW_SPLITS = 100_000
"""Splits of nodes into stages, times orders of devices, up to which interleaved ones are tried one by one: seconds."""


@dataclass(slots=True)
class RelaxedSearch:
    """What the phases share of a problem that has a relaxation with a strategy of its own.

    Parameters
    ----------
    incumbent
        The best schedule and bound so far.
    options
        What was asked for.
    start
        The schedule of a plan to refine, or None.
    relaxed
        The search of the problem without activations, whose bounds are bounds here.
    strategy
        Its phases.
    origin
        Where the first schedule came from; "none" while only the relaxation knows.
    """

    incumbent: Incumbent[Any, StageAssignment]
    options: SolveOptions
    start: StageAssignment | None
    relaxed: StageSearch | SplitSearch
    strategy: Strategy[Any]
    origin: str = "none"


def _take(search: RelaxedSearch) -> None:
    """Take what the relaxation proved, and its schedule at its price here."""
    incumbent, base = search.incumbent, search.relaxed.incumbent
    incumbent.notes += [note for note in base.notes if note not in incumbent.notes]
    if base.infeasible:
        incumbent.prove_infeasible(base.infeasible, base.refuter)
        return
    if base.bounds is not None:
        incumbent.raise_bound(base.bounds, base.bound_source)
    found: StageAssignment | ChunkAssignment | None = base.assignment
    incumbent.offer(None if found is None else StageAssignment(found.stage, found.classes), base.method)


def _solve_relaxed(search: RelaxedSearch) -> None:
    """Solve the problem without activations; take its bounds, and its schedule at its price with them."""
    incumbent, relaxed = search.incumbent, search.relaxed
    if incumbent.ended(late=incumbent.values is None):
        return
    with incumbent.in_phase("without activations"):
        relaxed.incumbent.budget = incumbent.budget
        relaxed.incumbent.offer(relaxed.start, "plan")
        follow(search.strategy, relaxed)
        relaxed.start = relaxed.incumbent.assignment  # another turn goes on from it
        search.origin = relaxed.origin if search.origin == "none" else search.origin
        _take(search)


def _without(share: float, because: str, *when: Condition[RelaxedSearch]) -> Phase[RelaxedSearch]:
    """Return the phase that solves the relaxation in a share of the time left."""
    name = "the problem without activations"
    return Phase(
        name, _solve_relaxed, share, when, because=because, inside=lambda search: (search.strategy, search.relaxed)
    )


def _bound_relaxed(search: RelaxedSearch, name: str, phases: Strategy[Any]) -> None:
    """Take what phases prove of the relaxation."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase(f"bound: {name}"):
        search.relaxed.incumbent.budget = incumbent.budget
        follow(phases, search.relaxed)
        _take(search)


def _bounding(
    bounds: Mapping[str, Strategy[Any]], own: Mapping[str, Phase[RelaxedSearch]]
) -> dict[str, Strategy[RelaxedSearch]]:
    """Return the phases of each bound by name: those of the relaxation, and those of the problem itself."""
    lifted = {
        name: (Phase(f"bound {name}", partial(_bound_relaxed, name=name, phases=phases)),)
        for name, phases in bounds.items()
    }
    return {**lifted, **{name: (phase,) for name, phase in own.items()}, "auto": (*lifted["auto"], *own.values())}


def _between(incumbent: Incumbent[Any, StageAssignment]) -> tuple[float, float]:
    """Return the bound and the value so far: 0 and inf where there are none."""
    lower = incumbent.bounds[0] if incumbent.bounds else 0.0
    return lower, incumbent.values[0] if incumbent.values else np.inf


# -- activations that overflow -------------------------------------------------------------------------------------


def activation_form(request: Request) -> Form[RelaxedSearch]:
    """Return pipelines whose stages hold activations beside their parameters, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for.
    """
    graph, hardware, options, budget = request.graph, request.hardware, request.options, request.budget
    lowered, start = lowered_stages(request)
    problem = with_activations(lowered.problem, lowered.node_of_op, graph)
    base = for_stages(problem.relaxed, budget, options.gap, _bounds_only(request.progress))
    relaxed = StageSearch.of(base, options, start)
    incumbent = Incumbent(problem, activation_value, budget, options.gap, request.progress)
    value_of = partial(activation_value, problem)

    def strategy(search: RelaxedSearch) -> Strategy[RelaxedSearch]:
        search.strategy = checked_strategy(relaxed)
        return ACTIVATION_METHODS["auto"]

    return Form(
        RelaxedSearch(incumbent, options, start, relaxed, (), origin=relaxed.origin),
        lowered.infeasible,
        strategy,
        lambda known: stage_parts(known.assignment, known.problem, lowered, graph, hardware),
        lambda search: stage_baselines(lowered, graph, hardware, value_of, search.incumbent.budget),
    )


def _solve_ideals(search: RelaxedSearch) -> None:
    """Price stages exactly by dynamic programming over ideals, where the graph has few."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase("ideals with peaks"):
        found = solve_activation_ideals(incumbent.problem, upper=_between(incumbent)[1], budget=incumbent.budget)
        if found is not None:
            take_result(incumbent, found, "ideals with peaks")


def _bounds_only(progress: Progress | None) -> Progress | None:
    """Return what tells of bounds and phases, but not of values, which are too low without activations."""
    if progress is None:
        return None

    def tell(entry: HistoryEntry) -> None:
        progress(dataclasses.replace(entry, values=None))

    return tell


def _slice(search: RelaxedSearch) -> None:
    """Slice the natural order and those of the best schedule, as long as that helps."""
    incumbent = search.incumbent
    if incumbent.finished:
        return
    problem: StageActivations = incumbent.problem
    orders = [problem.ops_of(problem.problem.order)]
    if incumbent.assignment is not None:
        orders.append(_order_of(problem, incumbent.assignment))
    with incumbent.in_phase("slices with peaks"):
        for order in orders:
            improved = True
            while improved and not incumbent.finished:
                ops, seconds = np.array(order, np.int64), max(_SLICE_S, incumbent.budget.remaining_s)
                found = slice_with_peaks(problem, ops, _between(incumbent)[1], seconds)
                improved = incumbent.offer(found, "slices with peaks")
                if improved and incumbent.assignment is not None:
                    order = _order_of(problem, incumbent.assignment)


def _order_of(problem: StageActivations, assignment: StageAssignment) -> list[int]:
    """Return the ops stage by stage, in the best order of each, with the ops of a node moved together."""
    order = [op for stage in problem.orders(assignment) for op in stage]
    place = inverse_of(order)
    nodes: IntArray = problem.node_of_op[order]
    if len(np.flatnonzero(np.diff(nodes, prepend=-1))) == problem.problem.num_nodes:
        return order
    return problem.ops_of(_node_order(problem, place))


def _node_order(problem: StageActivations, place: IntArray) -> IntArray:
    """Return a topological order of the nodes in which those that come early in an order of ops come early."""
    base = problem.problem
    priority = np.full(base.num_nodes, -np.inf)
    np.maximum.at(priority, problem.node_of_op, -place.astype(np.float64))
    return kahn(priority, base.succ_indptr, base.succ, base.pred_indptr)


_PEAKS = Phase("slices with peaks", _slice, because="orders and cuts; ledger: 0.22 (0.04 to 1.00) on 3 problems")
_PRICED_IDEALS = Phase("ideals with peaks", _solve_ideals, because="exact, where the graph has few")

ACTIVATION_METHODS: dict[str, Strategy[RelaxedSearch]] = {
    "auto": (
        _without(0.1, "its cache is smaller by what each stage needs at least: bounds hold, schedules are priced anew"),
        _PEAKS,
        _PRICED_IDEALS,
        _without(0.8, "with more time, bounds and orders may be better", TIMED),
        _PEAKS,
    )
}
"""Phases around those of any method, which solves the relaxation."""


# -- training ------------------------------------------------------------------------------------------------------


def training_form(request: Request) -> Form[RelaxedSearch]:
    """Return training pipelines, of contiguous or interleaved stages, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for, with the rules of training.

    Raises
    ------
    RlinitError
        No rules of training, or activations beside them.
    """
    graph, hardware, options, budget = request.graph, request.hardware, request.options, request.budget
    rules = options.training_rules
    if rules is None or options.activations:
        raise RlinitError("training pipelines count activations as they are; leave activations out (--activations)")
    lowered = lower_training(graph, hardware, rules)
    obstacle, training = lowered.stages.infeasible, lowered.training
    plan = None if obstacle else request.plan
    incumbent = Incumbent(training, training_value, budget, options.gap, request.progress)
    value_of = partial(training_value, training)
    if rules.chunks > 1:
        problem = SplitProblem(lowered.stages, graph, hardware, options)
        split = SplitSearch(problem.incumbent(budget, options, None), options, problem, None)
        given = None if plan is None else problem.from_plan(plan)
        start = None if given is None else StageAssignment(given.stage, given.classes)
        origin = "equal chunks" if plan is None else "plan"
        search = RelaxedSearch(incumbent, options, start, split, SPLIT_METHODS["auto"], origin)
        methods = INTERLEAVED_METHODS
    else:
        start = None if plan is None else stages_from_plan(plan, lowered.stages, graph, hardware)
        base = for_stages(training.problem, budget, options.gap, _bounds_only(request.progress))
        relaxed = StageSearch.of(base, options, start)
        search = RelaxedSearch(incumbent, options, start, relaxed, stage_strategy("auto"), relaxed.origin)
        methods = TRAINING_METHODS

    def strategy(search: RelaxedSearch) -> Strategy[RelaxedSearch]:
        if options.method not in methods:
            raise RlinitError("training pipelines take method='auto' and count activations as they are (--method)")
        return methods[options.method]

    return Form(
        search,
        obstacle,
        strategy,
        lambda known: training_parts(known.assignment, lowered, graph, hardware),
        lambda search: stage_baselines(lowered.stages, graph, hardware, value_of, search.incumbent.budget),
    )


def _move_cuts(search: RelaxedSearch) -> None:
    """Move the cuts of the order of the relaxation's best schedule; at first, those into chunks of equal work."""
    incumbent, relaxed = search.incumbent, search.relaxed
    found, name = relaxed.incumbent.assignment, "cuts"
    if found is None and isinstance(relaxed, SplitSearch):
        found, name = relaxed.form.simple_start(), "equal chunks"
    if found is None or incumbent.finished:
        return
    with incumbent.in_phase("cuts"):
        start = StageAssignment(found.stage, found.classes)
        incumbent.offer(start, name)
        incumbent.offer(_moved_cuts(incumbent, start, search.options), "cuts")


def _every_split(search: RelaxedSearch) -> None:
    """Try all splits of a small problem into interleaved stages, and all orders of its devices.

    Infeasibility is proven, and the optimum where blocks leave no choice: that of several stages is a greedy one, which
    fits where any does.
    """
    incumbent = search.incumbent
    training: StageTraining = incumbent.problem
    problem = training.problem
    n, k, count = problem.num_nodes, problem.num_stages, training.num_stages
    if n * math.log(count) + math.lgamma(k + 1) > math.log(_FEW_SPLITS):
        return
    splits = np.indices((count,) * n).reshape(n, -1)
    after = np.repeat(np.arange(n), np.diff(problem.pred_indptr))
    splits = splits[:, (splits[problem.pred] <= splits[after]).all(axis=0)].T
    orders = sorted(set(itertools.permutations(problem.stage_class.tolist())))
    with incumbent.in_phase("every split"):
        for classes, stage in itertools.product(orders, splits):
            if incumbent.finished:
                return
            incumbent.offer(StageAssignment(stage, np.array(classes, np.int64)), "every split")
    if incumbent.values is None:
        incumbent.prove_infeasible(NOTHING_FITS, "every split")
    elif training.rules.recompute != "auto" or not training.blocks.names:
        incumbent.raise_bound(incumbent.values, "every split")


def _moved_cuts(
    incumbent: Incumbent[StageTraining, StageAssignment], assignment: StageAssignment, options: SolveOptions
) -> StageAssignment:
    """Return the best cuts of the order of an assignment, each moved as long as that helps: first memory, then time.

    Again from cuts at random around the best ones, a few times.
    """
    training, rng = incumbent.problem, np.random.default_rng(options.seed)
    order = staged_order(training.problem, assignment.stage)

    def cut(places: IntArray) -> StageAssignment:
        stage = np.empty(len(order), np.int64)
        stage[order] = np.searchsorted(places, np.arange(len(order)), side="right")
        return StageAssignment(stage, assignment.classes)

    width = max(1, len(order) // training.num_stages)
    best = np.searchsorted(assignment.stage[order], np.arange(1, training.num_stages))
    least, rounds = training_shortfall(training, cut(best)), 0
    while rounds < _RESTARTS and not incumbent.finished:
        shift = rng.integers(-width, width, len(best), endpoint=True) if rounds else 0
        cuts = np.sort(np.clip(best + shift, 0, len(order)))
        value, step = training_shortfall(training, cut(cuts)), width
        while step and not incumbent.finished:
            moved = False
            for at, by in itertools.product(range(len(cuts)), (-step, step)):
                places = cuts.copy()
                places[at] += by
                if incumbent.finished:
                    break
                if places[at] < 0 or places[at] > len(order) or (np.diff(places) < 0).any():
                    continue
                found = training_shortfall(training, cut(places))
                if found < value:
                    cuts, value, moved = places, found, True
                    if value < least:
                        best, least = cuts, value
                        incumbent.offer(cut(best), "cuts")
            step = step if moved else step // 2
        rounds += 1
    return cut(best)


def _cut(incumbent: Incumbent[StageTraining, StageAssignment], order: IntArray, options: SolveOptions) -> bool:
    """Cut an order exactly, or move cuts where there is no time for its tables; return whether that was better."""
    training = incumbent.problem
    if slicing_entries(training, order) > _ENTRIES_A_S * incumbent.budget.remaining_s:
        start = incumbent.assignment
        if start is None:
            stage = cut_order(order, training.problem.work_s.min(axis=0), np.ones(training.num_stages))
            start = StageAssignment(stage, training.problem.stage_class)
        return incumbent.offer(_moved_cuts(incumbent, start, options), "cuts")
    lower, upper = _between(incumbent)
    found = slice_training_order(training, order, lower=lower, upper=upper, budget=incumbent.budget)
    return incumbent.offer(found, "slices")


def _slice_natural(search: RelaxedSearch) -> None:
    """Cut the natural order."""
    incumbent = search.incumbent
    if not incumbent.finished:
        with incumbent.in_phase("slices"):
            _cut(incumbent, incumbent.problem.problem.order, search.options)


def _slice_relaxed(search: RelaxedSearch) -> None:
    """Cut the orders in which the ops of one stage after the other come, as long as that helps."""
    incumbent, found = search.incumbent, search.relaxed.incumbent.assignment
    if found is None or incumbent.finished:
        return
    with incumbent.in_phase("slices"):
        while found is not None and not incumbent.finished:
            order = staged_order(incumbent.problem.problem, found.stage)
            found = incumbent.assignment if _cut(incumbent, order, search.options) else None


def _solve_training_ideals(search: RelaxedSearch, name: str, most: int | None = None) -> None:
    """Solve exactly by dynamic programming over ideals, where there are not too many."""
    incumbent, relaxed = search.incumbent, search.relaxed
    if incumbent.finished or not isinstance(relaxed, StageSearch):
        return
    cap, (lower, upper), budget = most or MOST_IDEALS, _between(incumbent), incumbent.budget
    _, on_bound = incumbent.listeners("ideals")
    with incumbent.in_phase(name):
        result = solve_training_ideals(
            incumbent.problem, cap, lower=lower, upper=upper, budget=budget, on_bound=on_bound
        )
        if result is None:
            return
        incumbent.offer(result.assignment, "ideals")
        if np.isfinite(result.bound[0]):
            incumbent.raise_bound(result.bound, "ideals")
        elif result.status == "infeasible" and incumbent.values is None:
            incumbent.prove_infeasible(_why_infeasible(incumbent.problem, cap, budget), "ideals")


def _why_infeasible(training: StageTraining, cap: int, budget: Budget) -> str:
    """Return which bytes are missing so that some schedule fits: with so many more on every device one does."""

    def fits(extra: float) -> StageAssignment | None:
        larger = dataclasses.replace(training, memory_bytes=training.memory_bytes + extra)
        problem = dataclasses.replace(training.problem, memory_bytes=larger.memory_bytes / training.rules.state_factor)
        larger = dataclasses.replace(larger, problem=problem)
        found = solve_training_ideals(larger, cap, lower=0.0, upper=np.inf, budget=budget)
        return None if found is None else found.assignment

    rules, problem = training.rules, training.problem
    low = 0.0
    high = rules.state_factor * float(problem.param_bytes.sum())
    high += (2 * rules.microbatches + 3) * float(training.made_bytes.sum())
    best = fits(high)
    if best is None:
        return NOTHING_FITS
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        found = fits(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return (
        f"no split fits the memories{_recomputing(rules.recompute)}: each lacks some {high:,.0f} bytes "
        f"({format_bytes(high)})"
    )


def _recomputing(recompute: str) -> str:
    return ", with any recomputation" if recompute == "auto" else f" with recompute={recompute!r}"


def _simple(phases: Strategy[Any]) -> Phase[RelaxedSearch]:
    """Return the phase of the cheapest bound on the relaxation."""
    run = partial(_bound_relaxed, name="simple", phases=phases)
    return Phase("bound simple", run, because="linear time; closes the gap where one op or the total decides")


_ALL_IDEALS: Phase[RelaxedSearch] = Phase(
    "all ideals",
    partial(_solve_training_ideals, name="all ideals"),
    because="with a good schedule and bound, most ideals are left out",
)

TRAINING_METHODS: dict[str, Strategy[RelaxedSearch]] = {
    "auto": (
        _simple(bounding_phases("pipeline")["simple"]),
        Phase(
            "slices",
            _slice_natural,
            because="the natural order is cut exactly; ledger: 0.20 (0.07 to 0.58) on 6 problems",
        ),
        Phase(
            "few ideals",
            partial(_solve_training_ideals, name="ideals", most=FEW_IDEALS),
            because=f"up to {FEW_IDEALS:,} ideals, it proves the optimum in moments; ledger: 0.67 (0.48 to 0.88) on 6 "
            "problems",
        ),
        _without(0.4, "where ideals are many, bounds come from it, and orders to cut"),
        Phase("slices of the best order", _slice_relaxed, because="what is best without activations may not fit"),
        _ALL_IDEALS,
    )
}
"""Training of one stage a device."""

_BEST_ORDER = Phase(
    "cuts of the best order", _move_cuts, 0.5, because="what is best without activations may not fit, or be cut better"
)

INTERLEAVED_METHODS: dict[str, Strategy[RelaxedSearch]] = {
    "auto": (
        _simple(SPLIT_BOUNDING["simple"]),
        Phase(
            "cuts",
            _move_cuts,
            0.1,
            because="chunks of equal work, cuts moved first until all fits, then for the value; ledger: 0.52 (0.45 to "
            "0.59) on 2 problems",
        ),
        _without(0.1, "one of chunks, whose bounds are bounds here; most of what it finds comes early"),
        _BEST_ORDER,
        Phase("every split", _every_split, because="few: what fits may be far from what is best without activations"),
        _without(0.8, "with more time, bounds and orders may be better", TIMED),
        _BEST_ORDER,
    )
}
"""Training of several chunks a device."""


def _kind(
    form: Callable[[Request], Form[RelaxedSearch]], bounds: Callable[[], Mapping[str, Strategy[RelaxedSearch]]]
) -> Kind[RelaxedSearch]:
    return Kind(form, METHODS, STAGE_HEURISTICS, "stages", bounds)


ACTIVATIONS = _kind(
    activation_form,
    lambda: _bounding(bounding_phases("pipeline"), {"ideals with peaks": _PRICED_IDEALS}),
)
TRAINING = _kind(training_form, lambda: _bounding(bounding_phases("pipeline"), {"ideals": _ALL_IDEALS}))
INTERLEAVED = _kind(training_form, lambda: _bounding(SPLIT_BOUNDING, {}))
