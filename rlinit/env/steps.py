"""Compiled steps of the environments: many partial schedules, one action each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import append_start, ready_time


class EpisodeArrays(NamedTuple):
    """A placement problem with whole ops, as the environments take it; n ops, d devices.

    Parameters
    ----------
    time_s, allowed
        (n, d) seconds of an op on a device, and whether its whole group may run there.
    need_bytes, tensor, group
        (n,) memory of an op's whole group, bytes of its output, and its group.
    s_per_byte, delay
        (d, d) seconds a byte takes, and before the first.
    pred_indptr, pred
        (n + 1,), (m,) producers.
    """

    time_s: FloatArray
    allowed: BoolArray
    need_bytes: FloatArray
    tensor: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    group: IntArray


class EpisodeState(NamedTuple):
    """A placement in the making.

    Parameters
    ----------
    device, group_device, end
        (n,) device of each op and of each group so far, -1: none; when each op ends.
    free, room
        (d,) when each device is free, and its memory left.
    """

    device: IntArray
    group_device: IntArray
    end: FloatArray
    free: FloatArray
    room: FloatArray


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
def finish_times(a: EpisodeArrays, s: EpisodeState, v: int, finish: FloatArray) -> None:
    """Compute when a ready op would end on each device, appended to what is there; transfers in parallel.

    Parameters
    ----------
    a, s
        The problem, and the placement so far.
    v
        The op.
    finish
        (d,) out: seconds; inf where the op may not run.
    """
    home = s.group_device[a.group[v]]
    for i in range(len(s.free)):
        finish[i] = np.inf
        if not a.allowed[v, i] or (home >= 0 and home != i) or (home < 0 and a.need_bytes[v] > s.room[i]):
            continue
        finish[i] = append_start(ready_time(a, v, i, s.device, s.end), s.free[i]) + a.time_s[v, i]


@njit(cache=True, nogil=True)
def complete(a: EpisodeArrays, s: EpisodeState, sequence: IntArray) -> float:
    """Place the rest of the ops where each ends first, in sequence; return the makespan, inf where one fits nowhere.

    Parameters
    ----------
    a, s
        The problem, and the placement so far, which is used up.
    sequence
        (n,) ops; those that have a device keep it.
    """
    finish = np.empty(len(s.free))
    makespan = 0.0
    for i in range(len(s.free)):
        makespan = max(makespan, s.free[i])
    for v in sequence:
        if s.device[v] >= 0:
            continue
        finish_times(a, s, v, finish)
        i = int(np.argmin(finish))
        if finish[i] == np.inf:
            return np.inf
        if s.group_device[a.group[v]] < 0:
            s.room[i] -= a.need_bytes[v]
            s.group_device[a.group[v]] = i
        s.device[v], s.end[v], s.free[i] = i, finish[i], finish[i]
        makespan = max(makespan, finish[i])
    return makespan
