"""Compiled features of stage problems: what a node is, where the base order has it, what slicing that order gives."""

from __future__ import annotations

import math

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import Precedence
from rlinit.kernels.stages.rollouts import SliceBatch

NUM_STAGE_FEATURES = 44
"""Width of the features."""

_TINY = 1e-300
"""Least divisor, so that what has no load or no cost is divided, too."""

_MOST_SLACK = 3.0
"""Slack of a stage, in loads of a node, beyond which it is all the same."""


@njit(cache=True, nogil=True)
def _stage_costs(
    n: int,
    k: int,
    stage: IntArray,
    load: FloatArray,
    param: FloatArray,
    cache: float,
    overflow: float,
    in_s: FloatArray,
    out_s: FloatArray,
    tensor_src: IntArray,
    tensor_indptr: IntArray,
    tensor_dst: IntArray,
) -> FloatArray:
    """Return (k,) the cost of each stage of an assignment."""
    cost = np.zeros(k)
    held = np.zeros(k)
    for v in range(n):
        cost[stage[v]] += load[v]
        held[stage[v]] += param[v]
    stamp = np.full(k, -1, np.int64)
    for t in range(len(in_s)):
        made = stage[tensor_src[t]]
        leaves = False
        for d in range(tensor_indptr[t], tensor_indptr[t + 1]):
            used = stage[tensor_dst[d]]
            if used != made:
                leaves = True
                if stamp[used] != t:
                    stamp[used] = t
                    cost[used] += in_s[t]
        if leaves:
            cost[made] += out_s[t]
    for s in range(k):
        if held[s] > cache:
            cost[s] += (held[s] - cache) * overflow
    return cost


@njit(cache=True, nogil=True)
def _stages_of_order(order: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return (n,) the stage of each node, and (k,) the first place of each stage, where stages end at `ends`."""
    stage, first = np.empty(len(order), np.int64), np.empty(len(ends), np.int64)
    at = 0
    for s in range(len(ends)):
        first[s] = at
        while at < ends[s]:
            stage[order[at]] = s
            at += 1
    return stage, first


@njit(cache=True, nogil=True)
def _crossing_s(
    position: IntArray,
    in_s: FloatArray,
    out_s: FloatArray,
    tensor_src: IntArray,
    tensor_indptr: IntArray,
    tensor_dst: IntArray,
) -> tuple[FloatArray, float]:
    """Return (n + 1,) seconds to move the tensors alive before each place, as a cut there would, and those of all."""
    live = np.zeros(len(position) + 2)
    moved = 0.0
    for t in range(len(in_s)):
        final = 0
        for q in range(tensor_indptr[t], tensor_indptr[t + 1]):
            final = max(final, position[tensor_dst[q]])
        live[position[tensor_src[t]] + 1] += in_s[t] + out_s[t]
        live[final + 1] -= in_s[t] + out_s[t]
        moved += in_s[t] + out_s[t]
    for i in range(1, len(live)):
        live[i] += live[i - 1]
    return live[:-1], moved


@njit(cache=True, nogil=True)
def _longest_paths(order: IntArray, load: FloatArray, indptr: IntArray, near: IntArray) -> tuple[FloatArray, IntArray]:
    """Return (n,) load and edges of the longest paths that end in each node, itself counted in the load.

    Paths come by way of the neighbours in `near`, which stand before the node in `order`.
    """
    longest, edges = np.zeros(len(order)), np.zeros(len(order), np.int64)
    for v in order:
        for e in range(indptr[v], indptr[v + 1]):
            longest[v] = max(longest[v], longest[near[e]])
            edges[v] = max(edges[v], edges[near[e]] + 1)
        longest[v] += load[v]
    return longest, edges


@njit(cache=True, nogil=True)
def _chains(order: IntArray, load: FloatArray, indptr: IntArray, near: IntArray, back_indptr: IntArray) -> FloatArray:
    """Return (n, 2) load and length of the chain that each node ends: nodes with no other way in or out between them.

    `near` are the neighbours that stand before the node in `order`; `back_indptr` counts those the other way.
    """
    chain = np.zeros((len(order), 2))
    for v in order:
        if indptr[v + 1] - indptr[v] == 1:
            u = near[indptr[v]]
            if back_indptr[u + 1] - back_indptr[u] == 1:
                chain[v, 0] = chain[u, 0] + load[u]
                chain[v, 1] = chain[u, 1] + 1.0
    return chain


@njit(cache=True, nogil=True)
def _fill_work(
    load: FloatArray,
    overflow_s: FloatArray,
    target: float,
    worst: float,
    pred_indptr: IntArray,
    succ_indptr: IntArray,
    features: FloatArray,
) -> None:
    """Fill in load, seconds if the parameters overflow the cache, and numbers of neighbours."""
    for v in range(len(load)):
        row = features[v]
        part = load[v] / target
        row[0] = part / (1.0 + part)
        row[1] = 0.2 * math.log(part + 1e-3)
        row[4] = math.log1p(pred_indptr[v + 1] - pred_indptr[v])
        row[5] = math.log1p(succ_indptr[v + 1] - succ_indptr[v])
        row[30] = load[v] / worst
        over = overflow_s[v] / target
        row[39] = over / (1.0 + over)


@njit(cache=True, nogil=True)
def _fill_transfers(
    indptr: IntArray, tensor: IntArray, seconds: FloatArray, target: float, column: int, features: FloatArray
) -> None:
    """Fill in the seconds of the tensors that each node makes, or reads."""
    for v in range(len(features)):
        total = 0.0
        for q in range(indptr[v], indptr[v + 1]):
            total += seconds[tensor[q]]
        features[v, column] = math.log1p(total / target)


@njit(cache=True, nogil=True)
def _fill_paths(
    order: IntArray,
    load: FloatArray,
    level: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    total: float,
    features: FloatArray,
) -> None:
    """Fill in where each node is between sources and sinks."""
    depth = 1
    for v in order:
        depth = max(depth, level[v] + 1)
    down, _ = _longest_paths(order, load, pred_indptr, pred)
    up, height = _longest_paths(order[::-1].copy(), load, succ_indptr, succ)
    for v in order:
        row = features[v]
        row[7] = (level[v] + 0.5) / depth
        row[8] = 1.0 - (height[v] + 0.5) / depth
        row[9] = (depth - 1 - height[v] - level[v]) / depth
        row[10] = math.log1p(float(depth - 1 - height[v] - level[v]))
        row[14] = down[v] / total
        row[15] = up[v] / total


@njit(cache=True, nogil=True)
def _fill_places(
    order: IntArray, load: FloatArray, total: float, num_stages: int, live: FloatArray, features: FloatArray
) -> None:
    """Fill in where the base order has each node, which stage that would be, and what cuts around it would move."""
    before, target = 0.0, total / num_stages
    for i in range(len(order)):
        v = order[i]
        row = features[v]
        row[6] = (i + 0.5) / len(order)
        middle = num_stages * (before + 0.5 * load[v]) / total
        row[11] = middle / num_stages
        row[12] = math.sin(2.0 * math.pi * middle)
        row[13] = math.cos(2.0 * math.pi * middle)
        row[16] = math.log1p(live[i] / target)
        row[17] = math.log1p(live[i + 1] / target)
        row[18] = math.log1p(live[i + 1] / target) - math.log1p(live[i] / target)
        before += load[v]


@njit(cache=True, nogil=True)
def _fill_neighbours(
    order: IntArray,
    position: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    features: FloatArray,
) -> None:
    """Fill in how far away the nearest neighbours are in the base order, and how many nodes are ready there."""
    unmet = pred_indptr[1:] - pred_indptr[:-1]
    num_ready = 0
    for v in order:
        num_ready += unmet[v] == 0
    for i in range(len(order)):
        v = order[i]
        nearest, soonest = -1, len(order)
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            nearest = max(nearest, position[pred[e]])
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            soonest = min(soonest, position[succ[e]])
        features[v, 19] = 0.5 * math.log1p(float(i - nearest))
        features[v, 20] = 0.5 * math.log1p(float(soonest - i))
        features[v, 21] = math.log1p(float(num_ready))
        num_ready -= 1
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            unmet[succ[e]] -= 1
            num_ready += unmet[succ[e]] == 0


@njit(cache=True, nogil=True)
def _fill_stages(
    order: IntArray, load: FloatArray, stage: IntArray, first: IntArray, ends: IntArray, features: FloatArray
) -> None:
    """Fill in the stage of each node and where in it the node is."""
    k = len(ends)
    stage_load, done = np.zeros(k), np.zeros(k)
    for v in range(len(order)):
        stage_load[stage[v]] += load[v]
    for i in range(len(order)):
        v = order[i]
        s = stage[v]
        features[v, 22] = (s + 0.5) / k
        features[v, 23] = (done[s] + 0.5 * load[v]) / max(stage_load[s], _TINY)
        features[v, 24] = math.exp(-0.3 * (i - first[s])) if s > 0 else 0.0
        features[v, 25] = math.exp(-0.3 * (ends[s] - 1 - i)) if s < k - 1 else 0.0
        done[s] += load[v]


@njit(cache=True, nogil=True)
def _slack(worst: float, cost: float, load: float) -> float:
    """Return how many times a node's load a stage of some cost could take more."""
    return max(-_MOST_SLACK, min(_MOST_SLACK, (worst - cost) / max(load, _TINY)))


@njit(cache=True, nogil=True)
def _fill_balance(load: FloatArray, stage: IntArray, cost: FloatArray, worst: float, features: FloatArray) -> None:
    """Fill in what each node's stage and the ones beside it cost; a missing one as much as the bottleneck."""
    for v in range(len(load)):
        row, s = features[v], stage[v]
        previous = cost[s - 1] if s > 0 else worst
        following = cost[s + 1] if s < len(cost) - 1 else worst
        row[26] = cost[s] / worst
        row[27] = previous / worst
        row[28] = following / worst
        row[29] = 1.0 if cost[s] >= worst * (1.0 - 1e-9) else 0.0
        row[31] = _slack(worst, cost[s], load[v])
        row[32] = _slack(worst, previous, load[v])
        row[33] = _slack(worst, following, load[v])


@njit(cache=True, nogil=True)
def _fill_chains(
    order: IntArray,
    load: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    target: float,
    features: FloatArray,
) -> None:
    """Fill in load and length of the chains that each node ends and begins."""
    before = _chains(order, load, pred_indptr, pred, succ_indptr)
    after = _chains(order[::-1].copy(), load, succ_indptr, succ, pred_indptr)
    for v in order:
        part = before[v, 0] / target
        features[v, 40] = part / (1.0 + part)
        features[v, 41] = 0.5 * math.log1p(before[v, 1])
        part = after[v, 0] / target
        features[v, 42] = part / (1.0 + part)
        features[v, 43] = 0.5 * math.log1p(after[v, 1])


@njit(cache=True, nogil=True)
def _total_load(load: FloatArray, param: FloatArray, overflow: float, in_s: FloatArray, out_s: FloatArray) -> float:
    """Return the load of all nodes; where they have none, the seconds of all tensors and overflow; then 1."""
    total = load.sum()
    if total <= 0.0:
        total = in_s.sum() + out_s.sum() + overflow * param.sum()
    if total <= 0.0:
        total = 1.0
    return float(total)


@njit(cache=True, nogil=True)
def stage_features(
    order: IntArray, ends: IntArray, batch: SliceBatch, near: Precedence, level: IntArray, features: FloatArray
) -> None:
    """Fill in the features of stage problems joined.

    Parameters
    ----------
    order
        (N,) the base order of each graph.
    ends
        (K,) nodes of each graph's base order in its stages up to and including each, from slicing that order.
    batch
        The problems.
    near
        Neighbours, numbered within the graph; pointers count through the batch.
    level
        (N,) edges of the longest path from a source to each node.
    features
        (N, NUM_STAGE_FEATURES), filled in.
    """
    num_stages, stage_base, joined = batch.num_stages, 0, batch.tensors
    for g in range(len(num_stages)):
        base, stop = batch.node_ptr[g], batch.node_ptr[g + 1]
        first_tensor, last_tensor = batch.tensor_ptr[g], batch.tensor_ptr[g + 1]
        n, k, overflow, rows = stop - base, num_stages[g], batch.overflow[g], features[base:stop]
        sequence, stop_at = order[base:stop], ends[stage_base : stage_base + num_stages[g]]
        load, param = batch.load[base:stop], batch.param[base:stop]
        in_s, out_s = batch.in_s[first_tensor:last_tensor], batch.out_s[first_tensor:last_tensor]
        src, indptr = joined.src[first_tensor:last_tensor], joined.indptr[first_tensor : last_tensor + 1]
        pred_indptr, succ_indptr = near.pred_indptr[base : stop + 1], near.succ_indptr[base : stop + 1]
        pred, succ = near.pred, near.succ
        total = _total_load(load, param, overflow, in_s, out_s)
        target = total / k
        position = np.empty(n, np.int64)
        position[sequence] = np.arange(n)
        stage, first = _stages_of_order(sequence, stop_at)
        cost = _stage_costs(n, k, stage, load, param, batch.cache[g], overflow, in_s, out_s, src, indptr, joined.dst)
        worst = max(cost.max(), _TINY)
        live, moved = _crossing_s(position, in_s, out_s, src, indptr, joined.dst)
        _fill_work(load, param * overflow, target, worst, pred_indptr, succ_indptr, rows)
        _fill_transfers(joined.out_indptr[base : stop + 1], joined.out_tensor, out_s, target, 2, rows)
        _fill_transfers(joined.in_indptr[base : stop + 1], joined.in_tensor, in_s, target, 3, rows)
        _fill_paths(sequence, load, level[base:stop], pred_indptr, pred, succ_indptr, succ, total, rows)
        _fill_places(sequence, load, total, k, live, rows)
        _fill_neighbours(sequence, position, pred_indptr, pred, succ_indptr, succ, rows)
        _fill_stages(sequence, load, stage, first, stop_at, rows)
        _fill_balance(load, stage, cost, worst, rows)
        _fill_chains(sequence, load, pred_indptr, pred, succ_indptr, succ, target, rows)
        rows[:, 34] = worst / target - 1.0
        rows[:, 35] = 0.5 * math.log(float(k))
        rows[:, 36] = 0.2 * math.log(float(n))
        rows[:, 37] = 1.0 if batch.ordered[g] else 0.0
        rows[:, 38] = math.log1p(moved / total)
        stage_base += k
