"""Lower bounds on the pipeline bottleneck from minimum cuts.

The cost of a stage S, overflow apart, is a cut function of S: a tensor made in S is paid for when some consumer is
outside, one made outside when some consumer is inside. In the network of :class:`CutNetwork` the source's side is S,
and a tensor of several consumers is paid once through two auxiliary nodes. Convexity is no closure in general, but
with an anchor v in S part of it is: each ancestor of v in S brings its successors among v's ancestors, each descendant
its predecessors among v's descendants. Paths through nodes unrelated to v may leave S and come back: a relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.max_flow import FlowNetwork, max_flow
from rlinit.exact.stages.bounds.simple import allowed_classes, load_balance, simple_bound
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageProblem

__all__ = ["CutNetwork", "anchored_cut_bound", "parametric_cut_bound", "reachability"]

_SAFETY = 1e-9
"""Relative discount that covers the rounding of flows."""

_ANCHORS_PER_CHECK = 32
_DENSE_NODES = 2000
"""Up to this many nodes, matrices over pairs of nodes are affordable."""


@dataclass(frozen=True, slots=True, eq=False)
class CutNetwork:
    """The network in which cuts are stages: ops first, then two nodes a shared tensor, then source and sink.

    Parameters
    ----------
    network
        Its arcs; they are the same for every class.
    capacity
        (c, 2P) seconds of each arc for a stage of each class.
    edge_tail, edge_head, edge_arc
        (e,) the precedence edges u -> v and the arc from u to v of each.
    source_arc, sink_arc
        (n,) the arcs from the source to each node and from each node to the sink, of capacity 0.
    """

    network: FlowNetwork
    capacity: FloatArray
    edge_tail: IntArray
    edge_head: IntArray
    edge_arc: IntArray
    source_arc: IntArray
    sink_arc: IntArray

    @staticmethod
    def build(problem: StageProblem) -> CutNetwork:
        """Return the network of a problem."""
        n, m, num_classes = problem.num_nodes, problem.num_tensors, problem.num_classes
        edge_tail = np.repeat(np.arange(n, dtype=np.int64), np.diff(problem.succ_indptr))
        edge_head, num_edges = problem.succ, len(problem.succ)
        consumers = np.diff(problem.tensor_indptr)
        lone, shared = np.flatnonzero(consumers == 1), np.flatnonzero(consumers > 1)
        # A tensor with one consumer needs no node: its costs are the two directions of its edge.
        key = problem.tensor_src[lone] * n + problem.tensor_dst[problem.tensor_indptr[lone]]
        edge = np.searchsorted(edge_tail * n + edge_head, key)
        forward, backward = np.zeros((num_classes, num_edges)), np.zeros((num_classes, num_edges))
        for c in range(num_classes):
            np.add.at(forward[c], edge, problem.out_s[c, lone])
            np.add.at(backward[c], edge, problem.in_s[c, lone])
        sends = n + np.arange(len(shared), dtype=np.int64)
        receives = sends + len(shared)
        slot_of_tensor = np.zeros(m, np.int64)
        slot_of_tensor[shared] = np.arange(len(shared))
        tensor_of = np.repeat(np.arange(m), consumers)
        use = consumers[tensor_of] > 1
        user, slot = problem.tensor_dst[use], slot_of_tensor[tensor_of[use]]
        source, sink = n + 2 * len(shared), n + 2 * len(shared) + 1
        nodes = np.arange(n, dtype=np.int64)
        # made in S -> sends -> all consumers in S, or out_s is cut;
        # some consumer in S -> receives -> made in S, or in_s is cut
        maker = problem.tensor_src[shared]
        tail = np.concatenate([edge_tail, maker, receives, sends[slot], user, np.full(n, source), nodes])
        head = np.concatenate([edge_head, sends, maker, user, receives[slot], nodes, np.full(n, sink)])
        network = FlowNetwork.from_pairs(sink + 1, tail, head)
        forced, none = np.full(2 * len(user), np.inf), np.zeros(2 * len(user) + 2 * n)
        capacity = np.empty((num_classes, 2 * len(tail)))
        for c in range(num_classes):
            ahead = [forward[c], problem.out_s[c, shared], problem.in_s[c, shared], forced, np.zeros(2 * n)]
            capacity[c] = network.capacities(
                np.concatenate(ahead), np.concatenate([backward[c], np.zeros(2 * len(shared)), none])
            )
        arcs = network.arc_of_pair
        return CutNetwork(
            network, capacity, edge_tail, edge_head, arcs[:num_edges], arcs[-2 * n : -n], arcs[len(arcs) - n :]
        )


@njit(cache=True)
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


@njit(cache=True)
def _pinned_cut(
    first: IntArray,
    head: IntArray,
    twin: IntArray,
    capacity: FloatArray,
    factor: float,
    charge: FloatArray,
    outside: IntArray,
    v: int,
    ancestor: IntArray,
    descendant: IntArray,
    edge_tail: IntArray,
    edge_head: IntArray,
    edge_arc: IntArray,
    source_arc: IntArray,
    sink_arc: IntArray,
    limit: float,
    residual: FloatArray,
    level: IntArray,
    cursor: IntArray,
    path: IntArray,
) -> float:
    """Return a lower bound on min over S with v in S of factor * cut(S) + charge(S), exact unless above `limit`.

    `charge` (n,) may be negative; nodes with ``outside`` 1 stay out. Afterwards S is where ``level >= 0``.
    """
    num_nodes = len(first) - 1
    for e in range(len(capacity)):
        residual[e] = factor * capacity[e]
    gained = 0.0
    for u in range(len(charge)):
        if outside[u] == 1:
            residual[sink_arc[u]] = np.inf
        elif charge[u] >= 0.0:
            residual[sink_arc[u]] = charge[u]
        else:
            residual[source_arc[u]] = -charge[u]
            gained -= charge[u]
    residual[source_arc[v]] = np.inf
    for i in range(len(edge_arc)):
        if ancestor[edge_head[i]] == 1:
            residual[edge_arc[i]] = np.inf
        if descendant[edge_tail[i]] == 1:
            residual[twin[edge_arc[i]]] = np.inf
    cut = max_flow(first, head, twin, residual, num_nodes - 2, num_nodes - 1, limit + gained, level, cursor, path)
    return cut - gained - 1e-9 * (cut + gained) if cut < np.inf else np.inf


@njit(cache=True)
def _anchored_cuts(
    first: IntArray,
    head: IntArray,
    twin: IntArray,
    capacity: FloatArray,
    edge_tail: IntArray,
    edge_head: IntArray,
    edge_arc: IntArray,
    source_arc: IntArray,
    sink_arc: IntArray,
    order: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    anchors: IntArray,
    lone: FloatArray,
    variant_class: IntArray,
    charge: FloatArray,
    rebate: FloatArray,
    barred: IntArray,
    best: float,
) -> float:
    """Return the larger of `best` and, over `anchors`, the min over classes of the max over a class's variants."""
    num_nodes, n = len(first) - 1, len(source_arc)
    residual, path = np.empty(len(head)), np.zeros(num_nodes, np.int64)
    level, cursor = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    ancestor, descendant = np.zeros(n, np.int64), np.zeros(n, np.int64)
    backwards = order[::-1].copy()
    for v in anchors:
        if lone[v] <= best:
            continue
        _mark_relatives(backwards, succ_indptr, succ, v, ancestor)
        _mark_relatives(order, pred_indptr, pred, v, descendant)
        least = np.inf
        for c in range(len(capacity)):
            if barred[c, v] == 1:
                continue
            value = 0.0
            for j in range(len(variant_class)):
                if variant_class[j] == c:
                    cut = _pinned_cut(
                        first, head, twin, capacity[c], 1.0, charge[j], barred[c], v, ancestor, descendant,
                        edge_tail, edge_head, edge_arc, source_arc, sink_arc, np.inf,
                        residual, level, cursor, path,
                    )  # fmt: skip
                    value = max(value, cut - rebate[j])
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
    rebate = np.concatenate([np.zeros(len(work)), rate * problem.cache_bytes[spills] * (1 + _SAFETY)])
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
    problem: StageProblem, *, upper: float = np.inf, budget: Budget | None = None, max_anchors: int | None = None
) -> float:
    """Return the anchored cut bound: the dearest node's cheapest stage.

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
        Number of nodes to try at most, dearest first; None: all that can raise the bound.

    Returns
    -------
    bound
        Seconds; ``inf`` if some node fits no stage.

    Notes
    -----
    A maximum flow for each node and class, skipping nodes whose cost as a stage of their own is below the bound.
    """
    best = simple_bound(problem)[0]
    if problem.num_nodes == 0 or problem.num_tensors == 0 or not np.isfinite(best):
        return best
    cuts, lone = CutNetwork.build(problem), _lone_costs(problem)
    variant_class, charge, rebate = _variants(problem)
    barred = (~allowed_classes(problem)).astype(np.int64)
    anchors = np.argsort(-lone, kind="stable")[:max_anchors]
    for start in range(0, len(anchors), _ANCHORS_PER_CHECK):
        part = anchors[start : start + _ANCHORS_PER_CHECK]
        if best >= upper or lone[part[0]] <= best or (budget is not None and budget.expired):
            break
        best = float(
            _anchored_cuts(
                cuts.network.first, cuts.network.head, cuts.network.twin, cuts.capacity,
                cuts.edge_tail, cuts.edge_head, cuts.edge_arc, cuts.source_arc, cuts.sink_arc,
                problem.order, problem.succ_indptr, problem.succ, problem.pred_indptr, problem.pred,
                part, lone, variant_class, charge, rebate, barred, best,
            )
        )  # fmt: skip
    return best


@njit(cache=True)
def _capacity_lines(
    first: IntArray,
    head: IntArray,
    twin: IntArray,
    capacity: FloatArray,
    edge_tail: IntArray,
    edge_head: IntArray,
    edge_arc: IntArray,
    source_arc: IntArray,
    sink_arc: IntArray,
    reach: IntArray,
    hull: FloatArray,
    ceiling: float,
    barred: IntArray,
    charge: FloatArray,
    share: FloatArray,
    room: float,
    anchors: IntArray,
    slope: FloatArray,
    offset: FloatArray,
) -> None:
    """For each anchor v find slope, offset with share(S) <= slope * r + offset if v in S and cost(S) <= r.

    The line holds for every r; the one sought is lowest at r = `room`. An offset of -inf says that no such S is. The
    Lagrangian dual of max share(S) s.t. cut(S) + charge(S) <= r is convex in the slope, and each minimum cut gives a
    supporting line. `slope` holds the starting points. Nodes whose joint `hull` with v exceeds `ceiling` are not in S.
    """
    num_nodes, n = len(first) - 1, len(source_arc)
    residual, path = np.empty(len(head)), np.zeros(num_nodes, np.int64)
    level, cursor = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    ancestor, outside, net = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n)
    for v in anchors:
        total = 0.0
        for u in range(n):
            ancestor[u] = reach[u, v]
            outside[u] = 1 if barred[u] == 1 or hull[u, v] > ceiling or hull[v, u] > ceiling else 0
            total += share[u] if outside[u] == 0 else 0.0
        multiplier, start = slope[v], slope[v]
        slope[v], offset[v], best = 0.0, total, total
        # the line through (share, cost) of the cuts seen so far, one within the room and one beyond
        within_share, within_slack, beyond_share, beyond_slack = -1.0, 0.0, total, 0.0
        for _ in range(8):
            for u in range(n):
                net[u] = multiplier * charge[u] - share[u]
            low = _pinned_cut(
                first, head, twin, capacity, multiplier, net, outside, v, ancestor, reach[v],
                edge_tail, edge_head, edge_arc, source_arc, sink_arc, np.inf, residual, level, cursor, path,
            )  # fmt: skip
            if low == np.inf:
                slope[v], offset[v] = 0.0, -np.inf
                break
            if multiplier * room - low < best:
                best, slope[v], offset[v] = multiplier * room - low, multiplier, -low
            held = 0.0
            for u in range(n):
                if level[u] >= 0:
                    held += share[u]
            slack = room - (low + held) / multiplier
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
    if needed(high) > stages * (1 + _SAFETY):
        return high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed(middle) > stages * (1 + _SAFETY) else (low, middle)
    return low


def parametric_cut_bound(
    problem: StageProblem,
    *,
    upper: float = np.inf,
    budget: Budget | None = None,
    rounds: int = 4,
    max_nodes: int = _DENSE_NODES,
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
    balance = load_balance(problem)
    best = simple_bound(problem)[0]
    if not 0 < balance.bound < np.inf or problem.num_tensors == 0 or problem.num_nodes > max_nodes:
        return best
    cuts, reach = CutNetwork.build(problem), reachability(problem)
    barred = (~allowed_classes(problem)).astype(np.int64)
    rate = balance.overflow_share * problem.overflow_s_per_byte
    rebate = np.where(rate > 0, rate * np.where(rate > 0, problem.cache_bytes, 0.0), 0.0)
    charge = np.where(barred == 0, problem.work_s, 0.0) + rate[:, None] * problem.param_bytes
    cheapest = np.where(barred == 0, problem.work_s, np.inf).min(axis=0)
    share = cheapest / cheapest.sum() if cheapest.sum() > 0 else np.full(len(cheapest), 1 / len(cheapest))
    hull = (reach * cheapest) @ reach
    stages = float(problem.class_count @ balance.price)
    used = np.flatnonzero(problem.class_count > 0)
    slope = np.full(charge.shape, 1.0 / (best * stages))
    ceiling = min(upper, 2.0 * best)
    for _ in range(rounds):
        offset = np.full(charge.shape, np.inf)
        for c in used:
            for start in range(0, problem.num_nodes, _ANCHORS_PER_CHECK):
                if best >= upper or (budget is not None and budget.expired):
                    return best
                part = np.arange(start, min(start + _ANCHORS_PER_CHECK, problem.num_nodes))
                _capacity_lines(
                    cuts.network.first, cuts.network.head, cuts.network.twin, cuts.capacity[c],
                    cuts.edge_tail, cuts.edge_head, cuts.edge_arc, cuts.source_arc, cuts.sink_arc,
                    reach.astype(np.int64), hull, ceiling * (1 + _SAFETY), barred[c], charge[c], share,
                    min(best, ceiling) + rebate[c], part, slope[c], offset[c],
                )  # fmt: skip
        offset += slope * rebate[:, None]
        best = max(best, _threshold(share, slope, offset, balance.price, stages, ceiling))
        ceiling = min(upper, best * (2.0 if best >= ceiling else 1.02))
        held = np.where(offset > -np.inf, slope * best + offset, np.inf)[used].max(axis=0)
        share = np.divide(share, held, out=np.zeros_like(share), where=(held > 0) & (held < np.inf))
        share = share / share.sum() if share.sum() > 0 else cheapest / cheapest.sum()
        slope = np.where(slope > 0, slope, 1.0 / (best * stages))
    return best


def reachability(problem: StageProblem) -> FloatArray:
    """Return (n, n) 0/1: whether node v is u or a descendant of u."""
    reach = np.zeros((problem.num_nodes, problem.num_nodes), np.bool_)
    for v in problem.order[::-1]:
        after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        reach[v] = reach[after].any(axis=0)
        reach[v, v] = True
    return reach.astype(np.float64)
