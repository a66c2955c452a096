"""Ops of no time that stand for an op's tensors beyond the one it stands for itself.

A placement problem has one tensor an op. Where an op's consumers read several, each further one gets a *port op*: it
takes no time and no memory, shares the producer's device shard by shard, reads the producer, and is read by the
tensor's consumers in the producer's place. Every schedule of the graph is one of the problem with each port op right
where its producer ends, and every schedule of the problem, its port ops left out, is one of the graph that ends no
later. So values, bounds and proofs are the graph's own. A timeline starts port ops when their producers end, whatever
else the device does: their place in a sequence only says when their transfers join the queue of a link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.graph import Graph
from rlinit.placements.problem import PlacementProblem


@dataclass(frozen=True, slots=True, eq=False)
class PortOps:
    """The port ops of a graph's placement problem, numbered after its ops. p of them.

    Parameters
    ----------
    producer
        (p,) op whose tensor each stands for, ascending.
    tensor
        (n + p,) row of `Graph.tensors` that each op and port op stands for.
    source
        (m,) op or port op that each edge of the graph leaves from.
    """

    producer: IntArray
    tensor: IntArray
    source: IntArray

    def __len__(self) -> int:
        return len(self.producer)

    def edges(self, graph: Graph) -> IntArray:
        """Return the (m + p, 2) edges of the problem, sorted."""
        if not len(self):
            return graph.edges
        ports = graph.num_ops + np.arange(len(self))
        pairs = np.concatenate(
            [np.column_stack([self.source, graph.edges[:, 1]]), np.column_stack([self.producer, ports])]
        )
        return np.ascontiguousarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])

    def order(self, graph: Graph) -> IntArray:
        """Return the graph's natural order with port ops right behind their producers."""
        if not len(self):
            return graph.order.astype(np.int64)
        place = inverse_of(graph.order)
        after = np.concatenate([place, place[self.producer]])
        return np.argsort(after, kind="stable").astype(np.int64)


def port_ops(graph: Graph, *, shared: bool) -> PortOps:
    """Return the port ops that a graph's tensors need.

    An op stands for its main output where that is read, else for the first of its tensors that is.

    Parameters
    ----------
    graph
        Any graph.
    shared
        Whether transfers share links or devices, so that two tensors of equal size are not the same as one.
    """
    n = graph.num_ops
    tensor = np.arange(n, dtype=np.int64)
    if not len(graph.further):
        return PortOps(np.zeros(0, np.int64), tensor, graph.edges[:, 0])
    size = np.concatenate([np.nan_to_num(graph.out_bytes), graph.further.size_bytes]).tolist()
    stands: dict[tuple[int, float], int] = {}
    seen: set[int] = set()
    producer: list[int] = []
    further: list[int] = []
    used = np.unique(
        np.column_stack([np.concatenate([np.arange(n), graph.further.op])[graph.edge_tensor], graph.edge_tensor]),
        axis=0,
    )
    for v, row in used.tolist():
        key = (v, float(row)) if shared else (v, size[row])
        if v not in seen:
            seen.add(v)
            tensor[v], stands[key] = row, v
        elif key not in stands:
            stands[key] = n + len(producer)
            producer.append(v)
            further.append(row)
    source = [
        stands[v, float(row) if shared else size[row]]
        for v, row in zip(graph.edges[:, 0].tolist(), graph.edge_tensor.tolist(), strict=True)
    ]
    return PortOps(
        np.array(producer, np.int64),
        np.concatenate([tensor, np.array(further, np.int64)]),
        np.array(source, np.int64),
    )


def carriers(problem: PlacementProblem) -> IntArray:
    """Return (n,) for each op that takes no time where its only producer has to be too, that producer; -1 for others.

    Port ops are such ops, and so are views whose layers stay whole: they may start when the producer ends.

    Parameters
    ----------
    problem
        Any problem.
    """
    free = (np.where(np.isfinite(problem.time_s), problem.time_s, 0.0) == 0.0).all(axis=(1, 2))
    able = np.isfinite(problem.time_s)
    carrier = np.full(problem.num_ops, -1, np.int64)
    for v in np.flatnonzero(free & (np.diff(problem.pred_indptr) == 1)).tolist():
        u = int(problem.pred[problem.pred_indptr[v]])
        if problem.group[u] == problem.group[v] and (able[v] >= able[u]).all():
            carrier[v] = u
    return carrier
