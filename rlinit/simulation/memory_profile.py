"""Bytes each device holds over time under a placement: parameters, and tensors from their making to their last use.

A tensor is there from the start of the batch that makes it, and on another device from the start of its transfer. It is
given back when the last batch that reads it there, and the last transfer out, are over. Results that no op reads stay.
For plans whose `resident` is ``tensors``, the peak is at most what `DeviceUse.held_bytes` counts, which keeps every
tensor for good (DIVIML condition 6); plans that count weights alone may hold more than that, and than there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.checker.compatibility import require_graph, require_hardware
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan

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
        (t,) increasing times, and the bytes held from each until the next, parameters included. Where several things
        happen at one time, only the last state is kept, but `peak_bytes` counts all of them.
    peak_bytes
        The most ever held.
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
    events, params = _events(plan, graph, hardware)
    profiles = {}
    for device in hardware.devices:
        name = device.name
        changes = sorted(events.get(name, []))
        held, peak = params.get(name, 0.0), params.get(name, 0.0)
        times, totals = [0.0], [held]
        for time_s, _, change in changes:
            held += change
            peak = max(peak, held)
            if time_s == times[-1]:
                totals[-1] = held
            else:
                times.append(time_s)
                totals.append(held)
        profiles[name] = MemoryProfile(name, params.get(name, 0.0), np.array(times), np.array(totals), peak)
    return profiles


def _events(
    plan: Plan, graph: Graph, hardware: Hardware
) -> tuple[Mapping[str, list[tuple[float, int, float]]], Mapping[str, float]]:
    """Return device -> (time, tie-break, change in bytes), and device -> parameter bytes.

    At one time, what a batch lets go is gone before the next batch takes its own: the tie-break is twice the batch's
    place in the order of starts, plus one for what it frees.
    """
    from rlinit.simulation.simulator import Move, movements, planned_order

    order = planned_order(plan, graph)
    listed = {(t.op, t.tensor, t.source, t.target): t for t in plan.transfers}
    index = {device.name: i for i, device in enumerate(hardware.devices)}
    readers = _local_readers(order, graph)
    events: dict[str, list[tuple[float, int, float]]] = {}
    params: dict[str, float] = {}
    moves: dict[tuple[int, int], list[Move]] = {}
    for move in movements(order, graph, one_each=False):
        moves.setdefault((move.producer, move.tensor), []).append(move)
    tensors = graph.tensors
    made: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for row, op in enumerate(tensors.op.tolist()):
        made[op].append(row)
    for at, batch in enumerate(order):
        v = graph.index(batch.op)
        params[batch.device] = params.get(batch.device, 0.0) + _size(graph.param_bytes[v])
        for row in made[v]:
            size = _size(tensors.size_bytes[row]) * plan.shard_inputs
            ends = [(order[reader].end_s, 2 * reader + 1) for reader in readers.get((at, row), ())]
            for _, _, target, shards, consumers in moves.get((at, row), ()):
                leaves, arrives = batch.end_s, batch.end_s
                if plan.transfer_rule == "parallel":
                    i, j = index[batch.device], index[target]
                    arrives += float(hardware.latency_s[i, j]) + len(shards) * size / float(hardware.bandwidth[i, j])
                else:
                    transfer = listed[batch.op, tensors.name[row], batch.device, target]
                    leaves, arrives = transfer.start_s, transfer.end_s
                ends.append((arrives, 2 * at + 1))
                there = events.setdefault(target, [])
                there.append((leaves, 2 * at + 1, len(shards) * size))
                # Read by batches of one device, which run one after the other: the last of them lets it go.
                there.append((*max((order[c].end_s, 2 * c + 1) for c in consumers), -len(shards) * size))
            here = events.setdefault(batch.device, [])
            here.append((batch.start_s, 2 * at, len(batch.shards) * size))
            if ends:
                here.append((*max(ends), -len(batch.shards) * size))
    return events, params


def _local_readers(order: list[Batch], graph: Graph) -> dict[tuple[int, int], list[int]]:
    """Return (batch, row of its op's tensor) -> the batches on the batch's device that read it."""
    where = {(batch.op, shard): at for at, batch in enumerate(order) for shard in batch.shards}
    reads: dict[int, list[tuple[str, int]]] = {}
    for (u, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        reads.setdefault(u, []).append((graph.names[v], row))
    readers: dict[tuple[int, int], list[int]] = {}
    for at, batch in enumerate(order):
        for name, row in reads.get(graph.index(batch.op), ()):
            found = {where[name, shard] for shard in batch.shards}
            readers.setdefault((at, row), []).extend(o for o in sorted(found) if order[o].device == batch.device)
    return readers


def _size(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
