"""Ideals of a stage problem: the sets of nodes closed under predecessors, and which node leads from one to the next.

A monotone assignment is a chain of ideals (what the first j stages hold), and a stage is the difference of two, so a
dynamic program over ideals is exact. Networks with few parallel branches have few ideals: a chain of n nodes has
n + 1, ResNet152 (517 nodes) 582, InceptionV3 (313 nodes) 35,683.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from rlinit.arrays import IntArray, NodeArray
from rlinit.budget import Budget, memory_left, reserve
from rlinit.exact.effort import MORE
from rlinit.exact.stages.ideals.node_merging import MergedProblem, merge_weightless
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import Precedence
from rlinit.stages.problem import StageProblem

_FEW = 2_000
"""Ideals up to which merging takes longer than it saves, and of the first try under a time limit: they are there in
less than a millisecond."""

MOST_PARTS = 6
"""Components that are kept apart."""

IDEAL_BYTES = 250
"""Bytes of an ideal while it is told apart and looked at, beside four bits of each node; in tables, beside one."""


@dataclass(frozen=True, slots=True, eq=False)
class Ideals:
    """All p ideals of a merged problem, numbered by size: each is another one and one more node.

    Parameters
    ----------
    merged
        The problem whose ideals they are (its nodes are groups of the original's), and the way back.
    parent, node
        (p,) an ideal with one node less, and that node; -1 for the empty one, ideal 0. Ideal p - 1 holds every node.
    """

    merged: MergedProblem
    parent: IntArray
    node: IntArray

    @property
    def num_ideals(self) -> int:
        """Number of ideals p."""
        return len(self.parent)


def count_ideals(problem: StageProblem, cap: int) -> int:
    """Return the number of ideals of the precedence between nodes, or cap + 1 where there are more than `cap`.

    Parameters
    ----------
    problem
        The problem.
    cap
        Most ideals to count.

    Notes
    -----
    Of the problem as it is: `enumerate_ideals` may get by with fewer. Time and memory are its own, too.
    """
    return int(_explore(problem.precedence, cap)[0])


def enumerate_ideals(
    problem: StageProblem, cap: int, budget: Budget | None = None, *, merge: bool = True
) -> Ideals | None:
    """Return the ideals that an optimal assignment needs, or None where there are more than `cap`.

    Where they are many, weightless nodes are merged into their neighbours before (`merge_weightless`).

    Parameters
    ----------
    problem
        The problem.
    cap
        Most ideals.
    budget
        Where it has a limit, growth is tried under caps that grow by a factor, and given up, with None, where the next
        one would take more than half of the time left. Without a limit there is one try.
    merge
        False where a stage costs more than the problem says, so that no node is weightless: all ideals.

    Raises
    ------
    OutOfMemory
        The memory that is left has no room for so many; fewer did not do.

    Notes
    -----
    Some 0.3 us an ideal. The bits of an ideal are only kept until the next larger ones have been told apart, so
    memory is that of the transitions, 8 bytes each, plus the ideals of two neighbouring sizes.
    """
    budget = budget or Budget()
    each = IDEAL_BYTES + problem.num_nodes / 2
    easy = not merge or count_ideals(problem, _FEW) <= _FEW
    merged = MergedProblem.whole(problem) if easy else merge_weightless(problem)
    tried = min(cap, _FEW) if budget.remaining_s < np.inf else int(min(cap, max(memory_left() / each, 1)))
    while True:
        began = budget.elapsed_s
        count, indptr, added, _, entry = _explore(merged.problem.precedence, tried)
        if count <= tried:
            parent, node = _parents(indptr, added, entry)
            return Ideals(merged, parent, node)
        if tried == cap or MORE * (budget.elapsed_s - began) > 0.5 * budget.remaining_s:
            return None
        more = min(cap, MORE * tried)
        room = int(min(memory_left() / each, more))
        if room <= tried:
            reserve(more * each, f"{more:,} ideals")
        tried = room


def enumerate_parts(problem: StageProblem, cap: int) -> tuple[Ideals, IntArray] | None:
    """Return the ideals that hold nodes of one component each, and (n,) the component of each node of the merged graph.

    Ideal 0, the empty one, is of all components. Components beyond `MOST_PARTS` are joined, the smallest first. None
    where there is one component, or more than `cap` ideals.

    Parameters
    ----------
    problem
        The problem.
    cap
        Most ideals.
    """
    merged = merge_weightless(problem)
    label = _parts(merged.problem)
    parent, node, size = [np.full(1, -1, np.int64)], [np.full(1, -1, np.int64)], 1
    if label.max() == 0:
        return None
    for i in range(int(label.max()) + 1):
        count, indptr, added, _, entry = _explore(_within(merged.problem.precedence, label, i), cap - size + 1)
        if count > cap - size + 1:
            return None
        before, top = _parents(indptr, added, entry)
        parent.append(np.where(before[1:] > 0, before[1:] + size - 1, 0))
        node.append(np.flatnonzero(label == i)[top[1:]])
        size += count - 1
    return Ideals(merged, np.concatenate(parent), np.concatenate(node)), label


def _parts(problem: StageProblem) -> IntArray:
    """Return (n,) the component of each node, numbers without gaps."""
    n = problem.num_nodes
    links = csr_array((np.ones(len(problem.succ)), problem.succ, problem.succ_indptr), shape=(n, n))
    label: IntArray = connected_components(links, directed=False)[1].astype(np.int64)  # type: ignore[arg-type]
    while label.max() >= MOST_PARTS:
        least, next_least = np.argsort(np.bincount(label), kind="stable")[:2]
        label[label == next_least] = least
        label = np.unique(label, return_inverse=True)[1].astype(np.int64)
    return label


def _within(whole: Precedence, label: IntArray, part: int) -> Precedence:
    """Return the precedence between the nodes of one component, in their order."""
    local = np.cumsum(label == part) - 1

    def rows(indptr: IntArray, indices: IntArray) -> tuple[IntArray, IntArray]:
        degree = np.diff(indptr)
        kept = np.concatenate([[0], np.cumsum(degree[label == part])]).astype(np.int64)
        return kept, local[indices[np.repeat(label == part, degree)]]

    return Precedence(*rows(whole.succ_indptr, whole.succ), *rows(whole.pred_indptr, whole.pred))


def _explore(precedence: Precedence, cap: int) -> tuple[int, IntArray, NodeArray, NodeArray, IntArray]:
    most_ready = int(np.log2(cap + 1.0)) + 1
    if np.count_nonzero(np.diff(precedence.pred_indptr) == 0) > most_ready:
        nothing = np.zeros(0, np.int64)
        return cap + 1, nothing, nothing.astype(np.int32), nothing.astype(np.int32), nothing
    key = np.random.default_rng(1).integers(0, 2**64, len(precedence.pred_indptr) - 1, np.uint64)
    return _grow(*precedence, key, cap, most_ready)


@njit(cache=True, nogil=True)
def _hashed(sign: NDArray[np.uint64], first: int, size: int) -> IntArray:
    """Return an open-addressing table of `size`, a power of two, of the numbers from `first` on, each at its sign."""
    table = np.full(size, -1, np.int64)
    mask = size - 1
    for j in range(len(sign)):
        slot = np.int64(sign[j] & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = first + j
    return table


@njit(cache=True, nogil=True)
def _add_sources(pred_indptr: IntArray, added: NodeArray) -> int:
    """Write down the nodes that wait for none; return how many. An assignment of arrays compiles for two seconds."""
    size = 0
    for v in range(len(pred_indptr) - 1):
        if pred_indptr[v + 1] == pred_indptr[v]:
            added[size] = v
            size += 1
    return size


@njit(cache=True, nogil=True)
def _addable(
    row: IntArray,
    listed: NodeArray,
    v: int,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    bits: NDArray[np.uint64],
) -> int:
    """Write the nodes to add next to an ideal: those listed before v was added, and those it freed; return how many."""
    size = 0
    for other in listed:
        if other != v:
            row[size] = other
            size += 1
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        ready = True
        for r in range(pred_indptr[succ[q]], pred_indptr[succ[q] + 1]):
            if bits[pred[r] >> 6] >> np.uint64(pred[r] & 63) & np.uint64(1) == 0:
                ready = False
                break
        if ready:
            row[size] = succ[q]
            size += 1
    return size


@njit(cache=True, nogil=True)
def _grow(
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    key: NDArray[np.uint64],
    cap: int,
    most_ready: int,
) -> tuple[int, IntArray, NodeArray, NodeArray, IntArray]:
    """Return (ideals found, at most cap + 1; indptr, added, next_ideal, entry), breadth first.

    An ideal's transitions are its addable nodes: those of the ideal it was first reached from, less the added node,
    plus the successors that were waiting for it alone. Two transitions lead to the same ideal if the bits agree;
    the exclusive or of its nodes' keys only says where in the hash table to look. Every set of addable nodes makes a
    larger ideal, so that there are too many where an ideal has more than `most_ready`, the binary digits of `cap`.
    """
    n = len(key)
    words = (n + 63) // 64
    one = np.uint64(1)
    indptr = np.zeros(1024, np.int64)
    entry = np.full(1024, -1, np.int64)
    added = np.empty(4096 + n, np.int32)
    target = np.empty(4096 + n, np.int32)
    size = _add_sources(pred_indptr, added)  # transitions
    indptr[1] = size
    count = 1
    bits = np.zeros((1, words), np.uint64)
    sign = np.zeros(1, np.uint64)
    larger_bits = np.zeros((64, words), np.uint64)
    larger_sign = np.zeros(64, np.uint64)
    table = np.full(256, -1, np.int64)
    row = np.empty(n, np.int64)
    first, last = 0, 1  # the ideals of the current size
    while first < last:
        for i in range(first, last):
            for e in range(indptr[i], indptr[i + 1]):
                v = added[e]
                word, bit = v >> 6, one << np.uint64(v & 63)
                bits[i - first, word] |= bit
                seek = sign[i - first] ^ key[v]
                mask = len(table) - 1
                slot = np.int64(seek & np.uint64(mask))
                found = -1
                while table[slot] >= last:
                    j = table[slot]
                    if larger_sign[j - last] == seek:
                        same = True
                        for w in range(words):
                            if larger_bits[j - last, w] != bits[i - first, w]:
                                same = False
                                break
                        if same:
                            found = j
                            break
                    slot = (slot + 1) & mask
                if found >= 0:
                    target[e] = found
                    bits[i - first, word] ^= bit
                    continue
                if count == cap:
                    return cap + 1, indptr[:1], added[:0], target[:0], entry[:1]
                j = count
                count += 1
                target[e] = j
                table[slot] = j
                if count + 1 > len(indptr):
                    indptr = np.concatenate((indptr, np.zeros_like(indptr)))
                    entry = np.concatenate((entry, np.empty_like(entry)))
                if j - last == len(larger_sign):
                    larger_bits = np.concatenate((larger_bits, np.zeros_like(larger_bits)))
                    larger_sign = np.concatenate((larger_sign, np.zeros_like(larger_sign)))
                entry[j] = e
                larger_sign[j - last] = seek
                for w in range(words):
                    larger_bits[j - last, w] = bits[i - first, w]
                # Addable nodes of the new ideal, appended to the transitions.
                listed = added[indptr[i] : indptr[i + 1]]
                num_row = _addable(row, listed, v, succ_indptr, succ, pred_indptr, pred, bits[i - first])
                if num_row > most_ready:
                    return cap + 1, indptr[:1], added[:0], target[:0], entry[:1]
                if size + num_row > len(added):
                    added = np.concatenate((added, np.empty(len(added) + n, np.int32)))
                    target = np.concatenate((target, np.empty(len(target) + n, np.int32)))
                for q in range(num_row):
                    added[size + q] = row[q]
                size += num_row
                indptr[j + 1] = size
                bits[i - first, word] ^= bit
                if 2 * (count - last) > len(table):
                    table = _hashed(larger_sign[: count - last], last, 4 * len(table))
        bits, larger_bits = larger_bits, bits
        sign, larger_sign = larger_sign, sign
        first, last = last, count
    return count, indptr[: count + 1].copy(), added[:size].copy(), target[:size].copy(), entry[:count].copy()


@njit(cache=True, nogil=True)
def _parents(indptr: IntArray, added: NodeArray, entry: IntArray) -> tuple[IntArray, IntArray]:
    """Return each ideal's parent and the node on top; entries ascend, so the parents do, too."""
    parent = np.full(len(entry), -1, np.int64)
    node = np.full(len(entry), -1, np.int64)
    before = 0
    for i in range(1, len(entry)):
        e = entry[i]
        while indptr[before + 1] <= e:
            before += 1
        parent[i] = before
        node[i] = added[e]
    return parent, node
