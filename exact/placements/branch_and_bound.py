"""Branch and bound over placements, the baseline of DIVIML's thesis, made exact by branching over orders as well.

A node of the tree is a list schedule of some ops: on each branch one more op that is ready is appended to a device, as
early as its data and the device allow. Every semi-active schedule is a leaf, so the best leaf is the best placement
(transfers in parallel). A node is pruned by its bound, or by an explored node that has done the same ops, holds the
same live tensors on the same devices and is nowhere later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.exact.placements.analysis.time_windows import BatchWindows, batch_windows, horizon_s
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan

MAX_OPS = 62
"""Ops done are held as the bits of one signed 64-bit integer."""

_CHUNK = 20_000
_MEMO_BYTES = 128 * 2**20
_ROUNDING = 1e-12

_DEPTH, _NODES, _FOUND = range(3)


class _Data(NamedTuple):
    """A problem as the kernels read it: n ops, d devices.

    ``time``, ``allowed`` and ``tail`` are (n, d), the tail from the start of an op to the makespan; ``need`` (n,) bytes
    an op holds and ``kind`` (d,) the first of the devices alike to each.
    """

    time: FloatArray
    allowed: BoolArray
    tail: FloatArray
    size: FloatArray
    rate: FloatArray
    delay: FloatArray
    need: FloatArray
    capacity: FloatArray
    order: IntArray
    group: IntArray
    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray
    kind: IntArray


class _Node(NamedTuple):
    """The partial schedule at one depth of the search, and room to work in.

    ``free`` and ``held`` (d,) are when each device is free and the bytes it holds; ``device`` and ``end`` (n,) are of
    the ops done, ``place`` and ``placed`` the device of each group and how many of its ops are done. ``live`` (n,),
    ``earliest`` (n,), ``used`` (d,) and ``score`` (n * d,) are rewritten at every node.
    """

    free: FloatArray
    held: FloatArray
    device: IntArray
    place: IntArray
    placed: IntArray
    end: FloatArray
    live: NDArray[np.int8]
    earliest: FloatArray
    used: BoolArray
    score: FloatArray


class _Memo(NamedTuple):
    """Explored nodes.

    ``slot`` and ``following`` are heads and links of the lists of stored nodes with one hash, ``stored`` (1,) counts
    them. Of each are kept the ops done, (n,) the devices of what is live (-1 for the rest), and (d + d + n,) when
    devices are free, the bytes they hold, and the ends.
    """

    slot: IntArray
    following: IntArray
    stored: IntArray
    done: IntArray
    device: NDArray[np.int8]
    state: FloatArray


class _Tree(NamedTuple):
    """The state of a search between two calls of the kernel: one row for each depth, and the memory of explored nodes.

    ``counter`` (3,) holds depth, nodes, and whether a better leaf than the value to beat was found; ``value`` (1,) that
    value. ``done``, ``free``, ``held`` (n + 1, ...) are as in a node, by depth. ``choice`` (n + 1, n * d) are the
    children of a depth, as op * d + device, best first; ``choices`` and ``taken`` count. ``sequence`` (n,) are the ops
    done in order, ``best_device`` and ``best_sequence`` those of the best leaf.
    """

    counter: IntArray
    value: FloatArray
    done: IntArray
    free: FloatArray
    held: FloatArray
    choice: IntArray
    choices: IntArray
    taken: IntArray
    sequence: IntArray
    best_device: IntArray
    best_sequence: IntArray


def branch_and_bound(
    problem: PlacementProblem,
    *,
    budget: Budget | None = None,
) -> PlacementResult:
    """Minimise the makespan of a small ``latency`` problem with transfers in parallel.

    Deterministic unless time ends it. Practical for some 20 ops; the tree has a leaf for each order and assignment.

    Parameters
    ----------
    budget
        Time limit and switch, looked at every 20,000 nodes.

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
    windows = batch_windows(problem, horizon_s(problem))
    if windows.empty:
        return PlacementResult(None, None, np.inf, "infeasible", 0)
    root = float((windows.head_s + windows.rest_s).min(axis=1, where=windows.allowed, initial=np.inf).max(initial=0.0))
    data, node, memo, tree = _data(problem, windows), _empty_node(n, d), _empty_memo(n, d), _open_tree(n, d)
    complete = False
    while not complete and not budget.expired:
        complete = _search(int(tree.counter[_NODES]) + _CHUNK, data, node, memo, tree)
    return _result(problem, tree, complete, root)


def _data(problem: PlacementProblem, windows: BatchWindows) -> _Data:
    kind = np.arange(problem.num_devices)
    for members in alike_devices(problem):
        for member in members:
            kind[member[0]] = members[0][0]
    return _Data(
        time=problem.time_s[:, :, 1].copy(),
        allowed=windows.allowed & np.isfinite(problem.time_s[:, :, 1]),
        tail=windows.rest_s,
        size=problem.tensor_bytes,
        rate=problem.s_per_byte,
        delay=problem.delay_s,
        need=problem.weight_bytes + problem.shard_bytes,
        capacity=problem.capacity_bytes * CAPACITY_SLACK,
        order=problem.order.astype(np.int64),
        group=problem.group,
        succ_indptr=problem.succ_indptr,
        succ=problem.succ,
        pred_indptr=problem.pred_indptr,
        pred=problem.pred,
        kind=kind,
    )


def _empty_node(n: int, d: int) -> _Node:
    return _Node(
        free=np.zeros(d),
        held=np.zeros(d),
        device=np.full(n, -1, np.int64),
        place=np.full(n, -1, np.int64),
        placed=np.zeros(n, np.int64),
        end=np.zeros(n),
        live=np.empty(n, np.int8),
        earliest=np.zeros(n),
        used=np.zeros(d, np.bool_),
        score=np.zeros(n * d),
    )


def _empty_memo(n: int, d: int) -> _Memo:
    entries = max(1, min(_MEMO_BYTES // (8 * (n + 2 * d) + n + 24), 2**20))
    return _Memo(
        slot=np.full(1 << int(entries).bit_length(), -1, np.int64),
        following=np.full(entries, -1, np.int64),
        stored=np.zeros(1, np.int64),
        done=np.zeros(entries, np.int64),
        device=np.zeros((entries, n), np.int8),
        state=np.zeros((entries, n + 2 * d)),
    )


def _open_tree(n: int, d: int) -> _Tree:
    return _Tree(
        counter=np.array([-1, 0, 0], np.int64),
        value=np.array([np.inf]),
        done=np.zeros(n + 1, np.int64),
        free=np.zeros((n + 1, d)),
        held=np.zeros((n + 1, d)),
        choice=np.zeros((n + 1, n * d), np.int64),
        choices=np.zeros(n + 1, np.int64),
        taken=np.zeros(n + 1, np.int64),
        sequence=np.zeros(n, np.int64),
        best_device=np.zeros(n, np.int64),
        best_sequence=np.zeros(n, np.int64),
    )


def _result(problem: PlacementProblem, tree: _Tree, complete: bool, root: float) -> PlacementResult:
    """Join the best leaf with what the search proved."""
    work = int(tree.counter[_NODES])
    safe_root = root * (1 - _ROUNDING)
    if not tree.counter[_FOUND]:
        if complete:
            return PlacementResult(None, None, np.inf, "infeasible", work)
        return PlacementResult(None, None, safe_root, "no_solution", work)
    codes = tree.best_sequence * problem.num_devices + tree.best_device[tree.best_sequence]
    placement = Placement(tree.best_device[:, None].copy(), codes)
    value = makespan(problem, placement)
    status: Literal["optimal", "feasible"] = "optimal" if complete else "feasible"
    return PlacementResult(
        placement, value, value * (1 - _ROUNDING) if complete else min(safe_root, value), status, work
    )


def _inlined(function: Callable[..., Any]) -> Any:
    """Compile a kernel that makes no arrays into its callers; a call copies some two hundred words of its bundles."""
    options: dict[str, Any] = {"cache": True, "nogil": True, "forceinline": True, "_nrt": False}
    return njit(**options)(function)


@_inlined
def _arrival(
    u: int, i: int, device: IntArray, end: FloatArray, size: FloatArray, rate: FloatArray, delay: FloatArray
) -> float:
    """Return when the output of op u, which is done, can be on device i."""
    j = device[u]
    at: float = end[u] if j == i else end[u] + (delay[j, i] + size[u] * rate[j, i])
    return at


@_inlined
def _start(data: _Data, node: _Node, v: int, i: int) -> float:
    """Return when op v, whose producers are done, can start on device i."""
    device, end, size, rate, delay = node.device, node.end, data.size, data.rate, data.delay
    start: float = node.free[i]
    for q in range(data.pred_indptr[v], data.pred_indptr[v + 1]):
        start = max(start, _arrival(data.pred[q], i, device, end, size, rate, delay))
    return start


@_inlined
def _bound(data: _Data, node: _Node, done: int) -> float:
    """Return a bound on every leaf below: each op's earliest start with its tail, and the average load."""
    device, end, size, rate, delay = node.device, node.end, data.size, data.rate, data.delay
    pred_indptr, pred, free, earliest = data.pred_indptr, data.pred, node.free, node.earliest
    d = len(free)
    bound, load = 0.0, 0.0
    for i in range(d):
        load += free[i]
        bound = max(bound, free[i])
    for v in data.order:
        if done >> v & 1:
            continue
        soonest, through, least = np.inf, np.inf, np.inf
        place = node.place[data.group[v]]
        for i in range(d):
            if not data.allowed[v, i] or (place >= 0 and place != i):
                continue
            start = free[i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[q]
                at = _arrival(u, i, device, end, size, rate, delay) if done >> u & 1 else earliest[u]
                start = max(start, at)
            soonest = min(soonest, start + data.time[v, i])
            through = min(through, start + data.tail[v, i])
            least = min(least, data.time[v, i])
        earliest[v] = soonest
        bound = max(bound, through)
        load += least
    return max(bound, load / d)


@_inlined
def _find_live(data: _Data, node: _Node, done: int) -> None:
    """Set the device of each op whose output or group is still needed, -1 for the others."""
    for v in range(len(node.device)):
        node.live[v] = -1
        if done >> v & 1:
            for q in range(data.succ_indptr[v], data.succ_indptr[v + 1]):
                if not done >> data.succ[q] & 1:
                    node.live[v] = node.device[v]
                    break
        else:  # What is left of a group must follow its members.
            node.live[v] = node.place[data.group[v]]


@_inlined
def _hash(memo: _Memo, node: _Node, done: int) -> np.int64:
    """Return the list of stored nodes that a node belongs to."""
    key = np.uint64(done) * np.uint64(0x9E3779B97F4A7C15)
    for v in range(len(node.live)):
        key = (key ^ np.uint64(node.live[v] + 1)) * np.uint64(0x100000001B3)
    key ^= key >> np.uint64(29)
    return np.int64(key & np.uint64(len(memo.slot) - 1))


@_inlined
def _as_good(memo: _Memo, at: int, node: _Node, done: int) -> bool:
    """Return whether a stored node has done the same, and is nowhere later or fuller."""
    if memo.done[at] != done:
        return False
    d = len(node.free)
    for i in range(d):
        if memo.state[at, i] > node.free[i] or memo.state[at, d + i] > node.held[i]:
            return False
    for v in range(len(node.live)):
        later = bool(done >> v & 1) and node.live[v] >= 0 and memo.state[at, 2 * d + v] > node.end[v]
        if later or memo.device[at, v] != node.live[v]:
            return False
    return True


@_inlined
def _store(memo: _Memo, home: int, node: _Node, done: int) -> None:
    """Store a node if there is room."""
    at = memo.stored[0]
    if at == len(memo.following):
        return
    memo.stored[0] += 1
    memo.following[at] = memo.slot[home]
    memo.slot[home] = at
    memo.done[at] = done
    d = len(node.free)
    for i in range(d):
        memo.state[at, i] = node.free[i]
        memo.state[at, d + i] = node.held[i]
    for v in range(len(node.live)):
        memo.device[at, v] = node.live[v]
        memo.state[at, 2 * d + v] = node.end[v]


@_inlined
def _is_dominated(data: _Data, memo: _Memo, node: _Node, done: int) -> bool:
    """Return whether a stored node is at least as good as this one; store this one if none is and there is room.

    A node that was stored has been explored: nodes of one size are not nested in each other.
    """
    _find_live(data, node, done)
    home = _hash(memo, node, done)
    at = memo.slot[home]
    while at >= 0:
        if _as_good(memo, at, node, done):
            return True
        at = memo.following[at]
    _store(memo, home, node, done)
    return False


@_inlined
def _is_copy(used: BoolArray, kind: IntArray, i: int) -> bool:
    """Return whether a device holds nothing, like one alike to it that comes before."""
    copy = False
    for j in range(i):
        copy = copy or (not used[i] and not used[j] and kind[i] == kind[j])
    return copy


@_inlined
def _is_ready(pred_indptr: IntArray, pred: IntArray, done: int, v: int) -> bool:
    ready = not done >> v & 1
    for q in range(pred_indptr[v], pred_indptr[v + 1]):
        ready = ready and bool(done >> pred[q] & 1)
    return ready


@_inlined
def _children(data: _Data, node: _Node, done: int, value: float, choice: IntArray) -> int:
    """Fill in the children that may lead below the value, with scores; return how many.

    Ops with the longest way to go come first. Of alike devices that hold nothing yet only the first is tried.
    """
    device, end, size, rate, delay = node.device, node.end, data.size, data.rate, data.delay
    pred_indptr, pred, used = data.pred_indptr, data.pred, node.used
    n, d = data.time.shape
    count = 0
    for i in range(d):
        used[i] = False
    for v in range(n):
        if done >> v & 1:
            used[device[v]] = True
    for v in range(n):
        if not _is_ready(pred_indptr, pred, done, v):
            continue
        longest = 0.0
        for i in range(d):
            if data.allowed[v, i]:
                longest = max(longest, data.tail[v, i])
        place = node.place[data.group[v]]
        for i in range(d):
            if not data.allowed[v, i] or (place >= 0 and place != i) or _is_copy(used, data.kind, i):
                continue
            if node.held[i] + data.need[v] > data.capacity[i]:
                continue
            start = node.free[i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                start = max(start, _arrival(pred[q], i, device, end, size, rate, delay))
            if start + data.tail[v, i] < value:
                choice[count] = v * d + i
                node.score[count] = start + data.time[v, i] - longest
                count += 1
    return count


@njit(cache=True, nogil=True, forceinline=True)
def _open_node(data: _Data, node: _Node, memo: _Memo, tree: _Tree, depth: int) -> None:
    """Take a leaf as the best one; or find the children of a node, unless it is pruned."""
    tree.counter[_NODES] += 1
    tree.choices[depth], tree.taken[depth] = 0, 0
    done, value, choice = tree.done[depth], tree.value[0], tree.choice[depth]
    if depth == len(node.device):
        tree.value[0] = node.free.max() if len(node.free) else 0.0
        tree.counter[_FOUND] = 1
        tree.best_device[:] = node.device
        tree.best_sequence[:] = tree.sequence
    elif _bound(data, node, done) < value and not _is_dominated(data, memo, node, done):
        count = _children(data, node, done, value, choice)
        choice[:count] = choice[np.argsort(node.score[:count], kind="mergesort")]
        tree.choices[depth] = count


@_inlined
def _descend(data: _Data, node: _Node, tree: _Tree, depth: int) -> bool:
    """Append the next child's op to the schedule; return whether it may lead below the value."""
    d = len(node.free)
    code = tree.choice[depth, tree.taken[depth]]
    v, i = code // d, code % d
    tree.taken[depth] += 1
    start = _start(data, node, v, i)
    if start + data.tail[v, i] >= tree.value[0]:
        return False
    for j in range(d):
        tree.free[depth, j] = node.free[j]
        tree.held[depth, j] = node.held[j]
    tree.sequence[depth] = v
    tree.done[depth + 1] = tree.done[depth] | (np.int64(1) << v)
    node.end[v] = start + data.time[v, i]
    node.device[v] = i
    node.place[data.group[v]] = i
    node.placed[data.group[v]] += 1
    node.free[i] = node.end[v]
    node.held[i] += data.need[v]
    return True


@_inlined
def _ascend(data: _Data, node: _Node, tree: _Tree, depth: int) -> None:
    """Take the last op off the schedule, back to the node at a depth."""
    v = tree.sequence[depth]
    node.device[v] = -1
    node.placed[data.group[v]] -= 1
    if node.placed[data.group[v]] == 0:
        node.place[data.group[v]] = -1
    for j in range(len(node.free)):
        node.free[j] = tree.free[depth, j]
        node.held[j] = tree.held[depth, j]


@njit(cache=True, nogil=True)
def _search(node_limit: int, data: _Data, node: _Node, memo: _Memo, tree: _Tree) -> bool:
    """Search depth first until the tree is done (True) or has `node_limit` nodes, from where the last call ended."""
    depth = tree.counter[_DEPTH]
    if depth < 0:
        depth = 0
        _open_node(data, node, memo, tree, depth)
    while True:
        if tree.taken[depth] < tree.choices[depth]:
            if tree.counter[_NODES] >= node_limit:
                tree.counter[_DEPTH] = depth
                return False
            if _descend(data, node, tree, depth):
                depth += 1
                _open_node(data, node, memo, tree, depth)
        else:
            if depth == 0:
                tree.counter[_DEPTH] = 0
                return True
            depth -= 1
            _ascend(data, node, tree, depth)
