"""Which stages a node can still take: what a window fixes, and what a known value rules out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageAssignment, StageProblem


class StageDomains:
    """Intervals of stages, `first` (n,) and `last` (n,), kept monotone along the edges.

    An assignment that satisfied the intervals before a method was called and keeps the method's premise
    satisfies them after it. An empty interval means that no assignment is left.
    """

    __slots__ = ("_problem", "first", "last")

    def __init__(self, problem: StageProblem, first: IntArray, last: IntArray) -> None:
        self._problem = problem
        self.first = first
        self.last = last
        self.propagate()

    @property
    def empty(self) -> bool:
        """Whether some node has no stage left."""
        return bool((self.first > self.last).any())

    def propagate(self) -> None:
        """Push first stages forwards and last stages backwards: stage(u) <= stage(v) on every edge."""
        problem, first, last = self._problem, self.first, self.last
        for v in problem.order:
            before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
            if len(before):
                first[v] = max(first[v], first[before].max())
        for v in problem.order[::-1]:
            after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
            if len(after):
                last[v] = min(last[v], last[after].min())

    def tighten(self, weight: FloatArray, limit: float) -> None:
        """Keep only assignments whose stages each hold at most `limit` of the additive `weight` (n,).

        A node at stage p has all its ancestors in stages 0..p, so their joint weight is at most (p + 1) * limit;
        and all its descendants in stages p..k-1. A relative slack of 1e-9 covers the rounding of the sums.

        Parameters
        ----------
        weight
            (n,) of each node, none below 0.
        limit
            Most weight of a stage.
        """
        if not np.isfinite(limit) or limit <= 0:
            return
        up, down = _path_sums(self._problem, weight)
        need_up = np.ceil(up / limit * (1 - SAFETY) - SAFETY)
        need_down = np.ceil(down / limit * (1 - SAFETY) - SAFETY)
        k = self._problem.num_stages
        np.maximum(self.first, np.minimum(need_up - 1, k).astype(np.int64), out=self.first)
        np.minimum(self.last, k - np.minimum(need_down, k + 1).astype(np.int64), out=self.last)
        self.propagate()


def window_domains(
    problem: StageProblem, start: StageAssignment | None, free: NDArray[np.bool_] | None
) -> StageDomains:
    """Return the intervals of a window: nodes outside `free` keep their stage in `start`.

    Parameters
    ----------
    problem
        The problem.
    start
        The assignment that the window surrounds; needed when `free` is given.
    free
        (n,) nodes that may move, or None for all.

    Raises
    ------
    ValueError
        If `free` is given without a start, or has another shape.
    """
    n, k = problem.num_nodes, problem.num_stages
    first, last = np.zeros(n, np.int64), np.full(n, k - 1, np.int64)
    if free is not None:
        if start is None:
            raise ValueError("free: a window needs the start whose stages the other nodes keep")
        if free.shape != (n,):
            raise ValueError(f"free: expected shape ({n},), got {free.shape}")
        first = np.where(free, first, start.stage)
        last = np.where(free, last, start.stage)
    return StageDomains(problem, first, last)


@njit(cache=True, nogil=True)
def reach_sets(order: IntArray, indptr: IntArray, neighbour: IntArray) -> NDArray[np.uint64]:
    """Return (n, w) the set of each node and all it reaches, node u at bit u % 64 of word u // 64.

    Parameters
    ----------
    order
        (n,) such that neighbours come before a node.
    indptr, neighbour
        Predecessors in CSR form; for successors, with the order reversed.
    """
    n = len(order)
    reach = np.zeros((n, (n + 63) // 64), np.uint64)
    for v in order:
        reach[v, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
        for e in range(indptr[v], indptr[v + 1]):
            for w in range(reach.shape[1]):
                reach[v, w] |= reach[neighbour[e], w]
    return reach


@njit(cache=True, nogil=True)
def _sums_of_reach(reach: NDArray[np.uint64], weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (n,) the weight of each node with its ancestors, and with its descendants, of the sets of `reach_sets`."""
    n = len(weight)
    up, down = np.zeros(n), np.zeros(n)
    for v in range(n):
        for w in range(reach.shape[1]):
            word = reach[v, w]
            if word == np.uint64(0):
                continue
            for bit in range(64):
                if (word >> np.uint64(bit)) & np.uint64(1):
                    up[v] += weight[64 * w + bit]
                    down[64 * w + bit] += weight[v]
    return up, down


@njit(cache=True, nogil=True)
def _covers(
    reach: NDArray[np.uint64], tail: IntArray, head: IntArray, pred_indptr: IntArray, pred: IntArray
) -> NDArray[np.bool_]:
    """Return (e,) whether no longer path implies the edge, for edges tail -> head."""
    keep = np.ones(len(tail), np.bool_)
    for e in range(len(tail)):
        u = tail[e]
        for q in range(pred_indptr[head[e]], pred_indptr[head[e] + 1]):
            between = pred[q]
            if between != u and (reach[between, u >> 6] >> np.uint64(u & 63)) & np.uint64(1):
                keep[e] = False
                break
    return keep


def _path_sums(problem: StageProblem, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (n,) weight of each node with all its ancestors, and (n,) with all its descendants."""
    up, down = _sums_of_reach(reach_sets(problem.order, problem.pred_indptr, problem.pred), weight)
    return up, down


def cover_edges(problem: StageProblem) -> tuple[IntArray, IntArray]:
    """Return the edges (u, v) not implied by a longer path: all that precedence needs."""
    reach = reach_sets(problem.order, problem.pred_indptr, problem.pred)
    u = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    keep = _covers(reach, u, problem.succ, problem.pred_indptr, problem.pred)
    return u[keep], problem.succ[keep]
