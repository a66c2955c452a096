"""The independent checker of placements: plain Python over the definitions, slow and simple on purpose.

Nothing here comes from the solvers, the kernels or the array form they work on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, DeviceUse, Plan, Resident

__all__ = ["check_placement", "device_uses"]

_ROUNDING = 1e-9
"""Part of the makespan by which two times may differ through rounding."""


def check_placement(plan: Plan, graph: Graph, hardware: Hardware) -> float:
    """Check every rule of the problem on the batches and transfers of a plan; return its makespan in seconds.

    Raises
    ------
    InvalidPlan
        An op, shard or device missing or unknown; a batch of an unsupported size or a wrong length; batches that
        overlap on a device; a batch that starts before its data is there; transfers that overlap where they may not;
        colocated ops apart; an op where it is forbidden; a memory overfull; a figure that is not true.
    """
    index = {device.name: i for i, device in enumerate(hardware.devices)}
    makespan = max((batch.end_s for batch in plan.batches), default=0.0)
    slack = _ROUNDING * makespan
    at: dict[tuple[str, str], Batch] = {}
    for batch in plan.batches:
        if batch.device not in index:
            raise InvalidPlan(f"the plan uses device {batch.device!r}, which {hardware.name!r} does not have")
        if (batch.op, batch.device) in at:
            raise InvalidPlan(f"op {batch.op!r} has two batches on device {batch.device!r}")
        at[batch.op, batch.device] = batch
    where = _check_shards(plan, graph)
    _check_lengths(plan, graph, hardware, slack)
    _check_overlaps(
        {device: [b for b in plan.batches if b.device == device] for device in index}, "runs two batches at once", slack
    )
    _check_groups(graph, where)
    _check_data(plan, graph, hardware, where, at, slack)
    for claimed, true in zip(
        plan.devices, device_uses(plan.batches, graph, hardware, plan.shard_inputs, plan.resident), strict=True
    ):
        _check_use(claimed, true, hardware.devices[index[true.device]].memory_bytes)
    _check_summary(plan, graph)
    return makespan


def device_uses(
    batches: Sequence[Batch], graph: Graph, hardware: Hardware, shard_inputs: int, resident: Resident
) -> tuple[DeviceUse, ...]:
    """Return what each device does, from the definitions alone (bytes held: DIVIML condition 6, or weights alone)."""
    counted = shard_inputs if resident == "tensors" else 0
    size = {name: _size(graph.out_bytes[v]) for v, name in enumerate(graph.names)}
    read = dict.fromkeys(graph.names, 0.0)
    for u, v in graph.edges.tolist():
        read[graph.names[v]] += size[graph.names[u]]
    uses = []
    for device in hardware.devices:
        mine = [batch for batch in batches if batch.device == device.name]
        held = math.fsum(
            _size(graph.param_bytes[graph.index(b.op)]) + len(b.shards) * counted * (read[b.op] + size[b.op])
            for b in mine
        )
        uses.append(DeviceUse(device.name, len(mine), math.fsum(b.end_s - b.start_s for b in mine), held))
    return tuple(uses)


def _size(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def _check_shards(plan: Plan, graph: Graph) -> Mapping[str, Mapping[int, str]]:
    """Check that every shard of every op is on one device; return op -> shard -> device."""
    if plan.shard_inputs < 1 or plan.inputs % plan.shard_inputs:
        raise InvalidPlan(f"{plan.inputs} inputs cannot be dealt in shards of {plan.shard_inputs}")
    shards = set(range(plan.inputs // plan.shard_inputs))
    where: dict[str, dict[int, str]] = {name: {} for name in graph.names}
    for batch in plan.batches:
        graph.index(batch.op)
        for shard in batch.shards:
            if shard in where[batch.op]:
                raise InvalidPlan(f"shard {shard} of op {batch.op!r} is in two batches")
            where[batch.op][shard] = batch.device
    for name, held in where.items():
        if set(held) != shards:
            raise InvalidPlan(f"op {name!r} has shards {sorted(held)}; expected {sorted(shards)}")
    return where


def _check_lengths(plan: Plan, graph: Graph, hardware: Hardware, slack: float) -> None:
    """Check that every batch has a supported size, may run where it does, and takes as long as it says."""
    devices = {device.name: device for device in hardware.devices}
    times: dict[tuple[str, int], Sequence[float]] = {}
    for batch in plan.batches:
        device, size = devices[batch.device], len(batch.shards) * plan.shard_inputs
        if device.batch_sizes is not None and size not in device.batch_sizes:
            raise InvalidPlan(f"device {device.name!r} does not support batch size {size} (op {batch.op!r})")
        if (device.name, size) not in times:
            times[device.name, size] = op_times(graph, device, size).tolist()
        seconds = times[device.name, size][graph.index(batch.op)]
        if math.isinf(seconds):
            raise InvalidPlan(f"op {batch.op!r} is on device {device.name!r}, where it is forbidden")
        if batch.start_s < -slack or abs(batch.end_s - batch.start_s - seconds) > slack:
            raise InvalidPlan(
                f"op {batch.op!r} runs from {batch.start_s} s to {batch.end_s} s on {device.name!r}, "
                f"where it takes {seconds} s"
            )


def _check_overlaps(lanes: Mapping[str, Sequence[Batch]], what: str, slack: float) -> None:
    for lane, spans in lanes.items():
        ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
        for before, after in pairwise(ordered):
            if after.start_s < before.end_s - slack:
                raise InvalidPlan(f"{lane!r} {what}: {before.op!r} and {after.op!r} at {after.start_s} s")


def _check_groups(graph: Graph, where: Mapping[str, Mapping[int, str]]) -> None:
    leader: dict[int, str] = {}
    for v, name in enumerate(graph.names):
        group = int(graph.colocation[v])
        if group >= 0 and where[leader.setdefault(group, name)] != where[name]:
            raise InvalidPlan(f"colocated ops {leader[group]!r} and {name!r} are on different devices")


def _check_data(
    plan: Plan,
    graph: Graph,
    hardware: Hardware,
    where: Mapping[str, Mapping[int, str]],
    at: Mapping[tuple[str, str], Batch],
    slack: float,
) -> None:
    """Check that every batch starts after its data is there."""
    moved = {(t.op, t.source, t.target): t for t in plan.transfers}
    if len(moved) < len(plan.transfers):
        raise InvalidPlan("a tensor is moved twice between the same devices")
    if plan.transfer_rule == "parallel" and plan.transfers:
        raise InvalidPlan("parallel transfers follow from the batches; the plan lists some")
    needed: dict[tuple[str, str, str], set[int]] = {}
    waits: list[tuple[str, str, str, str, set[int]]] = []
    for u, v in graph.edges.tolist():
        producer, consumer = graph.names[u], graph.names[v]
        shared: dict[tuple[str, str], set[int]] = {}
        for shard, source in where[producer].items():
            shared.setdefault((source, where[consumer][shard]), set()).add(shard)
        for (source, target), shards in shared.items():
            if source != target:
                needed.setdefault((producer, source, target), set()).update(shards)
            waits.append((producer, source, consumer, target, shards))
    seconds = {
        (op, source, target): _transfer_s(plan, graph, hardware, op, source, target, len(shards))
        for (op, source, target), shards in needed.items()
    }
    if plan.transfer_rule != "parallel":
        _check_transfers(plan, at, seconds, slack)
    for producer, source, consumer, target, shards in waits:
        ready = at[producer, source].end_s
        if source != target and plan.transfer_rule == "parallel":
            ready += _transfer_s(plan, graph, hardware, producer, source, target, len(shards))
        elif source != target:
            ready = moved[producer, source, target].end_s
        if at[consumer, target].start_s < ready - slack:
            raise InvalidPlan(
                f"op {consumer!r} starts on {target!r} at {at[consumer, target].start_s} s; "
                f"its input from {producer!r} on {source!r} is there at {ready} s"
            )


def _transfer_s(plan: Plan, graph: Graph, hardware: Hardware, op: str, source: str, target: str, shards: int) -> float:
    names = [device.name for device in hardware.devices]
    i, j = names.index(source), names.index(target)
    rate = float(hardware.bandwidth[i, j])
    if rate == 0:
        raise InvalidPlan(f"op {op!r} sends its output from {source!r} to {target!r}; no path links them")
    return float(hardware.latency_s[i, j]) + shards * plan.shard_inputs * _size(graph.out_bytes[graph.index(op)]) / rate


def _check_transfers(
    plan: Plan, at: Mapping[tuple[str, str], Batch], seconds: Mapping[tuple[str, str, str], float], slack: float
) -> None:
    """Check that every needed transfer is there, long enough, after its batch, and alone where it must be."""
    moved = {(t.op, t.source, t.target): t for t in plan.transfers}
    if set(moved) != set(seconds):
        odd = sorted(set(moved) ^ set(seconds))[0]
        raise InvalidPlan(f"the transfer of {odd[0]!r} from {odd[1]!r} to {odd[2]!r} is missing or not needed")
    lanes: dict[str, list[Batch]] = {}
    for (op, source, target), transfer in moved.items():
        if transfer.start_s < at[op, source].end_s - slack:
            raise InvalidPlan(f"the output of {op!r} leaves {source!r} before it is made")
        if transfer.end_s < transfer.start_s + seconds[op, source, target] - slack:
            raise InvalidPlan(f"the transfer of {op!r} from {source!r} to {target!r} is too short")
        lane = f"{source} -> {target}" if plan.transfer_rule == "exclusive" else target
        lanes.setdefault(lane, []).append(Batch(op, target, (), transfer.start_s, transfer.end_s))
    if plan.transfer_rule == "blocking":
        for batch in plan.batches:
            lanes.setdefault(batch.device, []).append(batch)
    _check_overlaps(lanes, "is used twice at once", slack)


def _check_use(claimed: DeviceUse, true: DeviceUse, memory: float) -> None:
    for figure in ("device", "num_batches", "busy_s", "held_bytes"):
        a, b = getattr(claimed, figure), getattr(true, figure)
        if a != b and (isinstance(a, str) or not math.isclose(a, b, rel_tol=_ROUNDING)):
            raise InvalidPlan(f"device {true.device!r}: {figure} is given as {a} but is {b}")
    if true.held_bytes > memory * (1.0 + _ROUNDING):
        raise InvalidPlan(f"device {true.device!r} holds {true.held_bytes:,.0f} bytes; its memory has {memory:,.0f}")


def _check_summary(plan: Plan, graph: Graph) -> None:
    """Check that `assignment` and `start_s` say what the batches say."""
    mine: dict[str, list[Batch]] = {}
    for batch in plan.batches:
        mine.setdefault(batch.op, []).append(batch)
    for name in graph.names:
        most = max(len(batch.shards) for batch in mine[name])
        if (plan.assignment or {}).get(name) not in [b.device for b in mine[name] if len(b.shards) == most]:
            raise InvalidPlan(f"op {name!r} is assigned to {(plan.assignment or {}).get(name)!r}, not where it runs")
        if (plan.start_s or {}).get(name) != min(batch.start_s for batch in mine[name]):
            raise InvalidPlan(f"start_s of op {name!r} is not the start of its first batch")
    if plan.assignment is not None and len(plan.assignment) != graph.num_ops:
        raise InvalidPlan("the plan assigns ops that the graph does not have")
