"""Intervals of ideals that together hold every ideal, and how they are halved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import UNIT_ROUNDING, FloatArray, IntArray, WordArray
from rlinit.budget import Budget
from rlinit.exact.stages.domains import reach_sets
from rlinit.exact.stages.intervals.crossings import has
from rlinit.kernels.compiled import njit
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageProblem

_CANDIDATES = 128
"""Undecided nodes of an interval that are tried at most; more balance the halves hardly better."""


@njit(cache=True, nogil=True)
def set_sums(sets: WordArray, work: FloatArray) -> FloatArray:
    """Return (p,) the work of each set.

    Parameters
    ----------
    sets
        (p, words) members.
    work
        (n,) of each node.
    """
    total = np.zeros(len(sets))
    for i in range(len(sets)):
        for v in range(len(work)):
            if has(sets, i, v):
                total[i] += work[v]
    return total


@njit(cache=True, nogil=True)
def _halving(
    inner: WordArray, outer: WordArray, chosen: IntArray, before: WordArray, after: WordArray, mass: FloatArray
) -> IntArray:
    """Return, for each chosen interval, the node whose place decides most: with it or without, much more is decided."""
    node = np.empty(len(chosen), np.int64)
    undecided = np.empty(len(mass), np.int64)
    for z in range(len(chosen)):
        i, size = chosen[z], 0
        for v in range(len(mass)):
            if has(outer, i, v) and not has(inner, i, v):
                undecided[size] = v
                size += 1
        best, step = -1.0, max(1, size // _CANDIDATES)
        for a in range(0, size, step):
            u, ahead, behind = undecided[a], 0.0, 0.0
            for b in range(size):
                v = undecided[b]
                if has(before, u, v):
                    ahead += mass[v]
                if has(after, u, v):
                    behind += mass[v]
            gain = min(ahead, behind) + 1e-3 * max(ahead, behind)
            if gain > best:
                best, node[z] = gain, u
    return node


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """p intervals, in an order in which no ideal of one lies within an ideal of an earlier interval.

    Parameters
    ----------
    inner, outer
        (p, words) nodes of the least and the largest ideal of each.
    least, most
        (p,) seconds of work of these, rounded down and up.
    need
        (p, k + 1) least work at a boundary in each interval after 0, 1, ... stages from which those that are left can
        do the rest, inf where they cannot.
    """

    inner: WordArray
    outer: WordArray
    least: FloatArray
    most: FloatArray
    need: FloatArray

    @property
    def size(self) -> int:
        """Number of intervals p."""
        return len(self.least)

    def kept(self, chosen: NDArray[np.bool_] | IntArray) -> Cover:
        """Return some of the intervals.

        Parameters
        ----------
        chosen
            (p,) which, or their numbers.
        """
        return Cover(self.inner[chosen], self.outer[chosen], self.least[chosen], self.most[chosen], self.need[chosen])


class Lattice:
    """The ideals of a problem, as what halving intervals of them needs.

    Parameters
    ----------
    problem
        A `pipeline` problem. Where devices differ, an op counts with the cheapest.
    """

    def __init__(self, problem: StageProblem) -> None:
        usable = problem.class_count > 0
        self.problem = problem
        self.work: FloatArray = problem.work_s[usable].min(axis=0)
        self.in_s: FloatArray = problem.in_s[usable].min(axis=0)
        out_s: FloatArray = problem.out_s[usable].min(axis=0)
        self.out_s = self.in_s if np.array_equal(self.in_s, out_s) else out_s
        self.total = float(self.work.sum())
        self._before = reach_sets(problem.order, problem.pred_indptr, problem.pred)
        self._after = reach_sets(problem.order[::-1].copy(), problem.succ_indptr, problem.succ)
        # Where no work is left to halve, nodes are.
        self._mass = self.work + 1e-9 * max(self.total, np.finfo(np.float64).tiny) / problem.num_nodes
        self._slack = (problem.num_nodes + 2) * UNIT_ROUNDING

    def room(self, bottleneck: float) -> float:
        """Return a bottleneck with room for the rounding of everything that is held against it.

        Parameters
        ----------
        bottleneck
            Seconds.
        """
        terms = self.problem.num_nodes + 4 * self.problem.num_tensors + self.problem.num_stages + 16
        return bottleneck + terms * UNIT_ROUNDING * (self.total + bottleneck)

    def whole(self) -> Cover:
        """Return three intervals: the empty ideal, all ideals, and the one of all nodes."""
        n, k = self.problem.num_nodes, self.problem.num_stages
        everything = np.zeros((1, (n + 63) // 64), np.uint64)
        for v in range(n):
            everything[0, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
        nothing, less = np.zeros_like(everything), self.total * (1 - self._slack)
        need = np.repeat(np.array([[0.0], [0.0], [less]]), k + 1, axis=1)
        need[:2, k] = np.inf  # With no stage left, everything is done.
        return Cover(
            np.concatenate([nothing, nothing, everything]),
            np.concatenate([nothing, everything, everything]),
            np.array([0.0, 0.0, less]),
            np.array([0.0, 1.0, 1.0]) * self.total * (1 + self._slack),
            need,
        )

    def halved(self, cover: Cover, chosen: NDArray[np.bool_], budget: Budget) -> Cover | None:
        """Return the cover with each chosen interval in two: the ideals without some node, then those with it.

        None if the budget ended first.

        Parameters
        ----------
        cover
            The intervals.
        chosen
            (p,) which; each has an undecided node.
        budget
            When to stop.
        """
        old = np.flatnonzero(chosen)
        node = np.empty(len(old), np.int64)

        def call(first: int, last: int) -> None:
            part = old[first:last]
            node[first:last] = _halving(cover.inner, cover.outer, part, self._before, self._after, self._mass)

        if not run_in_chunks(call, len(old), budget):
            return None
        source = np.repeat(np.arange(cover.size), 1 + chosen)
        without = np.searchsorted(source, old)
        inner, outer = cover.inner[source], cover.outer[source]
        least, most = cover.least[source], cover.most[source]
        outer[without] &= ~self._after[node]
        inner[without + 1] |= self._before[node]
        most[without] = set_sums(outer[without], self.work) * (1 + self._slack)
        least[without + 1] = set_sums(inner[without + 1], self.work) * (1 - self._slack)
        need = np.maximum(cover.need[source], least[:, None])
        need[need > most[:, None]] = np.inf
        return replace(cover, inner=inner, outer=outer, least=least, most=most, need=need)


def undecided(cover: Cover) -> NDArray[np.bool_]:
    """Return (p,) whether some ideals of an interval hold nodes that others do not."""
    return np.asarray((cover.outer != cover.inner).any(axis=1))
