"""Compiled quantities that the features of a placement problem are made of."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


@njit(cache=True, nogil=True)
def optimistic_costs(
    order: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    succ_indptr: IntArray,
    succ: IntArray,
) -> FloatArray:
    """Return (n, d) the longest way from the end of op v on device i to the end of all, were no device ever busy.

    ``inf`` where some successor is out of reach.

    Parameters
    ----------
    order
        (n,) a topological order.
    time_s
        (n, d) seconds of each op on each device, inf where it may not run.
    tensor_bytes
        (n,) bytes of each op's output.
    s_per_byte
        (d, d) seconds a byte takes from one device to another.
    delay_s
        (d, d) seconds before the first byte arrives.
    succ_indptr, succ
        Successors of op v: ``succ[succ_indptr[v]:succ_indptr[v + 1]]``.

    References
    ----------
    Arabnejad, Barbosa: List scheduling algorithm for heterogeneous systems by an optimistic cost table, IEEE TPDS
    25(3), 2014, eq. 5 (with the devices' own transfers in place of means).
    """
    n, d = time_s.shape
    cost = np.zeros((n, d))
    for k in range(n - 1, -1, -1):
        v = order[k]
        for q in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[q]
            for i in range(d):
                least = np.inf
                for j in range(d):
                    after = time_s[w, j] + cost[w, j]
                    if j != i:
                        after += delay_s[i, j] + tensor_bytes[v] * s_per_byte[i, j]
                    least = min(least, after)
                cost[v, i] = max(cost[v, i], least)
    return cost


@njit(cache=True, nogil=True)
def least_paths(
    order: IntArray, least_s: FloatArray, pred_indptr: IntArray, pred: IntArray, succ_indptr: IntArray, succ: IntArray
) -> FloatArray:
    """Return (n,) the longest path through each op, every op counted with its least time, transfers not at all.

    Parameters
    ----------
    order
        (n,) a topological order.
    least_s
        (n,) least seconds of each op on any device.
    pred_indptr, pred
        Predecessors of op v: ``pred[pred_indptr[v]:pred_indptr[v + 1]]``.
    succ_indptr, succ
        Successors, in the same form.
    """
    n = len(least_s)
    down, up = np.zeros(n), np.zeros(n)
    for k in range(n):
        v = order[k]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            down[v] = max(down[v], down[pred[q]] + least_s[pred[q]])
    for k in range(n - 1, -1, -1):
        v = order[k]
        for q in range(succ_indptr[v], succ_indptr[v + 1]):
            up[v] = max(up[v], up[succ[q]])
        up[v] += least_s[v]
    return down + up


@njit(cache=True, nogil=True)
def busy_shares(device: IntArray, start: FloatArray, end: FloatArray, reach: float, num_devices: int) -> FloatArray:
    """Return (n, d, 2) how busy each device is in the time `reach` before each op starts, and after it ends.

    Shares from 0 to 1 of a schedule (device, start, end); 1 where `reach` is 0.

    Parameters
    ----------
    device
        (n,) device of each op.
    start, end
        (n,) seconds at which each op starts and ends.
    reach
        Seconds to look back and ahead.
    num_devices
        d.
    """
    n = len(device)
    shares = np.ones((n, num_devices, 2))
    if reach <= 0.0:
        return shares
    for i in range(num_devices):
        ops = np.flatnonzero(device == i)
        ops = ops[np.argsort(start[ops])]
        begins, overs = start[ops], end[ops]
        work = np.zeros(len(ops) + 1)
        for k in range(len(ops)):
            work[k + 1] = work[k] + overs[k] - begins[k]
        for v in range(n):
            before = _work_until(start[v], begins, work) - _work_until(start[v] - reach, begins, work)
            after = _work_until(end[v] + reach, begins, work) - _work_until(end[v], begins, work)
            shares[v, i, 0] = before / reach
            shares[v, i, 1] = after / reach
    return shares


@njit(cache=True, nogil=True)
def _work_until(moment: float, begins: FloatArray, work: FloatArray) -> float:
    """Return the seconds a device works before a moment; `work` sums up its ops, which begin at `begins`."""
    k = np.searchsorted(begins, moment)
    if k == 0:
        return 0.0
    done: float = min(work[k], work[k - 1] + moment - begins[k - 1])
    return done


@njit(cache=True, nogil=True)
def neighbour_shares(device: IntArray, indptr: IntArray, index: IntArray, num_devices: int) -> FloatArray:
    """Return (n, d) the share of each op's neighbours on each device, 0 where it has none.

    Parameters
    ----------
    device
        (n,) device of each op.
    indptr, index
        Neighbours of op v: ``index[indptr[v]:indptr[v + 1]]``.
    num_devices
        d.
    """
    n = len(device)
    shares = np.zeros((n, num_devices))
    for v in range(n):
        for q in range(indptr[v], indptr[v + 1]):
            shares[v, device[index[q]]] += 1.0 / (indptr[v + 1] - indptr[v])
    return shares
