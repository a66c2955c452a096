"""What a network sees of a problem: arrays of features for nodes, devices and pairs, one graph or many joined.

A batch is the disjoint union of its graphs: arrays are concatenated, edges shifted, and `ptr` says where each graph
begins. One graph is a batch of one. Features are free of units and, as far as possible, of the graph's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, Floats, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class GraphFeatures:
    """The features of G graphs with N nodes, E edges, D devices and P pairs (node, device) in all.

    Parameters
    ----------
    node
        (N, f) features of the nodes.
    pred_indptr, pred
        (N + 1,), (E,) predecessors of each node, numbered within the batch.
    succ_indptr, succ
        (N + 1,), (E,) successors.
    ptr
        (G + 1,) graph g has nodes ptr[g]..ptr[g + 1] - 1.
    base_key
        (N,) the heuristic's key of each node, to which the network's is added: greater goes first.
    device
        (D, f_d) features of the devices; (0, 0) for stage problems.
    device_ptr
        (G + 1,) graph g has devices device_ptr[g]..device_ptr[g + 1] - 1.
    pair
        (P, f_p) features of pairs; graph by graph, node by node, device by device.
    """

    node: Floats
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    ptr: IntArray
    base_key: FloatArray
    device: FloatArray
    device_ptr: IntArray
    pair: FloatArray

    @property
    def num_graphs(self) -> int:
        """Number of graphs G."""
        return len(self.ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs, N."""
        return len(self.node)

    @property
    def graph_of_node(self) -> IntArray:
        """(N,) the graph each node is of."""
        return np.repeat(np.arange(self.num_graphs, dtype=np.int64), np.diff(self.ptr))

    def pair_ends(self) -> tuple[IntArray, IntArray]:
        """Return (node, device): (P,) the node and the device of each pair."""
        devices = np.diff(self.device_ptr)[self.graph_of_node]
        node = np.repeat(np.arange(self.num_nodes, dtype=np.int64), devices)
        first = np.cumsum(devices) - devices
        within = np.arange(len(node), dtype=np.int64) - np.repeat(first, devices)
        return node, within + self.device_ptr[self.graph_of_node[node]]


def join(graphs: Sequence[GraphFeatures]) -> GraphFeatures:
    """Return the disjoint union of graphs, in their order.

    Raises
    ------
    ValueError
        No graph at all.
    """
    if not graphs:
        raise ValueError("expected at least one graph to join")
    starts = np.concatenate([[0], np.cumsum([g.num_nodes for g in graphs])])[:-1].astype(np.int64)
    return GraphFeatures(
        node=np.concatenate([g.node for g in graphs]),
        pred_indptr=_joined_ptr([g.pred_indptr for g in graphs]),
        pred=np.concatenate([g.pred + start for g, start in zip(graphs, starts, strict=True)]),
        succ_indptr=_joined_ptr([g.succ_indptr for g in graphs]),
        succ=np.concatenate([g.succ + start for g, start in zip(graphs, starts, strict=True)]),
        ptr=_joined_ptr([g.ptr for g in graphs]),
        base_key=np.concatenate([g.base_key for g in graphs]),
        device=np.concatenate([g.device for g in graphs]),
        device_ptr=_joined_ptr([g.device_ptr for g in graphs]),
        pair=np.concatenate([g.pair for g in graphs]),
    )


def _joined_ptr(pointers: Sequence[IntArray]) -> IntArray:
    sizes = np.concatenate([np.diff(p) for p in pointers])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
