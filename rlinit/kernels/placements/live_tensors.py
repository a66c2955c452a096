"""The copies of tensors that devices hold while a placement runs, and the most that are there at once, compiled.

A copy is numbered ``(row * s + c) * d + j``: the tensor of a row, of the batch that has the shard c as its first, on
device j. The moments at which something starts are those at which the bytes held can be most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.timeline import batch_row

OWN_STORAGE, IN_PARAMETERS = -1, -2
"""Values of `LiveArrays.base` for a tensor in storage of its own, and for a view of parameters."""


class LiveArrays(NamedTuple):
    """The tensors of n ops. T rows.

    `order` (n,) a topological order; `row_indptr`, `rows` CSR op -> its tensors; `op` (T,) their producers; `size` (T,)
    bytes of one shard; `reader_indptr`, `readers` CSR tensor -> ops that read it; `base` (T,) the tensor whose storage
    it lies in, or `OWN_STORAGE`, or `IN_PARAMETERS`; `carrier` (T,) op of the problem whose transfers move it;
    `input_indptr`, `inputs` CSR op -> tensors it reads.
    """

    order: IntArray
    row_indptr: IntArray
    rows: IntArray
    op: IntArray
    size: FloatArray
    reader_indptr: IntArray
    readers: IntArray
    base: IntArray
    carrier: IntArray
    input_indptr: IntArray
    inputs: IntArray


class Run(NamedTuple):
    """When things happen: `device` (n, s) of each shard, `start` and `end` (n, d) of batches.

    `s_per_byte` and `delay` (d, d) of transfers in parallel; `sent` and `arrival` of others by op of the problem, as in
    `rlinit.kernels.placements.timeline.Transfers`.
    """

    device: IntArray
    start: FloatArray
    end: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    sent: FloatArray
    arrival: FloatArray


class CopyTimes(NamedTuple):
    """Copies by number: `begin`, `until` seconds, `size` bytes (0: none, or in others' storage), `root` its storage."""

    begin: FloatArray
    until: FloatArray
    size: FloatArray
    root: IntArray


@njit(cache=True, nogil=True)
def _first(device: IntArray, op: int, shard: int) -> int:
    """Return the first shard of the batch that a shard of an op is in."""
    for c in range(shard):
        if device[op, c] == device[op, shard]:
            return c
    return shard


@njit(cache=True, nogil=True)
def copies(live: LiveArrays, run: Run) -> CopyTimes:
    """Return from when until when each copy is there.

    Parameters
    ----------
    live
        The tensors.
    run
        A feasible timeline.
    """
    s, d = run.device.shape[1], run.start.shape[1]
    count = len(live.op) * s * d
    found = CopyTimes(np.zeros(count), np.zeros(count), np.zeros(count), np.arange(count))
    seen = np.full(d, -1, np.int64)
    stamp = 0
    for u in live.order:
        for c in range(s):
            if _first(run.device, u, c) != c:
                continue
            for at in range(live.row_indptr[u], live.row_indptr[u + 1]):
                _make(live, run, live.rows[at], c, found, seen, stamp)
                stamp += s
                _alias(live, run, live.rows[at], c, found)
    return found


@njit(cache=True, nogil=True)
def _make(live: LiveArrays, run: Run, row: int, c: int, found: CopyTimes, seen: IntArray, stamp: int) -> None:
    """Enter the copy that a batch makes of a tensor, and those that are moved to other devices.

    `seen` (d,) holds marks of earlier calls, all below `stamp`.
    """
    s, d = run.device.shape[1], run.start.shape[1]
    u = live.op[row]
    i = run.device[u, c]
    slot = (row * s + c) * d
    found.begin[slot + i] = run.start[u, i]
    until = run.end[u, i]
    if live.reader_indptr[row] == live.reader_indptr[row + 1]:
        until = np.inf
    for shard in range(c, s):
        if run.device[u, shard] != i:
            continue
        found.size[slot + i] += live.size[row]
        for at in range(live.reader_indptr[row], live.reader_indptr[row + 1]):
            w = live.readers[at]
            j = run.device[w, shard]
            over = run.end[w, j]
            if j == i:
                until = max(until, over)
                continue
            if seen[j] < stamp + shard:
                seen[j] = stamp + shard
                found.size[slot + j] += live.size[row]
            found.until[slot + j] = max(found.until[slot + j], over)
    for j in range(d):
        if j == i or seen[j] < stamp:
            continue
        if len(run.sent):
            carrier, of_batch = live.carrier[row], batch_row(run.sent, i, 1 << c)
            found.begin[slot + j], arrival = run.sent[carrier, of_batch, j], run.arrival[carrier, of_batch, j]
        else:
            found.begin[slot + j] = run.end[u, i]
            arrival = run.end[u, i] + (run.delay[i, j] + found.size[slot + j] * run.s_per_byte[i, j])
        until = max(until, arrival)
    found.until[slot + i] = until


@njit(cache=True, nogil=True)
def _alias(live: LiveArrays, run: Run, row: int, c: int, found: CopyTimes) -> None:
    """Let a view that a batch makes live in the one copy of its base that the batch reads, where it is one."""
    if live.base[row] == -1:
        return
    s, d = run.device.shape[1], run.start.shape[1]
    u = live.op[row]
    i = run.device[u, c]
    here = (row * s + c) * d + i
    if live.base[row] == -2:
        found.size[here] = 0.0
        return
    base = live.base[row]
    one = -1
    for shard in range(c, s):
        if run.device[u, shard] == i:
            root = found.root[(base * s + _first(run.device, live.op[base], shard)) * d + i]
            if one >= 0 and one != root:
                return
            one = root
    found.size[here] = 0.0
    found.root[here] = one
    found.until[one] = max(found.until[one], found.until[here])


@njit(cache=True, nogil=True)
def peaks(live: LiveArrays, run: Run, found: CopyTimes) -> FloatArray:
    """Return (d,) most bytes of copies on each device at once.

    A copy is there from `begin` until before `until`. At the moment of a batch without length what it reads and makes
    is there too.

    Parameters
    ----------
    live
        The tensors.
    run
        When batches run.
    found
        Their copies.
    """
    d = run.start.shape[1]
    most = np.zeros(d)
    marked = np.full(len(found.root), -1, np.int64)
    for j in range(d):
        column = np.arange(j, len(found.size), d)
        column = column[found.size[column] > 0.0]
        by_begin = column[np.argsort(found.begin[column], kind="mergesort")]
        by_until = column[np.argsort(found.until[column], kind="mergesort")]
        begin, until = found.begin[by_begin], found.until[by_until]
        made, gone = np.zeros(len(column) + 1), np.zeros(len(column) + 1)
        for at in range(len(column)):
            made[at + 1] = made[at] + found.size[by_begin[at]]
            gone[at + 1] = gone[at] + found.size[by_until[at]]
        for at in range(len(column)):
            there = made[np.searchsorted(begin, begin[at], side="right")]
            most[j] = max(most[j], there - gone[np.searchsorted(until, begin[at], side="right")])
        for u in range(len(run.device)):
            if run.start[u, j] == run.end[u, j]:
                now = run.start[u, j]
                there = (
                    made[np.searchsorted(begin, now, side="right")] - gone[np.searchsorted(until, now, side="right")]
                )
                most[j] = max(most[j], there + _own(live, run, found, u, j, marked))
    return most


@njit(cache=True, nogil=True)
def _own(live: LiveArrays, run: Run, found: CopyTimes, u: int, j: int, marked: IntArray) -> float:
    """Return the bytes a batch without length reads and makes in copies that end with it."""
    s, d = run.device.shape[1], run.start.shape[1]
    now, total = run.end[u, j], 0.0
    for c in range(s):
        if run.device[u, c] != j:
            continue
        for side in range(2):
            indptr, rows = (live.row_indptr, live.rows) if side == 0 else (live.input_indptr, live.inputs)
            for at in range(indptr[u], indptr[u + 1]):
                row = rows[at]
                root = found.root[(row * s + _first(run.device, live.op[row], c)) * d + j]
                if marked[root] != u and found.until[root] <= now:
                    marked[root] = u
                    total += found.size[root]
    return total
