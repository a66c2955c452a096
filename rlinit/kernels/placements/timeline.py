"""The compiled timeline of a placement: when batches and transfers run, given devices and a sequence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count, hot_kernel, transfer_time

PARALLEL, EXCLUSIVE, BLOCKING = 0, 1, 2
"""How transfers share links and devices; see :mod:`rlinit.placements.problem`."""


class TimelineArrays(NamedTuple):
    """What a timeline depends on; n ops, d devices, s shards. See :class:`rlinit.placements.problem.PlacementProblem`.

    `time` (n, d, s + 1) seconds of a batch of c shards, `tensor` (n,) bytes of one shard of an op's output,
    `s_per_byte` and `delay` (d, d) of transfers, the producers and consumers of each op, and the first port op.
    """

    time: FloatArray
    tensor: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    first_port: int


class Transfers(NamedTuple):
    """Transfers that share links or devices; NaN where there is none.

    `sent` and `arrival` (n, min(s, d), d): when the transfer of batch (v, i) to device j starts and ends, in row
    `batch_row` of the batch; (0, 0, 0) where transfers run in parallel. `link` (d, d): when each directed link is free.
    """

    sent: FloatArray
    arrival: FloatArray
    link: FloatArray


@njit(cache=True, nogil=True)
def no_transfers(mode: int, n: int, s: int, d: int) -> Transfers:
    """Return the transfers of n ops in s shards on d devices before any is made; `mode` as for `run_batches`.

    Parameters
    ----------
    mode
        As for `run_batches`.
    n, s, d
        Numbers of ops, of shards and of devices.
    """
    shape = (0, 0, 0) if mode == PARALLEL else (n, min(s, d), d)
    return Transfers(np.empty(shape), np.empty(shape), np.empty((d, d)))


@njit(cache=True, nogil=True, inline="always")
def batch_row(moved: FloatArray, i: int, shards: int) -> int:
    """Return the row of a batch among the transfers of its op: its device, or its first shard where these are fewer.

    Parameters
    ----------
    moved
        (n, min(s, d), d) `Transfers.sent` or `arrival`.
    i
        The batch's device.
    shards
        Its shards as bits, not 0.
    """
    if moved.shape[1] == moved.shape[2]:
        return i
    first = 0
    while not shards & (1 << first):
        first += 1
    return first


@njit(cache=True, nogil=True)
def run_batches(
    a: TimelineArrays, mode: int, sequence: IntArray, mask: IntArray, start: FloatArray, moved: Transfers
) -> float:
    """Schedule batches in sequence, each as early as its data and its device allow; return the makespan.

    Port ops wait for no device: their place in the sequence is their transfers' place in the queue of a link.

    Parameters
    ----------
    a
        The problem.
    mode
        PARALLEL, EXCLUSIVE or BLOCKING.
    sequence
        (b,) batches op * d + device, each after those it depends on; batches without shards are passed over.
    mask
        (n, d) shards of each batch as bits.
    start
        (n, d) out: start of each batch; NaN where there is none.
    moved
        Out, for other modes than PARALLEL: the transfers.

    Returns
    -------
    makespan
        In seconds; ``inf`` where a batch may not run or a link is missing; NaN if the sequence contradicts a
        dependency.
    """
    n, d = mask.shape
    start[:] = np.nan
    moved.arrival[:] = np.nan
    moved.sent[:] = np.nan
    moved.link[:] = 0.0
    makespan: float = _run(a, mode, sequence, mask, start, np.full((n, d), np.nan), np.zeros(d), moved)
    return makespan


@hot_kernel
def _run(
    a: TimelineArrays,
    mode: int,
    sequence: IntArray,
    mask: IntArray,
    start: FloatArray,
    end: FloatArray,
    free: FloatArray,
    moved: Transfers,
) -> float:
    """Run the batches from the beginning, `end` and `start` (n, d) NaN and `free` (d,) 0; see `run_batches`."""
    d = len(free)
    makespan = 0.0
    for code in sequence:
        v, i = code // d, code % d
        held = mask[v, i]
        if held == 0:
            continue
        if mode == PARALLEL:
            ready = batch_ready_time(a, v, i, held, mask, end)
        else:
            if mode == BLOCKING:
                _receive(a, v, i, mask, end, free, moved)
            ready = _received_time(a, v, i, mask, end, moved)
        start[v, i] = ready if v >= a.first_port else append_start(ready, free[i])
        over = start[v, i] + a.time[v, i, bit_count(held)]
        if np.isnan(over):
            return np.nan  # The sequence contradicts a dependency.
        end[v, i] = over
        free[i] = max(free[i], over)
        if over > makespan:
            makespan = over
        if mode == EXCLUSIVE:
            _send(a, v, i, mask, over, moved)
    return makespan


@hot_kernel
def _needed(a: TimelineArrays, v: int, i: int, j: int, mask: IntArray) -> int:
    """Return the shards of batch (v, i) that batches on device j use."""
    wanted = np.int64(0)
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        wanted |= mask[a.succ[q], j]
    shards: int = wanted & mask[v, i]
    return shards


@hot_kernel
def _received_time(a: TimelineArrays, v: int, i: int, mask: IntArray, end: FloatArray, moved: Transfers) -> float:
    """Return when the transfers that batch (v, i) waits for have been made, at least 0; NaN if one never is."""
    latest = 0.0
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[q]
        for j in range(mask.shape[1]):
            if mask[u, j] & mask[v, i] == 0:
                continue
            at = end[u, i] if j == i else moved.arrival[u, batch_row(moved.arrival, j, mask[u, j]), i]
            if at > latest or np.isnan(at):  # NaN: the data never comes, whatever else does.
                latest = at
    return latest


@hot_kernel
def _send(a: TimelineArrays, v: int, i: int, mask: IntArray, over: float, moved: Transfers) -> None:
    """Queue the output of batch (v, i), which ends at `over`, on the link to each device that needs it."""
    for j in range(mask.shape[1]):
        wanted = _needed(a, v, i, j, mask)
        if j == i or wanted == 0:
            continue
        row = batch_row(moved.sent, i, mask[v, i])
        moved.sent[v, row, j] = append_start(over, moved.link[i, j])
        moved.link[i, j] = moved.sent[v, row, j] + transfer_time(a, v, i, j, bit_count(wanted))
        moved.arrival[v, row, j] = moved.link[i, j]


@hot_kernel
def _receive(
    a: TimelineArrays, v: int, i: int, mask: IntArray, end: FloatArray, free: FloatArray, moved: Transfers
) -> None:
    """Receive what batch (v, i) needs and device i does not have, in the order in which it was made."""
    while True:
        first_u, first_j, first_end = -1, -1, np.inf
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            u = a.pred[q]
            for j in range(len(free)):
                if j == i or mask[u, j] & mask[v, i] == 0:
                    continue
                if not np.isnan(moved.arrival[u, batch_row(moved.arrival, j, mask[u, j]), i]):
                    continue
                if first_u < 0 or end[u, j] < first_end:
                    first_u, first_j, first_end = u, j, end[u, j]
        if first_u < 0 or np.isnan(first_end):  # NaN: the sequence contradicts a dependency.
            return
        shards = bit_count(_needed(a, first_u, first_j, i, mask))
        begin = append_start(first_end, free[i])
        free[i] = begin + transfer_time(a, first_u, first_j, i, shards)
        row = batch_row(moved.sent, first_j, mask[first_u, first_j])
        moved.sent[first_u, row, i] = begin
        moved.arrival[first_u, row, i] = free[i]
