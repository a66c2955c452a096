"""The parametric cut bound: how many stages of a bottleneck the nodes need, with each stage's unavoidable transfers."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget, reserve
from rlinit.exact.stages.bounds.cut_network import SAFETY, CutArrays, CutNetwork, CutRoom, cut_room, pinned_cut
from rlinit.exact.stages.bounds.simple import allowed_classes, load_balance, simple_bound
from rlinit.kernels.compiled import njit
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageProblem

_DENSE_NODES = 2000
"""Up to this many nodes, matrices over pairs of nodes are affordable."""

_ROWS = 200
"""Rows of a product of such matrices between looks at the budget."""

_CUTS = 8
"""Minimum cuts that are spent on the line of one anchor."""


class CapacityLines(NamedTuple):
    """Lines over the cost r of a stage: share(S) <= slope[v] * r + offset[v] for every S with v in it of cost r.

    Parameters
    ----------
    capacity, charge, forbidden
        (2P,), (n,), (n,) what a stage costs, and 1 where a node may not run.
    reach, hull, ceiling
        (n, n) whether a node is another or after it, (n, n) work on paths between them; nodes whose joint hull exceeds
        the ceiling in seconds are not in one stage.
    share
        (n,) weights that add up to 1.
    room
        Seconds r at which the line sought is lowest.
    slope, offset
        (n,) the lines; slopes to start from at first. An offset of -inf says that no such S is.
    """

    capacity: FloatArray
    charge: FloatArray
    forbidden: IntArray
    reach: IntArray
    hull: FloatArray
    ceiling: float
    share: FloatArray
    room: float
    slope: FloatArray
    offset: FloatArray


@njit(cache=True, nogil=True)
def _capacity_lines(arcs: CutArrays, lines: CapacityLines, first: int, last: int) -> int:
    """Find the lines of the anchors first..last-1; return how many these are."""
    n = len(lines.share)
    room = cut_room(arcs)
    ancestor, outside = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for v in range(first, last):
        total = 0.0
        for u in range(n):
            ancestor[u] = lines.reach[u, v]
            apart = lines.hull[u, v] > lines.ceiling or lines.hull[v, u] > lines.ceiling
            outside[u] = 1 if lines.forbidden[u] == 1 or apart else 0
            total += lines.share[u] if outside[u] == 0 else 0.0
        _lowest_line(arcs, lines, room, v, ancestor, outside, total)
    return last - first


@njit(cache=True, nogil=True)
def _lowest_line(
    arcs: CutArrays, lines: CapacityLines, room: CutRoom, v: int, ancestor: IntArray, outside: IntArray, total: float
) -> None:
    """Find the line of anchor v; `total` is the share of all nodes that are not outside.

    The Lagrangian dual of max share(S) s.t. cut(S) + charge(S) <= r is convex in the slope, and each minimum cut gives
    a supporting line.
    """
    slope, offset, share, most = lines.slope, lines.offset, lines.share, lines.room
    net = np.empty(len(share))
    multiplier, start = slope[v], slope[v]
    slope[v], offset[v], best = 0.0, total, total
    # the line through (share, cost) of the cuts seen so far, one within the room and one beyond
    within_share, within_slack, beyond_share, beyond_slack = -1.0, 0.0, total, 0.0
    for _ in range(_CUTS):
        for u in range(len(share)):
            net[u] = multiplier * lines.charge[u] - share[u]
        low = pinned_cut(arcs, room, lines.capacity, multiplier, net, outside, v, ancestor, lines.reach[v])
        if low == np.inf:
            slope[v], offset[v] = 0.0, -np.inf
            break
        if multiplier * most - low < best:
            best, slope[v], offset[v] = multiplier * most - low, multiplier, -low
        held = 0.0
        for u in range(len(share)):
            if room.level[u] >= 0:
                held += share[u]
        slack = most - (low + held) / multiplier
        if slack >= 0.0:
            within_share, within_slack = held, slack
        else:
            beyond_share, beyond_slack = held, slack
        if within_share < 0.0:
            multiplier *= 2.0
        elif beyond_slack == 0.0:
            multiplier *= 0.5
        else:
            multiplier = (beyond_share - within_share) / (within_slack - beyond_slack)
            if within_share + within_slack * multiplier > best * (1.0 - 1e-3):
                break
        if not 1e-6 * start < multiplier < 1e6 * start:
            break


def _hulls(reach: FloatArray, work: FloatArray, budget: Budget) -> FloatArray | None:
    """Return (n, n) the work on paths from one node to another, both included; None if the budget ended first."""
    hull = np.empty_like(reach)
    for first in range(0, len(reach), _ROWS):
        if budget.expired:
            return None
        hull[first : first + _ROWS] = (reach[first : first + _ROWS] * work) @ reach
    return hull


def _threshold(
    share: FloatArray, slope: FloatArray, offset: FloatArray, price: FloatArray, stages: float, ceiling: float
) -> float:
    """Return the largest T <= `ceiling` at which ``sum_v min_c price_c share_v / (slope_cv T + offset_cv) > stages``.

    `slope` and `offset` are (c, n), `share` (n,) sums to 1. Where the line is below the share of the anchor alone, the
    node fits no stage of the class at that T.
    """

    def needed(bottleneck: float) -> float:
        held = slope * bottleneck + offset
        alone = np.maximum(held, share)  # a stage holds at least the anchor, or there is none
        load = np.divide(price[:, None] * share, alone, out=np.zeros_like(held), where=alone > 0)
        load[held < share - 1e-7] = np.inf
        return float(load.min(axis=0).sum())

    low, high = 0.0, ceiling
    if needed(high) > stages * (1 + SAFETY):
        return high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed(middle) > stages * (1 + SAFETY) else (low, middle)
    return low


def parametric_cut_bound(
    problem: StageProblem,
    *,
    upper: float = np.inf,
    budget: Budget | None = None,
    rounds: int = 4,
    max_nodes: int = _DENSE_NODES,
    contiguous: bool = True,
) -> float:
    """Return the parametric cut bound: how many stages of cost T the nodes need at least.

    Let share (n,) be any nonnegative weights and T a bottleneck. A stage S of cost at most T that contains v has
    ``share(S) <= h_v``, where h_v comes from the Lagrangian dual of max share(S) s.t. cost(S) <= T over cuts anchored
    at v. Summed over stages, ``sum_v share_v / h_v`` is at most the number of stages, or else the optimum exceeds T.
    It is the average-work bound with every stage's unavoidable communication in it. Each round sets the shares to
    share / h (a dual ascent) and keeps nodes apart whose hull (all nodes on paths between them) exceeds T alone.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        Seconds, the value of a known assignment; the bound does not exceed it.
    budget
        When it ends, the best bound so far is returned.
    rounds
        Rounds of dual ascent.
    max_nodes
        Above this many nodes only the simple bound is computed: memory is quadratic.
    contiguous
        Whether stages are convex. Where a device may hold any nodes, the hull of two is themselves.

    Returns
    -------
    bound
        Seconds; at least the simple bound, ``inf`` if some node fits no stage.

    Notes
    -----
    Some 3 maximum flows for each node, class and round.

    References
    ----------
    Generalises MTPP, section 3.2 (some stage has the average work) to a weighted average over all stages.
    """
    balance = load_balance(problem, budget)
    best = simple_bound(problem, budget)[0]
    if not 0 < balance.bound < np.inf or problem.num_tensors == 0 or problem.num_nodes > max_nodes:
        return best
    budget = budget or Budget()
    cuts, reach = CutNetwork.build(problem), reachability(problem) if contiguous else np.eye(problem.num_nodes)
    pairs = reach.astype(np.int64)
    forbidden = (~allowed_classes(problem)).astype(np.int64)
    rate = balance.overflow_share * problem.overflow_s_per_byte
    rebate = np.where(rate > 0, rate * np.where(rate > 0, problem.cache_bytes, 0.0), 0.0)
    charge = np.where(forbidden == 0, problem.work_s, 0.0) + rate[:, None] * problem.param_bytes
    cheapest = np.where(forbidden == 0, problem.work_s, np.inf).min(axis=0)
    share = cheapest / cheapest.sum() if cheapest.sum() > 0 else np.full(len(cheapest), 1 / len(cheapest))
    hull = _hulls(reach, cheapest, budget) if contiguous else _pairs(cheapest)
    if hull is None:
        return best
    stages = float(problem.class_count @ balance.price)
    used = np.flatnonzero(problem.class_count > 0)
    slope = np.full(charge.shape, 1.0 / (best * stages))
    ceiling = min(upper, 2.0 * best)
    for _ in range(rounds):
        offset = np.full(charge.shape, np.inf)
        for c in used.tolist():
            if best >= upper:
                return best

            lines = CapacityLines(
                cuts.capacity[c], charge[c], forbidden[c], pairs, hull, ceiling * (1 + SAFETY), share,
                min(best, ceiling) + rebate[c], slope[c], offset[c],
            )  # fmt: skip
            call = partial(_capacity_lines, cuts.arrays, lines)
            if not run_in_chunks(call, problem.num_nodes, budget):
                return best
        offset += slope * rebate[:, None]
        best = max(best, _threshold(share, slope, offset, balance.price, stages, ceiling))
        ceiling = min(upper, best * (2.0 if best >= ceiling else 1.02))
        held = np.where(offset > -np.inf, slope * best + offset, np.inf)[used].max(axis=0)
        share = np.divide(share, held, out=np.zeros_like(share), where=(held > 0) & (held < np.inf))
        share = share / share.sum() if share.sum() > 0 else cheapest / cheapest.sum()
        slope = np.where(slope > 0, slope, 1.0 / (best * stages))
    return best


def _pairs(work: FloatArray) -> FloatArray:
    """Return (n, n) the work of two nodes together, of one on the diagonal."""
    pairs: FloatArray = np.add.outer(work, work)
    np.fill_diagonal(pairs, work)
    return pairs


def reachability(problem: StageProblem) -> FloatArray:
    """Return (n, n) 0/1: whether node v is u or a descendant of u."""
    reserve(9.0 * problem.num_nodes**2, f"which of {problem.num_nodes:,} ops lead to which")
    reach = np.zeros((problem.num_nodes, problem.num_nodes), np.bool_)
    for v in problem.order[::-1]:
        after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        reach[v] = reach[after].any(axis=0)
        reach[v, v] = True
    return reach.astype(np.float64)
