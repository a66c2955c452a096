"""The anchored cut bound: some stage holds the costliest node, and costs at least a minimum cut around it.

The cost of a stage S, overflow apart, is a cut function of S: a tensor made in S is paid for when some consumer is
outside, one made outside when some consumer is inside. In the network the source's side is S, and a tensor of several
consumers is paid once through two auxiliary nodes. Convexity is no closure in general, but with an anchor v in S part
of it is: each ancestor of v in S brings its successors among v's ancestors, each descendant its predecessors among v's
descendants. Paths through nodes unrelated to v may leave S and come back: a relaxation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.max_flow import FlowNetwork, max_flow
from rlinit.exact.stages.bounds.simple import allowed_classes, simple_bound
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import Precedence
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageProblem


class _CutNetwork(NamedTuple):
    """The network in which cuts are stages: ops first, then two nodes a shared tensor, then source and sink.

    Parameters
    ----------
    first, head, twin
        Its arcs, as `FlowNetwork` has them; they are the same for every class.
    capacity
        (c, 2P) seconds of each arc for a stage of each class.
    edge_tail, edge_head, edge_arc
        (e,) the precedence edges u -> v and the arc from u to v of each.
    source_arc, sink_arc
        (n,) the arcs from the source to each node and from each node to the sink, of capacity 0.
    """

    first: IntArray
    head: IntArray
    twin: IntArray
    capacity: FloatArray
    edge_tail: IntArray
    edge_head: IntArray
    edge_arc: IntArray
    source_arc: IntArray
    sink_arc: IntArray


def _network(problem: StageProblem) -> _CutNetwork:
    """Return the network of a problem."""
    n, m, num_classes = problem.num_nodes, problem.num_tensors, problem.num_classes
    edge_tail = np.repeat(np.arange(n, dtype=np.int64), np.diff(problem.succ_indptr))
    edge_head, num_edges = problem.succ, len(problem.succ)
    consumers = np.diff(problem.tensor_indptr)
    lone, shared = np.flatnonzero(consumers == 1), np.flatnonzero(consumers > 1)
    # A tensor with one consumer needs no node: its costs are the two directions of its edge.
    key = problem.tensor_src[lone] * n + problem.tensor_dst[problem.tensor_indptr[lone]]
    edge = np.searchsorted(edge_tail * n + edge_head, key)
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
        forward = np.bincount(edge, problem.out_s[c, lone], num_edges)
        backward = np.bincount(edge, problem.in_s[c, lone], num_edges)
        ahead = [forward, problem.out_s[c, shared], problem.in_s[c, shared], forced, np.zeros(2 * n)]
        behind = [backward, np.zeros(2 * len(shared)), none]
        capacity[c] = network.capacities(np.concatenate(ahead), np.concatenate(behind))
    arcs, structure = network.arc_of_pair, (network.first, network.head, network.twin)
    ends = arcs[-2 * n : -n], arcs[len(arcs) - n :]
    return _CutNetwork(*structure, capacity, edge_tail, edge_head, arcs[:num_edges], *ends)


class _StageCosts(NamedTuple):
    """What a stage costs, by cuts: f_c(S) >= cut_c(S) + charge_j(S) - rebate_j for every variant j of class c.

    Parameters
    ----------
    variant_class
        (j,) class of each variant.
    charge, rebate
        (j, n), (j,) seconds.
    forbidden
        (c, n) 1 where a node may not run.
    """

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
def _pinned_cut(
    network: _CutNetwork,
    residual: FloatArray,
    room: IntArray,
    charge: FloatArray,
    outside: IntArray,
    v: int,
    ancestor: IntArray,
    descendant: IntArray,
) -> float:
    """Return a lower bound on min over S with v in S of cut(S) + charge(S), tight up to rounding.

    `residual` (2P,) holds the capacities and is changed, `room` (3, N) is scratch. `ancestor` and `descendant` (n,)
    are 1 at v and its ancestors, and at v and its descendants; `outside` (n,) is 1 where a node stays out.
    """
    for u in range(len(charge)):
        residual[network.sink_arc[u]] = np.inf if outside[u] == 1 else charge[u]
    residual[network.source_arc[v]] = np.inf
    for i in range(len(network.edge_arc)):
        if ancestor[network.edge_head[i]] == 1:
            residual[network.edge_arc[i]] = np.inf
        if descendant[network.edge_tail[i]] == 1:
            residual[network.twin[network.edge_arc[i]]] = np.inf
    sink = len(network.first) - 2
    cut = max_flow(
        network.first, network.head, network.twin, residual, sink - 1, sink, np.inf, room[0], room[1], room[2]
    )
    return cut * (1.0 - SAFETY) if cut < np.inf else np.inf


@njit(cache=True, nogil=True)
def _anchored_cuts(
    network: _CutNetwork,
    stages: _StageCosts,
    order: IntArray,
    precedence: Precedence,
    anchors: IntArray,
    lone: FloatArray,
    best: float,
) -> float:
    """Return the larger of `best` and, over `anchors`, the min over classes of the max over a class's variants."""
    capacity, forbidden = network.capacity, stages.forbidden
    n = len(lone)
    residual, room = np.empty(capacity.shape[1]), np.zeros((3, len(network.first) - 1), np.int64)
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
                    residual[:] = capacity[c]
                    charge = stages.charge[j]
                    cut = _pinned_cut(network, residual, room, charge, forbidden[c], v, ancestor, descendant)
                    value = max(value, cut - stages.rebate[j])
            least = min(least, value)
            if least <= best:
                break
        best = max(best, least)
    return best


def _stage_costs(problem: StageProblem) -> _StageCosts:
    """Return the variants; the second one of a class takes overflow >= rate * (param(S) - cache)."""
    spills = np.flatnonzero(np.isfinite(problem.cache_bytes) & (problem.overflow_s_per_byte > 0))
    work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
    rate = problem.overflow_s_per_byte[spills]
    charge = np.concatenate([work, work[spills] + rate[:, None] * problem.param_bytes])
    rebate = np.concatenate([np.zeros(len(work)), rate * problem.cache_bytes[spills] * (1 + SAFETY)])
    variant_class = np.concatenate([np.arange(len(work)), spills]).astype(np.int64)
    return _StageCosts(variant_class, charge, rebate, (~allowed_classes(problem)).astype(np.int64))


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
    problem: StageProblem, *, upper: float = np.inf, budget: Budget | None = None, contiguous: bool = True
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
    budget = budget or Budget()
    best = simple_bound(problem, budget)[0]
    if problem.num_nodes == 0 or problem.num_tensors == 0 or not np.isfinite(best):
        return best
    network, stages, lone = _network(problem), _stage_costs(problem), _lone_costs(problem)
    anchors = np.argsort(-lone, kind="stable")
    order = problem.order if contiguous else problem.order[:0]  # without an order v has no relatives to bring along

    def raise_best(first: int, last: int) -> None:
        nonlocal best
        if best < upper and not budget.expired:
            best = float(_anchored_cuts(network, stages, order, problem.precedence, anchors[first:last], lone, best))

    run_in_chunks(raise_best, len(anchors), budget)
    return best
