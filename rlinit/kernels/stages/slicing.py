"""Compiled passes of the dynamic program that cuts an order of the nodes into stages, and longest-first slicing.

A stage is a pair of prefixes of the order, start < end; walking along the order from a start keeps the cost of the
stage up to date. Labels are kept for each *state*: which stages are used up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import CostArrays, TensorArrays


class Chain(NamedTuple):
    """An order of n nodes: `order`, each node's `position` in it, the `last_use` (m,) of each tensor, `rest` (n + 1,).

    ``last_use[t]`` is the position of its last consumer, ``rest[i]`` the least cost of the nodes from position i on.
    """

    order: IntArray
    position: IntArray
    last_use: IntArray
    rest: FloatArray


class States(NamedTuple):
    """Which stages are used up, as S states.

    ``step[s, c]`` is the state after one more stage of class c, or -1; ``left[s]`` is how many stages remain. With
    `skip_empty` states follow each other, and a stage may stay empty.
    """

    step: IntArray
    left: FloatArray
    skip_empty: bool


class BottleneckLabels(NamedTuple):
    """(S, n + 1) smallest bottleneck with which a state reaches a prefix, the prefix and class that it came by."""

    value: FloatArray
    back: NDArray[np.int32]
    back_class: NDArray[np.int16]


class MemoryLabels(NamedTuple):
    """(k + 1, n + 1) least off-cache bytes of the first stages, least traffic with them, the prefix they came by."""

    off_cache: FloatArray
    traffic: FloatArray
    back: NDArray[np.int32]


@njit(cache=True, nogil=True)
def positions(order: IntArray, tensors: TensorArrays, position: IntArray, last_use: IntArray) -> None:
    """Fill `position` (n,) and `last_use` (m,) of an order; every tensor has a consumer.

    Parameters
    ----------
    order
        (n,) the nodes in order.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    position, last_use
        (n,) and (m,) to be filled.
    """
    for at in range(len(order)):
        v = order[at]
        position[v] = at
        for q in range(tensors.in_indptr[v], tensors.in_indptr[v + 1]):
            last_use[tensors.in_tensor[q]] = at


@njit(cache=True, nogil=True, inline="always")
def enter_costs(
    start: int, at: int, chain: Chain, costs: CostArrays, tensors: TensorArrays, stamp: IntArray, enter: FloatArray
) -> None:
    """Add to `enter` (c,) the tensors from before `start` that the node at `at` is the first of the stage to read.

    Parameters
    ----------
    start, at
        First position of the stage, and the position that joins it.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    stamp
        (m,) the `start` of the walk that last counted each tensor.
    enter
        (c,) seconds of input by class, to be added to.
    """
    v = chain.order[at]
    for q in range(tensors.in_indptr[v], tensors.in_indptr[v + 1]):
        t = tensors.in_tensor[q]
        if chain.position[tensors.src[t]] < start and stamp[t] != start:
            stamp[t] = start
            for c in range(len(enter)):
                enter[c] += costs.in_s[c, t]


@njit(cache=True, nogil=True, inline="always")
def leave_costs(start: int, at: int, chain: Chain, costs: CostArrays, tensors: TensorArrays, leave: FloatArray) -> None:
    """Take from `leave` (c,) the stage's tensors that the node at `at` is the last to read, and add those it makes.

    Parameters
    ----------
    start, at
        First position of the stage, and the position that joins it.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    leave
        (c,) seconds of output by class, to be changed.
    """
    v = chain.order[at]
    for q in range(tensors.in_indptr[v], tensors.in_indptr[v + 1]):
        t = tensors.in_tensor[q]
        if chain.last_use[t] == at and chain.position[tensors.src[t]] >= start:
            for c in range(len(leave)):
                leave[c] -= costs.out_s[c, t]
    for q in range(tensors.out_indptr[v], tensors.out_indptr[v + 1]):
        t = tensors.out_tensor[q]
        for c in range(len(leave)):
            leave[c] += costs.out_s[c, t]


@njit(cache=True, nogil=True, inline="always")
def _alive(start: int, limit: float, chain: Chain, states: States, labels: BottleneckLabels, alive: IntArray) -> int:
    """List the states that reach `start` and have stages enough for what is left; return how many."""
    count = 0
    for s in range(len(alive)):
        if labels.value[s, start] <= limit and chain.rest[start] <= states.left[s] * limit:
            alive[count] = s
            count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _skip_empty(start: int, labels: BottleneckLabels) -> None:
    """Pass labels on to the state after an empty stage."""
    for s in range(len(labels.value) - 1):
        if labels.value[s, start] < labels.value[s + 1, start]:
            labels.value[s + 1, start] = labels.value[s, start]
            labels.back[s + 1, start] = start
            labels.back_class[s + 1, start] = -1


@njit(cache=True, nogil=True)
def pipeline_pass(
    threshold: float,
    first: int,
    last: int,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    states: States,
    labels: BottleneckLabels,
) -> int:
    """Extend labels from prefixes first..last-1 by every stage of cost at most `threshold`; return the stages met.

    A label is inf where no bottleneck is at most the threshold. Work plus input plus overflow only grow along a walk,
    so a walk ends where they exceed the threshold; the output part may shrink again and is only held against it where
    a stage ends. A state with too few stages left for the rest is dead.

    Parameters
    ----------
    threshold
        Most seconds of a stage.
    first, last
        Prefixes: the first, and the one after the last.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    states
        Which stages are used up.
    labels
        (S, n + 1) each, changed in place.
    """
    num_classes, n = costs.work.shape
    stamp = np.full(len(tensors.src), -1, np.int64)
    busy, enter, leave = np.empty(num_classes), np.empty(num_classes), np.empty(num_classes)
    alive = np.empty(len(labels.value), np.int64)
    limit = threshold * (1.0 + ROUNDING)
    met = 0
    for start in range(first, last):
        if states.skip_empty:
            _skip_empty(start, labels)
        num_alive = _alive(start, limit, chain, states, labels, alive)
        if num_alive == 0:
            continue
        busy[:], enter[:], leave[:] = 0.0, 0.0, 0.0
        held = 0.0
        for at in range(start, n):
            v = chain.order[at]
            held += costs.param[v]
            enter_costs(start, at, chain, costs, tensors, stamp, enter)
            fits = False
            for c in range(num_classes):
                busy[c] += costs.work[c, v]
                cost = enter[c] + busy[c]
                if held > costs.cache[c]:
                    cost += (held - costs.cache[c]) * costs.overflow[c]
                if held <= costs.memory[c] * (1.0 + ROUNDING) and cost <= limit:
                    fits = True
            if not fits:
                break
            leave_costs(start, at, chain, costs, tensors, leave)
            met += 1
            for c in range(num_classes):
                if held > costs.memory[c] * (1.0 + ROUNDING):
                    continue
                cost = busy[c] + enter[c] + leave[c]
                if held > costs.cache[c]:
                    cost += (held - costs.cache[c]) * costs.overflow[c]
                if cost > limit:
                    continue
                for i in range(num_alive):
                    s = states.step[alive[i], c]
                    if s >= 0:
                        reached = max(cost, labels.value[alive[i], start])
                        if reached < labels.value[s, at + 1]:
                            labels.value[s, at + 1] = reached
                            labels.back[s, at + 1] = start
                            labels.back_class[s, at + 1] = c
    return met


@njit(cache=True, nogil=True, inline="always")
def _less(off: float, sent: float, other_off: float, other_sent: float, tie: float) -> bool:
    """Compare (off-cache, traffic) lexicographically; off-cache sums that differ by at most `tie` are equal."""
    return off < other_off - tie or (off <= other_off + tie and sent < other_sent)


@njit(cache=True, nogil=True, inline="always")
def _fill_empty(start: int, peak: float, tie: float, chain: Chain, labels: MemoryLabels, alive: IntArray) -> int:
    """Pass labels over empty stages, list the numbers of filled stages that can go on at `start`, return how many."""
    off_cache, traffic = labels.off_cache, labels.traffic
    k = len(off_cache) - 1
    count = 0
    for j in range(k + 1):
        if j > 0 and _less(off_cache[j - 1, start], traffic[j - 1, start], off_cache[j, start], traffic[j, start], tie):
            off_cache[j, start] = off_cache[j - 1, start]
            traffic[j, start] = traffic[j - 1, start]
            labels.back[j, start] = start
        if j < k and off_cache[j, start] < np.inf and chain.rest[start] <= (k - j) * peak:
            alive[count] = j
            count += 1
    return count


@njit(cache=True, nogil=True)
def memory_pass(
    peak: float,
    tie: float,
    first: int,
    last: int,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    stage_class: IntArray,
    labels: MemoryLabels,
) -> int:
    """Extend (off-cache bytes, traffic) labels by every stage of at most `peak` parameter bytes; return the stages met.

    State j is "the first j stages are filled". Labels are compared lexicographically; off-cache sums that differ by at
    most `tie` count as equal. Optimal substructure: a prefix of an optimal schedule has the smallest sum, and among
    those the smallest traffic. `costs.work` is infinite where a node may not run, ``costs.out_s[0]`` bytes of tensors.

    Parameters
    ----------
    peak
        Most parameter bytes of a stage.
    tie
        Bytes by which equal sums may differ.
    first, last
        Prefixes: the first, and the one after the last.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    stage_class
        (k,) class of the device at each stage.
    labels
        (k + 1, n + 1) each, changed in place.
    """
    num_classes, n = costs.work.shape
    leave = np.empty(1)
    allowed = np.empty(num_classes, np.bool_)
    alive = np.empty(len(labels.off_cache), np.int64)
    limit = peak * (1.0 + ROUNDING)
    met = 0
    for start in range(first, last):
        num_alive = _fill_empty(start, limit, tie, chain, labels, alive)
        if num_alive == 0:
            continue
        leave[0] = 0.0
        allowed[:] = True
        held = 0.0
        for at in range(start, n):
            v = chain.order[at]
            held += costs.param[v]
            fits = False
            for c in range(num_classes):
                allowed[c] = allowed[c] and costs.work[c, v] < np.inf and held <= costs.memory[c] * (1.0 + ROUNDING)
                fits = fits or allowed[c]
            if held > limit or not fits:
                break
            leave_costs(start, at, chain, costs, tensors, leave)
            met += 1
            for i in range(num_alive):
                j = alive[i]
                c = stage_class[j]
                if not allowed[c]:
                    continue
                off = labels.off_cache[j, start] + max(0.0, held - costs.cache[c])
                sent = max(labels.traffic[j, start], leave[0])
                if _less(off, sent, labels.off_cache[j + 1, at + 1], labels.traffic[j + 1, at + 1], tie):
                    labels.off_cache[j + 1, at + 1] = off
                    labels.traffic[j + 1, at + 1] = sent
                    labels.back[j + 1, at + 1] = start
    return met


@njit(cache=True, nogil=True)
def greedy_ends(
    threshold: float,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    stage_class: IntArray,
    ends: IntArray,
) -> int:
    """Fill `ends` (k,) by longest-first slicing into stages of cost at most `threshold`; return the nodes placed.

    Stage j has class ``stage_class[j]`` and stays empty where its first node does not fit. Not exact (a shorter stage
    can make the next one cheaper), so less than n proves nothing.

    Parameters
    ----------
    threshold
        Most seconds of a stage.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    stage_class
        (k,) class of the device at each stage.
    ends
        (k,) to be filled with the position past the last of each stage.
    """
    n = len(chain.order)
    stamp = np.full(len(tensors.src), -1, np.int64)
    start = 0
    for j in range(len(stage_class)):
        c = stage_class[j]
        end = start
        busy, enter, leave, held = 0.0, 0.0, 0.0, 0.0
        for at in range(start, n):
            v = chain.order[at]
            busy += costs.work[c, v]
            held += costs.param[v]
            for q in range(tensors.in_indptr[v], tensors.in_indptr[v + 1]):
                t = tensors.in_tensor[q]
                if chain.position[tensors.src[t]] < start:
                    if stamp[t] != j:
                        stamp[t] = j
                        enter += costs.in_s[c, t]
                elif chain.last_use[t] == at:
                    leave -= costs.out_s[c, t]
            for q in range(tensors.out_indptr[v], tensors.out_indptr[v + 1]):
                leave += costs.out_s[c, tensors.out_tensor[q]]
            cost = busy + enter
            if held > costs.cache[c]:
                cost += (held - costs.cache[c]) * costs.overflow[c]
            if cost > threshold or held > costs.memory[c]:
                break
            if cost + leave <= threshold:
                end = at + 1
        ends[j] = end
        start = end
    return start


@njit(cache=True, nogil=True)
def longest_first(
    low: float,
    high: float,
    halvings: int,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    stage_class: IntArray,
    ends: IntArray,
) -> float:
    """Return the smallest threshold between `low` and `high` that longest-first slicing was seen to keep, or inf.

    Fills `ends` (k,) with its stages. Bisects `halvings` times; inf where not even `high` is kept.

    Parameters
    ----------
    low, high
        Seconds between which the threshold is searched.
    halvings
        Bisection steps, at least 0.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    stage_class
        (k,) class of the device at each stage.
    ends
        (k,) to be filled with the position past the last of each stage.
    """
    n = len(chain.order)
    tried = np.empty_like(ends)
    if greedy_ends(high, chain, costs, tensors, stage_class, ends) < n:
        return np.inf
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        if greedy_ends(middle, chain, costs, tensors, stage_class, tried) == n:
            high = middle
            for j in range(len(ends)):  # an assignment of arrays takes two seconds more to compile
                ends[j] = tried[j]
        else:
            low = middle
    return high
