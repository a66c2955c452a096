"""Features of stage problems: what a node is, where the base order has it, what slicing that order gives."""

from __future__ import annotations

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

_FADING = 0.3
"""Logarithm by which what says how near a node is to an end of its stage falls from one node to the next."""


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
def _chains(
    order: IntArray, load: FloatArray, indptr: IntArray, near: IntArray, back_indptr: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return (n,) load and length of the chain that each node ends: nodes with no other way in or out between them.

    `near` are the neighbours that stand before the node in `order`; `back_indptr` counts those the other way.
    """
    behind, length = np.zeros(len(order)), np.zeros(len(order))
    for v in order:
        if indptr[v + 1] - indptr[v] == 1:
            u = near[indptr[v]]
            if back_indptr[u + 1] - back_indptr[u] == 1:
                behind[v] = behind[u] + load[u]
                length[v] = length[u] + 1.0
    return behind, length


@njit(cache=True, nogil=True)
def _sums_before(values: FloatArray, ptr: IntArray) -> FloatArray:
    """Return the sum of what stands before each value in its segment, ``ptr[i]`` to ``ptr[i + 1]``."""
    before = np.zeros(len(values))
    for g in range(len(ptr) - 1):
        for i in range(ptr[g] + 1, ptr[g + 1]):
            before[i] = before[i - 1] + values[i - 1]
    return before


def _share(part: FloatArray) -> FloatArray:
    return part / (1.0 + part)


class _Joined:
    """Graphs as one: nodes, tensors and stages are numbered through the batch, and places (slots) in the base order."""

    def __init__(self, order: IntArray, ends: IntArray, batch: SliceBatch, near: Precedence) -> None:
        self.batch, self.near, self.k = batch, near, batch.num_stages
        node_ptr, tensors = batch.node_ptr, batch.tensors
        self.size = np.diff(node_ptr)
        self.graph = np.repeat(np.arange(len(self.k)), self.size)
        self.base = node_ptr[self.graph]
        self.of_tensor = np.repeat(np.arange(len(self.k)), np.diff(batch.tensor_ptr))
        self.owner = np.repeat(np.arange(len(tensors.src)), np.diff(tensors.indptr))
        self.src = tensors.src + node_ptr[self.of_tensor]
        self.dst = tensors.dst + node_ptr[self.of_tensor[self.owner]]
        self.pred_of = np.repeat(np.arange(len(order)), np.diff(near.pred_indptr))
        self.succ_of = np.repeat(np.arange(len(order)), np.diff(near.succ_indptr))
        self.pred, self.succ = near.pred + self.base[self.pred_of], near.succ + self.base[self.succ_of]
        self.sequence = order + self.base
        self.slot = np.empty(len(order), np.int64)
        self.slot[self.sequence] = np.arange(len(order))
        self.stage_ptr = np.append(0, np.cumsum(self.k))
        self.last = ends + np.repeat(node_ptr[:-1], self.k)
        self.first = np.append(0, self.last[:-1])
        self.stage = np.repeat(np.arange(len(ends)), self.last - self.first)[self.slot]
        loads, moved = np.bincount(self.graph, batch.load, len(self.k)), batch.in_s + batch.out_s
        self.moved = np.bincount(self.of_tensor, moved, len(self.k))
        # Where nodes have no load, the seconds of all tensors and overflow; then 1.
        held = np.bincount(self.graph, batch.param, len(self.k))
        self.total = np.where(loads > 0.0, loads, self.moved + np.where(batch.overflow > 0, batch.overflow * held, 0.0))
        self.total[self.total <= 0.0] = 1.0
        self.cost = self._stage_costs()
        self.worst = np.maximum(np.maximum.reduceat(self.cost, self.stage_ptr[:-1]), _TINY)

    def _stage_costs(self) -> FloatArray:
        """Return (K,) the cost of each stage of the sliced base order."""
        batch, count = self.batch, len(self.last)
        made, used = self.stage[self.src], self.stage[self.dst]
        crosses = used != made[self.owner]
        enters = np.unique(self.owner[crosses] * count + used[crosses])
        tensor = np.unique(self.owner[crosses])
        cost = np.bincount(self.stage, batch.load, count) + np.bincount(made[tensor], batch.out_s[tensor], count)
        cost += np.bincount(enters % count, batch.in_s[enters // count], count)
        over = np.maximum(np.bincount(self.stage, batch.param, count) - np.repeat(batch.cache, self.k), 0.0)
        return np.asarray(cost + over * np.repeat(batch.overflow, self.k), np.float64)

    def live_s(self) -> tuple[FloatArray, FloatArray]:
        """Return (N,) seconds to move the tensors alive before the place of each node, and after it, as a cut would."""
        moved = self.batch.in_s + self.batch.out_s
        ptr = self.batch.node_ptr + np.arange(len(self.size) + 1)
        final = self.slot[self.src]
        np.maximum.at(final, self.owner, self.slot[self.dst])
        change: FloatArray = np.zeros(ptr[-1])
        change += np.bincount(self.slot[self.src] + self.of_tensor + 1, moved, ptr[-1])
        change -= np.bincount(final + self.of_tensor + 1, moved, ptr[-1])
        live = _sums_before(change, ptr) + change
        at = self.slot + self.graph
        return live[at], live[at + 1]


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
    one = _Joined(order, ends, batch, near)
    graph, load = one.graph, batch.load
    total, k = one.total[graph], one.k[graph].astype(np.float64)
    _fill_nodes(one, total / k, features)
    _fill_paths(one, level, total, total / k, features)
    _fill_places(one, total, k, features)
    _fill_stages(one, k, features)
    features[:, 30] = load / one.worst[graph]
    features[:, 34] = one.worst[graph] * k / total - 1.0
    features[:, 35] = 0.5 * np.log(k)
    features[:, 36] = 0.2 * np.log(one.size[graph])
    features[:, 37] = batch.ordered[graph]
    features[:, 38] = np.log1p(one.moved / one.total)[graph]


def _fill_nodes(one: _Joined, target: FloatArray, features: FloatArray) -> None:
    """Fill in load, seconds of tensors, seconds if the parameters overflow the cache, and numbers of neighbours."""
    batch, n = one.batch, len(one.graph)
    features[:, 0] = _share(batch.load / target)
    features[:, 1] = 0.2 * np.log(batch.load / target + 1e-3)
    features[:, 2] = np.log1p(np.bincount(one.src, batch.out_s, n) / target)
    features[:, 3] = np.log1p(np.bincount(one.dst, batch.in_s[one.owner], n) / target)
    features[:, 4] = np.log1p(np.diff(one.near.pred_indptr))
    features[:, 5] = np.log1p(np.diff(one.near.succ_indptr))
    features[:, 39] = _share(batch.param * batch.overflow[one.graph] / target)


def _fill_paths(one: _Joined, level: IntArray, total: FloatArray, target: FloatArray, features: FloatArray) -> None:
    """Fill in where each node is between sources and sinks, and load and length of the chains it ends and begins."""
    load, near, backwards = one.batch.load, one.near, one.sequence[::-1].copy()
    depth = np.maximum.reduceat(level, one.batch.node_ptr[:-1])[one.graph] + 1
    down, _ = _longest_paths(one.sequence, load, near.pred_indptr, one.pred)
    up, height = _longest_paths(backwards, load, near.succ_indptr, one.succ)
    slack = depth - 1 - height - level
    features[:, 7] = (level + 0.5) / depth
    features[:, 8] = 1.0 - (height + 0.5) / depth
    features[:, 9] = slack / depth
    features[:, 10] = np.log1p(slack)
    features[:, 14] = down / total
    features[:, 15] = up / total
    ended = _chains(one.sequence, load, near.pred_indptr, one.pred, near.succ_indptr)
    begun = _chains(backwards, load, near.succ_indptr, one.succ, near.pred_indptr)
    for column, (seconds, length) in ((40, ended), (42, begun)):
        features[:, column] = _share(seconds / target)
        features[:, column + 1] = 0.5 * np.log1p(length)


def _fill_places(one: _Joined, total: FloatArray, k: FloatArray, features: FloatArray) -> None:
    """Fill in where the base order has each node, which stage that would be, what cuts there move, and who is near."""
    slot, load, count = one.slot, one.batch.load, len(one.slot)
    before = _sums_before(load[one.sequence], one.batch.node_ptr)[slot]
    middle = k * (before + 0.5 * load) / total
    cuts = [np.log1p(live * k / total) for live in one.live_s()]
    features[:, 6] = (slot - one.base + 0.5) / one.size[one.graph]
    features[:, 11] = middle / k
    features[:, 12] = np.sin(2.0 * np.pi * middle)
    features[:, 13] = np.cos(2.0 * np.pi * middle)
    features[:, 16], features[:, 17], features[:, 18] = *cuts, cuts[1] - cuts[0]
    nearest, soonest = one.base - 1, one.base + one.size[one.graph]
    np.maximum.at(nearest, one.pred_of, slot[one.pred])
    np.minimum.at(soonest, one.succ_of, slot[one.succ])
    # A node is ready from the place behind its last predecessor on, until its own.
    ready = np.cumsum(np.bincount(nearest + 1, minlength=count)) - np.arange(count)
    features[:, 19] = 0.5 * np.log1p(slot - nearest)
    features[:, 20] = 0.5 * np.log1p(soonest - slot)
    features[:, 21] = np.log1p(ready[slot])


def _fill_stages(one: _Joined, k: FloatArray, features: FloatArray) -> None:
    """Fill in the stage of each node, where in it the node is, and what this stage and those beside it cost."""
    slot, stage, load, cost = one.slot, one.stage, one.batch.load, one.cost
    at = stage - one.stage_ptr[one.graph]
    done = _sums_before(load[one.sequence], np.append(one.first, len(slot)))[slot]
    has_before, has_after = at > 0, at < k - 1
    features[:, 22] = (at + 0.5) / k
    features[:, 23] = (done + 0.5 * load) / np.maximum(np.bincount(stage, load, len(cost)), _TINY)[stage]
    features[:, 24] = np.where(has_before, np.exp(-_FADING * (slot - one.first[stage])), 0.0)
    features[:, 25] = np.where(has_after, np.exp(-_FADING * (one.last[stage] - 1 - slot)), 0.0)
    worst = one.worst[one.graph]
    # A missing stage costs as much as the bottleneck.
    previous = np.where(has_before, cost[stage - 1], worst)
    following = np.where(has_after, np.append(cost[1:], 0.0)[stage], worst)
    for column, seconds in enumerate((cost[stage], previous, following)):
        features[:, 26 + column] = seconds / worst
        with np.errstate(over="ignore"):
            slack = (worst - seconds) / np.maximum(load, _TINY)
        features[:, 31 + column] = np.clip(slack, -_MOST_SLACK, _MOST_SLACK)
    features[:, 29] = cost[stage] >= worst * (1.0 - 1e-9)
