"""Exact search for the best schedules of a block of some ten to forty ops, towards several targets at once.

The schedules of `latency` with parallel transfers are all reached by appending ready ops to devices. The search keeps,
layer by layer, the partial schedules that none dominates and whose lower bound is below what is wanted, in passes of
growing width. A pass that never had to drop a state for its width proves what it finds; another one leaves the least
bound of what it dropped, which is a bound all the same.

Three bounds prune: the longest path that remains, with transfers between the best devices; the same for each ready op
from where it could start now; and multipliers y >= 0 of the devices that sum to 1, under which the makespan C satisfies
``C >= sum_i y_i C_i >= sum_i y_i busy_i + sum over ops left of min_i y_i time_i`` (the dual of the relaxed assignment).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.split.search_bounds import MAX_MULTIPLIER_DEVICES, best_multiplier, block_tails
from rlinit.exact.placements.split.search_kernel import WIDTHS, BlockBounds, sweep
from rlinit.exact.placements.split.state_layers import BlockMemory, BlockOps, Frontier
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import MAX_SHARDS, PlacementProblem

MAX_BLOCK_OPS = MAX_SHARDS
"""Ops of a block are held as the bits of an integer, as shards of an op are. Beyond, multipliers are those that even
out the devices' mean speeds, without an LP."""
EXPANSIONS_PER_S = 20_000.0
"""What a slow machine expands, by which a pass is kept within a time limit."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a schedule is timed by: the end of op `sink` on `device`, or of all ops where `sink` is -1."""

    sink: int
    device: int


@dataclass(frozen=True, slots=True, eq=False)
class SearchModel:
    """A block as the kernel wants it. Local ops are the externals, then the ops in topological order.

    Parameters
    ----------
    ops, memory, bounds
        For t targets; nothing is cut off yet.
    weighted_s
        (y, n) least weighted seconds of each op.
    sink_arrival_s
        (t, n, d) seconds from the end of an op to that of the target that consumes it, -inf for others.
    target_device
        (t,) device of each target's sink, -1: none.
    sink_time_s
        (t,) seconds of each target's sink.
    """

    ops: BlockOps
    memory: BlockMemory
    bounds: BlockBounds
    weighted_s: FloatArray
    sink_arrival_s: FloatArray
    target_device: IntArray
    sink_time_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """What is known for each of t targets.

    Parameters
    ----------
    value_s
        (t,) best ends found, ``inf`` where none.
    bound_s
        (t,) proven lower bounds, at most the cutoff that was given.
    device, rank
        (t, n) device and place in the order of the ops of the best schedules.
    work
        Partial schedules extended.
    """

    value_s: FloatArray
    bound_s: FloatArray
    device: IntArray
    rank: IntArray
    work: int


def transfer_times(problem: PlacementProblem) -> FloatArray:
    """Return (n, d, d) seconds of moving all shards of each op's output, 0 within a device."""
    size = problem.tensor_bytes[:, None, None] * problem.num_shards
    return np.ascontiguousarray(problem.delay_s + size * problem.s_per_byte)


def search_model(
    problem: PlacementProblem,
    comm_s: FloatArray,
    externals: IntArray,
    ops: IntArray,
    targets: list[Target],
    tail_after: FloatArray | None = None,
    work_after_s: FloatArray | None = None,
) -> SearchModel:
    """Return the model of a block.

    Parameters
    ----------
    problem
        What the block is part of.
    comm_s
        (num_ops, d, d) from :func:`transfer_times`.
    externals, ops
        Indices of ops that ran before, and of those of the block in topological order; the sink is in neither. With
        more than `MAX_BLOCK_OPS` ops the model serves :func:`root_bound` alone.
    targets
        What is timed.
    tail_after
        (num_ops, d) seconds at least from the end of an op to the end of everything; None: what is after the block
        does not count.
    work_after_s
        (k, d) times of the ops after the block, which the one target without sink then waits for too.
    """
    local = np.concatenate([externals, ops])
    k, sink = len(externals), targets[0].sink
    edges = _local_edges(problem, local, k)
    time_s = np.ascontiguousarray(problem.op_time_s[local])
    local_comm = np.ascontiguousarray(comm_s[local])
    arrival = _sink_arrivals(problem, comm_s, local, targets)
    base = np.maximum(arrival, 0.0 if sink < 0 else -np.inf)
    if tail_after is not None:
        base = np.maximum(base, tail_after[local])
    multiplier = _multipliers(time_s[k:] if work_after_s is None else np.concatenate([time_s[k:], work_after_s]))
    weighted = _weighted(time_s, multiplier)
    tail, device_tail = _tails(k, edges.succs, time_s, local_comm, base, weighted)
    after, local_tail = np.zeros(len(multiplier)), np.zeros((0, problem.num_devices))
    if work_after_s is not None:
        after, device_tail = _weighted(work_after_s, multiplier).sum(axis=1), np.zeros_like(device_tail)
        local_tail = _tails(k, edges.succs, time_s, local_comm, np.zeros((1, *time_s.shape)), weighted)[0][0]
    group, group_mask, group_live = _groups(problem, local, k)
    need = problem.weight_bytes + problem.num_shards * problem.shard_bytes
    sink_time = [0.0 if sink < 0 else float(problem.op_time_s[sink, target.device]) for target in targets]
    t = len(targets)
    return SearchModel(
        BlockOps(
            k,
            time_s,
            local_comm,
            np.cumsum([0, *(len(each) for each in edges.preds)]).astype(np.int64),
            np.array([u for each in edges.preds for u in each], np.int64),
            edges.pred_mask,
            edges.succ_mask,
            edges.live,
        ),
        BlockMemory(
            need[local],
            problem.capacity_bytes * CAPACITY_SLACK,
            bool((need.sum() > problem.capacity_bytes).any()),
            group,
            group_mask,
            group_live,
        ),
        BlockBounds(tail, local_tail, multiplier, device_tail, after, np.ones(t), np.full(t, np.inf)),
        weighted,
        arrival,
        np.array([target.device if sink >= 0 else -1 for target in targets], np.int64),
        np.array(sink_time),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges of a block by local op, also as masks of block ops, and whether an op has consumers beyond the block."""

    preds: list[list[int]]
    succs: list[list[int]]
    pred_mask: IntArray
    succ_mask: IntArray
    live: BoolArray


def _local_edges(problem: PlacementProblem, local: IntArray, k: int) -> _Edges:
    """Return the edges into the ops of a block, which follow k externals; masks of large blocks are just nonzero."""
    n = len(local)
    searchable = n - k <= MAX_BLOCK_OPS
    index = {int(v): i for i, v in enumerate(local)}
    preds = [[index[u] for u in _preds(problem, int(v)) if u in index] if i >= k else [] for i, v in enumerate(local)]
    succs: list[list[int]] = [[] for _ in range(n)]
    pred_mask, succ_mask = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for w in range(k, n):
        for u in preds[w]:
            succs[u].append(w)
            succ_mask[u] |= 1 << (w - k) if searchable else 1
            if u >= k:
                pred_mask[w] |= 1 << (u - k) if searchable else 1
    live = np.array([any(w not in index for w in _succs(problem, int(v))) for v in local], np.bool_)
    return _Edges(preds, succs, pred_mask, succ_mask, live)


def _sink_arrivals(problem: PlacementProblem, comm_s: FloatArray, local: IntArray, targets: list[Target]) -> FloatArray:
    """Return (t, n, d) seconds from the end of a local op to that of the target that consumes it, -inf for others."""
    index = {int(v): i for i, v in enumerate(local)}
    arrival = np.full((len(targets), len(local), problem.num_devices), -np.inf)
    for t, target in enumerate(targets):
        for u in _preds(problem, target.sink) if target.sink >= 0 else []:
            arrival[t, index[u]] = comm_s[u, :, target.device] + problem.op_time_s[target.sink, target.device]
    return arrival


def _preds(problem: PlacementProblem, v: int) -> list[int]:
    return list(map(int, problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]))


def _succs(problem: PlacementProblem, v: int) -> list[int]:
    return list(map(int, problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]))


def _groups(problem: PlacementProblem, local: IntArray, k: int) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Return the local groups, their block ops as masks, and whether they have members after the block."""
    n = len(local)
    first: dict[int, int] = {}
    group = np.array([first.setdefault(int(problem.group[v]), i) for i, v in enumerate(local)], np.int64).reshape(n)
    mask, live = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for i in range(k, n):
        mask[group[i]] |= 1 << min(i - k, MAX_BLOCK_OPS)
    present = set(map(int, local))
    for v in np.flatnonzero(np.isin(problem.group, list(first))):
        if int(v) not in present:
            live[first[int(problem.group[v])]] = True
    return group, mask, live


def _even_multipliers(time_s: FloatArray) -> FloatArray:
    """Return (y, d) multipliers of the devices: equal ones and, if speeds differ, those that even them out."""
    finite = np.isfinite(time_s)
    largest = time_s[finite].max(initial=0.0)
    if time_s.shape[1] == 1 or largest <= 0.0:
        return np.full((1, time_s.shape[1]), 1.0 / time_s.shape[1])
    speed = 1.0 / (np.where(finite, time_s / largest, 1.0).mean(axis=0) + 1e-6)
    return np.stack([np.full(len(speed), 1.0 / len(speed)), speed / speed.sum()])


def _multipliers(time_s: FloatArray, around_s: FloatArray | None = None) -> FloatArray:
    """Return multipliers of the devices: equal ones, and those of the assignment LP's dual.

    Where `around_s` ((y, d) seconds before and after a device's work) is given there is a dual for each of its rows.
    """
    n, d = time_s.shape
    finite = np.isfinite(time_s)
    largest = time_s[finite].max(initial=0.0)
    if d == 1 or largest <= 0.0 or n > MAX_BLOCK_OPS:
        return _even_multipliers(time_s)
    arounds = np.zeros((1, d)) if around_s is None else around_s
    if d <= MAX_MULTIPLIER_DEVICES:
        scaled = np.ascontiguousarray(time_s / largest)
        return np.stack([np.full(d, 1.0 / d), *(best_multiplier(scaled, around / largest) for around in arounds)])
    ops, devices = np.nonzero(finite)
    rows = np.zeros((len(ops), n + d))
    rows[np.arange(len(ops)), ops] = 1.0
    rows[np.arange(len(ops)), n + devices] = -time_s[ops, devices] / largest
    cost = np.concatenate([-finite.any(axis=1).astype(np.float64), np.zeros(d)])
    total = np.concatenate([np.zeros(n), np.ones(d)])[None]
    bounds = [(0.0, 1.0)] * (n + d)
    multipliers = [np.full((1, d), 1.0 / d)]
    for around in arounds:
        cost[n:] = -around / largest
        result = linprog(cost, A_ub=rows, b_ub=np.zeros(len(ops)), A_eq=total, b_eq=[1.0], bounds=bounds)
        if result.x is not None:
            multiplier = np.maximum(result.x[n:], 0.0)
            multipliers.append(multiplier[None] / multiplier.sum())
    return np.concatenate(multipliers)


def _reweighted(model: SearchModel, start: Frontier, limit_s: FloatArray) -> SearchModel:
    """Return the model with multipliers for what can be run where, if one of the targets is to end below its limit."""
    ops, bounds = model.ops, model.bounds
    k, n = ops.num_fixed, len(ops.time_s)
    head = np.zeros_like(ops.time_s)
    for v in range(k, n):
        head[v] = start.free_s[0]
        for u in ops.pred[ops.pred_indptr[v] : ops.pred_indptr[v + 1]]:
            if u < k:
                arrival = start.end_s[0, u] + ops.comm_s[u, start.device[0, u]]
            else:
                arrival = (head[u] + ops.time_s[u])[:, None] + ops.comm_s[u]
                arrival = arrival.min(axis=0)
            head[v] = np.maximum(head[v], arrival)
    active = np.flatnonzero(limit_s > -np.inf)
    ends_s = head[k:] + ops.time_s[k:] + bounds.tail[active, k:]
    able = (ends_s < limit_s[active, None, None]).any(axis=0)
    around = head[k:].min(axis=0, initial=np.inf) + bounds.device_tail[active]
    multiplier = _multipliers(np.where(able, ops.time_s[k:], np.inf), around)
    # Targets are searched for without what is after the block.
    without = bounds._replace(multiplier=multiplier, after=np.zeros(len(multiplier)))
    return dataclasses.replace(model, bounds=without)


def _weighted(time_s: FloatArray, multiplier: FloatArray) -> FloatArray:
    """Return (y, n) the least weighted time of each op; 0 for ops that may run nowhere."""
    with np.errstate(invalid="ignore"):
        products = np.where(np.isfinite(time_s), multiplier[:, None, :] * time_s, np.inf)
    least = products.min(axis=2, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)


def _tails(
    k: int, succs: list[list[int]], time_s: FloatArray, comm_s: FloatArray, base: FloatArray, weighted: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (t, n, d) least seconds from an op's end to each target's, and (t, d) from the last op's of a device."""
    n, d = time_s.shape
    indptr = np.cumsum([0, *map(len, succs)]).astype(np.int64)
    succ = np.array([w for each in succs for w in each], np.int64)
    tail = block_tails(indptr, succ, time_s, comm_s, np.ascontiguousarray(base), weighted, n - k <= MAX_BLOCK_OPS)
    device_tail = tail[:, k:].min(axis=1, initial=np.inf) if k < n else np.zeros((len(tail), d))
    return tail, np.where(np.isfinite(device_tail), device_tail, 0.0)


def advance(
    model: SearchModel,
    frontier: Frontier,
    cutoff_s: FloatArray,
    scale_s: FloatArray,
    width: int,
    max_work: int,
) -> tuple[Frontier, FloatArray, int]:
    """Run every schedule of the frontier through the block, keeping at most `width` of each layer.

    Parameters
    ----------
    cutoff_s, scale_s
        (t,) ends below which a schedule is of interest, and positive seconds that make the targets comparable.
    max_work
        Partial schedules to extend before only a few of each layer are.

    Returns
    -------
    The frontier after the block, (t,) the least bound of what was dropped for the width, and the work.
    """
    bounds = model.bounds._replace(scale=scale_s, cutoff=cutoff_s)
    return sweep(width, max_work, model.ops, model.memory, bounds, frontier)


def ends(model: SearchModel, frontier: Frontier) -> FloatArray:
    """Return (i, t) when each target ends after each schedule of a frontier.

    Parameters
    ----------
    model
        With t targets.
    frontier
        i partial schedules.
    """
    count = len(frontier.root)
    finish = np.empty((count, len(model.target_device)))
    for t, q in enumerate(model.target_device):
        if q < 0:
            finish[:, t] = frontier.free_s.max(axis=1)
            continue
        finish[:, t] = frontier.free_s[:, q] + model.sink_time_s[t]
        for u in np.flatnonzero(model.sink_arrival_s[t, :, 0] > -np.inf):
            at = frontier.end_s[:, u] + model.sink_arrival_s[t, u, frontier.device[:, u]]
            finish[:, t] = np.maximum(finish[:, t], at)
    return finish


def root_bound(model: SearchModel, frontier: Frontier) -> FloatArray:
    """Return (t,) lower bounds before any search, the least over the schedules of the frontier.

    Parameters
    ----------
    model
        With t targets.
    frontier
        The schedules at which the search begins.
    """
    ops, bounds = model.ops, model.bounds
    k, n = ops.num_fixed, len(ops.time_s)
    if k == n:
        done: FloatArray = ends(model, frontier).min(axis=0)
        return done
    least = np.full(len(model.target_device), np.inf)
    left = model.weighted_s[:, k:].sum(axis=1) + bounds.after
    for i in range(len(frontier.root)):
        best = np.zeros(len(least))
        for v in range(k, n):
            if ops.pred_mask[v]:
                continue
            start = frontier.free_s[i].copy()
            for u in ops.pred[ops.pred_indptr[v] : ops.pred_indptr[v + 1]]:
                start = np.maximum(start, frontier.end_s[i, u] + ops.comm_s[u, frontier.device[i, u]])
            best = np.maximum(best, (start + ops.time_s[v] + bounds.tail[:, v]).min(axis=1))
        busy = np.minimum(frontier.free_s[i] + bounds.device_tail, best[:, None])
        least = np.minimum(least, np.maximum(best, (left + busy @ bounds.multiplier.T).max(axis=1)))
    return least


def search(
    model: SearchModel,
    start: Frontier,
    cutoff_s: FloatArray,
    budget: Budget,
    *,
    widths: tuple[int, ...] = WIDTHS,
    max_work: int = 1 << 62,
) -> SearchResult:
    """Find the best end of every target from one start, in passes of growing width.

    Parameters
    ----------
    model, start
        The block, and a frontier of one schedule.
    cutoff_s
        (t,) only ends below it are of interest; ``-inf`` drops a target.
    budget
        Passes end early and are not begun beyond it.
    widths
        Of the passes. Each uses the ends that the one before it found.
    max_work
        Partial schedules to extend in all.

    Returns
    -------
    Values, bounds and schedules. A target is solved where its bound reaches its value or the cutoff.
    """
    k, n, targets = model.ops.num_fixed, len(model.ops.time_s), len(cutoff_s)
    floor = root_bound(model, start)
    bound = np.minimum(floor, cutoff_s)
    value = np.full(targets, np.inf)
    device = np.full((targets, n - k), -1, np.int64)
    rank = np.zeros_like(device)
    scale = np.where((floor > 0) & (floor < np.inf), floor, 1.0)
    work = 0
    for width in widths if n - k <= MAX_BLOCK_OPS else ():
        limit = np.minimum(cutoff_s, value)
        if work > 0 and (budget.expired or work >= max_work or bool((bound >= limit).all())):
            break
        affordable = int(min(max_work - work, max(1.0, min(budget.remaining_s, 1e9) * EXPANSIONS_PER_S)))
        # The narrowest pass takes the multipliers as they are.
        weighted = _reweighted(model, start, limit) if width > WIDTHS[0] else model
        after, dropped, extended = advance(weighted, start, limit, scale, width, affordable)
        work += extended + 1
        finish = ends(model, after)
        for t in range(targets):
            i = int(finish[:, t].argmin()) if len(finish) else -1
            if i >= 0 and finish[i, t] < value[t]:
                value[t] = finish[i, t]
                device[t], rank[t] = after.device[i, k:], after.rank[i, k:]
        proven = np.minimum(np.minimum(limit, value), np.maximum(dropped, floor))
        bound = np.maximum(bound, np.minimum(proven, cutoff_s))
    return SearchResult(value, bound, device, rank, work)
