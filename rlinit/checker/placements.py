"""The independent checker of placements: the definitions, over columns of the plan's batches.

Batches take their ops' times and run one at a time on a device (`_check_lengths`, `_check_overlaps`), transfers follow
the rule of the plan (`_check_data`, `_check_transfers`), and memory holds what is there (`_check_uses`). Nothing here
comes from the solvers, the kernels or the array form they work on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.checker.batches import BatchTable, batch_table, rounding_of
from rlinit.checker.live_tensors import most_bytes, residence
from rlinit.checker.tolerances import OVERFULL, ROUNDING
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.tensors import Tensors

_SHARE = 1e-6
"""Part of the shorter of two spans by which they may overlap through rounding at most."""


@dataclass(frozen=True)
class _Facts:
    """A plan with what the definitions say about its graph and hardware."""

    plan: Plan
    graph: Graph
    hardware: Hardware
    table: BatchTable

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors of the graph."""
        return self.graph.tensors

    @cached_property
    def size(self) -> FloatArray:
        """(T,) bytes of each tensor for one input; unknown ones count as 0."""
        return np.where(np.isnan(self.tensors.size_bytes), 0.0, self.tensors.size_bytes)

    @cached_property
    def where(self) -> IntArray:
        """(n, S) device of each shard of each op."""
        return self.table.device[self.table.at]

    def batch_on(self, op: IntArray, device: IntArray) -> IntArray:
        """Return the batch of each op on a device, which has to be there."""
        codes = self.table.op * len(self.hardware.devices) + self.table.device
        order = np.argsort(codes)
        return np.asarray(order[np.searchsorted(codes[order], op * len(self.hardware.devices) + device)])

    def code(self, row: IntArray, source: IntArray, target: IntArray) -> IntArray:
        """Return one number for a tensor that is moved from one device to another."""
        d = len(self.hardware.devices)
        return (row * d + source) * d + target

    def transfer_s(self, row: IntArray, source: IntArray, target: IntArray, shards: IntArray) -> FloatArray:
        """Return the seconds that some shards of tensors take between devices; InvalidPlan where no path links them.

        Seconds beyond a float's range are refused here: against inf no start is late.
        """
        rate = self.hardware.bandwidth[source, target]
        dead = np.flatnonzero((rate == 0) & (source != target))
        if len(dead):
            at = dead[0]
            raise InvalidPlan(
                f"op {self.graph.names[self.tensors.op[row[at]]]!r} sends its output from "
                f"{self.device(source[at])!r} to {self.device(target[at])!r}; no path links them"
            )
        seconds = np.zeros(len(row))
        far = source != target
        moved = shards[far] * self.plan.shard_inputs * self.size[row[far]]
        seconds[far] = self.hardware.latency_s[source[far], target[far]] + moved / rate[far]
        endless = np.flatnonzero(~np.isfinite(seconds))
        if len(endless):
            at = endless[0]
            raise InvalidPlan(
                f"op {self.graph.names[self.tensors.op[row[at]]]!r} sends its output from "
                f"{self.device(source[at])!r} to {self.device(target[at])!r}, which takes for ever"
            )
        return seconds

    def device(self, index: int) -> str:
        """Return the name of a device."""
        return self.hardware.devices[index].name


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
    table = batch_table(plan, graph, hardware)
    facts = _Facts(plan, graph, hardware, table)
    seconds = _check_lengths(facts)
    ops = [batch.op for batch in plan.batches]
    _check_overlaps(table.device, table.start_s, table.end_s, ops, facts.device, "runs two batches at once")
    _check_groups(facts)
    _check_data(facts)
    _check_uses(facts, seconds)
    _check_summary(facts)
    return float(table.end_s.max())


def _check_lengths(facts: _Facts) -> FloatArray:
    """Check that every batch has a supported size, may run where it does, and takes as long as it says; return that."""
    table, plan = facts.table, facts.plan
    seconds = np.zeros(len(table.op))
    for i, count in np.unique(np.column_stack([table.device, table.num_shards]), axis=0).tolist():
        device, size = facts.hardware.devices[i], count * plan.shard_inputs
        rows = np.flatnonzero((table.device == i) & (table.num_shards == count))
        if device.batch_sizes is not None and size not in device.batch_sizes:
            op = plan.batches[rows[0]].op
            raise InvalidPlan(f"device {device.name!r} does not support batch size {size} (op {op!r})")
        seconds[rows] = op_times(facts.graph, device, size)[table.op[rows]]
    forbidden = np.flatnonzero(np.isinf(seconds))
    if len(forbidden):
        batch = plan.batches[forbidden[0]]
        raise InvalidPlan(f"op {batch.op!r} is on device {batch.device!r}, where it is forbidden")
    wrong = np.flatnonzero(np.abs(table.end_s - table.start_s - seconds) > rounding_of(table.end_s))
    if len(wrong):
        batch = plan.batches[wrong[0]]
        raise InvalidPlan(
            f"op {batch.op!r} runs from {batch.start_s} s to {batch.end_s} s on {batch.device!r}, "
            f"where it takes {seconds[wrong[0]]} s"
        )
    return seconds


def _check_overlaps(
    lane: IntArray,
    start_s: FloatArray,
    end_s: FloatArray,
    ops: Sequence[str],
    lane_name: Callable[[int], str],
    what: str,
) -> None:
    """Check that the spans of each lane follow each other; the room for rounding never covers a span."""
    order = np.lexsort((end_s, start_s, lane))
    before, after = order[:-1], order[1:]
    shorter = np.minimum(end_s[before] - start_s[before], end_s[after] - start_s[after])
    room = np.minimum(rounding_of(end_s[before]), _SHARE * shorter)
    wrong = np.flatnonzero((lane[before] == lane[after]) & (start_s[after] < end_s[before] - room))
    if len(wrong):
        one, other = before[wrong[0]], after[wrong[0]]
        raise InvalidPlan(f"{lane_name(lane[one])!r} {what}: {ops[one]!r} and {ops[other]!r} at {start_s[other]} s")


def _check_groups(facts: _Facts) -> None:
    grouped = np.flatnonzero(facts.graph.colocation >= 0)
    _, first, member = np.unique(facts.graph.colocation[grouped], return_index=True, return_inverse=True)
    leader = grouped[first][member]
    apart = np.flatnonzero((facts.where[leader] != facts.where[grouped]).any(axis=1))
    if len(apart):
        one, other = facts.graph.names[leader[apart[0]]], facts.graph.names[grouped[apart[0]]]
        raise InvalidPlan(f"colocated ops {one!r} and {other!r} are on different devices")


def _check_data(facts: _Facts) -> None:
    """Check that every batch starts after its data is there."""
    plan, table, graph = facts.plan, facts.table, facts.graph
    if len({(t.op, t.tensor, t.source, t.target) for t in plan.transfers}) < len(plan.transfers):
        raise InvalidPlan("a tensor is moved twice between the same devices")
    if plan.transfer_rule == "parallel" and plan.transfers:
        raise InvalidPlan("parallel transfers follow from the batches; the plan lists some")
    num_batches = len(table.op)
    made, read = table.at[graph.edges[:, 0]].ravel(), table.at[graph.edges[:, 1]].ravel()
    row = np.repeat(graph.edge_tensor, table.at.shape[1])
    # An op reads one tensor of another, so that two batches stand for an edge.
    pairs, first, shards = np.unique(made * num_batches + read, return_index=True, return_counts=True)
    row, made, read = row[first], pairs // num_batches, pairs % num_batches
    source, target = table.device[made], table.device[read]
    ready = table.end_s[made]
    if plan.transfer_rule == "parallel":
        ready = ready + facts.transfer_s(row, source, target, shards)
    else:
        far = source != target
        codes, arrived = _check_transfers(facts)
        ready[far] = arrived[np.searchsorted(codes, facts.code(row, source, target)[far])]
    late = np.flatnonzero(table.start_s[read] < ready - rounding_of(ready))
    if len(late):
        one, other = plan.batches[made[late[0]]], plan.batches[read[late[0]]]
        raise InvalidPlan(
            f"op {other.op!r} starts on {other.device!r} at {other.start_s} s; "
            f"its input from {one.op!r} on {one.device!r} is there at {ready[late[0]]} s"
        )


def _check_transfers(facts: _Facts) -> tuple[IntArray, FloatArray]:
    """Check that every needed transfer is there, long enough, after its batch, and alone where it must be.

    Return their codes, sorted, and when each ends.
    """
    plan, table, graph, num_devices = facts.plan, facts.table, facts.graph, len(facts.hardware.devices)
    made, read = table.at[graph.edges[:, 0]], table.at[graph.edges[:, 1]]
    num_shards = made.shape[1]
    source, target = table.device[made], table.device[read]
    far = source != target
    codes = facts.code(graph.edge_tensor[:, None], source, target)
    # A device that several ops read a tensor on gets every shard that one of them needs, once.
    received = np.unique((codes * num_shards + np.arange(num_shards))[far])
    needed, shards = np.unique(received // num_shards, return_counts=True)
    listed = _listed_codes(facts)
    order = np.argsort(listed)
    if not np.array_equal(listed[order], needed):
        odd = int(np.setxor1d(listed, needed)[0])
        if odd < 0:
            moved = plan.transfers[int(np.flatnonzero(listed == odd)[0])]
            op, tensor, ends = moved.op, moved.tensor, (moved.source, moved.target)
        else:
            row, i, j = odd // num_devices**2, odd // num_devices % num_devices, odd % num_devices
            op, tensor = graph.names[graph.tensors.op[row]], graph.tensors.name[row]
            ends = facts.device(i), facts.device(j)
        which = f" ({tensor})" if tensor else ""
        raise InvalidPlan(f"the transfer of {op!r}{which} from {ends[0]!r} to {ends[1]!r} is missing or not needed")
    moved_row, source, target = needed // num_devices**2, needed // num_devices % num_devices, needed % num_devices
    start_s = np.array([moved.start_s for moved in plan.transfers], np.float64)[order]
    end_s = np.array([moved.end_s for moved in plan.transfers], np.float64)[order]
    made_s = table.end_s[facts.batch_on(facts.tensors.op[moved_row], source)]
    early = np.flatnonzero(start_s < made_s - rounding_of(made_s))
    if len(early):
        one = plan.transfers[order[early[0]]]
        raise InvalidPlan(f"the output of {one.op!r} leaves {one.source!r} before it is made")
    arrival = start_s + facts.transfer_s(moved_row, source, target, shards)
    short = np.flatnonzero(end_s < arrival - rounding_of(arrival))
    if len(short):
        one = plan.transfers[order[short[0]]]
        raise InvalidPlan(f"the transfer of {one.op!r} from {one.source!r} to {one.target!r} is too short")
    ops = [plan.transfers[at].op for at in order.tolist()]
    if plan.transfer_rule == "exclusive":
        lanes = source * num_devices + target

        def link(lane: int) -> str:
            return f"{facts.device(lane // num_devices)} -> {facts.device(lane % num_devices)}"

        _check_overlaps(lanes, start_s, end_s, ops, link, "is used twice at once")
    else:
        device = np.concatenate([target, table.device])
        begun, over = np.concatenate([start_s, table.start_s]), np.concatenate([end_s, table.end_s])
        every = [*ops, *(batch.op for batch in plan.batches)]
        _check_overlaps(device, begun, over, every, facts.device, "is used twice at once")
    return needed, end_s


def _listed_codes(facts: _Facts) -> IntArray:
    """Return the code of every transfer of the plan; negative for those of an unknown tensor or device."""
    tensors, names = facts.tensors, facts.graph.names
    rows = {
        (names[op], name): row for row, (op, name) in enumerate(zip(tensors.op.tolist(), tensors.name, strict=True))
    }
    devices = {device.name: i for i, device in enumerate(facts.hardware.devices)}
    found = np.array(
        [
            (rows.get((moved.op, moved.tensor), -1), devices.get(moved.source, -1), devices.get(moved.target, -1))
            for moved in facts.plan.transfers
        ],
        np.int64,
    ).reshape(-1, 3)
    unknown = (found < 0).any(axis=1)
    return np.where(unknown, -1, facts.code(found[:, 0], found[:, 1], found[:, 2]))


def _check_uses(facts: _Facts, seconds: FloatArray) -> None:
    """Check what the plan says of each device, and that its memory holds it by the plan's own rule."""
    plan, graph, table = facts.plan, facts.graph, facts.table
    if [use.device for use in plan.devices] != [device.name for device in facts.hardware.devices]:
        raise InvalidPlan("the plan does not list the devices of the hardware in their order")
    counted = plan.shard_inputs if plan.resident == "tensors" else 0
    there = residence(plan, graph, facts.hardware, table) if plan.resident == "peak" else None
    made = np.bincount(facts.tensors.op, weights=facts.size, minlength=graph.num_ops)
    read = np.bincount(graph.edges[:, 1], weights=facts.size[graph.edge_tensor], minlength=graph.num_ops)
    weights = np.where(np.isnan(graph.param_bytes), 0.0, graph.param_bytes)
    bytes_held = weights[table.op] + table.num_shards * counted * (made + read)[table.op]
    for i, (claimed, device) in enumerate(zip(plan.devices, facts.hardware.devices, strict=True)):
        mine = table.device == i
        held = math.fsum(bytes_held[mine].tolist()) - _repeated(graph, table.op[mine])
        least, peak, most = (0.0, 0.0, 0.0) if there is None else most_bytes(there, i)
        reserved = device.reserve_bytes if plan.resident == "peak" else 0.0
        busy = math.fsum(seconds[mine].tolist())
        for figure, said, true in (
            ("num_batches", claimed.num_batches, int(mine.sum())),
            ("busy_s", claimed.busy_s, busy),
            ("held_bytes", claimed.held_bytes, min(max(claimed.held_bytes, held + least), held + most)),
        ):
            if not math.isclose(said, true, rel_tol=ROUNDING):
                shown = held + peak if figure == "held_bytes" else true
                raise InvalidPlan(f"device {device.name!r}: {figure} is given as {said} but is {shown}")
        if held + least + reserved > device.memory_bytes * (1.0 + OVERFULL):
            kept = f" beside {reserved:,.0f} in reserve" if reserved else ""
            raise InvalidPlan(
                f"device {device.name!r} holds {held + peak:,.0f} bytes{kept}; "
                f"its memory has {device.memory_bytes:,.0f}"
            )


def _repeated(graph: Graph, ops: IntArray) -> float:
    """Return the bytes of parameters that several ops of a device read, beyond the one copy that it holds."""
    inside = set(ops.tolist())
    return math.fsum(one.size_bytes * max(0, len(inside & set(one.readers)) - 1) for one in graph.shared)


def _check_summary(facts: _Facts) -> None:
    """Check that `assignment` and `start_s` say what the batches say, for the ops of the graph and no others."""
    plan, names, table = facts.plan, facts.graph.names, facts.table
    assigned, starts = plan.assignment or {}, plan.start_s or {}
    for what, given in (("assignment", assigned), ("start_s", starts)):
        strange = sorted(set(given) - set(names))
        if strange:
            raise InvalidPlan(f"{what} names op {strange[0]!r}, which the graph does not have")
    first_s = np.full(len(names), np.inf)
    np.minimum.at(first_s, table.op, table.start_s)
    runs: list[tuple[str, ...]] = [()] * len(names)
    for v, i in sorted(set(zip(table.op.tolist(), table.device.tolist(), strict=True))):
        runs[v] += (facts.hardware.devices[i].name,)
    for op, on in zip(names, runs, strict=True):
        if assigned.get(op) != (on[0] if len(on) == 1 else on):
            raise InvalidPlan(f"op {op!r} is assigned to {assigned.get(op)!r}, not where it runs ({', '.join(on)})")
    begun = np.array([starts.get(name, math.nan) for name in names], np.float64)
    wrong = np.flatnonzero(~(begun == first_s))
    if len(wrong):
        raise InvalidPlan(f"start_s of op {names[wrong[0]]!r} is not the start of its first batch")
