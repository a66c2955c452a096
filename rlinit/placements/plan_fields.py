"""From a placement to the plan that users get, and back from a plan that they hand in."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.ports import PortOps, port_ops
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import Timeline, held_bytes, placement_of, timeline
from rlinit.plan import Batch, DeviceUse, Plan, PlannedTransfer


def placement_parts(
    problem: PlacementProblem,
    placement: Placement,
    graph: Graph,
    hardware: Hardware,
    live: LiveTensors | None = None,
) -> dict[str, object]:
    """Return the fields of a plan that describe a placement, from the problem's own arrays; port ops are left out.

    Parameters
    ----------
    problem, placement
        The problem that was solved, and a placement that breaks none of its rules.
    graph, hardware
        Where ops and devices have their names from.
    live
        The problem's tensors, where their peak counts against memory.
    """
    run = timeline(problem, placement)
    held = held_bytes(problem, placement.device)
    if live is not None:
        held = held + live.peak_bytes(problem, placement)
    names = [device.name for device in hardware.devices]
    d = problem.num_devices
    runs = placement.sequence[placement.sequence // d < graph.num_ops]
    runs = runs[np.argsort(run.start_s[runs // d, runs % d], kind="stable")]
    ops, devices = runs // d, runs % d
    shards = _shards_of(placement.device, ops, devices)
    starts, ends = run.start_s[ops, devices].tolist(), run.end_s[ops, devices].tolist()
    of_op = list(map(graph.names.__getitem__, ops.tolist()))
    on = list(map(names.__getitem__, devices.tolist()))
    _, first = np.unique(ops, return_index=True)
    counts = np.bincount(ops, minlength=graph.num_ops).tolist()
    by_op = map(names.__getitem__, (np.sort(runs) % d).tolist())
    of_ops = (tuple(islice(by_op, count)) if count > 1 else next(by_op) for count in counts)
    return {
        "assignment": dict(zip(graph.names, of_ops, strict=True)),
        "start_s": {name: starts[at] for name, at in zip(graph.names, first.tolist(), strict=True)},
        "batches": tuple(map(Batch, of_op, on, shards, starts, ends)),
        "transfers": _transfers(problem, run, graph, names),
        "devices": _device_uses(problem, placement, runs, names, held),
    }


def _shards_of(device: IntArray, ops: IntArray, devices: IntArray) -> list[tuple[int, ...]]:
    """Return the shards of batches, from the (n, s) device of each shard of each op."""
    if device.shape[1] == 1:
        return [(0,)] * len(ops)
    batch, shard = np.nonzero(device[ops] == devices[:, None])
    ends = np.cumsum(np.bincount(batch, minlength=len(ops))).tolist()
    every = shard.tolist()
    return [tuple(every[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _transfers(problem: PlacementProblem, run: Timeline, graph: Graph, names: list[str]) -> tuple[PlannedTransfer, ...]:
    """Return the transfers of a timeline, by the tensors of the graph that they move."""
    rows, tensors = port_ops(graph, shared=problem.transfers != "parallel").tensor, graph.tensors
    return tuple(
        PlannedTransfer(
            graph.names[tensors.op[rows[t.op]]],
            names[t.source],
            names[t.target],
            t.start_s,
            t.end_s,
            tensors.name[rows[t.op]],
        )
        for t in run.transfers
    )


def _device_uses(
    problem: PlacementProblem, placement: Placement, runs: IntArray, names: list[str], held: FloatArray
) -> tuple[DeviceUse, ...]:
    """Return what each device does; `runs` are the batches that a plan lists, `held` (d,) bytes."""
    d = problem.num_devices
    uses = []
    for i, name in enumerate(names):
        ops = runs[runs % d == i] // d
        sizes = (placement.device[ops] == i).sum(axis=1)
        seconds = problem.time_s[ops, i, sizes].tolist()
        uses.append(DeviceUse(name, len(ops), math.fsum(seconds), float(held[i])))
    return tuple(uses)


def placement_from_plan(plan: Plan, problem: PlacementProblem, graph: Graph, hardware: Hardware) -> Placement:
    """Return the placement of a plan handed in to be refined, which may be of a graph and devices that have changed.

    Ops and devices are found by name. An op that may not run where the plan has it goes to its fastest device; one that
    the plan does not name, to that of the op from which most bytes reach it, else of one that reads it, else to its
    fastest. The result may break the limits of memory.

    Parameters
    ----------
    plan
        A 'latency' or 'throughput' plan with a schedule.
    problem
        The lowered problem of this call.
    graph
        The graph it was lowered from.
    hardware
        The devices, in the order of the problem.

    Raises
    ------
    InvalidPlan
        It names none of the ops, is for another objective or number of inputs, or has no schedule.
    """
    if plan.assignment is None or plan.objective not in ("latency", "throughput"):
        raise InvalidPlan(f"the plan to refine is a {plan.objective} plan that is {plan.status}; it has no placement")
    shards, inputs = problem.num_shards, problem.num_shards * problem.shard_inputs
    op_index = {name: v for v, name in enumerate(graph.names)}
    if op_index.keys().isdisjoint(plan.assignment) or plan.inputs != inputs:
        raise InvalidPlan(f"the plan to refine is for {plan.graph!r} and {plan.inputs} inputs, not for this problem")
    if plan.shard_inputs % problem.shard_inputs:
        raise InvalidPlan(
            f"the plan to refine deals its inputs in shards of {plan.shard_inputs}, this problem in shards of "
            f"{problem.shard_inputs}: name batch sizes that both have"
        )
    finer = plan.shard_inputs // problem.shard_inputs
    index = {device.name: i for i, device in enumerate(hardware.devices)}
    device = np.full((problem.num_ops, shards), -1)
    place = np.full((problem.num_ops, hardware.num_devices), np.nan)
    for at, batch in enumerate(sorted(plan.batches, key=lambda batch: (batch.start_s, batch.end_s))):
        v, i = op_index.get(batch.op, -1), index.get(batch.device, -1)
        if v < 0:
            continue
        ran = (np.array(batch.shards)[:, None] * finer + np.arange(finer)).ravel()
        if i >= 0 and np.isfinite(problem.time_s[v, i, len(ran)]):
            device[v, ran], place[v, i] = i, at
        else:
            place[v, np.isnan(place[v])] = at
    _place_others(problem, graph.num_ops, device, place)
    ports = port_ops(graph, shared=problem.transfers != "parallel")
    device[graph.num_ops :], place[graph.num_ops :] = device[ports.producer], place[ports.producer]
    _queue_ports(plan, graph, index, ports, place)
    return placement_of(problem, device, place)


def _place_others(problem: PlacementProblem, count: int, device: IntArray, place: FloatArray) -> None:
    """Put those of the first `count` ops that have no device where their neighbours are, behind all that they read."""
    seconds = problem.over_groups(problem.time_s[:, :, -1], np.add)
    for v in problem.order[problem.order < count].tolist():
        if (device[v] >= 0).all():
            continue
        before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        moved = np.isfinite(place[v]).any()
        others = () if moved else (*before[np.argsort(-problem.tensor_bytes[before])], *after)
        near = (device[u] for u in others if device[u].min() >= 0)
        allowed = (row for row in near if np.isfinite(seconds[v, row]).all())
        device[v] = next(allowed, seconds[v].argmin())
        place[v, np.isnan(place[v])] = np.nanmax(place[v] if moved else place[before], initial=-1.0) + 0.5
    device[:count] = device[problem.group[:count]]


def _queue_ports(plan: Plan, graph: Graph, index: dict[str, int], ports: PortOps, place: FloatArray) -> None:
    """Move port ops, (n + p, d) placed like their producers, behind the batches whose transfers go before theirs.

    Batches have whole numbers as places; port ops get places between these.
    """
    step = 1.0 / (len(plan.transfers) + 2)
    place[graph.num_ops :] += step
    op_of = np.argsort(ports.tensor)
    used, tensors = ports.tensor[op_of], graph.tensors
    rows = {(graph.names[tensors.op[row]], tensors.name[row]): int(v) for row, v in zip(used, op_of, strict=True)}
    last: dict[tuple[str, str], float] = {}
    for moved in sorted(plan.transfers, key=lambda moved: (moved.start_s, moved.end_s)):
        v, i, link = rows.get((moved.op, moved.tensor)), index.get(moved.source), (moved.source, moved.target)
        if v is None or i is None:
            continue  # Made for another way of transferring.
        if v >= graph.num_ops:
            place[v, i] = max(place[v, i], last.get(link, 0.0) + step)
        last[link] = max(last.get(link, 0.0), place[v, i])
