"""Ideals in the order in which a dynamic program wants them, with what it takes to price the stage between two.

A stage is a pair of ideals I < J. With X(I) the tensors made in I and still needed outside it, the stage J - I brings
in the tensors of X(I) that it uses and sends out those of X(J) that it made. Where J holds everything that waits for
X(I) (most pairs are like that) these are all of X(I) and all of X(J), so a pair costs a handful of additions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray, NodeArray, WordArray, inverse_of
from rlinit.budget import reserve
from rlinit.exact.stages.ideals.enumeration import IDEAL_BYTES, Ideals
from rlinit.exact.stages.ideals.passes import Crossings
from rlinit.kernels.compiled import njit

_QUANTA = 2.0**50
"""Weights are counted in whole parts of their total divided by this."""


def quantized(weight: FloatArray) -> tuple[IntArray, float]:
    """Return whole numbers q and a unit, with q * unit at most the weight and hardly below it.

    Sums of whole numbers are exact, so what is larger in one order of adding is larger in all of them. Weights too
    small for that, and infinite ones, count as 0, which is no more than they are.
    """
    weight = np.where(np.isfinite(weight), weight, 0.0)
    unit = float(weight.sum()) / _QUANTA
    if unit < np.finfo(np.float64).tiny:
        return np.zeros(len(weight), np.int64), 1.0
    return np.floor(weight * (1 - 1e-15) / unit).astype(np.int64), unit


@dataclass(frozen=True, slots=True, eq=False)
class IdealTable:
    """The p ideals of a problem of n nodes and m tensors, sorted by weight, then by size.

    Parameters
    ----------
    parent, node
        (p,) an ideal with one node less (earlier in the table), and that node; -1 for the empty one, ideal 0.
    weight
        (p,) whole number; an ideal within another weighs no more and comes earlier.
    crossings
        Members of each ideal, as bits that are numbered in a topological order, and the tensors that leave it.
    """

    parent: IntArray
    node: IntArray
    weight: IntArray
    crossings: Crossings

    @staticmethod
    def build(ideals: Ideals, weight: IntArray) -> IdealTable:
        """Sort the ideals by the sums of a whole node weight, (n,), none below 0, and look up their tensors.

        Parameters
        ----------
        ideals
            The ideals.
        weight
            (n,) whole numbers, none below 0.

        Raises
        ------
        OutOfMemory
            The memory that is left has no room for it.
        """
        problem, p = ideals.merged.problem, ideals.num_ideals
        reserve(p * (IDEAL_BYTES + problem.num_nodes / 8), f"a table of {p:,} ideals")
        total = running_sum(ideals.parent, ideals.node, weight)
        # Ideals come by size already, and a stable sort keeps that order where weights agree.
        order = np.argsort(total, kind="stable")
        rank = inverse_of(order)
        parent = np.append(np.int64(-1), rank[ideals.parent[order[1:]]])
        node = ideals.node[order]
        bit_of = inverse_of(problem.order)
        consumers = problem.tensor_indptr, bit_of[problem.tensor_dst]
        source_bit = bit_of[problem.tensor_src]
        bits, first_open = _members(parent, node, bit_of)
        cut = crossing_links(parent, node, bits, source_bit, *consumers, bit_of)
        crossings = Crossings(bits, first_open, *cut, source_bit, *consumers)
        return IdealTable(parent, node, total[order], crossings)

    @property
    def num_ideals(self) -> int:
        """Number of ideals p."""
        return len(self.parent)

    def sums(self, weight: FloatArray) -> FloatArray:
        """Return (p,) the sum of a node weight, (n,), over each ideal."""
        return np.asarray(running_sum(self.parent, self.node, weight))

    def crossing_sums(self, weight: FloatArray) -> FloatArray:
        """Return (p,) the sum of a tensor weight, (m,), over the tensors that leave each ideal."""
        return np.asarray(segment_sums(self.crossings.cross_indptr, self.crossings.cross, weight))

    def stages(self, chain: list[int]) -> IntArray:
        """Return (n,) the stage of each node, for a chain of ideals: what the first 1, 2, ... stages hold."""
        stage = np.zeros(int(self.node.max()) + 1, np.int64)
        for j in range(len(chain) - 1, -1, -1):
            at = chain[j]
            while at > 0:
                stage[self.node[at]] = j
                at = int(self.parent[at])
        return stage


@njit(cache=True, nogil=True)
def running_sum(parent, node, weight):  # type: ignore[no-untyped-def]
    """Return the sum of a node weight (integers or floats) over each ideal; parents come first.

    Parameters
    ----------
    parent
        (p,) the ideal that each was made from.
    node
        (p,) the node added to it.
    weight
        (n,) integers or floats.
    """
    total = np.zeros(len(parent), weight.dtype)
    for i in range(1, len(parent)):
        total[i] = total[parent[i]] + weight[node[i]]
    return total


@njit(cache=True, nogil=True)
def segment_sums(indptr: IntArray, indices: NodeArray, weight: FloatArray) -> FloatArray:
    """Return the sum of a weight over each row of a table.

    Parameters
    ----------
    indptr, indices
        Where rows begin, and their entries.
    weight
        Of each entry.
    """
    total = np.zeros(len(indptr) - 1)
    for i in range(len(total)):
        for q in range(indptr[i], indptr[i + 1]):
            total[i] += weight[indices[q]]
    return total


@njit(cache=True, nogil=True)
def _members(parent: IntArray, node: IntArray, bit_of: IntArray) -> tuple[WordArray, IntArray]:
    """Return (bits, first_open), each ideal's from its parent's."""
    p, words = len(parent), (len(bit_of) + 63) // 64
    bits, first_open = np.zeros((p, words), np.uint64), np.zeros(p, np.int64)
    for i in range(1, p):
        bit, w = bit_of[node[i]], first_open[parent[i]]
        for x in range(words):
            bits[i, x] = bits[parent[i], x]
        bits[i, bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
        while w < words and bits[i, w] == ~np.uint64(0):
            w += 1
        first_open[i] = w
    return bits, first_open


@njit(cache=True, nogil=True)
def has_bit(row: WordArray, bit: int) -> bool:
    """Return whether a set has a bit.

    Parameters
    ----------
    row
        (w,) the set, 64 bits a word.
    bit
        Number of the bit.
    """
    found: bool = (row[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1) != 0
    return found


@njit(cache=True, nogil=True)
def crossing_links(
    parent: IntArray, node: IntArray, bits: WordArray, src: IntArray, indptr: IntArray, dst: IntArray, bit_of: IntArray
) -> tuple[IntArray, NodeArray]:
    """Return (indptr, links) of the links that each ideal cuts: some of their ends are in it, others are not.

    Parameters
    ----------
    parent, node
        (p,) the ideal that each was made from, and the node added to it.
    bits
        (p, w) nodes of each ideal.
    src, indptr, dst
        Bits of each link's maker and, in CSR form, of its consumers.
    bit_of
        (n,) bit of each node.
    """
    p, num_links, n = len(parent), len(src), len(bit_of)
    count = np.zeros(n + 1, np.int64)
    for e in range(num_links):
        count[src[e] + 1] += 1
        for r in range(indptr[e], indptr[e + 1]):
            count[dst[r] + 1] += 1
    of_indptr = np.cumsum(count)
    fill, of_bit = of_indptr.copy(), np.empty(of_indptr[-1], np.int64)
    for e in range(num_links):
        of_bit[fill[src[e]]] = e
        fill[src[e]] += 1
        for r in range(indptr[e], indptr[e + 1]):
            of_bit[fill[dst[r]]] = e
            fill[dst[r]] += 1
    cut_indptr = np.zeros(p + 1, np.int64)
    cut = np.empty(4 * p + 64, np.int32)
    seen = np.full(num_links, -1, np.int64)
    size = 0
    for i in range(1, p):
        before, b = parent[i], bit_of[node[i]]
        most = cut_indptr[before + 1] - cut_indptr[before] + of_indptr[b + 1] - of_indptr[b]
        if size + most > len(cut):
            cut = np.concatenate((cut, np.empty(len(cut) + most, np.int32)))
        for q in range(of_indptr[b], of_indptr[b + 1]):
            e = of_bit[q]
            if seen[e] == i:
                continue
            seen[e] = i
            whole = has_bit(bits[i], src[e])
            for r in range(indptr[e], indptr[e + 1]):
                whole = whole and has_bit(bits[i], dst[r])
            if not whole:
                cut[size] = e
                size += 1
        for q in range(cut_indptr[before], cut_indptr[before + 1]):
            if seen[cut[q]] != i:
                cut[size] = cut[q]
                size += 1
        cut_indptr[i + 1] = size
    return cut_indptr, cut[:size].copy()
