"""A compiled maximum-flow kernel (Dinic) whose value certifies lower bounds on cuts.

Networks are arrays: the arcs that leave node i are ``first[i]:first[i+1]``, arc e goes to ``head[e]``, and
``twin[e]`` is the arc of the same pair in the opposite direction. Capacities are float64 and may be ``inf``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.kernels.compiled import njit


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """The structure of a network of N nodes and P arc pairs; capacities are kept apart, so that many may share it.

    Parameters
    ----------
    first, head, twin
        (N+1,), (2P,), (2P,) arcs by tail.
    arc_of_pair
        (P,) the forward arc of each pair, in the order in which the pairs were given; its twin is the backward arc.
    """

    first: IntArray
    head: IntArray
    twin: IntArray
    arc_of_pair: IntArray

    @staticmethod
    def from_pairs(num_nodes: int, tail: IntArray, head: IntArray) -> FlowNetwork:
        """Return the network with one arc pair ``tail[i] -> head[i]`` and back for each i.

        Parameters
        ----------
        num_nodes
            N.
        tail, head
            (P,) the ends of each pair, in 0 .. N - 1.
        """
        pairs = len(tail)
        tails = np.concatenate([tail, head]).astype(np.int64)
        heads = np.concatenate([head, tail]).astype(np.int64)
        order = np.argsort(tails, kind="stable")
        place = inverse_of(order)
        twin = np.empty(2 * pairs, np.int64)
        twin[place[:pairs]], twin[place[pairs:]] = place[pairs:], place[:pairs]
        first = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(np.bincount(tails, minlength=num_nodes), out=first[1:])
        return FlowNetwork(first, np.ascontiguousarray(heads[order]), twin, np.ascontiguousarray(place[:pairs]))

    def capacities(self, forward: FloatArray, backward: FloatArray) -> FloatArray:
        """Return the (2P,) capacities by arc from those of each pair's two directions, (P,) each.

        Parameters
        ----------
        forward
            (P,) capacities from tail to head, at least 0.
        backward
            (P,) capacities from head to tail, at least 0.
        """
        residual = np.empty(len(self.head))
        residual[self.arc_of_pair] = forward
        residual[self.twin[self.arc_of_pair]] = backward
        return residual


@njit(cache=True)
def max_flow(
    first: IntArray,
    head: IntArray,
    twin: IntArray,
    residual: FloatArray,
    source: int,
    sink: int,
    limit: float,
    level: IntArray,
    cursor: IntArray,
    path: IntArray,
) -> float:
    """Push a maximum flow through `residual` (changed in place) and return its value.

    The value of a flow never exceeds that of any cut, so what is returned bounds the minimum cut from below
    (up to rounding) even where the search stopped early, at a flow above `limit`. When it did not, the minimum cut is
    where ``level >= 0`` (the side of the source). ``inf`` means that no cut of finite value exists.

    Parameters
    ----------
    first
        (N + 1,) where the arcs of each node begin.
    head
        (2P,) the node each arc leads to.
    twin
        (2P,) the arc back of each arc.
    residual
        (2P,) capacities, at least 0; what remains of them afterwards.
    source, sink
        Two different nodes.
    limit
        Stop once the flow exceeds this.
    level, cursor, path
        (N,) scratch; `level` holds the cut afterwards.

    Notes
    -----
    Dinic's algorithm. Levels grow from the source only as far as the sink's, so a flow that stays local costs
    little. `level`, `cursor` and `path` are (N,) scratch.

    References
    ----------
    Dinic, Algorithm for solution of a problem of maximum flow in networks with power estimation, 1970.
    """
    value = 0.0
    num_nodes = len(first) - 1
    while value <= limit:
        for i in range(num_nodes):
            level[i] = -1
        level[source] = 0
        path[0] = source  # the breadth-first queue, until the path needs the space
        begin, end = 0, 1
        while begin < end and level[sink] < 0:
            i = path[begin]
            begin += 1
            for e in range(first[i], first[i + 1]):
                j = head[e]
                if residual[e] > 0.0 and level[j] < 0:
                    level[j] = level[i] + 1
                    path[end] = j
                    end += 1
        if level[sink] < 0:
            break
        for q in range(end):
            cursor[path[q]] = first[path[q]]
        cursor[source] = first[source]
        depth, i = 0, source
        while True:
            if i == sink:
                amount = np.inf
                for d in range(depth):
                    amount = min(amount, residual[path[d]])
                if amount == np.inf:
                    return np.inf
                back = depth
                for d in range(depth - 1, -1, -1):
                    e = path[d]
                    residual[twin[e]] += amount
                    residual[e] -= amount
                    if residual[e] <= 0.0:
                        back = d
                value += amount
                depth = back
                i = head[twin[path[back]]]
                continue
            advanced = False
            while cursor[i] < first[i + 1]:
                e = cursor[i]
                if residual[e] > 0.0 and level[head[e]] == level[i] + 1:
                    advanced = True
                    break
                cursor[i] += 1
            if advanced:
                path[depth] = cursor[i]
                depth += 1
                i = head[cursor[i]]
            elif i == source:
                break
            else:
                level[i] = -1
                depth -= 1
                i = head[twin[path[depth]]]
                cursor[i] += 1
    return value
