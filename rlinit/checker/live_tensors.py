"""The tensors on each device over the timeline of a placement, and the most bytes of them at once, by the definitions.

Plain Python over the batches and transfers of a plan; nothing here comes from the solvers. The definition in words is
that of `rlinit.placements.live_tensors`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan

__all__ = ["Copy", "Residence", "most_bytes", "residence"]

_ULPS = 16.0
"""Steps between floats by which two times may differ through the rounding of a few sums and products."""


@dataclass(slots=True)
class Copy:
    """A copy of a tensor on a device, from `begin_s` until before `until_s` (``inf``: it stays), up to `rounding_s`."""

    device: str
    begin_s: float
    until_s: float
    size_bytes: float
    rounding_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Residence:
    """What is on devices when: `copies`, and what each batch reads and makes of them, in the order of `batches`."""

    copies: Sequence[Copy]
    batches: Sequence[Batch]
    used: Sequence[Sequence[Copy]]


def residence(plan: Plan, graph: Graph, hardware: Hardware) -> Residence:
    """Return the copies of tensors that a placement keeps on devices.

    Parameters
    ----------
    plan
        A plan whose batches run every shard of every op once, in an order that respects the edges.
    graph, hardware
        What it was made for; sizes that the graph does not give count as 0 bytes.
    """
    return _Collector(plan, graph, hardware).collect()


class _Collector:
    """Walks through the ops in topological order; the tensor of a row, a shard and a device have one copy."""

    def __init__(self, plan: Plan, graph: Graph, hardware: Hardware) -> None:
        self.plan, self.graph, self.hardware = plan, graph, hardware
        self.index = {device.name: i for i, device in enumerate(hardware.devices)}
        self.batches: dict[str, list[Batch]] = {}
        self.at: dict[tuple[str, int], Batch] = {}
        for batch in plan.batches:
            self.batches.setdefault(batch.op, []).append(batch)
            self.at |= {(batch.op, shard): batch for shard in batch.shards}
        self.moved = {(t.op, t.tensor, t.source, t.target): t for t in plan.transfers}
        self.rows: list[list[int]] = [[] for _ in graph.names]
        for row, op in enumerate(graph.tensors.op.tolist()):
            self.rows[op].append(row)
        self.reads: list[list[int]] = [[] for _ in graph.names]
        for (_, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
            self.reads[v].append(row)
        self.copies: list[Copy] = []
        self.there: dict[tuple[int, int, str], Copy] = {}

    def collect(self) -> Residence:
        tensors = self.graph.tensors
        for v in self.graph.order.tolist():
            view = bool(self.graph.extras.get(v, {}).get("view"))
            for batch in self.batches[self.graph.names[v]]:
                for row in self.rows[v]:
                    readers = [self.graph.names[w] for w in tensors.readers(row)]
                    self._make(row, tensors.name[row], batch, readers, _size(float(tensors.size_bytes[row])))
                    if view and len(self.reads[v]) < 2:
                        self._put_in_base(row, self.reads[v], batch)
        used = []
        for batch in self.plan.batches:
            v = self.graph.index(batch.op)
            found = (self.there[row, c, batch.device] for row in self.reads[v] + self.rows[v] for c in batch.shards)
            used.append(list({id(copy): copy for copy in found}.values()))
        return Residence(self.copies, self.plan.batches, used)

    def _make(self, row: int, tensor: str, batch: Batch, readers: Iterable[str], size: float) -> None:
        """Enter what a batch makes of a tensor, here and on the devices that it is moved to."""
        by_device: dict[str, set[int]] = {}
        last: dict[str, float] = {}
        for name in readers:
            for shard in batch.shards:
                reader = self.at[name, shard]
                by_device.setdefault(reader.device, set()).add(shard)
                last[reader.device] = max(last.get(reader.device, 0.0), reader.end_s)
        until, rounding = max(batch.end_s, last.get(batch.device, 0.0)) if last else math.inf, 0.0
        for target, shards in by_device.items():
            if target == batch.device:
                continue
            bytes_moved = len(shards) * self.plan.shard_inputs * size
            if self.plan.transfer_rule == "parallel":
                i, j = self.index[batch.device], self.index[target]
                rate, delay = float(self.hardware.bandwidth[i, j]), float(self.hardware.latency_s[i, j])
                leaves, arrives = batch.end_s, batch.end_s + delay + bytes_moved / rate
                rounding = _ULPS * math.ulp(arrives) if arrives >= until - _ULPS * math.ulp(arrives) else rounding
            else:
                transfer = self.moved[batch.op, tensor, batch.device, target]
                leaves, arrives = transfer.start_s, transfer.end_s
            until = max(until, arrives)
            self._enter(row, shards, Copy(target, leaves, last[target], bytes_moved))
        size *= len(batch.shards) * self.plan.shard_inputs
        self._enter(row, batch.shards, Copy(batch.device, batch.start_s, until, size, rounding))

    def _enter(self, row: int, shards: Iterable[int], copy: Copy) -> None:
        self.copies.append(copy)
        self.there |= {(row, shard, copy.device): copy for shard in shards}

    def _put_in_base(self, row: int, read: Sequence[int], batch: Batch) -> None:
        """Let a view lie in the one copy that it is of, or in parameters; of several it is put together."""
        made = self.there[row, batch.shards[0], batch.device]
        bases = {
            id(base): base for shard in batch.shards for r in read for base in [self.there[r, shard, batch.device]]
        }
        if len(bases) > 1:
            return
        made.size_bytes = 0.0
        for base in bases.values():
            base.until_s = max(base.until_s, made.until_s)
            base.rounding_s = max(base.rounding_s, made.rounding_s)
            self.there |= {(row, shard, batch.device): base for shard in batch.shards}


def most_bytes(found: Residence, device: str) -> tuple[float, float, float]:
    """Return the most bytes of copies on a device at once: what they are at least, as given, and at most.

    The end of a transfer that the plan does not list is known up to rounding; the first and last value allow for that.

    Parameters
    ----------
    found
        The copies of a plan.
    device
        Its name.
    """
    least, exact, most = (_most(found, device, sign) for sign in (-1.0, 0.0, 1.0))
    return least, exact, most


def _most(found: Residence, device: str, sign: float) -> float:
    """Return the most bytes on a device at a moment at which something starts, ends being late by `sign` roundings."""
    copies = [copy for copy in found.copies if copy.device == device and copy.size_bytes > 0.0]
    begun = sorted((copy.begin_s, copy.size_bytes) for copy in copies)
    ended = sorted((copy.until_s + sign * copy.rounding_s, copy.size_bytes) for copy in copies)
    begins, ends = [time for time, _ in begun], [time for time, _ in ended]
    made = [0.0, *accumulate(size for _, size in begun)]
    gone = [0.0, *accumulate(size for _, size in ended)]
    moments: list[tuple[float, Sequence[Copy]]] = [(time, []) for time in begins]
    moments += [
        (batch.start_s, used)
        for batch, used in zip(found.batches, found.used, strict=True)
        if batch.device == device and batch.start_s == batch.end_s
    ]
    most = 0.0
    for time, used in moments:
        held = made[bisect_right(begins, time)] - gone[bisect_right(ends, time)]
        over = (copy.size_bytes for copy in used if copy.until_s + sign * copy.rounding_s <= time)
        most = max(most, held + math.fsum(over))
    return most


def _size(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
