"""Compiled mean and maximum over the neighbours of each node, and their gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import Floats, IntArray
from rlinit.kernels.compiled import njit

"""float32 or float64."""


@njit(cache=True, nogil=True)
def mean_max(x: Floats, indptr: IntArray, index: IntArray) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return (mean, maximum, argmax) over each row's neighbours, channel by channel; 0 and -1 where there are none.

    Parameters
    ----------
    x
        (N, h) float32 or float64.
    indptr, index
        (N + 1,), (E,) neighbours of each row. Of equal maxima the first counts.
    """
    n, width = len(indptr) - 1, x.shape[1]
    mean = np.zeros((n, width), x.dtype)
    most = np.zeros((n, width), x.dtype)
    where = np.full((n, width), -1, np.int32)
    for v in range(n):
        first, last = indptr[v], indptr[v + 1]
        if first == last:
            continue
        u = index[first]
        for c in range(width):
            mean[v, c] = x[u, c]
            most[v, c] = x[u, c]
            where[v, c] = u
        for e in range(first + 1, last):
            u = index[e]
            for c in range(width):
                value = x[u, c]
                mean[v, c] += value
                if value > most[v, c]:
                    most[v, c] = value
                    where[v, c] = u
        for c in range(width):
            mean[v, c] /= last - first
    return mean, most, where


@njit(cache=True, nogil=True)
def read_states(
    x: Floats, pred_indptr: IntArray, pred: IntArray, succ_indptr: IntArray, succ: IntArray, joined: Floats
) -> None:
    """Write what each node reads: its own state, then mean and maximum of its predecessors' and of its successors'.

    Parameters
    ----------
    x
        (N, h) whole numbers; means are rounded to such.
    pred_indptr, pred, succ_indptr, succ
        Neighbours, as for `mean_max`.
    joined
        (N, 5 * h) to be filled; zeros stand for neighbours that there are not.
    """
    n, width = x.shape
    for v in range(n):
        joined[v, :width] = x[v]
        for side in range(2):
            indptr, index = (pred_indptr, pred) if side == 0 else (succ_indptr, succ)
            first, last = indptr[v], indptr[v + 1]
            mean = joined[v, (1 + 2 * side) * width : (2 + 2 * side) * width]
            most = joined[v, (2 + 2 * side) * width : (3 + 2 * side) * width]
            for c in range(width):
                mean[c] = most[c] = x[index[first], c] if first < last else 0.0
            for e in range(first + 1, last):
                for c in range(width):
                    mean[c] += x[index[e], c]
                    most[c] = max(most[c], x[index[e], c])
            for c in range(width):
                mean[c] = np.rint(mean[c] / max(1, last - first))


@njit(cache=True, nogil=True)
def mean_max_gradient(
    mean_grad: Floats, most_grad: Floats, where: NDArray[np.int32], indptr: IntArray, index: IntArray
) -> Floats:
    """Return (N, h) the gradient of `mean_max` with respect to x, from those of its mean and its maximum.

    Parameters
    ----------
    mean_grad, most_grad
        (N, h) gradients with respect to the mean and to the maximum.
    where
        (N, h) the neighbour that each maximum was taken from, -1 where there is none.
    indptr, index
        Neighbours of node v: ``index[indptr[v]:indptr[v + 1]]``.
    """
    n, width = mean_grad.shape
    grad = np.zeros((n, width), mean_grad.dtype)
    share = np.empty(width, mean_grad.dtype)
    for v in range(n):
        first, last = indptr[v], indptr[v + 1]
        if first == last:
            continue
        for c in range(width):
            share[c] = mean_grad[v, c] / (last - first)
            grad[where[v, c], c] += most_grad[v, c]
        for e in range(first, last):
            u = index[e]
            for c in range(width):
                grad[u, c] += share[c]
    return grad
