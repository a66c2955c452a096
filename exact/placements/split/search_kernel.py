"""Compiled search over list schedules of one module, layer by layer, with dominance and bounds.

Layer l holds partial schedules (*states*) of l ops. Those of a set of ops are compared: a state that is free, and has
its outputs everywhere, no later than another one can do all that one can do, no later. Local ops are the externals,
which every state has run already, and then the ops of the module, of which bit i of a mask stands for op ``num_fixed +
i``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["sweep"]

_MAX_COMPARED = 64
"""A new state is compared with at most so many of its set; more would drop more, at a quadratic cost."""

_WORK_WEIGHT = 0.25
_LAST_RESORT = 16
"""States of a layer that are expanded even when no more may be, so that a schedule is found."""


@njit(cache=True, nogil=True)
def _slot(table: IntArray, masks: IntArray, mask: int) -> int:
    """Return the place of a mask in an open-addressing table of state indices, or the empty place it would take."""
    size = len(table)
    place = ((mask * 0x9E3779B97F4A7C1) >> 17) & (size - 1)
    while table[place] >= 0 and masks[table[place]] != mask:
        place = (place + 1) & (size - 1)
    return place


@njit(cache=True, nogil=True)
def _compare(
    count: int,
    opened: IntArray,
    comm: FloatArray,
    held_matters: bool,
    num_groups: int,
    grouped: IntArray,
    other: int,
    free: FloatArray,
    end: FloatArray,
    dev: NDArray[np.int8],
    held: FloatArray,
    child_free: FloatArray,
    arrival: FloatArray,
    child_dev: NDArray[np.int8],
    child_held: FloatArray,
) -> int:
    """Return 1 where state `other` is no worse than the child in everything, else 2 where the child is, else 0.

    Parameters
    ----------
    arrival
        (count, d) when the child's open tensors can be used where.
    """
    first, second = True, True
    d = len(child_free)
    for j in range(d):
        if free[other, j] > child_free[j]:
            first = False
        elif free[other, j] < child_free[j]:
            second = False
        if held_matters:
            if held[other, j] > child_held[j]:
                first = False
            elif held[other, j] < child_held[j]:
                second = False
    if not first and not second:
        return 0
    for k in range(num_groups):
        if dev[other, grouped[k]] != child_dev[grouped[k]]:
            return 0
    for k in range(count):
        u = opened[k]
        at, of = end[other, u], dev[other, u]
        for j in range(d):
            there = max(free[other, j], at + comm[u, of, j])
            if there > arrival[k, j]:
                first = False
            elif there < arrival[k, j]:
                second = False
        if not first and not second:
            return 0
    if first:
        return 1
    return 2


@njit(cache=True, nogil=True)
def sweep(
    num_fixed: int,
    width: int,
    max_expanded: int,
    time_s: FloatArray,
    comm: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    pred_mask: IntArray,
    succ_mask: IntArray,
    live: NDArray[np.bool_],
    group: IntArray,
    group_mask: IntArray,
    group_live: NDArray[np.bool_],
    need: FloatArray,
    capacity: FloatArray,
    held_matters: bool,
    tail: FloatArray,
    local_tail: FloatArray,
    price: FloatArray,
    device_tail: FloatArray,
    after: FloatArray,
    scale: FloatArray,
    cutoff: FloatArray,
    free0: FloatArray,
    end0: FloatArray,
    dev0: NDArray[np.int8],
    held0: FloatArray,
) -> tuple[
    int,
    FloatArray,
    FloatArray,
    NDArray[np.int8],
    FloatArray,
    NDArray[np.int8],
    IntArray,
    FloatArray,
    int,
]:
    """Run all layers, keeping at most `width` states of each layer.

    Parameters
    ----------
    time_s, comm
        (n, d) op times and (n, d, d) transfer times of each op's output, ``inf`` where impossible.
    pred_indptr, pred, pred_mask, succ_mask
        Predecessors of each op; as masks of module ops, predecessors and successors.
    group, group_mask
        (n,) smallest index of each op's group; the module ops of each group as a mask.
    need, capacity, held_matters
        (n,) bytes an op holds, (d,) capacity, and whether capacity can bind at all.
    max_expanded
        Once so many states were expanded only a few of each layer are.
    live, group_live
        Whether an op has consumers, a group has members, beyond the module.
    tail
        (t, n, d) seconds at least between the end of an op on a device and the end of target t.
    local_tail
        (n, d) seconds at least from the end of an op to that of the module, by which states are ranked; (0, d): they
        are ranked by the targets.
    price, after
        (y, d) prices of the devices summing to 1, (y,) sums over the ops after the module that a target waits for, of
        the least price times time.
    device_tail
        (t, d) seconds at least from the last end of a module op on a device to the end of target t.
    scale, cutoff
        (t,) what bounds are measured in when states are ranked, and what only smaller values are of interest than.
    free0, end0, dev0, held0
        (i, d), (i, n), (i, n), (i, d) the states to start from.

    Returns
    -------
    The number of final states, their free times, ends, devices, held bytes, places in the order and indices of the
    initial state; (t,) the least bound of the states dropped for the width, ``inf`` where none; and the states
    expanded.
    """
    n, d = time_s.shape
    num_targets, num_prices = len(cutoff), len(price)
    priced = np.zeros((num_prices, num_targets, n))
    least = np.empty(num_prices)
    num_ops = n - num_fixed
    capacity_states = 2 * width + 64
    table_size = 1
    while table_size < 4 * capacity_states:
        table_size *= 2
    num_initial = len(free0)
    rows = max(capacity_states, num_initial)
    free = np.empty((2, rows, d))
    end = np.zeros((2, rows, n))
    dev = np.full((2, rows, n), -1, np.int8)
    held = np.zeros((2, rows, d))
    place_in_order = np.zeros((2, rows, n), np.int8)
    root = np.zeros((2, rows), np.int64)
    bound = np.zeros((2, rows, num_targets))
    masks = np.zeros((2, rows), np.int64)
    chain = np.full(rows, -1, np.int64)
    alive = np.zeros(rows, np.bool_)
    table = np.full(table_size, -1, np.int64)
    key = np.empty(rows)
    score = np.zeros((2, rows))
    lead = np.zeros((2, rows))
    dropped = np.full(num_targets, np.inf)
    start = np.empty((n, d))
    child = np.empty(num_targets)
    own = np.empty(num_targets)
    load = np.empty((num_prices, num_targets))
    floors = np.empty(num_targets)
    soonest = np.empty(d)
    child_free = np.empty(d)
    child_held = np.empty(d)
    child_end = np.empty(n)
    child_dev = np.empty(n, np.int8)
    opened = np.empty(n, np.int64)
    arrival = np.empty((n, d))
    grouped = np.empty(n, np.int64)
    shared = np.zeros(n, np.bool_)
    for v in range(n):
        for u in range(n):
            if u != v and group[u] == group[v]:
                shared[v] = True
    any_shared = np.any(shared) or np.any(group_live)
    expanded = 0
    a = 0
    count = num_initial
    for i in range(num_initial):
        free[0, i] = free0[i]
        end[0, i] = end0[i]
        dev[0, i] = dev0[i]
        held[0, i] = held0[i]
        root[0, i] = i
    for layer in range(num_ops):
        ranked = np.argsort(score[a, :count], kind="mergesort")
        b = 1 - a
        table[:] = -1
        made = 0
        bar = np.inf
        for r in range(count):
            s = ranked[r]
            mask = masks[a, s]
            for t in range(num_targets):
                own[t] = bound[a, s, t]
            if expanded >= max_expanded and r >= _LAST_RESORT:
                for t in range(num_targets):
                    dropped[t] = min(dropped[t], own[t])
                continue
            expanded += 1
            # Where and when each ready op could start; the best each could do bounds the state.
            for v in range(num_fixed, n):
                bit = 1 << (v - num_fixed)
                if mask & bit or (pred_mask[v] & mask) != pred_mask[v]:
                    continue
                only = -1
                if shared[v]:
                    for u in range(n):
                        if group[u] == group[v] and dev[a, s, u] >= 0:
                            only = dev[a, s, u]
                            break
                for j in range(d):
                    start[v, j] = np.inf
                    if (only >= 0 and only != j) or not time_s[v, j] < np.inf:
                        continue
                    if held[a, s, j] + need[v] > capacity[j]:
                        continue
                    at = free[a, s, j]
                    for q in range(pred_indptr[v], pred_indptr[v + 1]):
                        u = pred[q]
                        at = max(at, end[a, s, u] + comm[u, dev[a, s, u], j])
                    start[v, j] = at
                for t in range(num_targets):
                    best = np.inf
                    for j in range(d):
                        best = min(best, start[v, j] + time_s[v, j] + tail[t, v, j])
                    own[t] = max(own[t], best)
            # An op left starts on j no earlier than a ready one could, or after a ready one ended somewhere.
            soonest_end = np.inf
            for j in range(d):
                soonest[j] = np.inf
            for v in range(num_fixed, n):
                bit = 1 << (v - num_fixed)
                if mask & bit or (pred_mask[v] & mask) != pred_mask[v]:
                    continue
                for j in range(d):
                    soonest[j] = min(soonest[j], start[v, j])
                    soonest_end = min(soonest_end, start[v, j] + time_s[v, j])
            for j in range(d):
                soonest[j] = max(free[a, s, j], min(soonest[j], soonest_end))
            for t in range(num_targets):
                if own[t] >= cutoff[t]:
                    continue
                # A device that runs nothing more need not wait, but the target ends no earlier than its bound.
                floors[t] = own[t]
                for y in range(num_prices):
                    load[y, t] = after[y]
                    for j in range(d):
                        load[y, t] += price[y, j] * min(soonest[j] + device_tail[t, j], floors[t])
                for v in range(num_fixed, n):
                    bit = 1 << (v - num_fixed)
                    if mask & bit:
                        continue
                    is_ready = (pred_mask[v] & mask) == pred_mask[v]
                    least[:] = np.inf
                    for j in range(d):
                        # Where it would end too late it does not run, if the target is to end below the cutoff.
                        at = start[v, j] if is_ready else soonest[j]
                        if at + time_s[v, j] + tail[t, v, j] < cutoff[t]:
                            for y in range(num_prices):
                                least[y] = min(least[y], price[y, j] * time_s[v, j])
                    for y in range(num_prices):
                        priced[y, t, v] = least[y]
                        load[y, t] += least[y]
                for y in range(num_prices):
                    own[t] = max(own[t], load[y, t])
            hopeless = True
            for t in range(num_targets):
                if own[t] < cutoff[t]:
                    hopeless = False
            if hopeless:
                continue
            for v in range(num_fixed, n):
                bit = 1 << (v - num_fixed)
                if mask & bit or (pred_mask[v] & mask) != pred_mask[v]:
                    continue
                new_mask = mask | bit
                num_open = 0
                for u in range(n):
                    placed = u < num_fixed or (new_mask & (1 << (u - num_fixed))) != 0
                    if placed and (live[u] or (succ_mask[u] & ~new_mask) != 0):
                        opened[num_open] = u
                        num_open += 1
                for j in range(d):
                    if not start[v, j] < np.inf:
                        continue
                    finish = start[v, j] + time_s[v, j]
                    worth = False
                    promise = np.inf
                    total = 0.0
                    for t in range(num_targets):
                        child[t] = max(own[t], finish + tail[t, v, j])
                        if child[t] >= cutoff[t]:
                            continue
                        total = 0.0
                        for y in range(num_prices):
                            busy = min(soonest[j] + device_tail[t, j], floors[t])
                            gain = price[y, j] * (finish + device_tail[t, j] - busy) - priced[y, t, v]
                            total = load[y, t] + gain
                            child[t] = max(child[t], total)
                        if child[t] < cutoff[t]:
                            worth = True
                            # Of those with one bound, such as that of a path they share, less work done is better.
                            promise = min(promise, (child[t] + _WORK_WEIGHT * total) / scale[t])
                    if not worth:
                        continue
                    ahead = lead[a, s]
                    if len(local_tail) > 0:
                        ahead = max(ahead, finish + local_tail[v, j])
                        promise = ahead + _WORK_WEIGHT * total
                    if promise >= bar:
                        # As many better ones are there as are kept.
                        for t in range(num_targets):
                            dropped[t] = min(dropped[t], child[t])
                        continue
                    child_free[:] = free[a, s]
                    child_free[j] = finish
                    child_held[:] = held[a, s]
                    child_held[j] += need[v]
                    child_end[:] = end[a, s]
                    child_end[v] = finish
                    child_dev[:] = dev[a, s]
                    child_dev[v] = j
                    for i in range(num_open):
                        u = opened[i]
                        for q in range(d):
                            # Nothing starts on q before q is free, so what arrives earlier counts as arriving then.
                            arrival[i, q] = max(child_free[q], child_end[u] + comm[u, child_dev[u], q])
                    num_groups = 0
                    if any_shared:
                        for u in range(n):
                            g = group[u]
                            if child_dev[u] >= 0 and (group_live[g] or (group_mask[g] & ~new_mask) != 0):
                                grouped[num_groups] = u
                                num_groups += 1
                    place = _slot(table, masks[b], new_mask)
                    other = table[place]
                    dominated = False
                    compared = 0
                    while other >= 0 and compared < _MAX_COMPARED:
                        if alive[other]:
                            compared += 1
                            verdict = _compare(
                                num_open, opened, comm, held_matters, num_groups, grouped, other, free[b], end[b],
                                dev[b], held[b], child_free, arrival, child_dev, child_held,
                            )  # fmt: skip
                            if verdict == 1:
                                dominated = True
                                break
                            if verdict == 2:
                                alive[other] = False
                        other = chain[other]
                    if dominated:
                        continue
                    if made == capacity_states:
                        made = _shrink(
                            made, width, free[b], end[b], dev[b], held[b], place_in_order[b], root[b], bound[b],
                            masks[b], alive, chain, table, key, score[b], lead[b], dropped,
                        )  # fmt: skip
                        if made == width:
                            bar = score[b, :made].max()
                        place = _slot(table, masks[b], new_mask)
                    free[b, made] = child_free
                    end[b, made] = child_end
                    dev[b, made] = child_dev
                    held[b, made] = child_held
                    place_in_order[b, made] = place_in_order[a, s]
                    place_in_order[b, made, v] = layer
                    root[b, made] = root[a, s]
                    bound[b, made] = child
                    score[b, made] = promise
                    lead[b, made] = ahead
                    masks[b, made] = new_mask
                    alive[made] = True
                    chain[made] = table[place]
                    table[place] = made
                    made += 1
        count = _shrink(
            made, width, free[b], end[b], dev[b], held[b], place_in_order[b], root[b], bound[b], masks[b],
            alive, chain, table, key, score[b], lead[b], dropped,
        )  # fmt: skip
        a = b
    # Nothing of a state beyond the last layer is open to another one but what is live.
    return (
        count,
        free[a, :count].copy(),
        end[a, :count].copy(),
        dev[a, :count].copy(),
        held[a, :count].copy(),
        place_in_order[a, :count].copy(),
        root[a, :count].copy(),
        dropped,
        expanded,
    )


@njit(cache=True, nogil=True)
def _shrink(
    made: int,
    width: int,
    free: FloatArray,
    end: FloatArray,
    dev: NDArray[np.int8],
    held: FloatArray,
    place_in_order: NDArray[np.int8],
    root: IntArray,
    bound: FloatArray,
    masks: IntArray,
    alive: NDArray[np.bool_],
    chain: IntArray,
    table: IntArray,
    key: FloatArray,
    score: FloatArray,
    lead: FloatArray,
    dropped: FloatArray,
) -> int:
    """Move the best `width` living states to the front and index them anew; return how many there are."""
    num_targets = len(dropped)
    living = 0
    for i in range(made):
        key[i] = np.inf
        if alive[i]:
            living += 1
            key[i] = score[i]
    keep = np.zeros(made, np.bool_)
    if living > width:
        ranked = np.argsort(key[:made], kind="mergesort")
        for r in range(made):
            i = ranked[r]
            if r < width:
                keep[i] = alive[i]
            elif alive[i]:
                for t in range(num_targets):
                    dropped[t] = min(dropped[t], bound[i, t])
    else:
        for i in range(made):
            keep[i] = alive[i]
    table[:] = -1
    kept = 0
    for i in range(made):
        if not keep[i]:
            continue
        if kept != i:
            free[kept] = free[i]
            end[kept] = end[i]
            dev[kept] = dev[i]
            held[kept] = held[i]
            place_in_order[kept] = place_in_order[i]
            root[kept] = root[i]
            bound[kept] = bound[i]
            masks[kept] = masks[i]
            score[kept] = score[i]
            lead[kept] = lead[i]
        alive[kept] = True
        place = _slot(table, masks, masks[kept])
        chain[kept] = table[place]
        table[place] = kept
        kept += 1
    return kept
