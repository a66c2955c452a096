"""Compiled steps of the environments: many partial schedules, one action each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.list_scheduling import PlacementArrays
from rlinit.kernels.placements.slots import append_start, ready_time


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
def finish_times(a: PlacementArrays, s: EpisodeState, v: int, finish: FloatArray) -> None:
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
    leader = a.group[v]
    home, need_bytes = s.group_device[leader], a.held_weight[leader] + a.held_shard[leader]
    for i in range(len(s.free)):
        finish[i] = np.inf
        if not a.allowed[leader, i, 1] or (home >= 0 and home != i) or (home < 0 and need_bytes > s.room[i]):
            continue
        finish[i] = append_start(ready_time(a, v, i, s.device, s.end), s.free[i]) + a.time[v, i, 1]


@njit(cache=True, nogil=True)
def place(a: PlacementArrays, s: EpisodeState, v: int, i: int, end_s: float) -> None:
    """Append an op to a device, where it ends at a time that `finish_times` gave.

    Parameters
    ----------
    a, s
        The problem, and the placement so far.
    v, i
        Op and device.
    end_s
        Seconds.
    """
    leader = a.group[v]
    if s.group_device[leader] < 0:
        s.room[i] -= a.held_weight[leader] + a.held_shard[leader]
        s.group_device[leader] = i
    s.device[v], s.end[v], s.free[i] = i, end_s, end_s


@njit(cache=True, nogil=True)
def complete(a: PlacementArrays, s: EpisodeState, sequence: IntArray) -> float:
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
        place(a, s, v, i, finish[i])
        makespan = max(makespan, finish[i])
    return makespan
