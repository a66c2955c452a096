"""Stages as minimum cuts of a network.

The cost of a stage S, overflow apart, is a cut function of S: a tensor made in S is paid for when some consumer is
outside, one made outside when some consumer is inside. In the network of :class:`CutNetwork` the source's side is S,
and a tensor of several consumers is paid once through two auxiliary nodes. Convexity is no closure in general, but
with an anchor v in S part of it is: each ancestor of v in S brings its successors among v's ancestors, each descendant
its predecessors among v's descendants. Paths through nodes unrelated to v may leave S and come back: a relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.solvers.max_flow import FlowNetwork, max_flow
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageProblem

SAFETY = 1e-9
"""Relative discount that covers the rounding of flows."""


class CutArrays(NamedTuple):
    """The arcs of a `CutNetwork`, for kernels; the same for every class."""

    first: IntArray
    head: IntArray
    twin: IntArray
    edge_tail: IntArray
    edge_head: IntArray
    edge_arc: IntArray
    source_arc: IntArray
    sink_arc: IntArray


class CutRoom(NamedTuple):
    """Scratch of a maximum flow: (2P,) residual capacities, (N,) levels, cursors and path."""

    residual: FloatArray
    level: IntArray
    cursor: IntArray
    path: IntArray


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

    @property
    def arrays(self) -> CutArrays:
        """The arcs, for kernels."""
        return CutArrays(
            self.network.first,
            self.network.head,
            self.network.twin,
            self.edge_tail,
            self.edge_head,
            self.edge_arc,
            self.source_arc,
            self.sink_arc,
        )


@njit(cache=True, nogil=True)
def cut_room(arcs: CutArrays) -> CutRoom:
    """Return scratch for the cuts of a network."""
    num_nodes = len(arcs.first) - 1
    return CutRoom(
        np.empty(len(arcs.head)),
        np.zeros(num_nodes, np.int64),
        np.zeros(num_nodes, np.int64),
        np.zeros(num_nodes, np.int64),
    )


@njit(cache=True, nogil=True)
def pinned_cut(
    arcs: CutArrays,
    room: CutRoom,
    capacity: FloatArray,
    factor: float,
    charge: FloatArray,
    outside: IntArray,
    v: int,
    ancestor: IntArray,
    descendant: IntArray,
) -> float:
    """Return a lower bound on min over S with v in S of factor * cut(S) + charge(S), tight up to rounding.

    Afterwards S is where ``room.level >= 0``.

    Parameters
    ----------
    arcs, room
        The network, and scratch.
    capacity
        (2P,) capacity of each arc.
    factor
        Multiplies all of them.
    charge
        (n,) what a node in S costs beside the cut; may be negative.
    outside
        (n,) 1 where a node stays out.
    v
        The anchor.
    ancestor, descendant
        (n,) 1 at v and its ancestors, and at v and its descendants.
    """
    residual, num_nodes = room.residual, len(arcs.first) - 1
    for e in range(len(capacity)):
        residual[e] = factor * capacity[e]
    gained = 0.0
    for u in range(len(charge)):
        if outside[u] == 1:
            residual[arcs.sink_arc[u]] = np.inf
        elif charge[u] >= 0.0:
            residual[arcs.sink_arc[u]] = charge[u]
        else:
            residual[arcs.source_arc[u]] = -charge[u]
            gained -= charge[u]
    residual[arcs.source_arc[v]] = np.inf
    for i in range(len(arcs.edge_arc)):
        if ancestor[arcs.edge_head[i]] == 1:
            residual[arcs.edge_arc[i]] = np.inf
        if descendant[arcs.edge_tail[i]] == 1:
            residual[arcs.twin[arcs.edge_arc[i]]] = np.inf
    source, sink = num_nodes - 2, num_nodes - 1
    cut = max_flow(arcs.first, arcs.head, arcs.twin, residual, source, sink, np.inf, room.level, room.cursor, room.path)
    return cut - gained - SAFETY * (cut + gained) if cut < np.inf else np.inf
