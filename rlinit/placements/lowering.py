"""From a graph and hardware to the arrays of a placement problem: costs resolved, inputs split into shards."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.costs.roofline import held_tensors, known_bytes, op_times, times_on
from rlinit.errors import InvalidGraph, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK, Device, Hardware
from rlinit.limits import FEW_SHARDS, MANY_TIMES, MOST_SHARDS
from rlinit.placements.live_tensors import LiveTensors, live_tensors, without_what_never_fits
from rlinit.placements.ports import PortOps, port_ops
from rlinit.placements.problem import MAX_SHARDS, PlacementProblem
from rlinit.plan import Resident, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPlacement:
    """A placement problem, or why nothing can be feasible.

    Parameters
    ----------
    problem
        The arrays; ops and devices are numbered as in the graph and the hardware. After the ops come port ops, which
        stand for further output tensors (`rlinit.placements.ports`).
    infeasible
        Why nothing can be feasible, found without search, or "".
    live
        With ``resident="peak"``, the tensors whose peak counts beside the weights, which `problem` counts alone.
    """

    problem: PlacementProblem
    infeasible: str
    live: LiveTensors | None = None


def lower_placement(
    graph: Graph,
    hardware: Hardware,
    objective: Literal["latency", "throughput"],
    *,
    inputs: int | None = None,
    transfers: Transfers = "parallel",
    resident: Resident = "tensors",
) -> LoweredPlacement:
    """Build the array form of a placement problem.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    objective
        ``latency`` of one input, or ``throughput`` of several.
    inputs
        L, for ``throughput``.
    transfers
        How transfers share links and devices.
    resident
        What counts against memory: the parameters of a device's ops; with ``tensors`` for every input also the tensors
        that each of them reads and all that each of them makes, read by somebody or not; with ``peak`` the most bytes
        of tensors that are alive at once (`rlinit.placements.live_tensors`), and the device's reserve.

    Raises
    ------
    InvalidGraph
        An op without a time on a device that may run it, at a batch size the device offers.
    RlinitError
        ``throughput`` without a number of inputs, ``latency`` with one other than 1, or batch sizes whose common
        divisor is so small that there would be more than 62 shards.
    """
    if objective == "latency" and inputs not in (None, 1):
        raise RlinitError(f"inputs is {inputs}; latency is about one input, use objective='throughput' for several")
    if objective == "throughput" and (inputs is None or inputs < 1):
        raise RlinitError(f"inputs is {inputs}; throughput needs the number of inputs to finish, at least 1")
    total = inputs or 1
    shard = shard_inputs(graph, hardware, total)
    ports = port_ops(graph, shared=transfers != "parallel")
    time_s = _times(graph, hardware, total, shard)
    _warn_unknown(graph, hardware)
    linked = hardware.bandwidth > 0
    with np.errstate(divide="ignore"):
        s_per_byte = np.where(linked, 1.0 / hardware.bandwidth, 0.0)
    np.fill_diagonal(s_per_byte, 0.0)
    problem = PlacementProblem(
        objective=objective,
        transfers=transfers,
        shard_inputs=shard,
        time_s=np.concatenate([time_s, np.where(np.isfinite(time_s[ports.producer]), 0.0, np.inf)]),
        tensor_bytes=known_bytes(graph.tensors.size_bytes[ports.tensor]) * shard,
        weight_bytes=_with_ports(known_bytes(graph.param_bytes), ports),
        shard_bytes=_with_ports(held_tensors(graph) * (shard if resident == "tensors" else 0), ports),
        capacity_bytes=_capacities(hardware, resident),
        s_per_byte=s_per_byte,
        delay_s=np.where(linked, hardware.latency_s, np.inf),
        edges=ports.edges(graph),
        order=ports.order(graph),
        group=_groups(graph, ports),
        num_ports=len(ports),
    )
    obstacle = _obstacle(graph, hardware, problem, total)
    if resident != "peak" or obstacle:
        return LoweredPlacement(problem, obstacle)
    live = live_tensors(graph, problem)
    problem = without_what_never_fits(problem, live)
    stuck = np.flatnonzero(~_batch_sums(problem))
    if len(stuck):
        obstacle = (
            f"op {graph.names[stuck[0]]!r}, with its group's weights and the tensors that it reads and makes, fits on "
            f"no device that may run it (the largest has {problem.capacity_bytes.max():,.0f} bytes to give)"
        )
    return LoweredPlacement(problem, obstacle or _overfull_at_the_end(problem, live), live)


def _overfull_at_the_end(problem: PlacementProblem, live: LiveTensors) -> str:
    """Return why weights and what no op reads, which stays where it is made, cannot all be held; "" if they can."""
    weights = float(problem.weight_bytes.sum())
    outputs = problem.num_shards * live.unread_bytes
    room = float(problem.capacity_bytes.sum())
    if weights + outputs <= room * CAPACITY_SLACK:
        return ""
    return (
        f"the model needs {weights + outputs:,.0f} bytes when it ends, {weights:,.0f} for weights and {outputs:,.0f} "
        f"for tensors that no op reads, which stay; all devices together hold {room:,.0f} (resident='weights' counts "
        "weights alone)"
    )


def _capacities(hardware: Hardware, resident: Resident) -> FloatArray:
    """Return (d,) bytes that each device has for weights and tensors."""
    reserved = [device.reserve_bytes if resident == "peak" else 0.0 for device in hardware.devices]
    room: FloatArray = np.array([device.memory_bytes for device in hardware.devices]) - np.array(reserved)
    return room


def shard_inputs(graph: Graph, hardware: Hardware, inputs: int) -> int:
    """Return the inputs of one shard: the common divisor of `inputs` and every batch size a device names.

    Where a device names none, it is divided further, as long as there are 16 shards at most, or 4 on large graphs, and
    every number of them has a time on that device.

    Parameters
    ----------
    graph
        The graph, which may have times for some batch sizes only.
    hardware
        The devices, with the batch sizes they name.
    inputs
        Inputs of the whole problem, at least 1.

    Raises
    ------
    RlinitError
        It is so small that there would be more than 62 shards.
    """
    named = {size for device in hardware.devices for size in device.batch_sizes or () if size <= inputs}
    shard = math.gcd(inputs, *named)
    free = [device for device in hardware.devices if device.batch_sizes is None]
    if free:
        fine = graph.num_ops * hardware.num_devices * MOST_SHARDS <= MANY_TIMES
        most = max(MOST_SHARDS if fine else FEW_SHARDS, inputs // shard)
        parts = (part for part in range(most * shard // inputs, 1, -1) if shard % part == 0)
        sizes = (shard // part for part in parts)
        shard = next((size for size in sizes if _has_times(graph, free, size, inputs)), shard)
    if inputs // shard > MAX_SHARDS:
        raise RlinitError(
            f"the batch sizes {sorted(named)} deal {inputs} inputs in shards of {shard}, {inputs // shard} in all; "
            f"at most {MAX_SHARDS} are possible: name batch sizes with a larger common divisor"
        )
    return shard


def _has_times(graph: Graph, devices: Sequence[Device], shard: int, inputs: int) -> bool:
    """Return whether every op has a time on devices that may run it, for all numbers of shards."""
    if not graph.times:
        return True
    try:
        for device in devices:
            for size in range(shard, inputs + 1, shard):
                op_times(graph, device, size)
    except InvalidGraph:
        return False
    return True


def _with_ports(column: FloatArray, ports: PortOps) -> FloatArray:
    """Return a column of ops with zeros for the port ops."""
    return np.concatenate([column, np.zeros(len(ports))])


def _times(graph: Graph, hardware: Hardware, inputs: int, shard: int) -> FloatArray:
    """Return (n, d, s + 1) seconds of a batch of c shards; inf for batch sizes a device does not offer."""
    s = inputs // shard
    seconds = np.full((graph.num_ops, hardware.num_devices, s + 1), np.inf)
    seconds[:, :, 0] = 0.0
    for c in range(1, s + 1):
        offering = [
            i
            for i, device in enumerate(hardware.devices)
            if device.batch_sizes is None or c * shard in device.batch_sizes
        ]
        rows = times_on(graph, [hardware.devices[i] for i in offering], c * shard)
        for i, row in zip(offering, rows, strict=True):
            seconds[:, i, c] = row
    return seconds


def _groups(graph: Graph, ports: PortOps) -> IntArray:
    """Return (n + p,) the smallest op in each op's colocation group; itself where it has none. Ports join producers."""
    group = np.arange(graph.num_ops, dtype=np.int64)
    leader: dict[int, int] = {}
    for v in np.flatnonzero(graph.colocation >= 0).tolist():
        group[v] = leader.setdefault(int(graph.colocation[v]), v)
    return np.concatenate([group, group[ports.producer]])


def _warn_unknown(graph: Graph, hardware: Hardware) -> None:
    """Warn of tensors without a size that would have to be moved between devices."""
    if hardware.num_devices == 1 or not np.isfinite(hardware.bandwidth[~np.eye(len(hardware), dtype=bool)]).any():
        return
    used = np.unique(graph.edge_tensor[graph.edge_tensor < graph.num_ops])
    unknown = used[np.isnan(graph.out_bytes[used])]
    if len(unknown):
        warnings.warn(
            f"{len(unknown)} of {len(used)} ops whose output is used give no out_bytes "
            f"(first: {graph.names[unknown[0]]!r}); counted as 0 bytes",
            stacklevel=4,
        )


def _obstacle(graph: Graph, hardware: Hardware, problem: PlacementProblem, inputs: int) -> str:
    """Return why nothing can be feasible, as far as single ops and totals tell; "" if they do not."""
    reach = _batch_sums(problem)
    for v in np.flatnonzero(~reach[: graph.num_ops]):
        able = [device.name for i, device in enumerate(hardware.devices) if np.isfinite(problem.time_s[v, i, 1:]).any()]
        if not able:
            banned = any(mask[v] for mask in graph.forbidden.values())
            what = "is forbidden on" if banned else "has no batch size it can run at on"
            return f"op {graph.names[v]!r} {what} every device of {hardware.name!r}"
        sizes = {
            device.name: [
                c * problem.shard_inputs
                for c in range(1, problem.num_shards + 1)
                if np.isfinite(problem.time_s[v, i, c])
            ]
            for i, device in enumerate(hardware.devices)
        }
        return f"op {graph.names[v]!r}: no batches of the sizes {sizes} add up to {inputs} inputs"
    one = problem.num_shards == 1
    room = np.isfinite(problem.time_s[:, :, 1]) if one else np.ones(problem.time_s.shape[:2], np.bool_)
    need = problem.weight_bytes + problem.shard_bytes
    stuck = np.flatnonzero(~(room & (need[:, None] <= problem.capacity_bytes * CAPACITY_SLACK)).any(axis=1))
    if len(stuck):
        v = stuck[0]
        return (
            f"op {graph.names[v]!r} needs {need[v]:,.0f} bytes{_what(problem)}; "
            f"no device that may run it holds that much (the largest memory has {problem.capacity_bytes.max():,.0f})"
        )
    total = float((problem.weight_bytes + problem.num_shards * problem.shard_bytes).sum())
    room_bytes = float(problem.capacity_bytes.sum())
    if total > room_bytes * CAPACITY_SLACK:
        return f"the model needs {total:,.0f} bytes{_what(problem)}; all devices together hold {room_bytes:,.0f}"
    return ""


def _what(problem: PlacementProblem) -> str:
    """Return what the bytes are for, and how they could be fewer."""
    if not problem.shard_bytes.any():
        return " for weights"
    return " for weights, inputs and outputs of all ops at once (resident='weights' counts weights alone)"


def _batch_sums(problem: PlacementProblem) -> np.ndarray:
    """Return (n,) bool: whether one batch at most on each device can make up all shards of an op."""
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    sums = np.zeros((n, s + 1), np.bool_)
    sums[:, 0] = True
    for i in range(d):
        more = sums.copy()
        for c in range(1, s + 1):
            able = np.isfinite(problem.time_s[:, i, c])
            more[able, c:] |= sums[able, : s + 1 - c]
        sums = more
    return sums[:, s]
