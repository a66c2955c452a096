"""The tensors on each device over the timeline of a placement, and the most bytes of them at once, by the definitions.

Columns over the batches and transfers of a plan; nothing here comes from the solvers. The definition in words is that
of `rlinit.placements.live_tensors`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.checker.batches import BatchTable, batch_table, rounding_of
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.tensors import Tensors


class Residence(NamedTuple):
    """The copies of tensors on devices, each from `begin_s` until before `until_s` (``inf``: it stays).

    `device`, `begin_s`, `until_s`, `size_bytes` have a row for each copy, and `rounding_s`, up to which its end is
    known. `instant_device`, `instant_s` have a row for each batch that takes no time, `user` and `used` one for each
    copy that such a batch reads or makes.
    """

    device: IntArray
    begin_s: FloatArray
    until_s: FloatArray
    size_bytes: FloatArray
    rounding_s: FloatArray
    instant_device: IntArray
    instant_s: FloatArray
    user: IntArray
    used: IntArray


def residence(plan: Plan, graph: Graph, hardware: Hardware, table: BatchTable | None = None) -> Residence:
    """Return the copies of tensors that a placement keeps on devices.

    Parameters
    ----------
    plan
        A plan whose batches run every shard of every op once, in an order that respects the edges.
    graph, hardware
        What it was made for; sizes that the graph does not give count as 0 bytes.
    table
        The plan's batches, where they are known as columns.

    Raises
    ------
    InvalidPlan
        A shard is not in one batch, or an op or device is unknown.
    """
    table, tensors = table or batch_table(plan, graph, hardware), graph.tensors
    size = np.where(np.isnan(tensors.size_bytes), 0.0, tensors.size_bytes) * plan.shard_inputs
    own = _own_copies(table, tensors)
    reads = _reads(table, tensors, own, len(hardware.devices))
    begin, until = table.start_s[own.batch], table.end_s[own.batch].copy()
    until[np.diff(tensors.indptr)[own.row] == 0] = np.inf
    np.maximum.at(until, reads.source[reads.local], table.end_s[reads.batch[reads.local]])
    rounding = np.zeros(len(until))
    made_by, row = own.batch[reads.moved_from], own.row[reads.moved_from]
    moved_size = reads.moved_count * size[row]
    if plan.transfer_rule == "parallel":
        ends = (table.device[made_by], reads.moved_to)
        leaves = table.end_s[made_by]
        arrives = leaves + hardware.latency_s[ends] + moved_size / hardware.bandwidth[ends]
        np.maximum.at(until, reads.moved_from, arrives)
        late = arrives >= until[reads.moved_from] - rounding_of(arrives)
        np.maximum.at(rounding, reads.moved_from[late], rounding_of(arrives[late]))
    else:
        leaves, arrives = _listed(plan, graph, hardware, table, made_by, row, reads.moved_to)
        np.maximum.at(until, reads.moved_from, arrives)
    last = np.zeros(len(row))
    np.maximum.at(last, reads.copy[~reads.local] - len(until), table.end_s[reads.batch[~reads.local]])
    device = np.concatenate([table.device[own.batch], reads.moved_to])
    until, rounding = np.concatenate([until, last]), np.concatenate([rounding, np.zeros(len(row))])
    sizes = np.concatenate([table.num_shards[own.batch] * size[own.row], moved_size])
    root = _views_in_bases(graph, table, own, reads, until, rounding, sizes)
    instant = np.flatnonzero(table.start_s == table.end_s)
    among = np.full(len(table.op), -1)
    among[instant] = np.arange(len(instant))
    pairs = np.column_stack(
        [among[np.concatenate([reads.batch, own.batch])], root[np.concatenate([reads.copy, np.arange(len(own.row))])]]
    )
    pairs = np.unique(pairs[pairs[:, 0] >= 0], axis=0)
    return Residence(
        device, np.concatenate([begin, leaves]), until, sizes, rounding,
        table.device[instant], table.start_s[instant], pairs[:, 0], pairs[:, 1],
    )  # fmt: skip


class _OwnCopies(NamedTuple):
    """The copies that batches make: tensor `row` and `batch` of each.

    That of a row r and batch p is `first[r]` and as many further as `rank[p]` says.
    """

    row: IntArray
    batch: IntArray
    first: IntArray
    rank: IntArray


def _own_copies(table: BatchTable, tensors: Tensors) -> _OwnCopies:
    """Return what every batch makes."""
    by_op = np.argsort(table.op, kind="stable")
    per_op = np.bincount(table.op, minlength=len(table.at))
    start = np.cumsum(per_op) - per_op
    rank = np.empty(len(table.op), np.int64)
    rank[by_op] = np.arange(len(by_op)) - start[table.op[by_op]]
    count = per_op[tensors.op]
    first = np.cumsum(count) - count
    row = np.repeat(np.arange(len(count)), count)
    batch = by_op[start[tensors.op[row]] + np.arange(len(row)) - first[row]]
    return _OwnCopies(row, batch, first, rank)


class _Reads(NamedTuple):
    """What batches read, a row for each shard of each edge, and the copies that this takes on other devices.

    `batch` reads the copy `copy`, made by moving the own copy `source`, unless `local`. The copy ``c + i`` with c own
    ones is `moved_count[i]` shards of `moved_from[i]`, moved to `moved_to[i]`.
    """

    batch: IntArray
    source: IntArray
    local: IntArray
    copy: IntArray
    moved_from: IntArray
    moved_to: IntArray
    moved_count: IntArray


def _reads(table: BatchTable, tensors: Tensors, own: _OwnCopies, num_devices: int) -> _Reads:
    """Return who reads which copy."""
    num_shards = table.at.shape[1]
    row = np.repeat(np.arange(len(tensors.op)), np.diff(tensors.indptr))
    producer, reader = table.at[tensors.op[row]].ravel(), table.at[tensors.consumers].ravel()
    source = own.first[np.repeat(row, num_shards)] + own.rank[producer]
    target = table.device[reader]
    local = table.device[producer] == target
    shard = np.tile(np.arange(num_shards), len(row))
    codes = (source * num_devices + target)[~local]
    moved, which = np.unique(codes, return_inverse=True)
    distinct = np.unique(codes * num_shards + shard[~local]) // num_shards
    copy = source.copy()
    copy[~local] = len(own.row) + which
    count = np.bincount(np.searchsorted(moved, distinct), minlength=len(moved))
    return _Reads(reader, source, local, copy, moved // num_devices, moved % num_devices, count)


def _listed(
    plan: Plan,
    graph: Graph,
    hardware: Hardware,
    table: BatchTable,
    made_by: IntArray,
    row: IntArray,
    target: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Return start and end of the transfers that a plan lists, for copies that are moved."""
    moved = {(t.op, t.tensor, t.source, t.target): (t.start_s, t.end_s) for t in plan.transfers}
    names, tensor = [device.name for device in hardware.devices], graph.tensors.name
    spans = [
        moved[graph.names[table.op[p]], tensor[r], names[table.device[p]], names[j]]
        for p, r, j in zip(made_by.tolist(), row.tolist(), target.tolist(), strict=True)
    ]
    columns = np.array(spans, np.float64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _views_in_bases(
    graph: Graph,
    table: BatchTable,
    own: _OwnCopies,
    reads: _Reads,
    until: FloatArray,
    rounding: FloatArray,
    sizes: FloatArray,
) -> IntArray:
    """Let views lie in the one copy that they are of, or in parameters; of several they are put together.

    `until`, `rounding` and `sizes` of copies are changed in place; the copy that each lies in is returned.
    """
    root = np.arange(len(until))
    num_read = np.diff(graph.pred_indptr)
    views = [v for v, row in graph.extras.items() if row.get("view") and num_read[v] < 2]
    if not views:
        return root
    place = np.empty(len(graph.order), np.int64)
    place[graph.order] = np.arange(len(place))
    by_batch, by_op = np.argsort(reads.batch, kind="stable"), np.argsort(table.op[own.batch], kind="stable")
    starts = np.searchsorted(reads.batch[by_batch], np.arange(len(table.op) + 1))
    rows = np.searchsorted(table.op[own.batch[by_op]], np.arange(len(table.at) + 1))
    for v in sorted(views, key=lambda v: int(place[v])):
        for copy in by_op[rows[v] : rows[v + 1]].tolist():
            batch = own.batch[copy]
            bases = set(root[reads.copy[by_batch[starts[batch] : starts[batch + 1]]]].tolist())
            if len(bases) > 1:
                continue
            sizes[copy] = 0.0
            for base in bases:
                until[base], rounding[base] = max(until[base], until[copy]), max(rounding[base], rounding[copy])
                root[copy] = base
    return root


def most_bytes(found: Residence, device: int) -> tuple[float, float, float]:
    """Return the most bytes of copies on a device at once: what they are at least, as given, and at most.

    The end of a transfer that the plan does not list is known up to rounding; the first and last value allow for that.

    Parameters
    ----------
    found
        The copies of a plan.
    device
        Its index in the hardware.
    """
    least, exact, most = (_most(found, device, sign) for sign in (-1.0, 0.0, 1.0))
    return least, exact, most


def _most(found: Residence, device: int, sign: float) -> float:
    """Return the most bytes on a device at a moment at which something starts, ends being late by `sign` roundings."""
    here = (found.device == device) & (found.size_bytes > 0.0)
    size, until = found.size_bytes[here], found.until_s[here] + sign * found.rounding_s[here]
    first, last = np.argsort(found.begin_s[here], kind="stable"), np.argsort(until, kind="stable")
    begins, ends = found.begin_s[here][first], until[last]
    made, gone = np.append(0.0, np.cumsum(size[first])), np.append(0.0, np.cumsum(size[last]))
    instants = np.flatnonzero(found.instant_device == device)
    at = found.instant_s[found.user]
    over = np.where(
        found.until_s[found.used] + sign * found.rounding_s[found.used] <= at, found.size_bytes[found.used], 0.0
    )
    extra = np.bincount(found.user, weights=over, minlength=len(found.instant_s))[instants]
    moments = np.concatenate([begins, found.instant_s[instants]])
    held = made[np.searchsorted(begins, moments, "right")] - gone[np.searchsorted(ends, moments, "right")]
    held[len(begins) :] += extra
    return float(max(held.max(initial=0.0), 0.0))
