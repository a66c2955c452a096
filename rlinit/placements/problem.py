"""The array form of a placement problem (`latency` or `throughput`): what kernels, formulations and bounds work on.

A :class:`PlacementProblem` is built once from a validated graph and hardware and is trusted afterwards.

The L inputs make s *shards* of g inputs each (s = 1 and g = 1 for ``latency``), where g is the greatest common
divisor of the batch sizes and of L. Every (op, shard) is on one device; the shards of an op on one device run together
as one *batch* (DIVIML: at most one batch of an op on a device), so a batch is named by its op and device. A batch of c
shards of v takes ``time_s[v, i, c]`` on device i without interruption, and batches on one device do not overlap.

Batch (w, j) *depends* on batch (v, i) where v -> w is an edge and they share a shard. If i == j it starts no earlier
than the other ends. Otherwise a transfer lies between, of duration ``delay_s[i, j] + bytes * s_per_byte[i, j]``:

=============  =======================================================================================================
transfers      meaning
=============  =======================================================================================================
``parallel``   any number at once, beside computing. The transfer to (w, j) moves the shared shards of v and starts
               when (v, i) ends.
``exclusive``  transfers on one directed link (i, j) do not overlap (congestion; Moirai eq. 8). One transfer for each
               batch (v, i) and device j moves the shards of v that any batch on j needs, and all of those wait for it.
``blocking``   transfers as for ``exclusive``, but each keeps the receiving device busy (computing and receiving do not
               overlap), whatever the link.
=============  =======================================================================================================

Device i holds, over all batches (v, i) of c shards, ``weight_bytes[v] + c * shard_bytes[v]`` at most
``capacity_bytes[i]`` (DIVIML condition 6). The value is the makespan: when the last batch ends (DIVIML conditions 1
to 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.plan import Transfers

MAX_SHARDS = 62
"""Shards of an op on one device are held as the bits of one signed 64-bit integer."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PlacementProblem:
    """A placement problem as arrays. n ops, m edges, d devices, s shards of g inputs.

    Parameters
    ----------
    objective
        ``"latency"`` (s = 1) or ``"throughput"``.
    transfers
        How transfers share links and devices.
    shard_inputs
        g, inputs of one shard.
    time_s
        (n, d, s + 1) seconds of a batch of c shards; 0 for c = 0; ``inf`` where that may not run.
    tensor_bytes
        (n,) bytes of one shard of an op's output.
    weight_bytes, shard_bytes
        (n,) bytes a device holds for an op it runs at all, and for each shard of it.
    capacity_bytes
        (d,) memory; ``inf``: none.
    s_per_byte, delay_s
        (d, d) of a transfer from row to column; zero on the diagonal. Without a link `delay_s` is ``inf``; `s_per_byte`
        is always finite.
    edges
        (m, 2) distinct pairs (producer, consumer), sorted.
    order
        (n,) a topological order, the natural one.
    group
        (n,) ops of one group share a device, shard by shard; the group of an op is its member of smallest index.
    num_ports
        How many of the last ops are ports (`rlinit.placements.ports`): their batches start when their producers' end,
        whatever else their device does.
    """

    objective: Literal["latency", "throughput"]
    transfers: Transfers
    shard_inputs: int
    time_s: FloatArray
    tensor_bytes: FloatArray
    weight_bytes: FloatArray
    shard_bytes: FloatArray
    capacity_bytes: FloatArray
    s_per_byte: FloatArray
    delay_s: FloatArray
    edges: IntArray
    order: IntArray
    group: IntArray
    num_ports: int = 0
    # Derived below.
    succ_indptr: IntArray = field(init=False)
    succ: IntArray = field(init=False)
    pred_indptr: IntArray = field(init=False)
    pred: IntArray = field(init=False)

    def __post_init__(self) -> None:
        for prefix, row, column in (("succ", 0, 1), ("pred", 1, 0)):
            rows, columns = self.edges[:, row], self.edges[:, column]
            by_row = np.lexsort((columns, rows))
            indptr = np.zeros(self.num_ops + 1, np.int64)
            np.cumsum(np.bincount(rows, minlength=self.num_ops), out=indptr[1:])
            object.__setattr__(self, f"{prefix}_indptr", indptr)
            object.__setattr__(self, prefix, np.ascontiguousarray(columns[by_row]))

    @property
    def num_ops(self) -> int:
        """Number of ops n."""
        return len(self.tensor_bytes)

    @property
    def num_devices(self) -> int:
        """Number of devices d."""
        return len(self.capacity_bytes)

    @property
    def num_shards(self) -> int:
        """Number of shards s."""
        return int(self.time_s.shape[2]) - 1

    @property
    def op_time_s(self) -> FloatArray:
        """(n, d) seconds of an op for all its shards in one batch: the op times of `latency`."""
        return np.ascontiguousarray(self.time_s[:, :, -1])

    def over_groups(self, values: NDArray[Any], combine: np.ufunc) -> NDArray[Any]:
        """Return values of ops with those of each group combined, at each of its ops.

        Parameters
        ----------
        values
            (n, ...) of each op.
        combine
            Of two arguments, such as `np.add`.
        """
        shared = np.flatnonzero(np.bincount(self.group, minlength=self.num_ops)[self.group] > 1)
        shared = shared[np.argsort(self.group[shared], kind="stable")]
        result = values.copy()
        if len(shared):
            first = np.flatnonzero(np.diff(self.group[shared], prepend=-1))
            together = combine.reduceat(values[shared], first, axis=0)
            result[shared] = np.repeat(together, np.diff(first, append=len(shared)), axis=0)
        return result

    def succ_of(self, op: int) -> IntArray:
        """Return the consumers of an op."""
        return self.succ[self.succ_indptr[op] : self.succ_indptr[op + 1]]

    def pred_of(self, op: int) -> IntArray:
        """Return the producers an op depends on."""
        return self.pred[self.pred_indptr[op] : self.pred_indptr[op + 1]]

    def transfer_s(self, op: int, source: int, target: int, shards: int = 1) -> float:
        """Return the seconds to move some shards of an op's output between two devices.

        Parameters
        ----------
        op
            Index of the producer, in 0 .. n - 1.
        source, target
            Device indices, in 0 .. d - 1; 0 seconds where they are the same.
        shards
            How many shards move together, at least 1.
        """
        if source == target:
            return 0.0
        return float(self.delay_s[source, target] + shards * self.tensor_bytes[op] * self.s_per_byte[source, target])

    def transfers_s(self, op: int) -> FloatArray:
        """Return (d, d) the seconds to move one shard of an op's output from row to column.

        Parameters
        ----------
        op
            Index of the producer, in 0 .. n - 1.
        """
        seconds: FloatArray = self.delay_s + self.tensor_bytes[op] * self.s_per_byte
        np.fill_diagonal(seconds, 0.0)
        return seconds


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Who runs what, in which order; a timeline follows from it by list scheduling.

    Parameters
    ----------
    device
        (n, s) device of each shard of each op.
    sequence
        Batches as op * d + device, each batch of `device` exactly once, every batch after those it depends on. A
        device runs its batches in this order.
    """

    device: IntArray
    sequence: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PlacementResult:
    """What a solver found and proved about the problem it was given.

    Parameters
    ----------
    placement, value
        The best placement and its makespan in seconds, or None where none was found.
    bound
        A proven lower bound in seconds.
    status
        ``optimal`` (value proven best), ``feasible``, ``infeasible`` (proven: nothing at all, or nothing better than
        the cutoff that was given), ``no_solution`` (the budget ended first).
    work
        Deterministic count of the effort spent.
    """

    placement: Placement | None
    value: float | None
    bound: float
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    work: int
