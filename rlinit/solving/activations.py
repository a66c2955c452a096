"""Solving `pipeline` problems whose memory counts activations, those of overflow and those of training.

Either is a problem without them, slices of orders, and ideals, which price stages as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.comparison.baselines import cut_order
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.ideals.activations import solve_activation_ideals
from rlinit.exact.stages.ideals.training import slice_training_order, slicing_entries, solve_training_ideals
from rlinit.heuristics.stages.activation_slicing import slice_with_peaks
from rlinit.heuristics.stages.orders import staged_order
from rlinit.kernels.orders import kahn
from rlinit.plan import HistoryEntry, Plan
from rlinit.solving.incumbent import ActivationIncumbent, Incumbent, Progress, TrainingIncumbent, for_stages
from rlinit.solving.options import SolveOptions
from rlinit.solving.phases import Strategy, follow
from rlinit.solving.splits import SPLIT_METHODS, Chunks, SplitSearch
from rlinit.solving.stage_bounds import NOTHING_FITS, bound_phase
from rlinit.solving.stage_phases import FEW_IDEALS, StageSearch
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.problem import StageAssignment
from rlinit.stages.training.problem import StageTraining, training_shortfall
from rlinit.units import format_bytes

_BASE_SHARE = 0.6
"""Of the time left, what the problem without activations may take."""

_ROUNDS = 8
"""Slicings of orders that the slicing before made better, at most."""

_SLICE_S = 0.2
"""Seconds that one slicing may take however little time is left."""

_RELAXED_SHARE = 0.4
"""Of the time left, what the problem without the memory of activations may take where there are many ideals."""

_CUT_ROUNDS = 4
"""Slicings of the order of the schedule that the slicing before found, at most."""

_RESTARTS = 20
"""Descents of the cuts of interleaved stages from one schedule: each takes a hundred evaluations or more."""

_ENTRIES_A_S = 1e7
"""Entries of the tables of a slicing that are made and used in a second."""

_FEW_SPLITS = 100_000
"""Splits of nodes into stages, times orders of devices, up to which interleaved ones are tried one by one: seconds."""

_MISSING_STEPS = 12
"""Halvings of the interval in which the bytes that are missing lie."""


def solve_activations(incumbent: ActivationIncumbent, search: StageSearch, strategy: Strategy[StageSearch]) -> None:
    """Improve value and bound of a problem with activations, from the schedule that `search` starts from.

    1. The relaxed problem without activations, whose cache is smaller by what every stage needs at least, is solved by
       `strategy`. Its bounds are bounds here, and its schedules are priced with activations.
    2. Orders are sliced with their peaks, each time after putting the ops of each stage in the best order found.
    3. The dynamic program over ideals prices stages exactly, where the graph has few ideals.

    Parameters
    ----------
    incumbent
        What is known of the problem with activations.
    search
        How the relaxed problem is searched, and the schedule to start from.
    strategy
        Its phases.
    """
    incumbent.offer(search.start, "plan")
    with (
        incumbent.part("the problem without activations"),
        incumbent.in_phase("without activations"),
        incumbent.within(_BASE_SHARE),
    ):
        _solve_relaxed(incumbent, search, strategy)
    if not incumbent.finished:
        with incumbent.part("slices with peaks"), incumbent.in_phase("slices with peaks"):
            _slice(incumbent)
    if not incumbent.finished:
        with incumbent.part("ideals with peaks"), incumbent.in_phase("ideals with peaks"):
            _solve_ideals(incumbent)


def _solve_relaxed(incumbent: ActivationIncumbent, search: StageSearch, strategy: Strategy[StageSearch]) -> None:
    """Solve the problem without activations; take its bounds, and its schedule at its price with them."""
    problem = incumbent.problem
    search.incumbent = base = for_stages(
        problem.relaxed, incumbent.budget, incumbent.target_gap, _bounds_only(incumbent.progress)
    )
    base.offer(search.start, "plan")
    follow(strategy, search)
    incumbent.notes += base.notes
    if base.infeasible:
        incumbent.prove_infeasible(base.infeasible, base.refuter)
        return
    if base.bounds is not None:
        incumbent.raise_bound(base.bounds, base.bound_source)
    incumbent.raise_bound((_alone(problem),), "op with its tensors")
    incumbent.offer(base.assignment, base.method)


def _solve_ideals(incumbent: ActivationIncumbent) -> None:
    """Price stages exactly by dynamic programming over ideals, where the graph has few."""
    upper = incumbent.values[0] if incumbent.values else np.inf
    found = solve_activation_ideals(incumbent.problem, upper=upper, budget=incumbent.budget)
    if found is None:
        return
    incumbent.offer(found.assignment, "ideals with peaks")
    if np.isfinite(found.bound[0]):
        incumbent.raise_bound(found.bound, "ideals with peaks")
    elif incumbent.values is None:
        incumbent.prove_infeasible(NOTHING_FITS, "ideals with peaks")


def _bounds_only(progress: Progress | None) -> Progress | None:
    """Return what tells of bounds and phases, but not of values, which are too low without activations."""
    if progress is None:
        return None

    def tell(entry: HistoryEntry) -> None:
        progress(dataclasses.replace(entry, values=None))

    return tell


def _alone(problem: StageActivations) -> float:
    """Return a bound: the stage of any node holds at least its parameters and tensors, and does its work."""
    base = problem.problem
    over = np.maximum(base.param_bytes + problem.floor_bytes - base.cache_bytes[:, None], 0.0)
    rate = base.overflow_s_per_byte[:, None]
    with np.errstate(invalid="ignore"):
        seconds: FloatArray = base.work_s + np.where(over > 0, over * rate, 0.0)
    seconds[~(base.class_count > 0)] = np.inf
    return float(seconds.min(axis=0).max()) * (1.0 - 1e-9)


def _slice(incumbent: ActivationIncumbent) -> None:
    """Slice the natural order and those of the best schedule, as long as that helps."""
    problem = incumbent.problem
    orders = [problem.ops_of(problem.problem.order)]
    if incumbent.assignment is not None:
        orders.append(_order_of(problem, incumbent.assignment))
    for order in orders:
        improved = True
        for _ in range(_ROUNDS):
            if not improved or incumbent.finished:
                break
            upper = incumbent.values[0] if incumbent.values else np.inf
            found = slice_with_peaks(
                problem, np.array(order, np.int64), upper, max(_SLICE_S, incumbent.budget.remaining_s)
            )
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


# -- training ------------------------------------------------------------------------------------------------------


def solve_training(incumbent: TrainingIncumbent, search: StageSearch, strategy: Strategy[StageSearch]) -> None:
    """Improve value and bound of a training pipeline, from the schedule that `search` starts from.

    1. The natural order is sliced exactly; the cheapest bound is that of the relaxation without activations.
    2. Where ideals are few, the dynamic program over them proves the optimum.
    3. Else the relaxation is solved by `strategy` for its bound, and orders of its schedules are sliced; then the
       ideals again, as many as fit into memory.

    Parameters
    ----------
    incumbent
        What is known of the training pipeline.
    search
        How the relaxation is searched, and the schedule to start from.
    strategy
        Its phases.
    """
    incumbent.offer(search.start, "plan")
    base = search.incumbent = for_stages(
        incumbent.problem.problem, incumbent.budget, incumbent.target_gap, _bounds_only(incumbent.progress)
    )
    with incumbent.part("bound simple"), incumbent.in_phase("bound: simple"):
        bound_phase(base, "simple")
        _take_bound(incumbent, base)
    if not incumbent.finished:
        with incumbent.part("slices"), incumbent.in_phase("slices"):
            _cut(incumbent, incumbent.problem.problem.order, search.options)
    if not incumbent.finished:
        with incumbent.part("ideals"), incumbent.in_phase("ideals"):
            _solve_training_ideals(incumbent, FEW_IDEALS)
    if not incumbent.finished:
        with (
            incumbent.part("the problem without activations"),
            incumbent.in_phase("without activations"),
            incumbent.within(_RELAXED_SHARE),
        ):
            base.budget = incumbent.budget
            base.offer(search.start, "plan")
            follow(strategy, search)
            _take_bound(incumbent, base)
            incumbent.offer(base.assignment, base.method)
    if not incumbent.finished and base.assignment is not None:
        with incumbent.part("slices"), incumbent.in_phase("slices"):
            _cut_again(incumbent, base.assignment, search.options)
    if not incumbent.finished:
        with incumbent.part("ideals"), incumbent.in_phase("all ideals"):
            _solve_training_ideals(incumbent, search.limits.ideal_cap)


def solve_interleaved(incumbent: TrainingIncumbent, form: Chunks, search: StageSearch, plan: Plan | None) -> None:
    """Improve value and bound of a training pipeline with interleaved stages.

    1. The problem without the memory of activations is one of chunks, whose bounds are bounds here; its best schedule
       is priced with that memory.
    2. Cuts of orders are moved, first until all fits, then for the value.
    3. Small problems are searched split by split: what fits may be far from what is best without that memory.

    Parameters
    ----------
    incumbent
        What is known of the training pipeline.
    form
        The relaxation.
    search
        How to solve it; told where the first schedule came from.
    plan
        A plan to refine, or None.
    """
    if plan is not None:
        start = form.from_plan(plan)
        incumbent.offer(StageAssignment(start.stage, start.classes), "plan")
    options, search.origin = search.options, "equal chunks" if plan is None else "plan"
    simple = form.simple_start()
    with incumbent.part("cuts"), incumbent.in_phase("cuts"):
        incumbent.raise_bound((simple_bound(incumbent.problem.problem, incumbent.budget)[0],), "simple")
        incumbent.offer(StageAssignment(simple.stage, simple.classes), "equal chunks")
        incumbent.offer(_moved_cuts(incumbent, StageAssignment(simple.stage, simple.classes), options), "cuts")
    if incumbent.finished:
        return
    with incumbent.part("the problem without activations"), incumbent.in_phase("without activations"):
        base = form.incumbent(incumbent.budget.share(0.8 * incumbent.budget.remaining_s), options, None)
        follow(SPLIT_METHODS["auto"], SplitSearch(base, options, form, None))
        _take_bound(incumbent, base)
    if base.assignment is not None and not incumbent.finished:
        with incumbent.part("cuts"), incumbent.in_phase("cuts"):
            found = StageAssignment(base.assignment.stage, base.assignment.classes)
            incumbent.offer(found, base.method)
            incumbent.offer(_moved_cuts(incumbent, found, options), "cuts")
    if not incumbent.finished:
        with incumbent.part("every split"), incumbent.in_phase("every split"):
            _every_split(incumbent)


def _every_split(incumbent: TrainingIncumbent) -> None:
    """Try all splits of a small problem into interleaved stages, and all orders of its devices.

    Infeasibility is proven, and the optimum where blocks leave no choice: that of several stages is a greedy one, which
    fits where any does.
    """
    training, problem = incumbent.problem, incumbent.problem.problem
    n, k, count = problem.num_nodes, problem.num_stages, training.num_stages
    if n * math.log(count) + math.lgamma(k + 1) > math.log(_FEW_SPLITS):
        return
    splits = np.indices((count,) * n).reshape(n, -1)
    after = np.repeat(np.arange(n), np.diff(problem.pred_indptr))
    splits = splits[:, (splits[problem.pred] <= splits[after]).all(axis=0)].T
    for classes in sorted(set(itertools.permutations(problem.stage_class.tolist()))):
        for stage in splits:
            if incumbent.finished:
                return
            incumbent.offer(StageAssignment(stage, np.array(classes, np.int64)), "every split")
    if incumbent.values is None:
        incumbent.prove_infeasible(NOTHING_FITS, "every split")
    elif training.rules.recompute != "auto" or not training.blocks.names:
        incumbent.raise_bound(incumbent.values, "every split")


def _moved_cuts(incumbent: TrainingIncumbent, assignment: StageAssignment, options: SolveOptions) -> StageAssignment:
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


def _take_bound(incumbent: TrainingIncumbent, base: Incumbent[Any, Any]) -> None:
    """Take what the relaxation proved."""
    incumbent.notes += [note for note in base.notes if note not in incumbent.notes]
    if base.infeasible:
        incumbent.prove_infeasible(base.infeasible, base.refuter)
    elif base.bounds is not None:
        incumbent.raise_bound(base.bounds, base.bound_source)


def _cut(incumbent: TrainingIncumbent, order: IntArray, options: SolveOptions) -> bool:
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


def _cut_again(incumbent: TrainingIncumbent, assignment: StageAssignment, options: SolveOptions) -> None:
    """Cut the orders in which the ops of one stage after the other come, as long as that helps."""
    for _ in range(_CUT_ROUNDS):
        order = staged_order(incumbent.problem.problem, assignment.stage)
        if incumbent.finished or not _cut(incumbent, order, options) or incumbent.assignment is None:
            return
        assignment = incumbent.assignment


def _between(incumbent: TrainingIncumbent) -> tuple[float, float]:
    lower = incumbent.bounds[0] if incumbent.bounds else 0.0
    return lower, incumbent.values[0] if incumbent.values else np.inf


def _solve_training_ideals(incumbent: TrainingIncumbent, cap: int) -> None:
    """Solve exactly by dynamic programming over ideals, where there are not too many."""

    def on_bound(proven: float) -> None:
        incumbent.raise_bound((proven,), "ideals")

    lower, upper = _between(incumbent)
    result = solve_training_ideals(
        incumbent.problem, cap, lower=lower, upper=upper, budget=incumbent.budget, on_bound=on_bound
    )
    if result is None:
        return
    incumbent.offer(result.assignment, "ideals")
    if np.isfinite(result.bound[0]):
        incumbent.raise_bound(result.bound, "ideals")
    elif result.status == "infeasible" and incumbent.values is None:
        incumbent.prove_infeasible(_why_infeasible(incumbent.problem, cap, incumbent.budget), "ideals")


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
    for _ in range(_MISSING_STEPS):
        middle = 0.5 * (low + high)
        found = fits(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return (
        f"no split fits the memories{_recomputing(rules.recompute)}: each lacks some {high:,.0f} bytes "
        f"({format_bytes(high)})"
    )


def _recomputing(recompute: str) -> str:
    return ", with any recomputation" if recompute == "auto" else f" with recompute={recompute!r}"
