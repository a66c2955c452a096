"""From a graph and hardware to the arrays of a stage problem: costs resolved, colocated ops merged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.costs.roofline import known_bytes, may_run, times_on
from rlinit.errors import InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.stages.problem import StageAssignment, StageProblem


@dataclass(frozen=True, slots=True, eq=False)
class LoweredStages:
    """A stage problem and the way back to the ops and devices it stands for.

    Parameters
    ----------
    problem
        The arrays.
    node_of_op
        (n_ops,) node each op became.
    class_devices
        For each stage class, the devices of that class in the hardware's order.
    infeasible
        Why nothing can be feasible, found without search, or "".
    """

    problem: StageProblem
    node_of_op: IntArray
    class_devices: tuple[tuple[int, ...], ...]
    infeasible: str

    def devices_of(self, assignment: StageAssignment) -> list[int]:
        """Return the device at each stage position."""
        left = [list(devices) for devices in self.class_devices]
        return [left[c].pop(0) for c in assignment.classes.tolist()]


def lower_stages(
    graph: Graph,
    hardware: Hardware,
    objective: Literal["pipeline", "memory"],
    *,
    contiguous: bool = True,
    op_work: Sequence[FloatArray] | None = None,
) -> LoweredStages:
    """Build the array form of a stage problem.

    Ops of one colocation group are merged, and so is whatever lies between them (a strongly connected component of
    the merged graph could not be cut without a cycle in the quotient graph). Devices with equal costs, capacities
    and rates form one class.

    Parameters
    ----------
    graph
        The graph.
    hardware
        The devices, one a stage.
    objective
        'pipeline' needs op times and links, 'memory' only bytes.
    contiguous
        Whether stages are in the order of the data. Where not, colocated ops alone are merged, so that nodes may read
        each other in a circle, and `order` and `level` say where their first ops are.
    op_work
        (n_ops,) seconds of each op on each device, inf where it may not run; by default what the graph gives.

    Raises
    ------
    InvalidGraph
        An op without a time on a device (`pipeline`).
    InvalidHardware
        No path between two devices (`pipeline`).
    """
    node_of_op = merged_ops(graph) if contiguous else _grouped(graph)
    n = int(node_of_op.max()) + 1
    if contiguous:
        _warn_of_merging(graph, node_of_op)
    device_work = _device_work(graph, hardware, objective) if op_work is None else op_work
    rates = [hardware.io_bandwidth(i) for i in range(hardware.num_devices)]
    if objective == "pipeline" and hardware.num_devices > 1:
        for i, pair in enumerate(rates):
            if 0.0 in pair:
                raise InvalidHardware(f"no path links device {hardware.devices[i].name!r} with every other device")
    delays = [_delay(hardware, i) for i in range(hardware.num_devices)]
    slot_class, class_devices = _classes(hardware, device_work, rates, delays)
    first = [devices[0] for devices in class_devices]
    work = np.zeros((len(first), n))
    for c, i in enumerate(first):
        np.add.at(work[c], node_of_op, device_work[i])
    param = np.zeros(n)
    np.add.at(param, node_of_op, known_bytes(graph.param_bytes))
    warn = objective == "memory" or bool(np.isfinite(rates).any())
    src, indptr, dst, size = tensors_between(graph, node_of_op, warn=warn)
    free = np.zeros((len(first), len(src)))
    piped = objective == "pipeline"
    in_s, out_s = transfer_seconds(hardware, first, size) if piped else (free, free)
    problem = StageProblem(
        objective=objective,
        work_s=work,
        param_bytes=param,
        tensor_src=src,
        tensor_indptr=indptr,
        tensor_dst=dst,
        tensor_bytes=size,
        in_s=in_s,
        out_s=out_s,
        stage_class=slot_class,
        memory_bytes=np.array([hardware.devices[i].memory_bytes for i in first]),
        cache_bytes=np.array([hardware.devices[i].cache_bytes for i in first]),
        overflow_s_per_byte=np.array([hardware.devices[i].slowdown / rates[i][0] if piped else 0.0 for i in first]),
        order=_node_order(graph, node_of_op, n) if contiguous else _first_order(graph, node_of_op),
    )
    return LoweredStages(problem, node_of_op, class_devices, _obstacle(graph, hardware, problem, node_of_op))


def transfer_seconds(hardware: Hardware, devices: Sequence[int], size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (len(devices), m) seconds of bringing m tensors in and of sending them out, on each device as a stage.

    Parameters
    ----------
    hardware
        The devices and links.
    devices
        Some of the devices.
    size
        (m,) bytes of the tensors.
    """
    slower = np.array([hardware.devices[i].slowdown for i in devices])[:, None]
    pairs = [(hardware.io_bandwidth(i), _delay(hardware, i)) for i in devices]
    in_s = np.stack([size / rate[0] + delay[0] for rate, delay in pairs])
    return in_s * slower, np.stack([size / rate[1] + delay[1] for rate, delay in pairs]) * slower


def merged_ops(graph: Graph) -> IntArray:
    """Return the node of each op: one for each op, except that colocated ops and what lies between them share one."""
    if (graph.colocation < 0).all():
        return np.arange(graph.num_ops, dtype=np.int64)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    grouped = np.flatnonzero(graph.colocation >= 0)
    leader: dict[int, int] = {}
    for v in grouped.tolist():
        leader.setdefault(int(graph.colocation[v]), v)
    lead = np.array([leader[int(graph.colocation[v])] for v in grouped], np.int64)
    # A group is a cycle through its leader, so groups and paths between members are strong components.
    rows = np.concatenate([graph.edges[:, 0], grouped, lead])
    cols = np.concatenate([graph.edges[:, 1], lead, grouped])
    matrix = coo_array((np.ones(len(rows)), (rows, cols)), shape=(graph.num_ops, graph.num_ops))
    _, component = connected_components(matrix, directed=True, connection="strong")
    _, first, inverse = np.unique(component, return_index=True, return_inverse=True)
    rank = inverse_of(np.argsort(first))
    return rank[inverse]


def _grouped(graph: Graph) -> IntArray:
    """Return the node of each op: one for each colocation group and for each other op, in order of their first ops."""
    alone = np.arange(graph.num_ops) + int(graph.colocation.max(initial=-1)) + 1
    key = np.where(graph.colocation >= 0, graph.colocation, alone)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rank = inverse_of(np.argsort(first))
    return rank[inverse]


def _first_order(graph: Graph, node_of_op: IntArray) -> IntArray:
    """Return the nodes in the order in which their first ops come in a topological order of the ops."""
    nodes, first = np.unique(node_of_op[graph.order], return_index=True)
    return nodes[np.argsort(first)].astype(np.int64)


def _warn_of_merging(graph: Graph, node_of_op: IntArray) -> None:
    """Warn where a colocation group swallows half of a graph, as tied embeddings at both ends of a model do."""
    size = np.bincount(node_of_op)
    largest = int(size.argmax())
    grouped = np.flatnonzero((node_of_op == largest) & (graph.colocation >= 0))
    between = int(size[largest]) - len(grouped)
    if len(grouped) < 2 or 2 * size[largest] < graph.num_ops or between < len(grouped):
        return
    first, last = graph.names[grouped[0]], graph.names[grouped[-1]]
    warnings.warn(
        f"{size[largest]} of {graph.num_ops} ops go to one stage, because {first!r} and {last!r} are colocated and the "
        "others lie between them; if that is for a shared parameter, import the model with sharing='hold'",
        stacklevel=4,
    )


def _device_work(graph: Graph, hardware: Hardware, objective: str) -> list[FloatArray]:
    """Return the seconds of each op on each device; for `memory` 0, or inf where forbidden."""
    if objective == "memory":
        return [np.where(may_run(graph, device), 0.0, np.inf) for device in hardware.devices]
    return times_on(graph, hardware.devices)


def _delay(hardware: Hardware, i: int) -> tuple[float, float]:
    """Return the (in, out) seconds of link latency a transfer pays at device i, the worst over its links."""
    if hardware.num_devices == 1 or hardware.devices[i].io_bandwidth == np.inf:
        return 0.0, 0.0
    return float(hardware.latency_s[:, i].max()), float(hardware.latency_s[i].max())


def _classes(
    hardware: Hardware,
    device_work: Sequence[FloatArray],
    rates: list[tuple[float, float]],
    delays: list[tuple[float, float]],
) -> tuple[IntArray, tuple[tuple[int, ...], ...]]:
    """Group devices that no stage cost can tell apart."""
    seen: dict[tuple[object, ...], int] = {}
    members: list[list[int]] = []
    slot_class = []
    for i, device in enumerate(hardware.devices):
        key = (device_work[i].tobytes(), rates[i], delays[i], device.memory_bytes, device.cache_bytes, device.slowdown)
        c = seen.setdefault(key, len(seen))
        if c == len(members):
            members.append([])
        members[c].append(i)
        slot_class.append(c)
    return np.array(slot_class, np.int64), tuple(map(tuple, members))


def tensors_between(
    graph: Graph, node_of_op: IntArray, *, warn: bool
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return each tensor as (producer, indptr, consumers, bytes), without those used only where they are made.

    Parameters
    ----------
    graph
        The graph.
    node_of_op
        (n_ops,) node that each op became.
    warn
        Whether to say that sizes are unknown.
    """
    tensors = graph.tensors
    pairs = np.stack([graph.edge_tensor, node_of_op[graph.edges[:, 1]]], axis=1)
    pairs = pairs[node_of_op[tensors.op[pairs[:, 0]]] != pairs[:, 1]]
    pairs = np.unique(pairs, axis=0) if len(pairs) else pairs
    rows, counts = np.unique(pairs[:, 0], return_counts=True)
    ops, size = tensors.op[rows], tensors.size_bytes[rows]
    unknown = np.flatnonzero(np.isnan(size))
    if warn and len(unknown):
        warnings.warn(
            f"{len(unknown)} of {len(ops)} ops whose output is used give no out_bytes "
            f"(first: {graph.names[ops[unknown[0]]]!r}); counted as 0 bytes",
            stacklevel=5,
        )
    indptr = np.zeros(len(ops) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return node_of_op[ops], indptr, np.ascontiguousarray(pairs[:, 1]), known_bytes(size)


def _node_order(graph: Graph, node_of_op: IntArray, n: int) -> IntArray:
    """Return a topological order of the nodes, by Kahn with the smallest index first."""
    if n == graph.num_ops:
        return graph.order.astype(np.int64)
    edges = node_of_op[graph.edges]
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    merged = Graph(
        names=tuple(map(str, range(n))),
        kinds=("",) * n,
        edges=edges,
        param_bytes=np.zeros(n),
        out_bytes=np.zeros(n),
        flops=np.zeros(n),
    )
    return merged.order.astype(np.int64)


def _obstacle(graph: Graph, hardware: Hardware, problem: StageProblem, node_of_op: IntArray) -> str:
    """Return why no assignment can be feasible, as far as single nodes and totals tell; "" if they do not."""
    room_of = problem.memory_bytes * CAPACITY_SLACK
    fits = np.isfinite(problem.work_s) & (problem.param_bytes[None, :] <= room_of[:, None])
    stuck = np.flatnonzero(~fits.any(axis=0))
    if len(stuck):
        ops = [graph.names[v] for v in np.flatnonzero(node_of_op == stuck[0])]
        what = f"op {ops[0]!r}" if len(ops) == 1 else f"the colocated ops {', '.join(map(repr, ops[:4]))}"
        if not np.isfinite(problem.work_s[:, stuck[0]]).any():
            return f"{what} may not run on any device of {hardware.name!r}"
        largest = problem.memory_bytes.max()
        return (
            f"{what} needs {problem.param_bytes[stuck[0]]:,.0f} bytes; "
            f"no device that may run it holds that much (the largest memory has {largest:,.0f})"
        )
    total, room = problem.param_bytes.sum(), problem.memory_bytes[problem.stage_class].sum()
    if total * (1 - 1e-9) > room:  # sums may be rounded
        return f"the parameters need {total:,.0f} bytes; all devices together hold {room:,.0f}"
    return ""
