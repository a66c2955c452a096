"""Compiled search over list schedules of one block, layer by layer, with dominance and bounds.

A layer is made from the one before: its states are expanded in the order of their scores, and the best are kept. What
runs for every state is in kernels that count no references to the bundles they read (``hot_kernel``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.split.state_layers import (
    BlockMemory,
    BlockOps,
    Child,
    Frontier,
    Index,
    Layer,
    empty_child,
    empty_index,
    empty_layer,
    find_open,
    is_dominated,
    is_ready,
    lower,
    make_child,
    shrink,
    store,
)
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import hot_kernel

_WORK_WEIGHT = 0.25
"""What a second of work done counts in the ranking of states, beside a second of their bound."""

WIDTHS = (16, 256, 4096, 32768)
"""States that the passes keep, one pass after another; the first are expanded even when no more may be, so that a
schedule is found."""

_SPARE = 64
"""Rows of a layer beyond twice its width, which are filled before the best states are chosen."""


class BlockBounds(NamedTuple):
    """What bounds the end of each of t targets.

    ``tail`` (t, n, d) is the seconds at least between the end of an op on a device and the end of a target, and
    ``device_tail`` (t, d) those from the last end of a block's op on a device. ``local_tail`` (n, d) is the seconds at
    least from the end of an op to that of the block, by which states are ranked; (0, d): they are ranked by the
    targets. ``multiplier`` (y, d) has rows of sum 1, one multiplier for each device; ``after`` (y,) sums, over the ops
    after the block that a target waits for, the least multiplier times time. ``scale`` (t,) is what bounds are measured
    in when states are ranked, and ``cutoff`` (t,) what only smaller values are of interest than.
    """

    tail: FloatArray
    local_tail: FloatArray
    multiplier: FloatArray
    device_tail: FloatArray
    after: FloatArray
    scale: FloatArray
    cutoff: FloatArray


class _State(NamedTuple):
    """What is known of the state that is expanded.

    ``start`` (n, d) of the ready ops, ``soonest`` (d,) of any op left, ``own`` (t,) bounds and ``floor`` (t,) those of
    the paths alone. ``load`` (y, t) is the weighted work of the devices, ``weighted`` (y, t, n) that of each op left,
    and ``least`` (y,) room for that of one. ``shared`` (n,) says whether an op shares its group with another local op.
    """

    start: FloatArray
    soonest: FloatArray
    own: FloatArray
    floor: FloatArray
    load: FloatArray
    weighted: FloatArray
    least: FloatArray
    shared: BoolArray


class _Progress(NamedTuple):
    """What a search counts.

    ``number`` (2,) is the states of the layer that is expanded, and those expanded so far; ``threshold`` (1,) the score
    from which on states are dropped, and ``dropped`` (t,) the least bounds of those that were.
    """

    number: IntArray
    threshold: FloatArray
    dropped: FloatArray


@hot_kernel
def _find_starts(ops: BlockOps, memory: BlockMemory, bounds: BlockBounds, layer: Layer, s: int, state: _State) -> None:
    """Set when each ready op could start where; the best that each could do bounds the state."""
    for t in range(len(state.own)):
        state.own[t] = layer.bound[s, t]
    n, d = ops.time_s.shape
    mask = layer.mask[s]
    for v in range(ops.num_fixed, n):
        if not is_ready(mask, 1 << (v - ops.num_fixed), ops.pred_mask[v]):
            continue
        only = -1
        if state.shared[v]:
            for u in range(n):
                if memory.group[u] == memory.group[v] and layer.device[s, u] >= 0:
                    only = layer.device[s, u]
                    break
        for j in range(d):
            state.start[v, j] = np.inf
            if (only >= 0 and only != j) or not ops.time_s[v, j] < np.inf:
                continue
            if layer.held[s, j] + memory.need[v] > memory.capacity[j]:
                continue
            at = layer.free[s, j]
            for q in range(ops.pred_indptr[v], ops.pred_indptr[v + 1]):
                u = ops.pred[q]
                at = max(at, layer.end[s, u] + ops.comm_s[u, layer.device[s, u], j])
            state.start[v, j] = at
        for t in range(len(state.own)):
            best = np.inf
            for j in range(d):
                best = min(best, state.start[v, j] + ops.time_s[v, j] + bounds.tail[t, v, j])
            state.own[t] = max(state.own[t], best)


@hot_kernel
def _find_soonest(ops: BlockOps, layer: Layer, s: int, state: _State) -> None:
    """Set when any op left starts at least: no earlier than a ready one could, or after a ready one ended somewhere."""
    n, d = ops.time_s.shape
    mask = layer.mask[s]
    soonest_end = np.inf
    for j in range(d):
        state.soonest[j] = np.inf
    for v in range(ops.num_fixed, n):
        if not is_ready(mask, 1 << (v - ops.num_fixed), ops.pred_mask[v]):
            continue
        for j in range(d):
            state.soonest[j] = min(state.soonest[j], state.start[v, j])
            soonest_end = min(soonest_end, state.start[v, j] + ops.time_s[v, j])
    for j in range(d):
        state.soonest[j] = max(layer.free[s, j], min(state.soonest[j], soonest_end))


@hot_kernel
def _weigh_work(ops: BlockOps, bounds: BlockBounds, mask: int, state: _State) -> bool:
    """Raise a state's bounds to its weighted work, done and left; return whether one is below its cutoff."""
    n, d = ops.time_s.shape
    num_multipliers = len(bounds.multiplier)
    hopeful = False
    for t in range(len(bounds.cutoff)):
        if state.own[t] >= bounds.cutoff[t]:
            continue
        # A device that runs nothing more need not wait, but the target ends no earlier than its bound.
        state.floor[t] = state.own[t]
        for y in range(num_multipliers):
            state.load[y, t] = bounds.after[y]
            for j in range(d):
                busy = min(state.soonest[j] + bounds.device_tail[t, j], state.floor[t])
                state.load[y, t] += bounds.multiplier[y, j] * busy
        for v in range(ops.num_fixed, n):
            bit = 1 << (v - ops.num_fixed)
            if mask & bit:
                continue
            ready = is_ready(mask, bit, ops.pred_mask[v])
            for y in range(num_multipliers):
                state.least[y] = np.inf
            for j in range(d):
                # Where it would end too late it does not run, if the target is to end below the cutoff.
                at = state.start[v, j] if ready else state.soonest[j]
                if at + ops.time_s[v, j] + bounds.tail[t, v, j] < bounds.cutoff[t]:
                    for y in range(num_multipliers):
                        state.least[y] = min(state.least[y], bounds.multiplier[y, j] * ops.time_s[v, j])
            for y in range(num_multipliers):
                state.weighted[y, t, v] = state.least[y]
                state.load[y, t] += state.least[y]
        for y in range(num_multipliers):
            state.own[t] = max(state.own[t], state.load[y, t])
        if state.own[t] < bounds.cutoff[t]:
            hopeful = True
    return hopeful


@hot_kernel
def _bound_child(
    bounds: BlockBounds, v: int, j: int, finish: float, state: _State, bound: FloatArray
) -> tuple[bool, float, float]:
    """Set the bounds of a state after op v on device j; return whether one is below its cutoff, score and work.

    Of states with one bound, such as that of a path they share, less work done is better.
    """
    worth, score, total = False, np.inf, 0.0
    for t in range(len(bound)):
        bound[t] = max(state.own[t], finish + bounds.tail[t, v, j])
        if bound[t] >= bounds.cutoff[t]:
            continue
        total = 0.0
        for y in range(len(bounds.multiplier)):
            busy = min(state.soonest[j] + bounds.device_tail[t, j], state.floor[t])
            gain = bounds.multiplier[y, j] * (finish + bounds.device_tail[t, j] - busy) - state.weighted[y, t, v]
            total = state.load[y, t] + gain
            bound[t] = max(bound[t], total)
        if bound[t] < bounds.cutoff[t]:
            worth = True
            score = min(score, (bound[t] + _WORK_WEIGHT * total) / bounds.scale[t])
    return worth, score, total


@hot_kernel
def _try_child(
    ops: BlockOps,
    memory: BlockMemory,
    bounds: BlockBounds,
    here: Layer,
    s: int,
    there: Layer,
    index: Index,
    state: _State,
    child: Child,
    v: int,
    j: int,
    progress: _Progress,
) -> bool:
    """Set the child of state s that runs op v on device j, where it can; return whether it is to be kept."""
    finish = state.start[v, j] + ops.time_s[v, j]
    worth, score, work = _bound_child(bounds, v, j, finish, state, child.bound)
    if not worth:
        return False
    local_end = here.local_end[s]
    if len(bounds.local_tail) > 0:
        local_end = max(local_end, finish + bounds.local_tail[v, j])
        score = local_end + _WORK_WEIGHT * work
    if score >= progress.threshold[0]:
        # As many better ones are there as are kept.
        for t in range(len(child.bound)):
            progress.dropped[t] = min(progress.dropped[t], child.bound[t])
        return False
    child.score[0], child.score[1] = score, local_end
    make_child(ops, memory, here, s, v, j, finish, child)
    mask = here.mask[s] | (1 << (v - ops.num_fixed))
    return not is_dominated(ops, memory.held_matters, there, index, mask, child)


@njit(cache=True, nogil=True)
def _make_layers(
    width: int,
    max_expanded: int,
    ops: BlockOps,
    memory: BlockMemory,
    bounds: BlockBounds,
    here: Layer,
    there: Layer,
    index: Index,
    state: _State,
    child: Child,
    progress: _Progress,
) -> None:
    """Make all layers, in turn in the one and the other of two sets of arrays, keeping at most `width` states of each.

    Once `max_expanded` states were expanded only a few of each layer are.
    """
    n, d = ops.time_s.shape
    first, pred_mask, start = ops.num_fixed, ops.pred_mask, state.start
    count, expanded = progress.number
    for layer in range(n - ops.num_fixed):
        made = 0
        progress.threshold[0] = np.inf
        index.table[:] = -1
        for r, s in enumerate(np.argsort(here.score[:count], kind="mergesort")):
            if expanded >= max_expanded and r >= WIDTHS[0]:
                lower(progress.dropped, here.bound, s)
                continue
            expanded += 1
            mask = here.mask[s]
            _find_starts(ops, memory, bounds, here, s, state)
            _find_soonest(ops, here, s, state)
            if not _weigh_work(ops, bounds, mask, state):
                continue
            for v in range(first, n):
                bit = 1 << (v - first)
                if not is_ready(mask, bit, pred_mask[v]):
                    continue
                find_open(ops, mask | bit, child)
                for j in range(d):
                    if not start[v, j] < np.inf or not _try_child(
                        ops, memory, bounds, here, s, there, index, state, child, v, j, progress
                    ):
                        continue
                    if made == 2 * width + _SPARE:
                        made = shrink(made, width, there, index, progress.dropped)
                        if made == width:
                            progress.threshold[0] = there.score[:made].max()
                    store(here, s, there, made, index, mask | bit, child)
                    there.rank[made, v] = layer
                    made += 1
        count = shrink(made, width, there, index, progress.dropped)
        here, there = there, here
    progress.number[0], progress.number[1] = count, expanded


def _empty_state(n: int, d: int, num_targets: int, num_multipliers: int, group: IntArray) -> _State:
    return _State(
        np.empty((n, d)),
        np.empty(d),
        np.empty(num_targets),
        np.empty(num_targets),
        np.empty((num_multipliers, num_targets)),
        np.zeros((num_multipliers, num_targets, n)),
        np.empty(num_multipliers),
        _shared(group),
    )


def _shared(group: IntArray) -> BoolArray:
    """Return whether an op shares its group with another local op."""
    size: BoolArray = np.bincount(group, minlength=len(group))[group] > 1
    return size


def _first_layer(rows: int, num_targets: int, start: Frontier) -> Layer:
    i, n = start.end_s.shape
    layer = empty_layer(rows, n, start.free_s.shape[1], num_targets)
    layer.free[:i], layer.end[:i], layer.device[:i], layer.held[:i] = start[:4]
    layer.root[:i] = np.arange(i)
    return layer


def sweep(
    width: int,
    max_expanded: int,
    ops: BlockOps,
    memory: BlockMemory,
    bounds: BlockBounds,
    start: Frontier,
) -> tuple[Frontier, FloatArray, int]:
    """Run all layers, keeping at most `width` states of each layer.

    Parameters
    ----------
    width, max_expanded
        Once `max_expanded` states were expanded only a few of each layer are.
    ops, memory, bounds
        The block.
    start
        The states to start from.

    Returns
    -------
    The final states; (t,) the least bound of the states dropped for the width, ``inf`` where none; and the states
    expanded.
    """
    n, d = ops.time_s.shape
    num_targets = len(bounds.cutoff)
    rows = max(2 * width + _SPARE, len(start.free_s))
    here = _first_layer(rows, num_targets, start)
    there = empty_layer(rows, n, d, num_targets)
    index = empty_index(rows, 2 * width + _SPARE)
    state = _empty_state(n, d, num_targets, len(bounds.multiplier), memory.group)
    child = empty_child(n, d, num_targets)
    child.number[2] = state.shared.any() or memory.group_live.any()
    progress = _Progress(np.array([len(start.free_s), 0], np.int64), np.empty(1), np.full(num_targets, np.inf))
    _make_layers(width, max_expanded, ops, memory, bounds, here, there, index, state, child, progress)
    here = here if (n - ops.num_fixed) % 2 == 0 else there
    # Nothing of a state beyond the last layer is open to another one but what is live.
    count = int(progress.number[0])
    parts: list[Any] = [each[:count].copy() for each in here[: len(Frontier._fields)]]
    found = Frontier(*parts)
    return found, progress.dropped, int(progress.number[1])
