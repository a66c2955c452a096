"""Solving a `pipeline` problem whose overflow counts activations: the problem without them, slices, ideals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.plan import HistoryEntry
from rlinit.solving.incumbent import ActivationIncumbent, Progress, StageIncumbent, for_stages
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.problem import StageAssignment

__all__ = ["solve_activations"]

_BASE_SHARE = 0.6
"""Of the time left, what the problem without activations may take."""

_ROUNDS = 8
"""Slicings of orders that the slicing before made better, at most."""


def solve_activations(incumbent: ActivationIncumbent, solve_base: Callable[[StageIncumbent], None]) -> None:
    """Improve value and bound of a problem with activations.

    1. The relaxed problem without activations, whose cache is smaller by what every stage needs at least, is solved by
       `solve_base`. Its bounds are bounds here, and its schedules are priced with activations.
    2. Orders are sliced with their peaks, each time after putting the ops of each stage in the best order found.
    3. The dynamic program over ideals prices stages exactly, where the graph has few ideals.
    """
    problem, progress = incumbent.problem, incumbent.progress
    with incumbent.in_phase("without activations"), incumbent.within(_BASE_SHARE):
        base = for_stages(problem.relaxed, incumbent.budget, incumbent.target_gap, _bounds_only(progress))
        solve_base(base)
        if base.infeasible:
            incumbent.infeasible = base.infeasible
            return
        if base.bounds is not None:
            incumbent.raise_bound(base.bounds, base.bound_source)
        incumbent.raise_bound((_alone(problem),), "op with its tensors")
        incumbent.offer(base.assignment, base.method)
    if incumbent.finished:
        return
    with incumbent.in_phase("slices with peaks"):
        _slice(incumbent)
    if incumbent.finished:
        return
    from rlinit.exact.stages.ideals.activations import solve_activation_ideals

    with incumbent.in_phase("ideals with peaks"):
        upper = incumbent.values[0] if incumbent.values else np.inf
        found = solve_activation_ideals(problem, upper=upper, budget=incumbent.budget)
        if found is not None:
            incumbent.offer(found.assignment, "ideals with peaks")
            if np.isfinite(found.bound[0]):
                incumbent.raise_bound(found.bound, "ideals with peaks")
            elif incumbent.values is None:
                incumbent.infeasible = "no assignment respects precedence, memory and exclusions together"


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
    from rlinit.heuristics.stages.activation_slicing import slice_with_peaks

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
    from rlinit.kernels.orders import kahn

    base = problem.problem
    priority = np.full(base.num_nodes, -np.inf)
    np.maximum.at(priority, problem.node_of_op, -place.astype(np.float64))
    return kahn(priority, base.succ_indptr, base.succ, base.pred_indptr)
