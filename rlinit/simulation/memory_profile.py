"""Bytes each device holds over time under a placement: parameters, and tensors from their making to their last use.

What is alive when is defined in `rlinit.placements.live_tensors`. For plans whose `resident` is ``peak``, the peak is
what `DeviceUse.held_bytes` says; for ``tensors`` it is at most that, since those keep every tensor for good (DIVIML
condition 6); plans that count weights alone may hold more than they say, and than there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.checker.compatibility import require_graph, require_hardware
from rlinit.checker.live_tensors import most_bytes, residence
from rlinit.costs.roofline import known_bytes
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.tensors import repeated_bytes

__all__ = ["MemoryProfile", "memory_profile"]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryProfile:
    """Bytes that one device holds over time.

    Parameters
    ----------
    device
        Its name.
    param_bytes
        Parameters of the ops it runs, held throughout.
    time_s, held_bytes
        (t,) increasing times, and the bytes held from each until the next, parameters included.
    peak_bytes
        The most ever held; what a batch that takes no time reads and makes counts as well.
    """

    device: str
    param_bytes: float
    time_s: FloatArray
    held_bytes: FloatArray
    peak_bytes: float


def memory_profile(plan: Plan, graph: Graph, hardware: Hardware) -> dict[str, MemoryProfile]:
    """Return the memory of each device over the timeline of a `latency` or `throughput` plan.

    Parameters
    ----------
    plan
        A plan with batches, as `verify` accepts it.
    graph, hardware
        What it was made for; sizes that the graph does not give count as 0 bytes.

    Raises
    ------
    InvalidPlan
        The plan has no batches, or is for another graph or devices.
    """
    if not plan.batches:
        raise InvalidPlan(f"a {plan.objective} plan that is {plan.status} has no timeline; expected batches")
    require_graph(plan, graph)
    require_hardware(plan, hardware)
    found = residence(plan, graph, hardware)
    ops: dict[str, list[int]] = {}
    for batch in plan.batches:
        ops.setdefault(batch.device, []).append(graph.index(batch.op))
    profiles = {}
    for i, name in enumerate(device.name for device in hardware.devices):
        mine_ops = ops.get(name, [])
        held = math.fsum(known_bytes(graph.param_bytes[mine_ops])) - repeated_bytes(graph.shared, mine_ops)
        mine = (found.device == i) & (found.size_bytes > 0.0)
        ends = mine & np.isfinite(found.until_s)
        when = np.concatenate([[0.0], found.begin_s[mine], found.until_s[ends]])
        times, which = np.unique(when, return_inverse=True)
        change = np.concatenate([[0.0], found.size_bytes[mine], -found.size_bytes[ends]])
        totals = np.cumsum(np.bincount(which, weights=change), dtype=np.float64) + held
        profiles[name] = MemoryProfile(name, held, times, totals, held + most_bytes(found, i)[1])
    return profiles
