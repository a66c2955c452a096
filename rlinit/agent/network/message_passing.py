"""Compiled mean and maximum over the neighbours of each node, and their gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, Floats, IntArray
from rlinit.kernels.compiled import njit


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
    x: Floats,
    graph: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    start: int,
    joined: Floats,
    total: FloatArray,
) -> None:
    """Write what nodes read: their own state, then mean and maximum of its predecessors' and of its successors'.

    Parameters
    ----------
    x
        (N, h) whole numbers; means are rounded to such.
    graph
        (N,) the graph of each node.
    pred_indptr, pred, succ_indptr, succ
        Neighbours, as for `mean_max`.
    start
        The node that the first row of `joined` is of.
    joined
        (rows, 5, h) to be filled; zeros stand for neighbours that there are not.
    total
        (G, h) to which the states of these nodes are added, graph by graph.
    """
    for row in range(len(joined)):
        v = start + row
        g = graph[v]
        for c in range(x.shape[1]):
            joined[row, 0, c] = x[v, c]
            total[g, c] += x[v, c]
        _read_side(x, pred[pred_indptr[v] : pred_indptr[v + 1]], joined, row, 1)
        _read_side(x, succ[succ_indptr[v] : succ_indptr[v + 1]], joined, row, 3)


@njit(cache=True, nogil=True)
def _read_side(x: Floats, neighbours: IntArray, joined: Floats, row: int, part: int) -> None:
    """Write mean and maximum over neighbours, from `part` of a row on; unsigned indices let loops be vectorised."""
    width, count = x.shape[1], len(neighbours)
    if count == 0:
        joined[row, part : part + 2] = 0.0
        return
    u = np.uint64(neighbours[0])
    for c in range(width):
        joined[row, part, c] = joined[row, part + 1, c] = x[u, c]
    for e in range(1, count):
        u = np.uint64(neighbours[e])
        for c in range(width):
            value = x[u, c]
            joined[row, part, c] += value
            joined[row, part + 1, c] = value if value > joined[row, part + 1, c] else joined[row, part + 1, c]
    if count > 1:
        for c in range(width):
            joined[row, part, c] = np.rint(joined[row, part, c] / np.float32(count))


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
