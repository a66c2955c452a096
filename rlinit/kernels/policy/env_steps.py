"""Compiled steps of the environments: many partial schedules, one action each."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["complete", "finish_times", "take_nodes"]


@njit(cache=True, nogil=True)
def take_nodes(nodes: IntArray, succ_indptr: IntArray, succ: IntArray, waiting: IntArray, ready: BoolArray) -> None:
    """Take one ready node in each row, and open those that waited for nothing else.

    Parameters
    ----------
    nodes
        (B,) node of each row; rows with -1 stay as they are.
    succ_indptr, succ
        (B, N + 1) and (B, E) successors of each row's graph.
    waiting, ready
        (B, N) predecessors not taken yet, and which nodes may be taken; both brought up to date.
    """
    for b in range(len(nodes)):
        u = nodes[b]
        if u < 0:
            continue
        ready[b, u] = False
        for e in range(succ_indptr[b, u], succ_indptr[b, u + 1]):
            v = succ[b, e]
            waiting[b, v] -= 1
            if waiting[b, v] == 0:
                ready[b, v] = True


@njit(cache=True, nogil=True)
def finish_times(
    v: int,
    time_s: FloatArray,
    allowed: BoolArray,
    need_bytes: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    device: IntArray,
    group_device: IntArray,
    end: FloatArray,
    free: FloatArray,
    room: FloatArray,
    finish: FloatArray,
) -> None:
    """Compute when a ready op would end on each device, appended to what is there; transfers in parallel.

    Parameters
    ----------
    v
        The op.
    time_s, allowed
        (n, d) seconds of an op on a device, and whether its whole group may run there.
    need_bytes, tensor_bytes, group
        (n,) memory of an op's whole group, bytes of its output, and its group.
    device, group_device, end
        (n,) device of each op and of each group so far, -1: none; when each op ends.
    free, room
        (d,) when each device is free, and its memory left.
    finish
        (d,) out: seconds; inf where the op may not run.
    """
    home = group_device[group[v]]
    for i in range(len(free)):
        finish[i] = np.inf
        if not allowed[v, i] or (home >= 0 and home != i) or (home < 0 and need_bytes[v] > room[i]):
            continue
        start = free[i]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            at = end[u]
            if device[u] != i:
                at += delay_s[device[u], i] + tensor_bytes[u] * s_per_byte[device[u], i]
            if at > start:
                start = at
        finish[i] = start + time_s[v, i]


@njit(cache=True, nogil=True)
def complete(
    sequence: IntArray,
    time_s: FloatArray,
    allowed: BoolArray,
    need_bytes: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    device: IntArray,
    group_device: IntArray,
    end: FloatArray,
    free: FloatArray,
    room: FloatArray,
) -> float:
    """Place the rest of the ops where each ends first, in sequence; return the makespan, inf where one fits nowhere.

    Ops of `sequence` (n,) that have a device keep it. The state, described at `finish_times`, is used up.
    """
    finish = np.empty(len(free))
    makespan = 0.0
    for i in range(len(free)):
        makespan = max(makespan, free[i])
    for v in sequence:
        if device[v] >= 0:
            continue
        finish_times(
            v,
            time_s,
            allowed,
            need_bytes,
            tensor_bytes,
            s_per_byte,
            delay_s,
            pred_indptr,
            pred,
            group,
            device,
            group_device,
            end,
            free,
            room,
            finish,
        )
        i = int(np.argmin(finish))
        if finish[i] == np.inf:
            return np.inf
        if group_device[group[v]] < 0:
            room[i] -= need_bytes[v]
            group_device[group[v]] = i
        device[v], end[v], free[i] = i, finish[i], finish[i]
        makespan = max(makespan, finish[i])
    return makespan
