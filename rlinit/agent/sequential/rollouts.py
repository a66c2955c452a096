"""Topological orders of many graphs that advance together: one step of all is a few tensor operations.

A *row* is one partial order. Rows may share a graph (samples, beams). Rows of graphs with fewer nodes than the
largest are done earlier; they are given node -1 from then on and stay as they are.

Orders that come out are the same as those of stepping the environments row by row.
"""

from __future__ import annotations

import numpy as np
import torch

from rlinit.arrays import IntArray
from rlinit.errors import RlinitError


class PackedGraphs:
    """The precedence of g graphs of at most N nodes each, on one device.

    Parameters
    ----------
    node_ptr
        (g + 1,) graph i has the nodes from node_ptr[i] to node_ptr[i + 1] - 1 of all n nodes.
    succ_indptr, succ, pred_indptr, pred
        (n + 1,) and (m,) neighbours of all nodes, numbered within their graph.
    device
        Where the tensors are.

    Attributes
    ----------
    width
        N, the nodes of the largest graph.
    num_nodes
        (g,) nodes of each graph.
    in_degree
        (g, N) predecessors of each node; 0 beyond a graph's nodes.
    succ_indptr, succ, pred_indptr, pred
        The neighbours of node v of graph i are in row i * N + v.
    """

    def __init__(
        self,
        node_ptr: IntArray,
        succ_indptr: IntArray,
        succ: IntArray,
        pred_indptr: IntArray,
        pred: IntArray,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = np.diff(node_ptr)
        self.width = int(sizes.max())
        real = np.arange(self.width) < sizes[:, None]
        tables = []
        for indptr in (succ_indptr, pred_indptr):
            counts = np.zeros(real.shape, np.int64)
            counts[real] = np.diff(indptr)
            tables.append(np.concatenate([[0], np.cumsum(counts.ravel())]))
        self.num_nodes = torch.from_numpy(sizes).to(device)
        self.succ_indptr, self.pred_indptr = (torch.from_numpy(table).to(device) for table in tables)
        self.succ, self.pred = torch.from_numpy(succ).to(device), torch.from_numpy(pred).to(device)
        self.in_degree = self.pred_indptr.diff().view(len(sizes), self.width)


def _ragged(indptr: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (which, value) for every value of the CSR rows `at` (r,); `which` (k,) counts from 0 to r - 1."""
    first = indptr[at]
    counts = indptr[at + 1] - first
    which = torch.repeat_interleave(torch.arange(len(at), device=at.device), counts)
    before = counts.cumsum(0) - counts
    return which, values[torch.arange(len(which), device=at.device) + (first - before)[which]]


def ready_steps(graphs: PackedGraphs, graph_of_row: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """Return (B, N) step from which each node is ready under whole orders: 0, or one after its last predecessor.

    Parameters
    ----------
    graphs, graph_of_row
        The graphs, and which one each row (B,) is about.
    orders
        (B, N) node of each step, -1 after the last.
    """
    num_rows, width = orders.shape
    position = torch.zeros((num_rows, width + 1), dtype=torch.int64, device=orders.device)
    steps = torch.arange(width, device=orders.device).expand_as(orders)
    position.scatter_(1, torch.where(orders >= 0, orders, width), steps)
    rows = (graph_of_row[:, None] * width + torch.arange(width, device=orders.device)).ravel()
    which, parent = _ragged(graphs.pred_indptr, graphs.pred, rows)
    after = position[which // width, parent] + 1
    first = torch.zeros(num_rows * width, dtype=torch.int64, device=orders.device)
    return first.scatter_reduce_(0, which, after, "amax").view(num_rows, width)


class OrderRollouts:
    """Topological orders that grow by one node a step, B rows together.

    Parameters
    ----------
    graphs
        The graphs.
    copies
        Rows for each graph; rows of one graph follow each other.

    Attributes
    ----------
    ready
        (B, N) bool: True where every predecessor is taken and the node is not.
    steps
        Steps so far.
    """

    def __init__(self, graphs: PackedGraphs, copies: int = 1) -> None:
        device = graphs.num_nodes.device
        self.graphs = graphs
        self.graph_of_row = torch.arange(len(graphs.num_nodes), device=device).repeat_interleave(copies)
        self._waiting = graphs.in_degree[self.graph_of_row]
        real = torch.arange(graphs.width, device=device) < graphs.num_nodes[self.graph_of_row, None]
        self.ready = (self._waiting == 0) & real
        self.steps = 0
        self._orders = torch.full_like(self._waiting, -1)

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return len(self.graph_of_row)

    @property
    def num_steps(self) -> int:
        """Steps until every row is done: the nodes of the largest graph."""
        return self.graphs.width

    @property
    def orders(self) -> torch.Tensor:
        """(B, N) node each row took at each step, -1 where it was done or is not there yet."""
        return self._orders

    def take(self, nodes: torch.Tensor) -> None:
        """Take one ready node in each row.

        Parameters
        ----------
        nodes
            (B,) node of each row; -1 for rows that are done.

        Raises
        ------
        RlinitError
            A node that is not ready, or -1 in a row that is not done; the message names row and node.
        """
        rows = torch.arange(self.num_rows, device=nodes.device)
        unfit = torch.where(nodes >= 0, ~self.ready[rows, nodes.clamp(min=0)], self.ready.any(dim=1))
        if bool(unfit.any()):
            row = int(unfit.nonzero()[0, 0])
            raise RlinitError(f"row {row} may not take node {int(nodes[row])}: it is not ready")
        rows = rows[nodes >= 0]
        taken = nodes[rows]
        at = self.graph_of_row[rows] * self.graphs.width + taken
        which, child = _ragged(self.graphs.succ_indptr, self.graphs.succ, at)
        self.ready[rows, taken] = False
        self._waiting[rows[which], child] -= 1
        opened = self._waiting[rows[which], child] == 0
        self.ready[rows[which][opened], child[opened]] = True
        self._orders[:, self.steps] = nodes
        self.steps += 1
