"""The anchored cut bound: some stage holds the costliest node, and costs at least a minimum cut around it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.stages.bounds.cut_network import SAFETY, CutArrays, CutNetwork, cut_room, pinned_cut
from rlinit.exact.stages.bounds.simple import allowed_classes, simple_bound
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import Precedence
from rlinit.stages.problem import StageProblem

_ANCHORS_PER_CHECK = 32
"""Nodes between looks at the budget."""


class StageCuts(NamedTuple):
    """What a stage costs, by cuts: f_c(S) >= cut_c(S) + charge_j(S) - rebate_j for every variant j of class c.

    Parameters
    ----------
    capacity
        (c, 2P) of each arc.
    variant_class
        (j,) class of each variant.
    charge, rebate
        (j, n), (j,) seconds.
    forbidden
        (c, n) 1 where a node may not run.
    """

    capacity: FloatArray
    variant_class: IntArray
    charge: FloatArray
    rebate: FloatArray
    forbidden: IntArray


@njit(cache=True, nogil=True)
def _mark_relatives(order: IntArray, indptr: IntArray, neighbour: IntArray, v: int, mark: IntArray) -> None:
    """Set `mark` to 1 at v and at every node that reaches v through `neighbour`, visited in `order`."""
    for i in range(len(mark)):
        mark[i] = 0
    mark[v] = 1
    for u in order:
        if mark[u] == 0:
            for q in range(indptr[u], indptr[u + 1]):
                if mark[neighbour[q]] == 1:
                    mark[u] = 1
                    break


@njit(cache=True, nogil=True)
def _anchored_cuts(
    arcs: CutArrays,
    stages: StageCuts,
    order: IntArray,
    precedence: Precedence,
    anchors: IntArray,
    lone: FloatArray,
    best: float,
) -> float:
    """Return the larger of `best` and, over `anchors`, the min over classes of the max over a class's variants."""
    capacity, forbidden = stages.capacity, stages.forbidden
    n = len(lone)
    room = cut_room(arcs)
    ancestor, descendant = np.zeros(n, np.int64), np.zeros(n, np.int64)
    backwards = order[::-1].copy()
    for v in anchors:
        if lone[v] <= best:
            continue
        _mark_relatives(backwards, precedence.succ_indptr, precedence.succ, v, ancestor)
        _mark_relatives(order, precedence.pred_indptr, precedence.pred, v, descendant)
        least = np.inf
        for c in range(len(capacity)):
            if forbidden[c, v] == 1:
                continue
            value = 0.0
            for j in range(len(stages.variant_class)):
                if stages.variant_class[j] == c:
                    charge = stages.charge[j]
                    cut = pinned_cut(arcs, room, capacity[c], 1.0, charge, forbidden[c], v, ancestor, descendant)
                    value = max(value, cut - stages.rebate[j])
            least = min(least, value)
            if least <= best:
                break
        best = max(best, least)
    return best


def _variants(problem: StageProblem) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return (j,) classes, (j, n) charges, (j,) rebates: f_c(S) >= cut(S) + charge(S) - rebate for every variant.

    The second variant of a class takes overflow >= rate * (param(S) - cache).
    """
    spills = np.flatnonzero(np.isfinite(problem.cache_bytes) & (problem.overflow_s_per_byte > 0))
    work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
    rate = problem.overflow_s_per_byte[spills]
    charge = np.concatenate([work, work[spills] + rate[:, None] * problem.param_bytes])
    rebate = np.concatenate([np.zeros(len(work)), rate * problem.cache_bytes[spills] * (1 + SAFETY)])
    return np.concatenate([np.arange(len(work)), spills]).astype(np.int64), charge, rebate


def _lone_costs(problem: StageProblem) -> FloatArray:
    """Return (n,) the cost of each node as a stage of its own on its cheapest class."""
    best = np.full(problem.num_nodes, np.inf)
    tensor_of = np.repeat(np.arange(problem.num_tensors), np.diff(problem.tensor_indptr))
    for c in np.flatnonzero(problem.class_count > 0):
        cost = problem.work_s[c] + np.bincount(
            problem.tensor_src, weights=problem.out_s[c], minlength=problem.num_nodes
        )
        cost += np.bincount(problem.tensor_dst, weights=problem.in_s[c][tensor_of], minlength=problem.num_nodes)
        over = np.maximum(problem.param_bytes - problem.cache_bytes[c], 0.0)
        cost += np.where(over > 0, over * problem.overflow_s_per_byte[c], 0.0)
        fits = problem.param_bytes <= problem.memory_bytes[c] * CAPACITY_SLACK
        best = np.minimum(best, np.where(fits, cost, np.inf))
    return best


def anchored_cut_bound(
    problem: StageProblem,
    *,
    upper: float = np.inf,
    budget: Budget | None = None,
    max_anchors: int | None = None,
    contiguous: bool = True,
) -> float:
    """Return the anchored cut bound: the costliest node's cheapest stage.

    Every node v is in some stage, and the cheapest S that contains v is a minimum cut (convexity relaxed to v's
    ancestors and descendants, memory capacities to single nodes). The bound is the maximum over v, and at least the
    simple bound.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        Seconds; the search ends when the bound reaches it.
    budget
        When it ends, the best bound so far is returned.
    max_anchors
        Number of nodes to try at most, costliest first; None: all that can raise the bound.
    contiguous
        Whether stages are convex. Where a device may hold any nodes, S is any set that contains v.

    Returns
    -------
    bound
        Seconds; ``inf`` if some node fits no stage.

    Notes
    -----
    A maximum flow for each node and class, skipping nodes whose cost as a stage of their own is below the bound.
    """
    best = simple_bound(problem, budget)[0]
    if problem.num_nodes == 0 or problem.num_tensors == 0 or not np.isfinite(best):
        return best
    cuts, lone = CutNetwork.build(problem), _lone_costs(problem)
    variant_class, charge, rebate = _variants(problem)
    forbidden = (~allowed_classes(problem)).astype(np.int64)
    anchors = np.argsort(-lone, kind="stable")[:max_anchors]
    order = problem.order if contiguous else problem.order[:0]  # without an order v has no relatives to bring along
    for start in range(0, len(anchors), _ANCHORS_PER_CHECK):
        part = anchors[start : start + _ANCHORS_PER_CHECK]
        if best >= upper or lone[part[0]] <= best or (budget is not None and budget.expired):
            break
        stages = StageCuts(cuts.capacity, variant_class, charge, rebate, forbidden)
        best = float(_anchored_cuts(cuts.arrays, stages, order, problem.precedence, part, lone, best))
    return best
