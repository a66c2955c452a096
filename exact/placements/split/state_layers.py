"""Layers of partial schedules of a block: the arrays of a search, and which states dominate which.

Layer l holds partial schedules (*states*) of l ops. Those of a set of ops are compared: a state that is free, and has
its outputs everywhere, no later than another one can do all that one can do, no later. Local ops are the externals,
which every state has run already, and then the ops of the block, of which bit i of a mask stands for op ``num_fixed +
i``.

What runs for every state is in kernels that count no references to the bundles they read (``hot_kernel``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import hot_kernel

_MAX_COMPARED = 64
"""A new state is compared with at most so many of its set; more would drop more, at a quadratic cost."""


class BlockOps(NamedTuple):
    """The n local ops of a block on d devices.

    ``num_fixed`` is the number of externals. ``time_s`` (n, d) and ``comm_s`` (n, d, d) are seconds of ops and of the
    transfers of their outputs, ``inf`` where impossible. ``pred_indptr`` and ``pred`` are the predecessors of each op;
    ``pred_mask`` and ``succ_mask`` its predecessors and successors in the block as masks. ``live`` says whether an op
    has consumers beyond the block.
    """

    num_fixed: int
    time_s: FloatArray
    comm_s: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    pred_mask: IntArray
    succ_mask: IntArray
    live: BoolArray


class BlockMemory(NamedTuple):
    """What ops hold, and which of them share a device.

    ``need`` (n,) is the bytes an op holds, ``capacity`` (d,) those of a device, ``held_matters`` whether capacity can
    bind at all. ``group`` (n,) is the smallest index of each op's group, ``group_mask`` the block's ops of each group
    as a mask, and ``group_live`` whether a group has members beyond the block.
    """

    need: FloatArray
    capacity: FloatArray
    held_matters: bool
    group: IntArray
    group_mask: IntArray
    group_live: BoolArray


class Frontier(NamedTuple):
    """Partial schedules as arrays: i of them over n local ops and d devices.

    ``free_s`` and ``held_bytes`` (i, d) are when each device is free, and what it holds; ``end_s``, ``device`` (-1: not
    run yet) and ``rank`` (i, n) end, device and place in the order of the block's ops; ``root`` (i,) is the index of
    the schedule each began with.
    """

    free_s: FloatArray
    end_s: FloatArray
    device: NDArray[np.int8]
    held_bytes: FloatArray
    rank: NDArray[np.int8]
    root: IntArray


class Layer(NamedTuple):
    """States by row: of i states the times (i, d) at which devices are ``free`` and the bytes ``held`` there.

    ``end``, ``device`` (-1: not run yet) and ``rank`` (i, n) are the end, device and place in the order of each op,
    ``root`` (i,) the initial state. While layers are made, also ``bound`` (i, t), the ops done as a ``mask``, the
    ``score`` by which states are ranked and the least ``local_end`` of the block (i,).
    """

    free: FloatArray
    end: FloatArray
    device: NDArray[np.int8]
    held: FloatArray
    rank: NDArray[np.int8]
    root: IntArray
    bound: FloatArray
    mask: IntArray
    score: FloatArray
    local_end: FloatArray


class Index(NamedTuple):
    """States of the layer that is made by their ops: a hash table of chains, and which of them none dominates."""

    table: IntArray
    following: IntArray
    alive: BoolArray


class Child(NamedTuple):
    """The state that is made: as in `Layer`, with its ``opened`` tensors and when they ``arrive`` where.

    ``grouped`` are the ops whose groups have members left. ``number`` (3,) is how many are opened, how many grouped,
    and whether any op shares its group. ``score`` (2,) is its score and least end of the block.
    """

    bound: FloatArray
    free: FloatArray
    held: FloatArray
    end: FloatArray
    device: NDArray[np.int8]
    opened: IntArray
    arrive: FloatArray
    grouped: IntArray
    number: IntArray
    score: FloatArray


@hot_kernel
def _slot(table: IntArray, masks: IntArray, mask: int) -> int:
    """Return the place of a mask in an open-addressing table of state indices, or the empty place it would take."""
    size = len(table)
    place = ((mask * 0x9E3779B97F4A7C1) >> 17) & (size - 1)
    while table[place] >= 0 and masks[table[place]] != mask:
        place = (place + 1) & (size - 1)
    return place


@hot_kernel
def _compare(ops: BlockOps, held_matters: bool, layer: Layer, other: int, child: Child) -> int:
    """Return 1 where state `other` is no worse than the child in everything, else 2 where the child is, else 0."""
    first, second = True, True
    d = len(child.free)
    for j in range(d):
        if layer.free[other, j] > child.free[j]:
            first = False
        elif layer.free[other, j] < child.free[j]:
            second = False
        if held_matters:
            if layer.held[other, j] > child.held[j]:
                first = False
            elif layer.held[other, j] < child.held[j]:
                second = False
    if not first and not second:
        return 0
    for k in range(child.number[1]):
        if layer.device[other, child.grouped[k]] != child.device[child.grouped[k]]:
            return 0
    for k in range(child.number[0]):
        u = child.opened[k]
        at, of = layer.end[other, u], layer.device[other, u]
        for j in range(d):
            there = max(layer.free[other, j], at + ops.comm_s[u, of, j])
            if there > child.arrive[k, j]:
                first = False
            elif there < child.arrive[k, j]:
                second = False
        if not first and not second:
            return 0
    if first:
        return 1
    return 2


@hot_kernel
def is_ready(mask: int, bit: int, needed: int) -> bool:
    """Return whether an op is not done, and what it needs from the block is; all as masks.

    Parameters
    ----------
    mask
        Ops done.
    bit, needed
        The op, and its predecessors in the block.
    """
    return mask & bit == 0 and needed & mask == needed


@hot_kernel
def find_open(ops: BlockOps, mask: int, child: Child) -> None:
    """Set which ops of a set, and which externals, have consumers that are not in it.

    Parameters
    ----------
    ops
        The block's ops.
    mask
        Ops done.
    child
        Where ``opened`` and their number are set.
    """
    found = 0
    for u in range(len(ops.time_s)):
        placed = u < ops.num_fixed or (mask & (1 << (u - ops.num_fixed))) != 0
        if placed and (ops.live[u] or (ops.succ_mask[u] & ~mask) != 0):
            child.opened[found] = u
            found += 1
    child.number[0] = found


@hot_kernel
def make_child(
    ops: BlockOps, memory: BlockMemory, layer: Layer, s: int, v: int, j: int, finish: float, child: Child
) -> None:
    """Set the child of state s that runs op v on device j; its open tensors are known.

    Parameters
    ----------
    ops, memory
        The block.
    layer, s
        The layer that is expanded, and the row of the state.
    v, j, finish
        The op, its device, and when it ends in seconds.
    child
        What is set, but for its bounds and scores.
    """
    n, d = ops.time_s.shape
    for q in range(d):
        child.free[q], child.held[q] = layer.free[s, q], layer.held[s, q]
    child.free[j] = finish
    child.held[j] += memory.need[v]
    for u in range(n):
        child.end[u], child.device[u] = layer.end[s, u], layer.device[s, u]
    child.end[v] = finish
    child.device[v] = j
    for i in range(child.number[0]):
        u = child.opened[i]
        for q in range(d):
            # Nothing starts on q before q is free, so what arrives earlier counts as arriving then.
            child.arrive[i, q] = max(child.free[q], child.end[u] + ops.comm_s[u, child.device[u], q])
    mask = layer.mask[s] | (1 << (v - ops.num_fixed))
    found = 0
    if child.number[2]:
        for u in range(n):
            g = memory.group[u]
            if child.device[u] >= 0 and (memory.group_live[g] or (memory.group_mask[g] & ~mask) != 0):
                child.grouped[found] = u
                found += 1
    child.number[1] = found


@hot_kernel
def is_dominated(ops: BlockOps, held_matters: bool, layer: Layer, index: Index, mask: int, child: Child) -> bool:
    """Return whether a state of the same ops is no worse than the child; drop those that the child is no worse than.

    Parameters
    ----------
    ops
        The block's ops.
    held_matters
        Whether capacity can bind.
    layer, index
        The layer that is made, and its states by their ops.
    mask
        Ops done by the child.
    child
        The new state.
    """
    other = index.table[_slot(index.table, layer.mask, mask)]
    compared = 0
    while other >= 0 and compared < _MAX_COMPARED:
        if index.alive[other]:
            compared += 1
            verdict = _compare(ops, held_matters, layer, other, child)
            if verdict == 1:
                return True
            if verdict == 2:
                index.alive[other] = False
        other = index.following[other]
    return False


@hot_kernel
def store(here: Layer, s: int, there: Layer, at: int, index: Index, mask: int, child: Child) -> None:
    """Write the child of state s into row `at` of the next layer.

    Parameters
    ----------
    here, s
        The layer that is expanded, and the row of the state.
    there, at
        The layer that is made, and the row to write.
    index
        Where the new row is entered.
    mask
        Ops done by the child.
    child
        What is written.
    """
    for q in range(len(child.free)):
        there.free[at, q], there.held[at, q] = child.free[q], child.held[q]
    for u in range(len(child.end)):
        there.end[at, u], there.device[at, u] = child.end[u], child.device[u]
        there.rank[at, u] = here.rank[s, u]
    for t in range(len(child.bound)):
        there.bound[at, t] = child.bound[t]
    there.root[at] = here.root[s]
    there.mask[at] = mask
    there.score[at], there.local_end[at] = child.score[0], child.score[1]
    place = _slot(index.table, there.mask, mask)
    index.alive[at] = True
    index.following[at] = index.table[place]
    index.table[place] = at


@hot_kernel
def lower(dropped: FloatArray, bound: FloatArray, i: int) -> None:
    """Lower the least bounds of what was dropped to row i of the bounds.

    Parameters
    ----------
    dropped
        (t,) bounds, changed in place.
    bound
        (i, t) bounds of states.
    i
        Row of the state that is dropped.
    """
    for t in range(len(dropped)):
        dropped[t] = min(dropped[t], bound[i, t])


@hot_kernel
def _move_to_front(layer: Layer, index: Index, keep: BoolArray) -> int:
    """Move the states to keep to the front and index them anew; return how many there are."""
    for i in range(len(index.table)):
        index.table[i] = -1
    kept = 0
    for i in range(len(keep)):
        if not keep[i]:
            continue
        for q in range(layer.free.shape[1]):
            layer.free[kept, q], layer.held[kept, q] = layer.free[i, q], layer.held[i, q]
        for u in range(layer.end.shape[1]):
            layer.end[kept, u], layer.device[kept, u] = layer.end[i, u], layer.device[i, u]
            layer.rank[kept, u] = layer.rank[i, u]
        for t in range(layer.bound.shape[1]):
            layer.bound[kept, t] = layer.bound[i, t]
        layer.root[kept], layer.mask[kept] = layer.root[i], layer.mask[i]
        layer.score[kept], layer.local_end[kept] = layer.score[i], layer.local_end[i]
        index.alive[kept] = True
        place = _slot(index.table, layer.mask, layer.mask[kept])
        index.following[kept] = index.table[place]
        index.table[place] = kept
        kept += 1
    return kept


@njit(cache=True, nogil=True)
def _best_states(
    made: int, width: int, score: FloatArray, alive: BoolArray, bound: FloatArray, dropped: FloatArray
) -> BoolArray:
    """Return which of the states made are the best `width` living ones; lower `dropped` to the bounds of the others."""
    keep = alive[:made].copy()
    if keep.sum() > width:
        ranked = np.argsort(np.where(keep, score[:made], np.inf), kind="mergesort")
        for i in ranked[width:]:
            if keep[i]:
                lower(dropped, bound, i)
            keep[i] = False
    return keep


@njit(cache=True, nogil=True)
def shrink(made: int, width: int, layer: Layer, index: Index, dropped: FloatArray) -> int:
    """Move the best `width` living states to the front and index them anew; return how many there are.

    Parameters
    ----------
    made, width
        States of the layer so far, and those to keep at most.
    layer, index
        The layer, and its states by their ops; both are changed.
    dropped
        (t,) lowered to the bounds of the living states that are not kept.
    """
    keep = _best_states(made, width, layer.score, index.alive, layer.bound, dropped)
    kept: int = _move_to_front(layer, index, keep)
    return kept


def empty_layer(rows: int, n: int, d: int, num_targets: int) -> Layer:
    """Return room for a layer of so many states of n ops and d devices.

    Parameters
    ----------
    rows
        States there is room for.
    n, d, num_targets
        Ops, devices and targets.
    """
    return Layer(
        np.empty((rows, d)),
        np.zeros((rows, n)),
        np.full((rows, n), -1, np.int8),
        np.zeros((rows, d)),
        np.zeros((rows, n), np.int8),
        np.zeros(rows, np.int64),
        np.zeros((rows, num_targets)),
        np.zeros(rows, np.int64),
        np.zeros(rows),
        np.zeros(rows),
    )


def empty_child(n: int, d: int, num_targets: int) -> Child:
    """Return room for a child.

    Parameters
    ----------
    n, d, num_targets
        Ops, devices and targets.
    """
    return Child(
        np.empty(num_targets),
        np.empty(d),
        np.empty(d),
        np.empty(n),
        np.empty(n, np.int8),
        np.empty(n, np.int64),
        np.empty((n, d)),
        np.empty(n, np.int64),
        np.zeros(3, np.int64),
        np.empty(2),
    )


def empty_index(rows: int, states: int) -> Index:
    """Return an index for layers of so many rows, of which at most `states` are new.

    Parameters
    ----------
    rows
        Rows of a layer.
    states
        States made that the hash table has to hold.
    """
    size = 1
    while size < 4 * states:
        size *= 2
    return Index(np.full(size, -1, np.int64), np.full(rows, -1, np.int64), np.zeros(rows, np.bool_))
