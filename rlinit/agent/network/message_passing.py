"""Compiled mean and maximum over the neighbours of each node, and their gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import Floats, IntArray
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
def sums_of_one(
    product: Floats, pred_indptr: IntArray, pred: IntArray, succ_indptr: IntArray, succ: IntArray, sums: Floats
) -> None:
    """Write for each node the sum of its own part of a product and those of its first neighbours, where there are any.

    Parameters
    ----------
    product
        (N, 3, h) of states: what a node adds to itself, as a predecessor and as a successor.
    pred_indptr, pred, succ_indptr, succ
        Neighbours, as for `mean_max`.
    sums
        (N, h), to be filled.
    """
    n, width = sums.shape
    for v in range(n):
        for c in range(width):
            sums[v, c] = product[v, 0, c]
        if pred_indptr[v] < pred_indptr[v + 1]:
            u = np.uint64(pred[pred_indptr[v]])  # unsigned indices let loops be vectorised
            for c in range(width):
                sums[v, c] += product[u, 1, c]
        if succ_indptr[v] < succ_indptr[v + 1]:
            u = np.uint64(succ[succ_indptr[v]])
            for c in range(width):
                sums[v, c] += product[u, 2, c]


@njit(cache=True, nogil=True)
def read_states(
    x: Floats,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    nodes: IntArray,
    parts: Floats,
) -> None:
    """Write what nodes read: their own state, then mean and maximum of their predecessors' and of their successors'.

    Parameters
    ----------
    x
        (N, h) whole numbers; means are rounded to such.
    pred_indptr, pred, succ_indptr, succ
        Neighbours, as for `mean_max`.
    nodes
        (r,) nodes of which is read.
    parts
        (r, 5, h) or longer, to be filled; zeros stand for neighbours that there are not.
    """
    for row in range(len(nodes)):
        v = np.uint64(nodes[row])
        for c in range(x.shape[1]):
            parts[row, 0, c] = x[v, c]
        _read_side(x, pred[pred_indptr[v] : pred_indptr[v + 1]], parts, row, 1)
        _read_side(x, succ[succ_indptr[v] : succ_indptr[v + 1]], parts, row, 3)


@njit(cache=True, nogil=True)
def _read_side(x: Floats, neighbours: IntArray, parts: Floats, row: int, part: int) -> None:
    """Write mean and maximum over neighbours, from `part` of a row on."""
    width, count = x.shape[1], len(neighbours)
    if count == 0:
        parts[row, part : part + 2] = 0.0
        return
    u = np.uint64(neighbours[0])
    for c in range(width):
        parts[row, part, c] = parts[row, part + 1, c] = x[u, c]
    for e in range(1, count):
        u = np.uint64(neighbours[e])
        for c in range(width):
            parts[row, part, c] += x[u, c]
            parts[row, part + 1, c] = max(parts[row, part + 1, c], x[u, c])
    if count > 1:
        for c in range(width):
            parts[row, part, c] = np.rint(parts[row, part, c] / np.float32(count))


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
