"""What a network sees of a problem: arrays of features for nodes, devices and pairs, one graph or many joined.

A batch is the disjoint union of its graphs: arrays are concatenated, edges shifted, and `ptr` says where each graph
begins. One graph is a batch of one. Features are free of units and, as far as possible, of the graph's size.
"""

from __future__ import annotations

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
