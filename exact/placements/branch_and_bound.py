"""Branch and bound over placements, the baseline of DIVIML's thesis, made exact by branching over orders as well.

A node of the tree is a list schedule of some ops: on each branch one more op that is ready is appended to a device, as
early as its data and the device allow. Every semi-active schedule is a leaf, so the best leaf is the best placement
(transfers in parallel). A node is pruned by its bound, or by an explored node that has done the same ops, holds the
same live tensors on the same devices and is nowhere later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.exact.placements.analysis.time_windows import batch_windows, horizon_s
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan

__all__ = ["MAX_OPS", "branch_and_bound"]

MAX_OPS = 62
"""Ops done are held as the bits of one signed 64-bit integer."""

_CHUNK = 20_000
_MEMO_BYTES = 128 * 2**20
_ROUNDING = 1e-12

_DEPTH, _NODES, _STORED, _FOUND = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """The state of a search between two calls of the kernel: one row for each depth, and the memory of explored nodes.

    Parameters
    ----------
    counter
        (4,) depth, nodes, explored nodes stored, and whether a better leaf than the value to beat was found.
    value
        (1,) makespan to beat.
    done, free_s, held
        (n + 1,) ops done as bits; (n + 1, d) when each device is free, and bytes it holds.
    choice
        (n, n * d) children of a depth that are left, as op * d + device, best first; ``choices`` and ``taken`` count.
    device, end_s, sequence
        (n,) of the ops done, and the ops in order; ``place`` and ``placed`` are the device of each group and how many
        of its ops are done; ``best_device`` and ``best_sequence`` of the best leaf.
    slot, following
        Heads and links of the lists of stored nodes with one hash.
    seen_done, seen_device, seen_s
        Stored nodes: ops done, (n,) devices of what is live (-1 for the rest), (d + d + n,) free, held and ends.
    """

    counter: IntArray
    value: FloatArray
    done: IntArray
    free_s: FloatArray
    held: FloatArray
    choice: IntArray
    choices: IntArray
    taken: IntArray
    device: IntArray
    place: IntArray
    placed: IntArray
    end_s: FloatArray
    sequence: IntArray
    best_device: IntArray
    best_sequence: IntArray
    slot: IntArray
    following: IntArray
    seen_done: IntArray
    seen_device: NDArray[np.int8]
    seen_s: FloatArray


def branch_and_bound(
    problem: PlacementProblem,
    *,
    budget: Budget | None = None,
    node_limit: int | None = None,
    upper: float = np.inf,
) -> PlacementResult:
    """Minimise the makespan of a small ``latency`` problem with transfers in parallel.

    Deterministic unless time ends it. Practical for some 20 ops; the tree has a leaf for each order and assignment.

    Parameters
    ----------
    budget
        Time limit and switch, looked at every 20,000 nodes.
    node_limit
        Most nodes.
    upper
        Only look for makespans below this many seconds.

    Returns
    -------
    PlacementResult
        Unless the search is complete the bound is the root's. `work` counts nodes.

    Raises
    ------
    ValueError
        If the problem has several shards, more than 62 ops, or transfers that share links.

    References
    ----------
    DIVIML (thesis), section 3.1. There ops are branched on in one topological order, which is exact only for the
    schedules that follow it.
    """
    n, d = problem.num_ops, problem.num_devices
    if problem.num_shards != 1 or problem.transfers != "parallel":
        raise ValueError("expected one shard and parallel transfers")
    if n > MAX_OPS:
        raise ValueError(f"expected at most {MAX_OPS} ops, got {n}")
    budget = budget or Budget()
    limit = min(upper * (1 + 1e-9), horizon_s(problem))
    windows = batch_windows(problem, limit)
    if windows.empty:
        return PlacementResult(None, None, upper, "infeasible", 0)
    root = float((windows.head_s + windows.rest_s).min(axis=1, where=windows.allowed, initial=np.inf).max(initial=0.0))
    kind = np.arange(d)
    for members in alike_devices(problem):
        for member in members:
            kind[member[0]] = members[0][0]
    tree = _open_tree(n, d, upper)
    data: tuple[Any, ...] = (
        problem.time_s[:, :, 1].copy(),
        windows.allowed & np.isfinite(problem.time_s[:, :, 1]),
        windows.rest_s,
        problem.tensor_bytes,
        problem.s_per_byte,
        problem.delay_s,
        problem.weight_bytes + problem.shard_bytes,
        problem.capacity_bytes * CAPACITY_SLACK,
        problem.order.astype(np.int64),
        problem.group,
        problem.succ_indptr,
        problem.succ,
        problem.pred_indptr,
        problem.pred,
        kind,
    )
    state: tuple[Any, ...] = (
        tree.counter, tree.value, tree.done, tree.free_s, tree.held, tree.choice, tree.choices, tree.taken,
        tree.device, tree.place, tree.placed, tree.end_s, tree.sequence, tree.best_device, tree.best_sequence,
        tree.slot, tree.following, tree.seen_done, tree.seen_device, tree.seen_s,
    )  # fmt: skip
    complete = False
    most = np.iinfo(np.int64).max if node_limit is None else node_limit
    while not complete and not budget.expired and tree.counter[_NODES] < most:
        complete = _search(min(int(tree.counter[_NODES]) + _CHUNK, most), *data, *state)
    return _result(problem, tree, complete, root, upper)


def _open_tree(n: int, d: int, upper: float) -> _Tree:
    entries = max(1, min(_MEMO_BYTES // (8 * (n + 2 * d) + n + 24), 2**20))
    slots = 1 << int(entries).bit_length()
    return _Tree(
        counter=np.array([-1, 0, 0, 0], np.int64),
        value=np.array([upper]),
        done=np.zeros(n + 1, np.int64),
        free_s=np.zeros((n + 1, d)),
        held=np.zeros((n + 1, d)),
        choice=np.zeros((n + 1, n * d), np.int64),
        choices=np.zeros(n + 1, np.int64),
        taken=np.zeros(n + 1, np.int64),
        device=np.full(n, -1, np.int64),
        place=np.full(n, -1, np.int64),
        placed=np.zeros(n, np.int64),
        end_s=np.zeros(n),
        sequence=np.zeros(n, np.int64),
        best_device=np.zeros(n, np.int64),
        best_sequence=np.zeros(n, np.int64),
        slot=np.full(slots, -1, np.int64),
        following=np.full(entries, -1, np.int64),
        seen_done=np.zeros(entries, np.int64),
        seen_device=np.zeros((entries, n), np.int8),
        seen_s=np.zeros((entries, n + 2 * d)),
    )


def _result(problem: PlacementProblem, tree: _Tree, complete: bool, root: float, upper: float) -> PlacementResult:
    """Join the best leaf with what the search proved."""
    work = int(tree.counter[_NODES])
    safe_root = root * (1 - _ROUNDING)
    if not tree.counter[_FOUND]:
        if complete:
            return PlacementResult(None, None, upper * (1 - _ROUNDING), "infeasible", work)
        return PlacementResult(None, None, min(safe_root, upper), "no_solution", work)
    codes = tree.best_sequence * problem.num_devices + tree.best_device[tree.best_sequence]
    placement = Placement(tree.best_device[:, None].copy(), codes)
    value = makespan(problem, placement)
    status: Literal["optimal", "feasible"] = "optimal" if complete else "feasible"
    return PlacementResult(
        placement, value, value * (1 - _ROUNDING) if complete else min(safe_root, value), status, work
    )


@njit(cache=True, nogil=True)
def _arrival(
    u: int, i: int, device: IntArray, end: FloatArray, size: FloatArray, rate: FloatArray, delay: FloatArray
) -> float:
    j = device[u]
    at: float = end[u] if j == i else end[u] + (delay[j, i] + size[u] * rate[j, i])
    return at


@njit(cache=True, nogil=True)
def _bound(
    done: int,
    free: FloatArray,
    device: IntArray,
    end: FloatArray,
    earliest: FloatArray,
    time: FloatArray,
    allowed: NDArray[np.bool_],
    tail: FloatArray,
    size: FloatArray,
    rate: FloatArray,
    delay: FloatArray,
    order: IntArray,
    group: IntArray,
    place: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
) -> float:
    """Return a bound on every leaf below: each op's earliest start with its tail, and the average load."""
    d = len(free)
    bound, load = 0.0, 0.0
    for i in range(d):
        load += free[i]
        bound = max(bound, free[i])
    for v in order:
        if done >> v & 1:
            continue
        soonest, through, least = np.inf, np.inf, np.inf
        for i in range(d):
            if not allowed[v, i] or (place[group[v]] >= 0 and place[group[v]] != i):
                continue
            start = free[i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[q]
                at = _arrival(u, i, device, end, size, rate, delay) if done >> u & 1 else earliest[u]
                start = max(start, at)
            soonest = min(soonest, start + time[v, i])
            through = min(through, start + tail[v, i])
            least = min(least, time[v, i])
        earliest[v] = soonest
        bound = max(bound, through)
        load += least
    return max(bound, load / d)


@njit(cache=True, nogil=True)
def _seen(
    done: int,
    free: FloatArray,
    held: FloatArray,
    device: IntArray,
    end: FloatArray,
    group: IntArray,
    place: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    live: NDArray[np.int8],
    counter: IntArray,
    slot: IntArray,
    following: IntArray,
    seen_done: IntArray,
    seen_device: NDArray[np.int8],
    seen_s: FloatArray,
) -> bool:
    """Return whether a stored node is at least as good as this one; store this one if none is and there is room.

    A node that was stored has been explored: nodes of one size are not nested in each other.
    """
    n, d = len(device), len(free)
    key = np.uint64(done) * np.uint64(0x9E3779B97F4A7C15)
    for v in range(n):
        live[v] = -1
    for v in range(n):
        if done >> v & 1:
            for q in range(succ_indptr[v], succ_indptr[v + 1]):
                if not done >> succ[q] & 1:
                    live[v] = device[v]
                    break
        else:  # What is left of a group must follow its members.
            live[v] = place[group[v]]
    for v in range(n):
        key = (key ^ np.uint64(live[v] + 1)) * np.uint64(0x100000001B3)
    key ^= key >> np.uint64(29)
    home = np.int64(key & np.uint64(len(slot) - 1))
    at = slot[home]
    while at >= 0:
        if seen_done[at] == done:
            better = True
            for i in range(d):
                if seen_s[at, i] > free[i] or seen_s[at, d + i] > held[i]:
                    better = False
                    break
            if better:
                for v in range(n):
                    later = bool(done >> v & 1) and live[v] >= 0 and seen_s[at, 2 * d + v] > end[v]
                    if later or seen_device[at, v] != live[v]:
                        better = False
                        break
            if better:
                return True
        at = following[at]
    if counter[_STORED] < len(following):
        at = counter[_STORED]
        counter[_STORED] += 1
        following[at] = slot[home]
        slot[home] = at
        seen_done[at] = done
        seen_s[at, :d] = free
        seen_s[at, d : 2 * d] = held
        for v in range(n):
            seen_device[at, v] = live[v]
            seen_s[at, 2 * d + v] = end[v]
    return False


@njit(cache=True, nogil=True)
def _children(
    done: int,
    free: FloatArray,
    held: FloatArray,
    device: IntArray,
    end: FloatArray,
    time: FloatArray,
    allowed: NDArray[np.bool_],
    tail: FloatArray,
    size: FloatArray,
    rate: FloatArray,
    delay: FloatArray,
    need: FloatArray,
    capacity: FloatArray,
    group: IntArray,
    place: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    kind: IntArray,
    value: float,
    choice: IntArray,
) -> int:
    """Fill in the children that may lead below the value, ops with the longest way to go first; return how many.

    Of alike devices that hold nothing yet only the first is tried.
    """
    n, d = time.shape
    count = 0
    score = np.empty(n * d)
    used = np.zeros(d, np.bool_)
    for v in range(n):
        if done >> v & 1:
            used[device[v]] = True
    for v in range(n):
        ready = not done >> v & 1
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            ready = ready and bool(done >> pred[q] & 1)
        if not ready:
            continue
        longest = 0.0
        for i in range(d):
            if allowed[v, i]:
                longest = max(longest, tail[v, i])
        for i in range(d):
            if not allowed[v, i] or (place[group[v]] >= 0 and place[group[v]] != i):
                continue
            if held[i] + need[v] > capacity[i]:
                continue
            twin = False
            for j in range(i):
                twin = twin or (not used[i] and not used[j] and kind[i] == kind[j])
            if twin:
                continue
            start = free[i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                start = max(start, _arrival(pred[q], i, device, end, size, rate, delay))
            if start + tail[v, i] >= value:
                continue
            choice[count] = v * d + i
            score[count] = start + time[v, i] - longest
            count += 1
    best = np.argsort(score[:count], kind="mergesort")
    choice[:count] = choice[:count][best]
    return count


@njit(cache=True, nogil=True)
def _search(
    node_limit: int,
    time: FloatArray,
    allowed: NDArray[np.bool_],
    tail: FloatArray,
    size: FloatArray,
    rate: FloatArray,
    delay: FloatArray,
    need: FloatArray,
    capacity: FloatArray,
    order: IntArray,
    group: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    kind: IntArray,
    counter: IntArray,
    value: FloatArray,
    done: IntArray,
    free: FloatArray,
    held: FloatArray,
    choice: IntArray,
    choices: IntArray,
    taken: IntArray,
    device: IntArray,
    place: IntArray,
    placed: IntArray,
    end: FloatArray,
    sequence: IntArray,
    best_device: IntArray,
    best_sequence: IntArray,
    slot: IntArray,
    following: IntArray,
    seen_done: IntArray,
    seen_device: NDArray[np.int8],
    seen_s: FloatArray,
) -> bool:
    """Search depth first until the tree is done (True) or has `node_limit` nodes, from where the last call ended."""
    n, d = time.shape
    live = np.empty(n, np.int8)
    earliest = np.zeros(n)
    depth = counter[_DEPTH]
    opened = depth < 0
    if opened:
        depth = 0
    while True:
        if opened:
            opened = False
            counter[_NODES] += 1
            choices[depth], taken[depth] = 0, 0
            if depth == n:
                value[0] = free[n].max() if d else 0.0
                counter[_FOUND] = 1
                best_device[:] = device
                best_sequence[:] = sequence
            else:
                bound = _bound(
                    done[depth], free[depth], device, end, earliest, time, allowed, tail, size, rate, delay, order,
                    group, place, pred_indptr, pred,
                )  # fmt: skip
                if bound < value[0] and not _seen(
                    done[depth], free[depth], held[depth], device, end, group, place, succ_indptr, succ, live,
                    counter, slot, following, seen_done, seen_device, seen_s,
                ):  # fmt: skip
                    choices[depth] = _children(
                        done[depth], free[depth], held[depth], device, end, time, allowed, tail, size, rate, delay,
                        need, capacity, group, place, pred_indptr, pred, kind, value[0], choice[depth],
                    )  # fmt: skip
        if taken[depth] < choices[depth]:
            if counter[_NODES] >= node_limit:
                counter[_DEPTH] = depth
                return False
            v, i = choice[depth, taken[depth]] // d, choice[depth, taken[depth]] % d
            taken[depth] += 1
            start = free[depth, i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                start = max(start, _arrival(pred[q], i, device, end, size, rate, delay))
            if start + tail[v, i] >= value[0]:
                continue
            sequence[depth] = v
            end[v] = start + time[v, i]
            device[v], place[group[v]] = i, i
            placed[group[v]] += 1
            done[depth + 1] = done[depth] | (np.int64(1) << v)
            free[depth + 1] = free[depth]
            held[depth + 1] = held[depth]
            free[depth + 1, i] = end[v]
            held[depth + 1, i] += need[v]
            depth += 1
            opened = True
        else:
            if depth == 0:
                counter[_DEPTH] = 0
                return True
            depth -= 1
            v = sequence[depth]
            device[v] = -1
            placed[group[v]] -= 1
            if placed[group[v]] == 0:
                place[group[v]] = -1
