"""What to know before a placement is used: gains that its costs may not bear out, and data that moves to and fro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.comparison.baselines import BEST_DEVICE, Baseline
from rlinit.costs.roofline import op_times
from rlinit.costs.sources import cost_errors
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.units import compute_type, format_seconds

_HAND_OVER_S = 20e-6
"""What handing a tensor over may take beyond the plan: 11 to 19 us to wake a worker on a CPU
(`rlinit.measurement.transfers`, one machine)."""


def placement_advice(
    graph: Graph,
    hardware: Hardware,
    assignment: Mapping[str, str | tuple[str, ...]],
    value_s: float,
    baselines: Sequence[Baseline[Any]],
    shard_inputs: int = 1,
) -> list[str]:
    """Say where a placement over several devices gains little over one of them, for what its costs are worth.

    Parameters
    ----------
    graph, hardware
        What it is for.
    assignment
        Device name of every op.
    value_s
        Its makespan.
    baselines
        Among them the best single device.
    shard_inputs
        Inputs of a shard: the batches of which ops are known to have times.
    """
    best = next((one for one in baselines if one.name == BEST_DEVICE and one.value is not None), None)
    where = {op: (on,) if isinstance(on, str) else on for op, on in assignment.items()}
    used = {device for on in where.values() for device in on}
    first = {op: on[0] for op, on in where.items()}  # an op that several devices run counts where its first inputs do
    if best is None or best.value is None or len(used) < 2 or not value_s > 0.0:
        return []
    gain = max(best.value / value_s - 1.0, 0.0)
    error = _error(graph, [device for device in hardware.devices if device.name in used], first, shard_inputs)
    notes = []
    if gain < error:
        notes.append(
            f"everything on {best.note!r} would take only {gain:.1%} longer than these {len(used)} devices, and costs "
            f"are uncertain by about {error:.0%}"
        )
    moves = _moves(graph, first)
    if gain * value_s < moves * _HAND_OVER_S:
        notes.append(
            f"there are {moves:,} moves of data between devices, one for every {graph.num_ops / moves:.1f} ops. If "
            f"each takes {format_seconds(gain * value_s / moves)} longer than planned, {best.note!r} alone is as fast"
        )
    return notes


def _error(graph: Graph, devices: Sequence[Device], assignment: Mapping[str, str], shard_inputs: int) -> float:
    """Return the relative error of the seconds of all ops where they are, taken to err all the same way."""
    where = np.array([assignment[op] for op in graph.names])
    total_s = error_s = 0.0
    for device in devices:
        here = where == device.name
        batch = min((size for size in device.batch_sizes or () if size % shard_inputs == 0), default=shard_inputs)
        seconds: FloatArray = op_times(graph, device, batch)[here]
        total_s += float(seconds.sum())
        error_s += float((seconds * cost_errors(graph, device)[here]).sum())
    return error_s / total_s if total_s > 0.0 else 0.0


def _moves(graph: Graph, assignment: Mapping[str, str]) -> int:
    """Return how often a tensor goes to another device, once for each that it goes to."""
    _, where = np.unique(np.array([assignment[op] for op in graph.names]), return_inverse=True)
    to = where[graph.edges[:, 1]]
    moved = where[graph.edges[:, 0]] != to
    return len(np.unique(graph.edge_tensor[moved] * graph.num_ops + to[moved]))


def type_advice(graph: Graph, hardware: Hardware) -> list[str]:
    """Say where Edge TPUs, which compute in INT8, are planned with numbers of another type at their INT8 rate.

    Parameters
    ----------
    graph
        Its types, where they are known.
    hardware
        The devices.
    """
    tpus = [device for device in hardware.devices if device.kind == "edge-tpu" and device.flops_per_s is not None]
    types = {compute_type(graph.extras.get(v, {})) for v in np.flatnonzero(np.nan_to_num(graph.flops)).tolist()}
    other = sorted(types - {"", "int8", "int4"})
    if not tpus or not other or graph.times:
        return []
    return [
        f"the model's numbers are {', '.join(other)}; Edge TPUs compute in INT8, at whose rate it is planned, with "
        "tensors of the model's own size: read it with dtype='int8' (--dtype int8)"
    ]
