"""Compiled costs of the slices of an order, with the peaks of activation memory in that order."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


@njit(cache=True, nogil=True)
def slice_peaks(
    ends: IntArray,
    first: IntArray,
    sizes: FloatArray,
    read_indptr: IntArray,
    reads: IntArray,
    last_reader: IntArray,
) -> FloatArray:
    """Return (n, n) the peak of the slice from node l to node r of an order; only for r < ends[l], else inf.

    Parameters
    ----------
    ends
        (n,) how far slices from each node go.
    first
        (n + 1,) place of each node's first op in the order of ops.
    sizes
        (m,) bytes of the output of the op at each place.
    read_indptr, reads
        Places of the ops that each op reads, distinct.
    last_reader
        (m,) place of the last reader of each output in the whole order; m where none reads it.
    """
    n, m = len(ends), len(sizes)
    peaks = np.full((n, n), np.inf)
    last = np.empty(m, np.int64)
    for left in range(n):
        start = first[left]
        arriving = 0.0
        for p in range(m):
            last[p] = -1
        for right in range(left, ends[left]):
            for p in range(first[right], first[right + 1]):
                for e in range(read_indptr[p], read_indptr[p + 1]):
                    if last[reads[e]] < 0 and reads[e] < start:
                        arriving += sizes[reads[e]]
                    last[reads[e]] = p
            held = arriving
            peak = arriving
            for p in range(start, first[right + 1]):
                held += sizes[p]
                peak = max(peak, held)
                for e in range(read_indptr[p], read_indptr[p + 1]):
                    u = reads[e]
                    if last[u] == p and (u < start or last_reader[u] < first[right + 1]):
                        held -= sizes[u]
            peaks[left, right] = peak
    return peaks
