"""The three steps of list scheduling, compiled, each once: when data are ready, appending, inserting into idle slots.

Transfers are planned as if any number ran at once. A *mask* holds, as bits, which shards of an op a device runs.
Functions that take arrays `a` read the fields of :class:`TransferArrays` from it, so any bundle that has them will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

SLOT_BLOCK = 64
"""Batches of a device whose idle slots are skipped together where all are too short."""


def hot_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel that makes no arrays (nor assigns slices), without counting references to those it reads.

    numba counts a reference whenever a field of a bundle of arrays is read. In a move of an annealing search that took
    as long as the rest of it; without it, bundles cost nothing.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
    return njit(**options)(function)


class TransferArrays(Protocol):
    """What the arrival of data depends on; n ops, d devices."""

    @property
    def tensor(self) -> FloatArray:
        """(n,) bytes of an op's output, or of one shard of it."""

    @property
    def s_per_byte(self) -> FloatArray:
        """(d, d) seconds a byte takes from row to column."""

    @property
    def delay(self) -> FloatArray:
        """(d, d) seconds before the first byte; ``inf`` without a link."""

    @property
    def pred_indptr(self) -> IntArray:
        """(n + 1,) where each op's producers begin in `pred`."""

    @property
    def pred(self) -> IntArray:
        """Producers of all ops."""


@njit(cache=True, nogil=True, inline="always")
def bit_count(mask: int) -> int:
    """Return the number of bits set in a non-negative integer."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def transfer_time(a: TransferArrays, u: int, j: int, i: int, shards: int) -> float:
    """Return the seconds that some shards of op u's output take from device j to another device i.

    Parameters
    ----------
    a
        Rates, delays and tensor sizes.
    u
        The producer.
    j
        The device it runs on.
    i
        The device that reads, another one.
    shards
        How many shards move together, at least 1.
    """
    seconds: float = a.delay[j, i] + shards * a.tensor[u] * a.s_per_byte[j, i]
    return seconds


@njit(cache=True, nogil=True, inline="always")
def ready_time(a: TransferArrays, v: int, i: int, device: IntArray, end: FloatArray) -> float:
    """Return when all that op v reads is on device i, for ops that are whole; at least 0.

    Parameters
    ----------
    a
        The problem.
    v, i
        Op and device.
    device, end
        (n,) device of each op, and when it ends in seconds; read at the producers of v.
    """
    latest = 0.0
    for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[e]
        at = end[u]
        if device[u] != i:
            at += transfer_time(a, u, device[u], i, 1)
        if at > latest:
            latest = at
    return latest


@njit(cache=True, nogil=True, inline="always")
def batch_ready_time(a: TransferArrays, v: int, i: int, wanted: int, mask: IntArray, end: FloatArray) -> float:
    """Return when all that the shards `wanted` of op v read is on device i, at least 0; NaN if some end is.

    Parameters
    ----------
    a
        The problem.
    v, i
        Op and device.
    wanted
        Shards of v as bits.
    mask, end
        (n, d) shards of each batch as bits, and when it ends in seconds; read at the producers of v.
    """
    latest = 0.0
    for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[e]
        left = wanted
        for j in range(mask.shape[1]):
            shared = mask[u, j] & left
            if shared == 0:
                continue
            left ^= shared
            at = end[u, j]
            if j != i:
                at += transfer_time(a, u, j, i, bit_count(shared))
            if at > latest or np.isnan(at):  # NaN: the data never come, whatever else does.
                latest = at
            if left == 0:
                break
    return latest


@njit(cache=True, nogil=True, inline="always")
def append_start(ready: float, free: float) -> float:
    """Return the start of a batch after all others of its device, which is free from `free` on; NaN if `ready` is.

    Parameters
    ----------
    ready
        Seconds at which the data of the batch are on the device.
    free
        Seconds at which the device has run all it was given so far.
    """
    return free if free > ready else ready


@hot_kernel
def insert_start(
    ready: float, length: float, size: int, starts: FloatArray, ends: FloatArray, widest: FloatArray
) -> tuple[int, float]:
    """Return position and start of the first idle slot of a device that takes `length` seconds from `ready` on.

    Parameters
    ----------
    ready, length
        When the data are there, and how long the batch runs.
    size, starts, ends
        Number of batches of the device so far, and when they run, by time.
    widest
        The longest slot before the batches of each block of ``SLOT_BLOCK`` positions; see `insert_batch`.
    """
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= ready:
            low = middle + 1
        else:
            high = middle
    at = low
    while at < size:
        if at % SLOT_BLOCK == 0 and at > low and widest[at // SLOT_BLOCK] < length:
            at += SLOT_BLOCK
            continue
        begin = ready if at == 0 else append_start(ready, ends[at - 1])
        if begin + length <= starts[at]:
            return at, begin
        at += 1
    return size, ready if size == 0 else append_start(ready, ends[size - 1])


@hot_kernel
def insert_batch(
    at: int, begin: float, finish: float, size: int, starts: FloatArray, ends: FloatArray, widest: FloatArray
) -> None:
    """Put a batch at position `at` of a device's `size` batches, and bring the arrays up to date.

    Parameters
    ----------
    at, begin
        As `insert_start` returns them.
    finish
        When the batch ends.
    size, starts, ends, widest
        The device's batches before; see `insert_start`.
    """
    for k in range(size, at, -1):
        starts[k] = starts[k - 1]
        ends[k] = ends[k - 1]
    starts[at] = begin
    ends[at] = finish
    for block in range(at // SLOT_BLOCK, size // SLOT_BLOCK + 1):
        longest = 0.0
        for k in range(block * SLOT_BLOCK, min(size + 1, (block + 1) * SLOT_BLOCK)):
            longest = max(longest, starts[k] - (ends[k - 1] if k > 0 else 0.0))
        widest[block] = longest
