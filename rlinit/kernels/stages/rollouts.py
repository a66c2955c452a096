"""Compiled rollouts of stage agents: orders drawn by a masked softmax over keys, their log-probabilities, their slices.

A batch is the disjoint union of G graphs. Node v of graph g sits at ``node_ptr[g] + v`` in arrays over nodes; `succ`
and the like hold numbers within the graph, and pointers into them count through the whole batch. Row s of `orders`
(S, N) is the s-th order of every graph, each in its graph's slots.

The policy: of the ready nodes R, those whose predecessors are all taken, the next is v with probability
exp(key_v) / sum over u in R of exp(key_u).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.splitmix import GOLDEN, stream, uniform
from rlinit.kernels.stages.arrays import CostArrays, TensorArrays
from rlinit.kernels.stages.slicing import BottleneckLabels, Chain, States, pipeline_pass, positions


@njit(cache=True, nogil=True, inline="always")
def _first_ready(n: int, pred_indptr: IntArray, waiting: IntArray, ready: IntArray, place: IntArray) -> int:
    """List the nodes 0..n-1 without predecessors in `ready`; return how many.

    `waiting` gets how many predecessors each node waits for, `place` where the ready ones are listed.
    """
    count = 0
    for v in range(n):
        waiting[v] = pred_indptr[v + 1] - pred_indptr[v]
        if waiting[v] == 0:
            ready[count] = v
            place[v] = count
            count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _without(
    u: int, count: int, succ_indptr: IntArray, succ: IntArray, waiting: IntArray, ready: IntArray, place: IntArray
) -> int:
    """Take node u off the list of `count` ready nodes, add those that waited for it last; return how many there are."""
    count -= 1
    moved = ready[count]
    ready[place[u]] = moved
    place[moved] = place[u]
    for e in range(succ_indptr[u], succ_indptr[u + 1]):
        v = succ[e]
        waiting[v] -= 1
        if waiting[v] == 0:
            ready[count] = v
            place[v] = count
            count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _softmax(keys: FloatArray, ready: IntArray, count: int, weight: FloatArray) -> tuple[float, float, float]:
    """Write the weights of ready nodes, 1 for the greatest key; return that key, their sum, and that of key less it."""
    top, total, mean = -np.inf, 0.0, 0.0
    for j in range(count):
        top = max(top, keys[ready[j]])
    for j in range(count):
        key = keys[ready[j]] - top
        weight[j] = math.exp(key)
        total += weight[j]
        mean += weight[j] * key
    return top, total, mean


@njit(cache=True, nogil=True)
def sample_orders(
    keys: FloatArray,
    node_ptr: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    samples: int,
    seed: int,
    orders: IntArray,
) -> None:
    """Fill `orders` (samples, N) with draws from the policy.

    Each (graph, sample) has a random stream of its own (SplitMix64), so draws do not depend on the batch beyond the
    number of the graph in it.

    Parameters
    ----------
    keys
        (N,) float64, already divided by the temperature.
    seed
        Of the draws.
    """
    most = np.diff(node_ptr).max()
    waiting, ready, place = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    weight = np.empty(most)
    for g in range(len(node_ptr) - 1):
        base = node_ptr[g]
        n = node_ptr[g + 1] - base
        for s in range(samples):
            state = stream(seed, g * samples + s)
            count = _first_ready(n, pred_indptr[base:], waiting, ready, place)
            for i in range(n):
                slot = 0
                if count > 1:
                    _, total, _ = _softmax(keys[base:], ready, count, weight)
                    state += GOLDEN
                    left = uniform(state) * total
                    while slot < count - 1 and left >= weight[slot]:
                        left -= weight[slot]
                        slot += 1
                u = ready[slot]
                orders[s, base + i] = u
                count = _without(u, count, succ_indptr[base:], succ, waiting, ready, place)


@njit(cache=True, nogil=True)
def choice_terms(
    keys: FloatArray,
    node_ptr: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    orders: IntArray,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return (S, N) log-probability, entropy in nats and number of candidates of the choice at each place of `orders`.

    The first two are 0 where there was one candidate.

    Parameters
    ----------
    keys
        (N,) priority of each node.
    node_ptr
        Nodes of graph g: ``node_ptr[g]`` to ``node_ptr[g + 1]``.
    succ_indptr, succ, pred_indptr
        The precedence graph.
    orders
        (S, N) orders of each graph's nodes.
    """
    log_prob, entropy = np.zeros(orders.shape), np.zeros(orders.shape)
    num_ready = np.empty(orders.shape, np.int64)
    most = np.diff(node_ptr).max()
    waiting, ready, place = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    weight = np.empty(most)
    for g in range(len(node_ptr) - 1):
        base = node_ptr[g]
        n = node_ptr[g + 1] - base
        for s in range(len(orders)):
            count = _first_ready(n, pred_indptr[base:], waiting, ready, place)
            for i in range(n):
                u = orders[s, base + i]
                num_ready[s, base + i] = count
                if count > 1:
                    top, total, mean = _softmax(keys[base:], ready, count, weight)
                    log_total = math.log(total)
                    log_prob[s, base + i] = keys[base + u] - top - log_total
                    entropy[s, base + i] = log_total - mean / total
                count = _without(u, count, succ_indptr[base:], succ, waiting, ready, place)
    return log_prob, entropy, num_ready


@njit(cache=True, nogil=True)
def choice_gradient(
    keys: FloatArray,
    node_ptr: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    orders: IntArray,
    log_prob_grad: FloatArray,
    entropy_grad: FloatArray,
) -> FloatArray:
    """Return (N,) the gradient of `choice_terms` with respect to the keys.

    With p the softmax over the ready nodes and H its entropy, d log p_u / d key_v = [u = v] - p_v and
    d H / d key_v = -p_v (log p_v + H).

    Parameters
    ----------
    keys
        (N,) priority of each node.
    node_ptr
        Nodes of graph g: ``node_ptr[g]`` to ``node_ptr[g + 1]``.
    succ_indptr, succ, pred_indptr
        The precedence graph.
    orders
        (S, N) orders of each graph's nodes.
    log_prob_grad, entropy_grad
        (S, N) gradients with respect to the terms.
    """
    grad = np.zeros(len(keys))
    most = np.diff(node_ptr).max()
    waiting, ready, place = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    weight = np.empty(most)
    for g in range(len(node_ptr) - 1):
        base = node_ptr[g]
        n = node_ptr[g + 1] - base
        for s in range(len(orders)):
            count = _first_ready(n, pred_indptr[base:], waiting, ready, place)
            for i in range(n):
                u = orders[s, base + i]
                if count > 1:
                    top, total, mean = _softmax(keys[base:], ready, count, weight)
                    log_total = math.log(total)
                    entropy = log_total - mean / total
                    by_log_prob, by_entropy = log_prob_grad[s, base + i], entropy_grad[s, base + i]
                    for j in range(count):
                        p = weight[j] / total
                        log_p = keys[base + ready[j]] - top - log_total
                        grad[base + ready[j]] -= p * (by_log_prob + by_entropy * (log_p + entropy))
                    grad[base + u] += by_log_prob
                count = _without(u, count, succ_indptr[base:], succ, waiting, ready, place)
    return grad


class SliceBatch(NamedTuple):
    """G problems of equal stages with N nodes and M tensors in all, as slicing needs them; see `StageBatch`.

    `ordered` (G,) bool: stages may stay empty (`memory`). `load` (N,) is seconds (bytes for `memory`), `cache`,
    `memory` and `overflow` are (G,), `in_s` and `out_s` (M,).
    """

    node_ptr: IntArray
    tensor_ptr: IntArray
    num_stages: IntArray
    ordered: NDArray[np.bool_]
    load: FloatArray
    param: FloatArray
    cache: FloatArray
    memory: FloatArray
    overflow: FloatArray
    in_s: FloatArray
    out_s: FloatArray
    tensors: TensorArrays


@njit(cache=True, nogil=True)
def _one_graph(g: int, batch: SliceBatch) -> tuple[CostArrays, TensorArrays, States]:
    """Return the costs, tensors and states of graph g alone."""
    base, stop = batch.node_ptr[g], batch.node_ptr[g + 1]
    tensor_base, tensor_stop = batch.tensor_ptr[g], batch.tensor_ptr[g + 1]
    k = batch.num_stages[g]
    step = np.empty((k + 1, 1), np.int64)
    left = np.empty(k + 1)
    for s in range(k + 1):
        step[s, 0] = s + 1 if s < k else -1
        left[s] = k - s
    costs = CostArrays(
        batch.load[base:stop].copy().reshape((1, stop - base)),
        batch.param[base:stop],
        batch.cache[g : g + 1],
        batch.memory[g : g + 1],
        batch.overflow[g : g + 1],
        batch.in_s[tensor_base:tensor_stop].copy().reshape((1, tensor_stop - tensor_base)),
        batch.out_s[tensor_base:tensor_stop].copy().reshape((1, tensor_stop - tensor_base)),
    )
    joined = batch.tensors
    tensors = TensorArrays(
        joined.out_indptr[base : stop + 1],
        joined.out_tensor,
        joined.in_indptr[base : stop + 1],
        joined.in_tensor,
        joined.src[tensor_base:tensor_stop],
        joined.indptr[tensor_base : tensor_stop + 1],
        joined.dst,
    )
    return costs, tensors, States(step, left, batch.ordered[g])


@njit(cache=True, nogil=True)
def _slice(
    guess: float, chain: Chain, costs: CostArrays, tensors: TensorArrays, states: States, labels: BottleneckLabels
) -> int:
    """Fill the labels by passes under growing thresholds; return the state that the best slicing ends in, -1 if none.

    The first pass that reaches the end has found the best. Thresholds grow fast, since most orders are about as good as
    the guess.
    """
    n, k = len(chain.order), len(states.left) - 1
    whole = costs.work.sum() + costs.in_s.sum() + costs.out_s.sum() + costs.overflow[0] * costs.param.sum()
    ceiling = whole * (1.0 + 1e-9)
    threshold = min(max(guess, chain.rest[0] / k), ceiling)
    while True:
        labels.value[:] = np.inf
        labels.value[0, 0] = 0.0
        pipeline_pass(threshold, 0, n + 1, chain, costs, tensors, states, labels)
        state = np.argmin(labels.value[:, n])
        if labels.value[state, n] < np.inf:
            return int(state)
        if threshold >= ceiling:
            return -1
        threshold = min(threshold * 1.3, ceiling) if threshold > 0.0 else ceiling


@njit(cache=True, nogil=True)
def slice_values(
    orders: IntArray, first_guess: FloatArray, batch: SliceBatch, values: FloatArray, ends: IntArray
) -> None:
    """Fill `values` (G, S) with the bottleneck of the best slicing of each order, inf where none is allowed.

    All stages of a graph are of one class. The passes under a threshold are those of `rlinit.stages.slicing`.

    Parameters
    ----------
    orders
        (S, N) topological orders.
    first_guess
        (G,) a value most orders reach.
    batch
        The problems.
    ends
        (S, K) overwritten: the nodes in the stages up to and including each, for the graphs one after another (K is
        the sum of their numbers of stages).
    """
    num_graphs, samples = values.shape
    stage_base = 0
    for g in range(num_graphs):
        base, stop, k = batch.node_ptr[g], batch.node_ptr[g + 1], batch.num_stages[g]
        n = stop - base
        costs, tensors, states = _one_graph(g, batch)
        position = np.empty(n, np.int64)
        last_use = np.zeros(len(tensors.src), np.int64)
        rest = np.empty(n + 1)
        shape = (k + 1, n + 1)
        labels = BottleneckLabels(np.empty(shape), np.empty(shape, np.int32), np.empty(shape, np.int16))
        for s in range(samples):
            order = orders[s, base:stop]
            positions(order, tensors, position, last_use)
            rest[n] = 0.0
            for i in range(n - 1, -1, -1):
                rest[i] = rest[i + 1] + costs.work[0, order[i]]
            chain = Chain(order, position, last_use, rest)
            state = _slice(first_guess[g], chain, costs, tensors, states, labels)
            values[g, s] = np.inf
            if state >= 0:
                values[g, s] = labels.value[state, n]
                at = n
                for j in range(k - 1, -1, -1):
                    ends[s, stage_base + j] = at
                    if j < state:
                        at = labels.back[j + 1, at]
        stage_base += k
