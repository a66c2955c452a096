"""Solving a `pipeline` problem whose overflow counts activations: the problem without them, slices, ideals."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.stages.ideals.activations import solve_activation_ideals
from rlinit.heuristics.stages.activation_slicing import slice_with_peaks
from rlinit.kernels.orders import kahn
from rlinit.plan import HistoryEntry
from rlinit.solving.incumbent import ActivationIncumbent, Progress, for_stages
from rlinit.solving.stage_bounds import NOTHING_FITS
from rlinit.solving.stage_phases import StageSearch
from rlinit.solving.strategy import Strategy, follow
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.problem import StageAssignment

__all__ = ["solve_activations"]

_BASE_SHARE = 0.6
"""Of the time left, what the problem without activations may take."""

_ROUNDS = 8
"""Slicings of orders that the slicing before made better, at most."""


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
        incumbent.prove_infeasible(base.infeasible, "the problem without activations")
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
            found = slice_with_peaks(problem, np.array(order, np.int64), upper)
            improved = incumbent.offer(found, "slices with peaks")
            if improved and incumbent.assignment is not None:
                order = _order_of(problem, incumbent.assignment)


def _order_of(problem: StageActivations, assignment: StageAssignment) -> list[int]:
    """Return the ops stage by stage, in the best order of each, with the ops of a node moved together."""
    order = [op for stage in problem.orders(assignment) for op in stage]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
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
