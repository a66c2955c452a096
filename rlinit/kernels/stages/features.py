"""Compiled features of stage problems: what a node is, where the base order has it, what slicing that order gives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["NUM_STAGE_FEATURES", "stage_features"]

NUM_STAGE_FEATURES = 44
"""Width of the features."""


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
def stage_features(
    order: IntArray,
    ends: IntArray,
    num_stages: IntArray,
    memory_objective: NDArray[np.bool_],
    node_ptr: IntArray,
    tensor_ptr: IntArray,
    load: FloatArray,
    param: FloatArray,
    cache: FloatArray,
    overflow: FloatArray,
    in_s: FloatArray,
    out_s: FloatArray,
    level: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    tensor_src: IntArray,
    tensor_indptr: IntArray,
    tensor_dst: IntArray,
    features: FloatArray,
) -> None:
    """Fill `features` (N, NUM_STAGE_FEATURES); arrays are those of a `StageBatch`.

    Parameters
    ----------
    order
        (N,) the base order of each graph.
    ends
        (K,) nodes of each graph's base order in its stages up to and including each, from slicing that order.
    """
    stage_base = 0
    for g in range(len(num_stages)):
        base, tensor_base = node_ptr[g], tensor_ptr[g]
        n, m, k = node_ptr[g + 1] - base, tensor_ptr[g + 1] - tensor_base, num_stages[g]
        mine = load[base : base + n]
        enter, leave = in_s[tensor_base : tensor_base + m], out_s[tensor_base : tensor_base + m]
        source = tensor_src[tensor_base : tensor_base + m]
        indptr = tensor_indptr[tensor_base : tensor_base + m + 1]
        total = mine.sum()
        if total <= 0.0:
            total = enter.sum() + leave.sum() + overflow[g] * param[base : base + n].sum()
        if total <= 0.0:
            total = 1.0
        target = total / k
        position = np.empty(n, np.int64)
        for i in range(n):
            position[order[base + i]] = i
        stage = np.empty(n, np.int64)
        first = np.empty(k, np.int64)
        last = np.empty(k, np.int64)
        at = 0
        for s in range(k):
            first[s] = at
            last[s] = ends[stage_base + s]
            while at < last[s]:
                stage[order[base + at]] = s
                at += 1
        cost = _stage_costs(
            n, k, stage, mine, param[base : base + n], cache[g], overflow[g], enter, leave, source, indptr, tensor_dst
        )
        worst = max(cost.max(), 1e-300)
        # Tensors alive across each place between two nodes of the base order: what a cut there would move.
        live = np.zeros(n + 2)
        moved = 0.0
        for t in range(m):
            final = 0
            for d in range(indptr[t], indptr[t + 1]):
                final = max(final, position[tensor_dst[d]])
            live[position[source[t]] + 1] += enter[t] + leave[t]
            live[final + 1] -= enter[t] + leave[t]
            moved += enter[t] + leave[t]
        for i in range(1, n + 2):
            live[i] += live[i - 1]
        depth = 1
        down = np.zeros(n)
        for i in range(n):
            v = order[base + i]
            depth = max(depth, level[base + v] + 1)
            for e in range(pred_indptr[base + v], pred_indptr[base + v + 1]):
                down[v] = max(down[v], down[pred[e]])
            down[v] += mine[v]
        # Load and length of the chain a node ends or begins: nodes with no other way in or out between them.
        chain_before = np.zeros((n, 2))
        chain_after = np.zeros((n, 2))
        for i in range(n):
            v = order[base + i]
            if pred_indptr[base + v + 1] - pred_indptr[base + v] == 1:
                u = pred[pred_indptr[base + v]]
                if succ_indptr[base + u + 1] - succ_indptr[base + u] == 1:
                    chain_before[v, 0] = chain_before[u, 0] + mine[u]
                    chain_before[v, 1] = chain_before[u, 1] + 1.0
        for i in range(n - 1, -1, -1):
            v = order[base + i]
            if succ_indptr[base + v + 1] - succ_indptr[base + v] == 1:
                u = succ[succ_indptr[base + v]]
                if pred_indptr[base + u + 1] - pred_indptr[base + u] == 1:
                    chain_after[v, 0] = chain_after[u, 0] + mine[u]
                    chain_after[v, 1] = chain_after[u, 1] + 1.0
        up = np.zeros(n)
        height = np.zeros(n, np.int64)
        for i in range(n - 1, -1, -1):
            v = order[base + i]
            for e in range(succ_indptr[base + v], succ_indptr[base + v + 1]):
                up[v] = max(up[v], up[succ[e]])
                height[v] = max(height[v], height[succ[e]] + 1)
            up[v] += mine[v]
        before = 0.0
        num_ready = 0
        for v in range(n):
            if pred_indptr[base + v] == pred_indptr[base + v + 1]:
                num_ready += 1
        unmet = np.empty(n, np.int64)
        for v in range(n):
            unmet[v] = pred_indptr[base + v + 1] - pred_indptr[base + v]
        stage_load = np.zeros(k)
        for v in range(n):
            stage_load[stage[v]] += mine[v]
        done = np.zeros(k)
        for i in range(n):
            v = order[base + i]
            row = features[base + v]
            s = stage[v]
            part = mine[v] / target
            row[0] = part / (1.0 + part)
            row[1] = 0.2 * math.log(part + 1e-3)
            send, receive = 0.0, 0.0
            for q in range(out_indptr[base + v], out_indptr[base + v + 1]):
                send += leave[out_tensor[q]]
            for q in range(in_indptr[base + v], in_indptr[base + v + 1]):
                receive += enter[in_tensor[q]]
            row[2] = math.log1p(send / target)
            row[3] = math.log1p(receive / target)
            row[4] = math.log1p(pred_indptr[base + v + 1] - pred_indptr[base + v])
            row[5] = math.log1p(succ_indptr[base + v + 1] - succ_indptr[base + v])
            row[6] = (i + 0.5) / n
            row[7] = (level[base + v] + 0.5) / depth
            row[8] = 1.0 - (height[v] + 0.5) / depth
            row[9] = (depth - 1 - height[v] - level[base + v]) / depth
            row[10] = math.log1p(float(depth - 1 - height[v] - level[base + v]))
            middle = k * (before + 0.5 * mine[v]) / total
            row[11] = middle / k
            row[12] = math.sin(2.0 * math.pi * middle)
            row[13] = math.cos(2.0 * math.pi * middle)
            row[14] = down[v] / total
            row[15] = up[v] / total
            row[16] = math.log1p(live[i] / target)
            row[17] = math.log1p(live[i + 1] / target)
            row[18] = math.log1p(live[i + 1] / target) - math.log1p(live[i] / target)
            nearest = -1
            for e in range(pred_indptr[base + v], pred_indptr[base + v + 1]):
                nearest = max(nearest, position[pred[e]])
            row[19] = 0.5 * math.log1p(float(i - nearest))
            soonest = n
            for e in range(succ_indptr[base + v], succ_indptr[base + v + 1]):
                soonest = min(soonest, position[succ[e]])
            row[20] = 0.5 * math.log1p(float(soonest - i))
            row[21] = math.log1p(float(num_ready))
            row[22] = (s + 0.5) / k
            row[23] = (done[s] + 0.5 * mine[v]) / max(stage_load[s], 1e-300)
            row[24] = math.exp(-0.3 * (i - first[s])) if s > 0 else 0.0
            row[25] = math.exp(-0.3 * (last[s] - 1 - i)) if s < k - 1 else 0.0
            row[26] = cost[s] / worst
            row[27] = cost[s - 1] / worst if s > 0 else 1.0
            row[28] = cost[s + 1] / worst if s < k - 1 else 1.0
            row[29] = 1.0 if cost[s] >= worst * (1.0 - 1e-9) else 0.0
            row[30] = mine[v] / worst
            row[31] = max(-3.0, min(3.0, (worst - cost[s]) / max(mine[v], 1e-300)))
            row[32] = max(-3.0, min(3.0, ((worst - cost[s - 1]) if s > 0 else 0.0) / max(mine[v], 1e-300)))
            row[33] = max(-3.0, min(3.0, ((worst - cost[s + 1]) if s < k - 1 else 0.0) / max(mine[v], 1e-300)))
            row[34] = worst / target - 1.0
            row[35] = 0.5 * math.log(float(k))
            row[36] = 0.2 * math.log(float(n))
            row[37] = 1.0 if memory_objective[g] else 0.0
            row[38] = math.log1p(moved / total)
            over = param[base + v] * overflow[g] / target
            row[39] = over / (1.0 + over)
            part = chain_before[v, 0] / target
            row[40] = part / (1.0 + part)
            row[41] = 0.5 * math.log1p(chain_before[v, 1])
            part = chain_after[v, 0] / target
            row[42] = part / (1.0 + part)
            row[43] = 0.5 * math.log1p(chain_after[v, 1])
            before += mine[v]
            done[s] += mine[v]
            num_ready -= 1
            for e in range(succ_indptr[base + v], succ_indptr[base + v + 1]):
                unmet[succ[e]] -= 1
                if unmet[succ[e]] == 0:
                    num_ready += 1
        stage_base += k
