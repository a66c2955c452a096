"""What moves of compiled annealing do to stages: costs kept up to date by counts of the readers of tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

_NEIGHBOURS = 0.5
"""Of the draws of any stage, the share that takes that of a neighbour."""

Csr = tuple[IntArray, IntArray]
"""Where the entries of each row begin, and the entries."""


@njit(cache=True, nogil=True)
def overflow_s(held: float, cache: float, memory: float, rate: float) -> float:
    """Return the seconds of overflow of so many bytes, inf where they do not fit.

    Parameters
    ----------
    held
        Bytes.
    cache, memory, rate
        Of the device: bytes without overflow and at most, seconds for each byte of overflow.
    """
    if held > memory:
        return np.inf
    return (held - cache) * rate if held > cache else 0.0


@njit(cache=True, nogil=True)
def count_reader(v: int, at: int, sign: int, reads: Csr, inside: NDArray[np.int32]) -> None:
    """Count a node among the readers in a stage (sign 1), or no longer (-1).

    Parameters
    ----------
    v, at, sign
        The node, the stage, and which of both.
    reads
        Tensors that each node reads.
    inside
        (m, k) how many readers of each tensor a stage holds, changed in place.
    """
    for q in range(reads[0][v], reads[0][v + 1]):
        inside[reads[1][q], at] += sign


@njit(cache=True, nogil=True)
def carry_node(v: int, i: int, j: int, reads: Csr, makes: Csr, inside: NDArray[np.int32], made: IntArray) -> None:
    """Take a node as a reader and a maker of tensors from stage i to j.

    Parameters
    ----------
    v, i, j
        The node and the stages.
    reads, makes
        Tensors that each node reads, and makes.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it; changed in place.
    """
    count_reader(v, i, -1, reads, inside)
    count_reader(v, j, 1, reads, inside)
    for q in range(makes[0][v], makes[0][v + 1]):
        made[makes[1][q]] = j


@njit(cache=True, nogil=True)
def busy_on(
    at: int,
    members: NDArray[np.int32],
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    inside: NDArray[np.int32],
    made: IntArray,
) -> float:
    """Return the seconds of work and transfers of a stage on a device.

    Parameters
    ----------
    at, members
        The stage and its nodes.
    seconds
        What nodes, tensors in and tensors out take on the device.
    reads, makes, indptr
        Tensors that each node reads, and makes; where the readers of each tensor begin.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it.
    """
    work, in_s, out_s = seconds
    total = 0.0
    for v in members:
        total += work[v]
        for q in range(reads[0][v], reads[0][v + 1]):
            t = reads[1][q]
            if made[t] != at:
                total += in_s[t] / inside[t, at]
        for q in range(makes[0][v], makes[0][v + 1]):
            t = makes[1][q]
            if inside[t, at] < indptr[t + 1] - indptr[t]:
                total += out_s[t]
    return total


@njit(cache=True, nogil=True)
def shift(
    v: int,
    ends: tuple[int, int, int, int],
    reads: Csr,
    makes: Csr,
    indptr: IntArray,
    seconds: tuple[FloatArray, FloatArray, FloatArray],
    inside: NDArray[np.int32],
    made: IntArray,
) -> tuple[float, float]:
    """Return by how much the seconds of two stages change when a node goes from the one to the other.

    No other stage's change: where else its tensors are made and read stays as it is.

    Parameters
    ----------
    v, ends
        The node, and (i, j, class of i, class of j).
    reads, makes, indptr
        Tensors that each node reads, and makes; where the readers of each tensor begin.
    seconds
        By class, what nodes, tensors in and tensors out take.
    inside, made
        (m, k) how many readers of each tensor a stage holds, (m,) the stage that makes it.
    """
    i, j, c, d = ends
    work, in_s, out_s = seconds
    one, two = -work[c, v], work[d, v]
    for q in range(reads[0][v], reads[0][v + 1]):
        t = reads[1][q]
        users = indptr[t + 1] - indptr[t]
        if made[t] == i:
            if inside[t, i] == users:
                one += out_s[c, t]
        elif inside[t, i] == 1:
            one -= in_s[c, t]
        if made[t] == j:
            if inside[t, j] == users - 1:
                two -= out_s[d, t]
        elif inside[t, j] == 0:
            two += in_s[d, t]
    for q in range(makes[0][v], makes[0][v + 1]):
        t = makes[1][q]
        users = indptr[t + 1] - indptr[t]
        if inside[t, i] < users:
            one -= out_s[c, t]
        if inside[t, i] > 0:
            one += in_s[c, t]
        if inside[t, j] < users:
            two += out_s[d, t]
        if inside[t, j] > 0:
            two -= in_s[d, t]
    return one, two


@njit(cache=True, nogil=True)
def draw_stage_between(
    rng: np.random.Generator,
    v: int,
    num_stages: int,
    stage: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
) -> int:
    """Return a random other stage between those of the node's producers and consumers, -1 where there is none.

    Parameters
    ----------
    rng
        Draws the stage.
    v
        The node.
    num_stages
        Number of stages.
    stage
        (n,) stage of each node.
    succ_indptr, succ, pred_indptr, pred
        Consumers and producers of each node, as CSR.
    """
    low = 0
    for e in range(pred_indptr[v], pred_indptr[v + 1]):
        low = max(low, int(stage[pred[e]]))
    high = num_stages - 1
    for e in range(succ_indptr[v], succ_indptr[v + 1]):
        high = min(high, int(stage[succ[e]]))
    if low >= high:
        return -1
    target = low + int(rng.integers(0, high - low))
    return target + 1 if target >= stage[v] else target


@njit(cache=True, nogil=True)
def draw_stage_beside(
    rng: np.random.Generator,
    v: int,
    num_stages: int,
    stage: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
) -> int:
    """Return a random other stage, that of a neighbour in half of the draws; -1 where that is the node's own.

    Parameters
    ----------
    rng
        Draws the stage.
    v
        The node.
    num_stages
        Number of stages, at least 2.
    stage
        (n,) stage of each node.
    succ_indptr, succ, pred_indptr, pred
        Consumers and producers of each node, as CSR.
    """
    before = pred_indptr[v + 1] - pred_indptr[v]
    beside = before + succ_indptr[v + 1] - succ_indptr[v]
    if beside > 0 and rng.random() < _NEIGHBOURS:
        e = int(rng.integers(0, beside))
        u = pred[pred_indptr[v] + e] if e < before else succ[succ_indptr[v] + e - before]
        return int(stage[u]) if stage[u] != stage[v] else -1
    target = int(rng.integers(0, num_stages - 1))
    return target + 1 if target >= stage[v] else target
