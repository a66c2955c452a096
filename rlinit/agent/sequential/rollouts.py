"""Partial schedules of many graphs that advance together: one step of all is a few tensor operations.

A *row* is one partial schedule. Rows may share a graph (samples, beams). Rows of graphs with fewer nodes than the
largest are done earlier; they are given node -1 from then on and stay as they are.

Orders and devices that come out are the same as those of stepping the environments row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import torch

from rlinit.arrays import IntArray
from rlinit.errors import RlinitError
from rlinit.placements.arrays import kernel_arrays
from rlinit.placements.problem import Placement, PlacementProblem

__all__ = ["OrderRollouts", "PackedGraphs", "PlacementRollouts", "placements", "ready_steps"]

_Device = torch.device | str


class _Precedence(Protocol):
    """What stage and placement problems have in common."""

    @property
    def succ_indptr(self) -> IntArray:
        """(n + 1,) where the successors of each node begin."""

    @property
    def succ(self) -> IntArray:
        """(m,) successors."""

    @property
    def pred_indptr(self) -> IntArray:
        """(n + 1,) where the predecessors of each node begin."""

    @property
    def pred(self) -> IntArray:
        """(m,) predecessors."""


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
        device: _Device = "cpu",
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

    @classmethod
    def of(cls, problems: Sequence[_Precedence], device: _Device = "cpu") -> Self:
        """Return the precedence of some `StageProblem` or `PlacementProblem`.

        Raises
        ------
        RlinitError
            None is given.
        """
        if not problems:
            raise RlinitError("no problem is given; a rollout needs at least one")
        sizes = [len(problem.succ_indptr) - 1 for problem in problems]
        degrees = [np.concatenate([np.diff(p.succ_indptr) for p in problems])]
        degrees.append(np.concatenate([np.diff(p.pred_indptr) for p in problems]))
        succ_indptr, pred_indptr = (np.concatenate([[0], np.cumsum(degree)]) for degree in degrees)
        succ, pred = np.concatenate([p.succ for p in problems]), np.concatenate([p.pred for p in problems])
        return cls(np.concatenate([[0], np.cumsum(sizes)]), succ_indptr, succ, pred_indptr, pred, device)


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

    def select(self, rows: torch.Tensor) -> Self:
        """Return a copy whose row i is row ``rows[i]`` ((B',)) of this one: how beams survive."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.graph_of_row = self.graph_of_row[rows]
        copy._waiting = self._waiting[rows]
        copy.ready = self.ready[rows]
        copy._orders = self._orders[rows]
        return copy


class PlacementRollouts(OrderRollouts):
    """Placements of one input that grow by one op a step: each op is appended to a device as early as its data allow.

    Times are those of `parallel` transfers and of the arithmetic of the compiled list scheduler, in float64, whatever
    the network computes in. Memory, exclusions, groups and missing links decide which devices an op may take.

    Parameters
    ----------
    problems
        `latency` problems of at most D devices.
    copies
        Rows for each problem; rows of one problem follow each other.
    device
        Where the tensors are.

    Raises
    ------
    RlinitError
        A `throughput` problem.
    """

    def __init__(self, problems: Sequence[PlacementProblem], copies: int = 1, device: _Device = "cpu") -> None:
        for problem in problems:
            if problem.num_shards != 1:
                raise RlinitError(f"the agent places ops for latency; a problem has {problem.num_shards} shards")
        super().__init__(PackedGraphs.of(problems, device), copies)
        g, n, d = len(problems), self.graphs.width, max(problem.num_devices for problem in problems)
        time_s, link = np.full((g, n, d), np.inf), np.full((2, g, d, d), np.inf)
        allowed = np.zeros((g, n, d), np.bool_)
        need, size, group = np.zeros((g, n)), np.zeros((g, n)), np.zeros((g, n), np.int64)
        room = np.full((g, d), -np.inf)
        for i, problem in enumerate(problems):
            a, m, k = kernel_arrays(problem), problem.num_ops, problem.num_devices
            time_s[i, :m, :k], allowed[i, :m, :k] = a.time[:, :, 1], a.allowed[:, :, 1][a.group]
            link[0, i, :k, :k], link[1, i, :k, :k] = a.delay, a.s_per_byte
            need[i, :m], size[i, :m], group[i, :m] = (a.held_weight + a.held_shard)[a.group], a.tensor, a.group
            room[i, :k] = a.capacity
        tensors = [torch.from_numpy(array).to(device) for array in (time_s, allowed, need, size, group, link, room)]
        self._time_s, self._allowed, self._need, self._size, self._group = tensors[:5]
        self._delay_s, self._s_per_byte = tensors[5]
        self._room = tensors[6][self.graph_of_row]
        self._free_s = torch.zeros_like(self._room)
        self._end_s = torch.zeros((self.num_rows, n), dtype=torch.float64, device=device)
        self._on = torch.full((self.num_rows, n), -1, dtype=torch.int64, device=device)
        self._group_on = self._on.clone()

    @property
    def device_of_op(self) -> torch.Tensor:
        """(B, N) device of each op, -1 where it has none yet."""
        return self._on

    @property
    def end_s(self) -> torch.Tensor:
        """(B, N) when each op ends, in seconds; 0 where it has no device yet."""
        return self._end_s

    @property
    def num_devices(self) -> int:
        """Devices D of the problem that has the most."""
        return self._room.shape[1]

    @property
    def makespan_s(self) -> torch.Tensor:
        """(B,) when the last op so far ends, in seconds."""
        return self._free_s.max(dim=1).values

    def finish_s(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return (B, D) seconds at which a ready op of each row would end on each device; inf where it may not run.

        Parameters
        ----------
        nodes
            (B,) ready ops; rows with -1 get inf.
        """
        rows = torch.arange(self.num_rows, device=nodes.device)
        op = nodes.clamp(min=0)
        graph = self.graph_of_row
        which, parent = _ragged(self.graphs.pred_indptr, self.graphs.pred, graph * self.graphs.width + op)
        source = self._on[which, parent].clamp(min=0)
        moved = self._size[graph[which], parent, None] * self._s_per_byte[graph[which], source]
        # In this order of additions, as in the compiled list scheduler, so that sums round alike.
        arrival = self._end_s[which, parent, None] + (self._delay_s[graph[which], source] + moved)
        home = torch.arange(arrival.shape[1], device=nodes.device) == source[:, None]
        arrival = torch.where(home, self._end_s[which, parent, None], arrival)
        live = nodes[which] >= 0
        start = self._free_s.clone()
        start.scatter_reduce_(0, which[live, None].expand(-1, arrival.shape[1]), arrival[live], "amax")
        group = self._group[graph, op]
        chosen = self._group_on[rows, group]
        fits = self._need[graph, op, None] <= self._room
        same = torch.arange(arrival.shape[1], device=nodes.device) == chosen[:, None]
        open_ = self._allowed[graph, op] & torch.where(chosen[:, None] >= 0, same, fits) & (nodes >= 0)[:, None]
        return torch.where(open_, start + self._time_s[graph, op], torch.inf)

    def abandon(self, rows: torch.Tensor) -> None:
        """End the rows where `rows` ((B,) bool) is True: nothing in them is ready any more."""
        self.ready = self.ready & ~rows[:, None]

    def place(self, nodes: torch.Tensor, devices: torch.Tensor, finish_s: torch.Tensor) -> None:
        """Take one ready op in each row and put it on a device.

        Parameters
        ----------
        nodes, devices
            (B,) op and device of each row; -1 for rows that are done.
        finish_s
            (B, D) what `finish_s` says about these ops.

        Raises
        ------
        RlinitError
            An op that is not ready, or a device it may not run on.
        """
        rows = (nodes >= 0).nonzero()[:, 0]
        op, device = nodes[rows], devices[rows]
        end = finish_s[rows, device]
        if not bool(torch.isfinite(end).all()):
            row = int(rows[~torch.isfinite(end)][0])
            raise RlinitError(f"row {row} may not put op {int(nodes[row])} on device {int(devices[row])}")
        self.take(nodes)
        graph = self.graph_of_row[rows]
        group = self._group[graph, op]
        first = self._group_on[rows, group] < 0
        self._room[rows[first], device[first]] -= self._need[graph, op][first]
        self._group_on[rows, group] = device
        self._on[rows, op] = device
        self._end_s[rows, op] = end
        self._free_s[rows, device] = end

    def select(self, rows: torch.Tensor) -> Self:
        """Return a copy whose row i is row ``rows[i]`` ((B',)) of this one."""
        copy = super().select(rows)
        for name in ("_room", "_free_s", "_end_s", "_on", "_group_on"):
            setattr(copy, name, getattr(self, name)[rows])
        return copy


def placements(problems: Sequence[PlacementProblem], rollouts: PlacementRollouts) -> list[Placement | None]:
    """Return the rows of a finished rollout as placements, None where one was abandoned."""
    orders, devices = rollouts.orders.cpu().numpy(), rollouts.device_of_op.cpu().numpy()
    found: list[Placement | None] = []
    for row, graph in enumerate(rollouts.graph_of_row.tolist()):
        problem = problems[graph]
        order = orders[row][orders[row] >= 0]
        device = devices[row, : problem.num_ops]
        if len(order) < problem.num_ops:
            found.append(None)
            continue
        found.append(Placement(device[:, None].copy(), order * problem.num_devices + device[order]))
    return found
