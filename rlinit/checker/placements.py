"""The independent checker of placements: plain Python over the definitions, slow and simple on purpose.

Nothing here comes from the solvers, the kernels or the array form they work on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlinit.checker.live_tensors import most_bytes, residence
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan, PlannedTransfer

__all__ = ["check_placement"]

_ROUNDING = 1e-9
"""Relative difference of two float sums of the same numbers that is put down to rounding."""

_ULPS = 16.0
"""Steps between floats by which two times may differ through the rounding of a few sums and products."""

_SHARE = 1e-6
"""Part of the shorter of two spans by which they may overlap through rounding at most."""

Shards = Mapping[str, Mapping[int, str]]
"""op -> shard -> device."""

Tensor = tuple[str, str]
"""(producer, name among its tensors): ``""`` for the main output, a port, or ``"-> consumer"`` for an edge's own."""

_Move = tuple[str, str, str, str]
"""(op, tensor, source, target)."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the definitions say about a plan's graph and hardware, as plain numbers.

    `edges` are (producer, consumer, name of the tensor that is read). `size` is bytes of a tensor (producer, name),
    `weights` of an op's parameters, `tensors` of all that an op reads and makes; `at` is the batch of an op on a
    device, `seconds` the time it takes, `where` the device of each shard.
    """

    index: Mapping[str, int]
    bandwidth: Sequence[Sequence[float]]
    latency_s: Sequence[Sequence[float]]
    edges: Sequence[tuple[str, str, str]]
    size: Mapping[Tensor, float]
    weights: Mapping[str, float]
    tensors: Mapping[str, float]
    at: Mapping[tuple[str, str], Batch]
    seconds: Mapping[tuple[str, str], float]
    where: Shards


def check_placement(plan: Plan, graph: Graph, hardware: Hardware) -> float:
    """Check every rule of the problem on the batches and transfers of a plan; return its makespan in seconds.

    Parameters
    ----------
    plan
        A 'latency' or 'throughput' plan with a schedule.
    graph
        The graph it is for, whose fingerprint was compared.
    hardware
        The devices and links it is for.

    Raises
    ------
    InvalidPlan
        An op, shard or device missing or unknown; a batch of an unsupported size or a wrong length; batches that
        overlap on a device; a batch that starts before its data is there; transfers that overlap where they may not;
        colocated ops apart; an op where it is forbidden; a memory overfull; a figure that is not true.
    """
    facts = _facts(plan, graph, hardware)
    _check_overlaps(_lanes(plan.batches), "runs two batches at once")
    _check_groups(graph, facts.where)
    _check_data(plan, facts)
    _check_uses(plan, facts, graph, hardware)
    _check_summary(plan, graph)
    return max(batch.end_s for batch in plan.batches)


def _facts(plan: Plan, graph: Graph, hardware: Hardware) -> _Facts:
    """Collect the facts, after checking that every batch is of a known op on a known device, and every shard dealt."""
    index = {device.name: i for i, device in enumerate(hardware.devices)}
    known = set(graph.names)
    at: dict[tuple[str, str], Batch] = {}
    for batch in plan.batches:
        if batch.device not in index:
            raise InvalidPlan(f"the plan uses device {batch.device!r}, which {hardware.name!r} does not have")
        if batch.op not in known:
            raise InvalidPlan(f"the plan runs op {batch.op!r}, which the graph does not have")
        if (batch.op, batch.device) in at:
            raise InvalidPlan(f"op {batch.op!r} has two batches on device {batch.device!r}")
        at[batch.op, batch.device] = batch
    where = _check_shards(plan, graph)
    edges = _reads(graph)
    size = _sizes(graph)
    held: dict[str, list[float]] = {name: [] for name in graph.names}
    for (producer, _), bytes_made in size.items():
        held[producer].append(bytes_made)
    for producer, consumer, tensor in edges:
        held[consumer].append(size[producer, tensor])
    return _Facts(
        index=index,
        bandwidth=hardware.bandwidth.tolist(),
        latency_s=hardware.latency_s.tolist(),
        edges=edges,
        size=size,
        weights=dict(zip(graph.names, map(_size, graph.param_bytes.tolist()), strict=True)),
        tensors={name: math.fsum(sizes) for name, sizes in held.items()},
        at=at,
        seconds=_check_lengths(plan, graph, hardware),
        where=where,
    )


def _reads(graph: Graph) -> list[tuple[str, str, str]]:
    """Return (producer, consumer, name of the tensor that is read) of every edge, from the graph's raw arrays."""
    n, reads = graph.num_ops, []
    for (u, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        tensor = "" if row < n else graph.further.port[row - n] or f"-> {graph.names[v]}"
        reads.append((graph.names[u], graph.names[v], tensor))
    return reads


def _sizes(graph: Graph) -> dict[Tensor, float]:
    """Return the bytes of every tensor, from the graph's raw arrays; unknown ones count as 0."""
    n = graph.num_ops
    size = {(name, ""): _size(value) for name, value in zip(graph.names, graph.out_bytes.tolist(), strict=True)}
    for u, port, value in zip(
        graph.further.op.tolist(), graph.further.port, graph.further.size_bytes.tolist(), strict=True
    ):
        if port:
            size[graph.names[u], port] = float(value)
    for (u, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        if row >= n and not graph.further.port[row - n]:
            size[graph.names[u], f"-> {graph.names[v]}"] = float(graph.further.size_bytes[row - n])
    return size


def _size(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def _slack(*times: float) -> float:
    """Return the seconds by which times of these magnitudes may differ through rounding."""
    return _ULPS * math.ulp(max(map(abs, times)))


def _check_shards(plan: Plan, graph: Graph) -> Shards:
    """Check that every shard of every op is on one device; return where."""
    if plan.inputs % plan.shard_inputs:
        raise InvalidPlan(f"{plan.inputs} inputs cannot be dealt in shards of {plan.shard_inputs}")
    num_shards = plan.inputs // plan.shard_inputs
    where: dict[str, dict[int, str]] = {name: {} for name in graph.names}
    for batch in plan.batches:
        if not batch.shards:
            raise InvalidPlan(f"op {batch.op!r} has a batch of no shards on device {batch.device!r}")
        for shard in batch.shards:
            if shard in where[batch.op]:
                raise InvalidPlan(f"shard {shard} of op {batch.op!r} is in two batches")
            where[batch.op][shard] = batch.device
    for name, held in where.items():
        if len(held) != num_shards or max(held) != num_shards - 1:
            raise InvalidPlan(f"op {name!r} has shards {sorted(held)[:8]}; expected 0..{num_shards - 1}")
    return where


def _check_lengths(plan: Plan, graph: Graph, hardware: Hardware) -> dict[tuple[str, str], float]:
    """Check that every batch has a supported size, may run where it does, and takes as long as it says; return that."""
    devices = {device.name: device for device in hardware.devices}
    place = {name: v for v, name in enumerate(graph.names)}
    times: dict[tuple[str, int], Sequence[float]] = {}
    taken = {}
    for batch in plan.batches:
        device, size = devices[batch.device], len(batch.shards) * plan.shard_inputs
        if device.batch_sizes is not None and size not in device.batch_sizes:
            raise InvalidPlan(f"device {device.name!r} does not support batch size {size} (op {batch.op!r})")
        if (device.name, size) not in times:
            times[device.name, size] = op_times(graph, device, size).tolist()
        seconds = times[device.name, size][place[batch.op]]
        if math.isinf(seconds):
            raise InvalidPlan(f"op {batch.op!r} is on device {device.name!r}, where it is forbidden")
        if abs(batch.end_s - batch.start_s - seconds) > _slack(batch.end_s):
            raise InvalidPlan(
                f"op {batch.op!r} runs from {batch.start_s} s to {batch.end_s} s on {device.name!r}, "
                f"where it takes {seconds} s"
            )
        taken[batch.op, batch.device] = seconds
    return taken


def _lanes(batches: Sequence[Batch]) -> dict[str, list[Batch]]:
    lanes: dict[str, list[Batch]] = {}
    for batch in batches:
        lanes.setdefault(batch.device, []).append(batch)
    return lanes


def _check_overlaps(lanes: Mapping[str, Sequence[Batch]], what: str) -> None:
    """Check that the spans of each lane follow each other; the room for rounding never covers a span."""
    for lane, spans in lanes.items():
        ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
        for before, after in pairwise(ordered):
            shorter = min(before.end_s - before.start_s, after.end_s - after.start_s)
            if after.start_s < before.end_s - min(_slack(before.end_s), _SHARE * shorter):
                raise InvalidPlan(f"{lane!r} {what}: {before.op!r} and {after.op!r} at {after.start_s} s")


def _check_groups(graph: Graph, where: Shards) -> None:
    leader: dict[int, str] = {}
    for name, group in zip(graph.names, graph.colocation.tolist(), strict=True):
        if group >= 0 and where[leader.setdefault(group, name)] != where[name]:
            raise InvalidPlan(f"colocated ops {leader[group]!r} and {name!r} are on different devices")


def _check_data(plan: Plan, facts: _Facts) -> None:
    """Check that every batch starts after its data is there."""
    moved = {(t.op, t.tensor, t.source, t.target): t for t in plan.transfers}
    if len(moved) < len(plan.transfers):
        raise InvalidPlan("a tensor is moved twice between the same devices")
    if plan.transfer_rule == "parallel" and plan.transfers:
        raise InvalidPlan("parallel transfers follow from the batches; the plan lists some")
    needed: dict[_Move, set[int]] = {}
    waits: list[tuple[_Move, str, int]] = []
    for producer, consumer, tensor in facts.edges:
        shared: dict[tuple[str, str], set[int]] = {}
        goals = facts.where[consumer]
        for shard, source in facts.where[producer].items():
            shared.setdefault((source, goals[shard]), set()).add(shard)
        for (source, target), shards in shared.items():
            if source != target:
                needed.setdefault((producer, tensor, source, target), set()).update(shards)
            waits.append(((producer, tensor, source, target), consumer, len(shards)))
    seconds = {key: _transfer_s(plan, facts, *key, len(shards)) for key, shards in needed.items()}
    if plan.transfer_rule != "parallel":
        _check_transfers(plan, facts, moved, seconds)
    for move, consumer, num_shards in waits:
        producer, _, source, target = move
        ready = facts.at[producer, source].end_s
        if source != target and plan.transfer_rule == "parallel":
            ready += _transfer_s(plan, facts, *move, num_shards)
        elif source != target:
            ready = moved[move].end_s
        start = facts.at[consumer, target].start_s
        if start < ready and start < ready - _slack(ready):
            raise InvalidPlan(
                f"op {consumer!r} starts on {target!r} at {start} s; "
                f"its input from {producer!r} on {source!r} is there at {ready} s"
            )


def _transfer_s(plan: Plan, facts: _Facts, op: str, tensor: str, source: str, target: str, shards: int) -> float:
    i, j = facts.index[source], facts.index[target]
    rate = facts.bandwidth[i][j]
    if rate == 0:
        raise InvalidPlan(f"op {op!r} sends its output from {source!r} to {target!r}; no path links them")
    return facts.latency_s[i][j] + shards * plan.shard_inputs * facts.size[op, tensor] / rate


def _check_transfers(
    plan: Plan,
    facts: _Facts,
    moved: Mapping[_Move, PlannedTransfer],
    seconds: Mapping[_Move, float],
) -> None:
    """Check that every needed transfer is there, long enough, after its batch, and alone where it must be."""
    if set(moved) != set(seconds):
        odd = sorted(set(moved) ^ set(seconds))[0]
        which = f" ({odd[1]})" if odd[1] else ""
        raise InvalidPlan(f"the transfer of {odd[0]!r}{which} from {odd[2]!r} to {odd[3]!r} is missing or not needed")
    lanes: dict[str, list[Batch]] = {}
    for (op, tensor, source, target), transfer in moved.items():
        made = facts.at[op, source].end_s
        if transfer.start_s < made - _slack(made):
            raise InvalidPlan(f"the output of {op!r} leaves {source!r} before it is made")
        arrival = transfer.start_s + seconds[op, tensor, source, target]
        if transfer.end_s < arrival - _slack(arrival):
            raise InvalidPlan(f"the transfer of {op!r} from {source!r} to {target!r} is too short")
        lane = f"{source} -> {target}" if plan.transfer_rule == "exclusive" else target
        lanes.setdefault(lane, []).append(Batch(op, target, (), transfer.start_s, transfer.end_s))
    if plan.transfer_rule == "blocking":
        for batch in plan.batches:
            lanes.setdefault(batch.device, []).append(batch)
    _check_overlaps(lanes, "is used twice at once")


def _check_uses(plan: Plan, facts: _Facts, graph: Graph, hardware: Hardware) -> None:
    """Check what the plan says of each device, and that its memory holds it by the plan's own rule."""
    if [use.device for use in plan.devices] != [device.name for device in hardware.devices]:
        raise InvalidPlan("the plan does not list the devices of the hardware in their order")
    counted = plan.shard_inputs if plan.resident == "tensors" else 0
    there = residence(plan, graph, hardware) if plan.resident == "peak" else None
    lanes = _lanes(plan.batches)
    for claimed, device in zip(plan.devices, hardware.devices, strict=True):
        mine = lanes.get(device.name, [])
        held = math.fsum(facts.weights[b.op] + len(b.shards) * counted * facts.tensors[b.op] for b in mine)
        least, peak, most = (0.0, 0.0, 0.0) if there is None else most_bytes(there, device.name)
        reserved = device.reserve_bytes if plan.resident == "peak" else 0.0
        busy = math.fsum(facts.seconds[b.op, b.device] for b in mine)
        for figure, said, true in (
            ("num_batches", claimed.num_batches, len(mine)),
            ("busy_s", claimed.busy_s, busy),
            ("held_bytes", claimed.held_bytes, min(max(claimed.held_bytes, held + least), held + most)),
        ):
            if not math.isclose(said, true, rel_tol=_ROUNDING):
                shown = held + peak if figure == "held_bytes" else true
                raise InvalidPlan(f"device {device.name!r}: {figure} is given as {said} but is {shown}")
        if held + least + reserved > device.memory_bytes * (1.0 + _ROUNDING):
            kept = f" beside {reserved:,.0f} in reserve" if reserved else ""
            raise InvalidPlan(
                f"device {device.name!r} holds {held + peak:,.0f} bytes{kept}; "
                f"its memory has {device.memory_bytes:,.0f}"
            )


def _check_summary(plan: Plan, graph: Graph) -> None:
    """Check that `assignment` and `start_s` say what the batches say, for the ops of the graph and no others."""
    mine: dict[str, list[Batch]] = {}
    for batch in plan.batches:
        mine.setdefault(batch.op, []).append(batch)
    for what, given in (("assignment", plan.assignment or {}), ("start_s", plan.start_s or {})):
        strange = sorted(set(given) - set(graph.names))
        if strange:
            raise InvalidPlan(f"{what} names op {strange[0]!r}, which the graph does not have")
    for name in graph.names:
        most = max(len(batch.shards) for batch in mine[name])
        if (plan.assignment or {}).get(name) not in [b.device for b in mine[name] if len(b.shards) == most]:
            raise InvalidPlan(f"op {name!r} is assigned to {(plan.assignment or {}).get(name)!r}, not where it runs")
        if (plan.start_s or {}).get(name) != min(batch.start_s for batch in mine[name]):
            raise InvalidPlan(f"start_s of op {name!r} is not the start of its first batch")
