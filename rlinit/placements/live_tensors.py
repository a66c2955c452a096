"""Memory of a placement by the tensors that are alive: weights, and the most bytes of live tensors at once.

A tensor has a *copy* on the device that makes it, from the start of the batch that makes it, and on every device that
it is moved to, from the start of the transfer. A copy is there until the last batch that reads it there and the last
transfer of it from there have ended; where nothing reads the tensor at all, until the end. In detail:

- A copy is there at the moment it begins, and no longer at the moment it ends. At the moment of a batch that takes no
  time, all that it reads and makes is there.
- One copy holds the shards that one batch makes, or the shards of them that another device needs.
- A view (``view`` in the attributes of an op that reads one tensor, as importers note it) has no copy on the device
  that makes it: it lies in the copy that it reads, which is there for as long as the view is read or moved. Where its
  shards come from several copies, it has to be put together, and counts. A view that reads no tensor lies in
  parameters. Moved to another device, a view is a copy of its own size there.
- What importers make of operations in place are operations of their own, as the executors run them.

``weights[i] + peak[i] <= memory_bytes[i] - reserve_bytes[i]`` must hold on every device i.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.costs.roofline import known_bytes
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.placements.list_scheduling import StorageArrays
from rlinit.kernels.placements.live_tensors import IN_PARAMETERS, OWN_STORAGE, LiveArrays, Run, copies, peaks
from rlinit.placements.ports import port_ops
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import end_times, held_bytes, run_placement


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensors:
    """The tensors of a placement problem, and how its memory counts them.

    The problem's own memory counts weights alone, which is a relaxation.

    Parameters
    ----------
    arrays
        The tensors as kernels take them.
    sum_bytes
        (n',) for each op of the problem, bytes of one shard of what it reads and makes, without views that are in no
        case put together. The sums of a device's ops are at least its peak.
    """

    arrays: LiveArrays
    sum_bytes: FloatArray

    @property
    def unread_bytes(self) -> float:
        """Bytes of one shard of all tensors that no op reads, which stay where they are made; views apart."""
        a = self.arrays
        return float(a.size[(np.diff(a.reader_indptr) == 0) & (a.base == OWN_STORAGE)].sum())

    def storages(self) -> StorageArrays:
        """Return the storages of one shard as list scheduling counts them, views in what they look at on any device."""
        a = self.arrays
        n, count = len(a.order), len(a.op)
        root, _ = _storages(a)
        pairs = np.unique(np.repeat(np.arange(n), np.diff(a.input_indptr)) * count + root[a.inputs])
        read_indptr, read = _by_row(pairs // max(count, 1), pairs % max(count, 1), n)
        own = np.flatnonzero(root == np.arange(count))
        made_indptr, made = _by_row(a.op[own], own, n)
        stays = np.zeros(count, np.int64)
        stays[root[np.diff(a.reader_indptr) == 0]] = 1
        size = np.where(a.base == IN_PARAMETERS, 0.0, a.size)
        return StorageArrays(size, np.bincount(read, minlength=count) + stays, read_indptr, read, made_indptr, made)

    def peak_bytes(self, problem: PlacementProblem, placement: Placement) -> FloatArray:
        """Return (d,) the most bytes of live tensors on each device, weights apart.

        Parameters
        ----------
        problem
            The problem these are the tensors of.
        placement
            A placement with a finite makespan.
        """
        n = len(self.arrays.order)
        start_s, moved, _ = run_placement(problem, placement)
        end_s = end_times(problem, placement, start_s)
        found = Run(
            placement.device[:n], start_s[:n], end_s[:n], problem.s_per_byte, problem.delay_s, moved.sent, moved.arrival
        )
        most: FloatArray = peaks(self.arrays, found, copies(self.arrays, found))
        return most

    def excess(self, problem: PlacementProblem, placement: Placement) -> FloatArray:
        """Return (d,) bytes by which each device is overfull; 0 where it is not.

        Parameters
        ----------
        problem, placement
            As for `peak_bytes`.
        """
        most = held_bytes(self.with_sums(problem, 1.0), placement.device)
        if (most <= problem.capacity_bytes).all():  # which saves compiling and running the timeline's kernels
            return np.zeros(problem.num_devices)
        return _excess(problem, placement, self.peak_bytes(problem, placement))

    def with_sums(self, problem: PlacementProblem, share: float) -> PlacementProblem:
        """Return the problem with a share of the sum of a device's tensors counted beside its weights.

        Parameters
        ----------
        problem
            The problem these are the tensors of.
        share
            From 0, which leaves it as it is, to 1, whose placements all keep within memory.
        """
        return dataclasses.replace(problem, shard_bytes=share * self.sum_bytes) if share > 0.0 else problem


def _excess(problem: PlacementProblem, placement: Placement, peak: FloatArray) -> FloatArray:
    """Return (d,) bytes by which each device is overfull with its (d,) peak of live tensors; 0 where it is not."""
    need = held_bytes(problem, placement.device) + peak
    over: FloatArray = np.where(need > problem.capacity_bytes * CAPACITY_SLACK, need - problem.capacity_bytes, 0.0)
    return over


def live_tensors(graph: Graph, problem: PlacementProblem) -> LiveTensors:
    """Return the live tensors of a graph's placement problem.

    Parameters
    ----------
    graph
        The graph.
    problem
        What it was lowered to.
    """
    n, tensors, own_ports = graph.num_ops, graph.tensors, port_ops(graph, shared=True)
    size = known_bytes(tensors.size_bytes) * problem.shard_inputs
    row_indptr, rows = _by_row(tensors.op, np.arange(len(tensors)), n)
    input_indptr, inputs = _by_row(graph.edges[:, 1], graph.edge_tensor, n)
    base = np.full(len(tensors), OWN_STORAGE, np.int64)
    for v in (v for v, row in graph.extras.items() if row.get("view")):
        read = inputs[input_indptr[v] : input_indptr[v + 1]]
        if len(read) < 2:
            base[rows[row_indptr[v] : row_indptr[v + 1]]] = read[0] if len(read) else IN_PARAMETERS
    carrier = np.zeros(len(tensors), np.int64)
    carrier[own_ports.tensor] = np.arange(n + len(own_ports))
    arrays = LiveArrays(
        graph.order.astype(np.int64), row_indptr, rows, tensors.op, size, tensors.indptr, tensors.consumers, base,
        carrier, input_indptr, inputs,
    )  # fmt: skip
    counted = np.where((base == OWN_STORAGE) | (problem.num_shards > 1), size, 0.0)
    made = np.bincount(tensors.op, weights=counted, minlength=n)
    read = np.bincount(graph.edges[:, 1], weights=size[graph.edge_tensor], minlength=n)
    return LiveTensors(arrays, np.concatenate([made + read, np.zeros(problem.num_ops - n)]))


def _by_row(keys: IntArray, values: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return CSR of values by key."""
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=indptr[1:])
    return indptr, np.ascontiguousarray(values[np.argsort(keys, kind="stable")]).astype(np.int64)


def _storages(a: LiveArrays) -> tuple[IntArray, FloatArray]:
    """Return (T,) the tensor in whose storage each one lies, and the least bytes of a shard that reading it holds."""
    least, root = a.size.copy(), np.arange(len(a.op))
    least[a.base == IN_PARAMETERS] = 0.0
    place = inverse_of(a.order)
    views = np.flatnonzero(a.base >= 0)
    for row in views[np.argsort(place[a.op[views]], kind="stable")].tolist():
        root[row] = root[a.base[row]]
        least[row] = min(a.size[row], least[a.base[row]])
    return root, least


def without_what_never_fits(problem: PlacementProblem, live: LiveTensors) -> PlacementProblem:
    """Return the problem without batches that, with their group's weights and what they read and make, fill a device.

    Every placement that keeps within memory remains. Of the tensors that a batch reads it counts those of other storage
    once, and views of one storage by the smallest that any of them may be.

    Parameters
    ----------
    problem
        The problem.
    live
        Its tensors.
    """
    if np.isinf(problem.capacity_bytes).all():
        return problem
    a = live.arrays
    root, least = _storages(a)
    reader = np.repeat(np.arange(len(a.order)), np.diff(a.input_indptr))
    together, which = np.unique(reader * len(root) + root[a.inputs], return_inverse=True)
    largest = np.zeros(len(together))
    np.maximum.at(largest, which, least[a.inputs])
    working = np.zeros(problem.num_ops)  # np.bincount of nothing counts in integers.
    working += np.bincount(together // len(root), weights=largest, minlength=problem.num_ops)
    working += np.bincount(a.op, weights=np.where(a.base == OWN_STORAGE, a.size, 0.0), minlength=problem.num_ops)
    weight = np.bincount(problem.group, weights=problem.weight_bytes, minlength=problem.num_ops)[problem.group]
    need = weight[:, None] + working[:, None] * np.arange(problem.num_shards + 1)
    never = need[:, None, :] > problem.capacity_bytes[None, :, None] * CAPACITY_SLACK
    never[:, :, 0] = False
    return dataclasses.replace(problem, time_s=np.where(never, np.inf, problem.time_s)) if never.any() else problem
