"""Compiled passes of the dynamic program that cuts a lattice of prefixes into stages; one order's is a chain.

A lattice is a graph of prefixes: prefix 0 is empty, the last one is everything, and transition e leads from a prefix
to ``next_prefix[e]`` by adding ``added[e]``; transitions of prefix i are ``indptr[i]:indptr[i+1]``. Successors come
after their predecessors. A stage is a pair of prefixes, found by a depth-first walk from its first prefix that keeps
the stage's cost up to date and visits every later prefix at most once.

Labels are kept for each *state*: which stages are used up. ``step[s, c]`` is the state after one more stage of class c,
or -1; ``left[s]`` is how many stages remain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["greedy_slices", "memory_pass", "pipeline_pass", "prefix_sums", "stages_of_cuts"]

_SLACK = 1.0 + 1e-12
"""Room for rounding in comparisons with a threshold: never prunes what is exactly at it."""


@njit(cache=True, nogil=True)
def pipeline_pass(
    threshold: float,
    first: int,
    last: int,
    skip_empty: bool,
    indptr: IntArray,
    added: IntArray,
    next_prefix: IntArray,
    rest: FloatArray,
    step: IntArray,
    left: FloatArray,
    work: FloatArray,
    param: FloatArray,
    cache: FloatArray,
    memory: FloatArray,
    overflow: FloatArray,
    in_s: FloatArray,
    out_s: FloatArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    tensor_src: IntArray,
    num_consumers: IntArray,
    label: FloatArray,
    back: NDArray[np.int32],
    back_class: NDArray[np.int8],
    visited: IntArray,
) -> int:
    """Extend labels from prefixes first..last-1 by every stage of cost at most `threshold`; return the stages met.

    ``label[s, i]`` is the smallest bottleneck with which state s reaches prefix i, inf where none is at most the
    threshold. Work plus input plus overflow only grow along a walk, so a walk ends where they exceed the threshold;
    the output part may shrink again and is only held against it where a stage ends. `rest` is the least work after
    each prefix: a state with too few stages left for it is dead. With `skip_empty`, states follow each other and a
    stage may stay empty.
    """
    num_classes, n = work.shape
    num_states, num_prefixes = label.shape
    used = np.zeros(len(tensor_src), np.int64)
    unused = np.zeros(len(tensor_src), np.int64)
    member = np.zeros(n, np.bool_)
    at = np.empty(n + 1, np.int64)
    edge = np.empty(n + 1, np.int64)
    node = np.empty(n + 1, np.int64)
    held = np.zeros(n + 1)
    busy = np.zeros((n + 1, num_classes))
    enter = np.zeros((n + 1, num_classes))
    leave = np.zeros((n + 1, num_classes))
    alive = np.empty(num_states, np.int64)
    limit = threshold * _SLACK
    met = 0
    for start in range(first, last):
        if skip_empty:
            for s in range(num_states - 1):
                if label[s, start] < label[s + 1, start]:
                    label[s + 1, start] = label[s, start]
                    back[s + 1, start] = start
                    back_class[s + 1, start] = -1
        num_alive = 0
        for s in range(num_states):
            if label[s, start] <= limit and rest[start] <= left[s] * limit:
                alive[num_alive] = s
                num_alive += 1
        if num_alive == 0 or start == num_prefixes - 1:
            continue
        depth = 0
        at[0] = start
        edge[0] = indptr[start]
        visited[start] = start
        while depth >= 0:
            if edge[depth] == indptr[at[depth] + 1]:
                if depth > 0:
                    v = node[depth]
                    member[v] = False
                    for q in range(in_indptr[v], in_indptr[v + 1]):
                        t = in_tensor[q]
                        if member[tensor_src[t]]:
                            unused[t] += 1
                        else:
                            used[t] -= 1
                depth -= 1
                continue
            e = edge[depth]
            edge[depth] += 1
            prefix = next_prefix[e]
            if visited[prefix] == start:
                continue
            visited[prefix] = start
            v = added[e]
            below = depth + 1
            held[below] = held[depth] + param[v]
            fits = False
            for c in range(num_classes):
                busy[below, c] = busy[depth, c] + work[c, v]
                cost = enter[depth, c]
                for q in range(in_indptr[v], in_indptr[v + 1]):
                    t = in_tensor[q]
                    if used[t] == 0 and not member[tensor_src[t]]:
                        cost += in_s[c, t]
                enter[below, c] = cost
                cost += busy[below, c]
                if held[below] > cache[c]:
                    cost += (held[below] - cache[c]) * overflow[c]
                if held[below] <= memory[c] * _SLACK and cost <= limit:
                    fits = True
            if not fits:
                continue
            for c in range(num_classes):
                cost = leave[depth, c]
                for q in range(in_indptr[v], in_indptr[v + 1]):
                    t = in_tensor[q]
                    if unused[t] == 1 and member[tensor_src[t]]:
                        cost -= out_s[c, t]
                for q in range(out_indptr[v], out_indptr[v + 1]):
                    cost += out_s[c, out_tensor[q]]
                leave[below, c] = cost
            for q in range(in_indptr[v], in_indptr[v + 1]):
                t = in_tensor[q]
                if member[tensor_src[t]]:
                    unused[t] -= 1
                else:
                    used[t] += 1
            member[v] = True
            for q in range(out_indptr[v], out_indptr[v + 1]):
                unused[out_tensor[q]] = num_consumers[out_tensor[q]]
            depth = below
            at[depth] = prefix
            edge[depth] = indptr[prefix]
            node[depth] = v
            met += 1
            for c in range(num_classes):
                if held[depth] > memory[c] * _SLACK:
                    continue
                cost = busy[depth, c] + enter[depth, c] + leave[depth, c]
                if held[depth] > cache[c]:
                    cost += (held[depth] - cache[c]) * overflow[c]
                if cost > limit:
                    continue
                for i in range(num_alive):
                    s = step[alive[i], c]
                    if s >= 0:
                        reached = max(cost, label[alive[i], start])
                        if reached < label[s, prefix]:
                            label[s, prefix] = reached
                            back[s, prefix] = start
                            back_class[s, prefix] = c
    return met


@njit(cache=True, nogil=True)
def memory_pass(
    peak: float,
    tie: float,
    first: int,
    last: int,
    indptr: IntArray,
    added: IntArray,
    next_prefix: IntArray,
    rest: FloatArray,
    slot_class: IntArray,
    allowed: NDArray[np.bool_],
    param: FloatArray,
    cache: FloatArray,
    memory: FloatArray,
    tensor_bytes: FloatArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    tensor_src: IntArray,
    num_consumers: IntArray,
    off_cache: FloatArray,
    traffic: FloatArray,
    back: NDArray[np.int32],
    visited: IntArray,
) -> int:
    """Extend (off-cache bytes, traffic) labels by every stage of at most `peak` parameter bytes; return the stages met.

    State j is "the first j stages are filled". Labels are compared lexicographically; off-cache sums that differ by at
    most `tie` count as equal. Optimal substructure: a prefix of an optimal schedule has the smallest sum, and among
    those the smallest traffic. ``allowed[c, v]`` says where a node may run.
    """
    num_states, num_prefixes = off_cache.shape
    n = len(param)
    num_classes = len(cache)
    unused = np.zeros(len(tensor_src), np.int64)
    member = np.zeros(n, np.bool_)
    at = np.empty(n + 1, np.int64)
    edge = np.empty(n + 1, np.int64)
    node = np.empty(n + 1, np.int64)
    held = np.zeros(n + 1)
    leave = np.zeros(n + 1)
    open_class = np.zeros((n + 1, num_classes), np.bool_)
    alive = np.empty(num_states, np.int64)
    limit = peak * _SLACK
    met = 0
    for start in range(first, last):
        num_alive = 0
        for j in range(num_states):
            if j > 0 and (
                off_cache[j - 1, start] < off_cache[j, start] - tie
                or (off_cache[j - 1, start] <= off_cache[j, start] + tie and traffic[j - 1, start] < traffic[j, start])
            ):
                off_cache[j, start] = off_cache[j - 1, start]
                traffic[j, start] = traffic[j - 1, start]
                back[j, start] = start
            if off_cache[j, start] < np.inf and rest[start] <= (num_states - 1 - j) * limit and j < num_states - 1:
                alive[num_alive] = j
                num_alive += 1
        if num_alive == 0 or start == num_prefixes - 1:
            continue
        depth = 0
        at[0] = start
        edge[0] = indptr[start]
        visited[start] = start
        for c in range(num_classes):
            open_class[0, c] = True
        while depth >= 0:
            if edge[depth] == indptr[at[depth] + 1]:
                if depth > 0:
                    v = node[depth]
                    member[v] = False
                    for q in range(in_indptr[v], in_indptr[v + 1]):
                        if member[tensor_src[in_tensor[q]]]:
                            unused[in_tensor[q]] += 1
                depth -= 1
                continue
            e = edge[depth]
            edge[depth] += 1
            prefix = next_prefix[e]
            if visited[prefix] == start:
                continue
            visited[prefix] = start
            v = added[e]
            total = held[depth] + param[v]
            fits = False
            for c in range(num_classes):
                open_class[depth + 1, c] = open_class[depth, c] and allowed[c, v] and total <= memory[c] * _SLACK
                fits = fits or open_class[depth + 1, c]
            if total > limit or not fits:
                continue
            sent = leave[depth]
            for q in range(in_indptr[v], in_indptr[v + 1]):
                t = in_tensor[q]
                if member[tensor_src[t]]:
                    unused[t] -= 1
                    if unused[t] == 0:
                        sent -= tensor_bytes[t]
            member[v] = True
            for q in range(out_indptr[v], out_indptr[v + 1]):
                t = out_tensor[q]
                unused[t] = num_consumers[t]
                sent += tensor_bytes[t]
            depth += 1
            at[depth] = prefix
            edge[depth] = indptr[prefix]
            node[depth] = v
            held[depth] = total
            leave[depth] = sent
            met += 1
            for i in range(num_alive):
                j = alive[i]
                c = slot_class[j]
                if not open_class[depth, c]:
                    continue
                off = off_cache[j, start] + max(0.0, total - cache[c])
                most = max(traffic[j, start], sent)
                if off < off_cache[j + 1, prefix] - tie or (
                    off <= off_cache[j + 1, prefix] + tie and most < traffic[j + 1, prefix]
                ):
                    off_cache[j + 1, prefix] = off
                    traffic[j + 1, prefix] = most
                    back[j + 1, prefix] = start
    return met


@njit(cache=True, nogil=True)
def greedy_slices(
    threshold: float,
    order: IntArray,
    position: IntArray,
    work: FloatArray,
    param: FloatArray,
    cache: float,
    memory: float,
    overflow: float,
    in_s: FloatArray,
    out_s: FloatArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    tensor_src: IntArray,
    tensor_indptr: IntArray,
    tensor_dst: IntArray,
    most: int,
) -> int:
    """Return the number of stages of cost at most `threshold` that longest-first slicing needs, or most + 1.

    All arguments are of one class. Not exact (a shorter stage can make the next one cheaper), so an upper bound only.
    """
    n = len(order)
    stamp = np.full(len(tensor_src), -1, np.int64)
    start = 0
    stages = 0
    while start < n:
        stages += 1
        if stages > most:
            return stages
        end = start
        busy = 0.0
        enter = 0.0
        leave = 0.0
        held = 0.0
        for i in range(start, n):
            v = order[i]
            busy += work[v]
            held += param[v]
            for q in range(in_indptr[v], in_indptr[v + 1]):
                t = in_tensor[q]
                if position[tensor_src[t]] < start:
                    if stamp[t] != start:
                        stamp[t] = start
                        enter += in_s[t]
                else:
                    last_use = True
                    for d in range(tensor_indptr[t], tensor_indptr[t + 1]):
                        if position[tensor_dst[d]] > i:
                            last_use = False
                            break
                    if last_use:
                        leave -= out_s[t]
            for q in range(out_indptr[v], out_indptr[v + 1]):
                leave += out_s[out_tensor[q]]
            cost = busy + enter
            if held > cache:
                cost += (held - cache) * overflow
            if cost > threshold or held > memory:
                break
            if cost + leave <= threshold:
                end = i + 1
        if end == start:
            return most + 1
        start = end
    return stages


@njit(cache=True, nogil=True)
def prefix_sums(indptr: IntArray, added: IntArray, next_prefix: IntArray, weight: FloatArray) -> FloatArray:
    """Return (p,) the sum of a node weight over each prefix."""
    num_prefixes = len(indptr) - 1
    total = np.zeros(num_prefixes)
    for i in range(num_prefixes):
        for e in range(indptr[i], indptr[i + 1]):
            total[next_prefix[e]] = total[i] + weight[added[e]]
    return total


@njit(cache=True, nogil=True)
def stages_of_cuts(
    indptr: IntArray, added: IntArray, next_prefix: IntArray, ends: IntArray, num_nodes: int
) -> IntArray:
    """Return (n,) the stage of each node, where stage j ends at prefix ``ends[j]``; ends must not decrease."""
    num_prefixes = len(indptr) - 1
    into = np.full(num_prefixes, -1, np.int64)
    source = np.empty(num_prefixes, np.int64)
    for i in range(num_prefixes):
        for e in range(indptr[i], indptr[i + 1]):
            if into[next_prefix[e]] < 0:
                into[next_prefix[e]] = e
                source[next_prefix[e]] = i
    stage = np.zeros(num_nodes, np.int64)
    for j in range(len(ends) - 1, -1, -1):
        prefix = ends[j]
        while prefix > 0:
            stage[added[into[prefix]]] = j
            prefix = source[prefix]
    return stage
