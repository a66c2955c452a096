"""Compiled branching over devices, then over orders on devices, to refute a trial makespan depth first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, BoolArray, FloatArray, IntArray
from rlinit.exact.placements.analysis.batches import DataFlow
from rlinit.exact.placements.bounds.destructive_kernel import REFUTED, STANDS, STOPPED, Trial, is_before, tighten
from rlinit.kernels.compiled import njit


class Stack(NamedTuple):
    """A search between two calls: one row for each depth.

    ``able``, ``head``, ``tail`` (depth, n, d) are what is left, ``op`` and ``other`` (depth,) what is branched on: the
    devices of op, or the order of both where other is not -1. ``todo`` (depth, max(d, 2)) are the choices left,
    devices, or whether op is first, or other. ``pairs`` (depth, 2) are the orders chosen, -1 for none, ``at`` (1,) the
    depth.
    """

    able: BoolArray
    head: FloatArray
    tail: FloatArray
    op: IntArray
    other: IntArray
    todo: BoolArray
    pairs: IntArray
    at: IntArray


def new_stack(able: BoolArray, depth: int) -> Stack:
    """Return a search that has not begun, in which heads and tails are 0.

    Parameters
    ----------
    able
        (n, d) which device may run an op.
    depth
        Most choices after one another.
    """
    n, d = able.shape
    stack = Stack(
        np.empty((depth + 1, n, d), np.bool_),
        np.empty((depth + 1, n, d)),
        np.empty((depth + 1, n, d)),
        np.full(depth + 1, -1, np.int64),
        np.full(depth + 1, -1, np.int64),
        np.zeros((depth + 1, max(d, 2)), np.bool_),
        np.full((depth + 1, 2), -1, np.int64),
        np.full(1, -1, np.int64),
    )
    stack.able[0], stack.head[0], stack.tail[0] = able, 0.0, 0.0
    return stack


@njit(cache=True, nogil=True)
def _open_op(able: BoolArray, least: FloatArray, group: IntArray) -> int:
    """Return the op of most seconds that has several devices left, -1 if none has."""
    best, chosen = -1.0, -1
    for v in range(len(least)):
        if group[v] != v:
            continue
        number, low = 0, np.inf
        for i in range(able.shape[1]):
            if able[v, i]:
                number += 1
                low = min(low, least[v, i])
        if number > 1 and low > best:
            best, chosen = low, v
    return chosen


@njit(cache=True, nogil=True)
def _is_copy(able: BoolArray, kind: IntArray, i: int) -> bool:
    """Return whether device i may be exchanged with one before it: they are alike, and open to the same ops.

    Then no op was put on either, as that would have closed the other one to it, and a placement with the two exchanged
    is consistent with all choices made.
    """
    for j in range(i):
        if kind[i] != kind[j]:
            continue
        same = True
        for v in range(len(able)):
            if able[v, i] != able[v, j]:
                same = False
                break
        if same:
            return True
    return False


@njit(cache=True, nogil=True)
def _decided(pairs: IntArray, v: int, w: int) -> bool:
    """Return whether the order of two ops was chosen."""
    for a, b in pairs:  # noqa: SIM110 - numba compiles no generators here
        if (a == v and b == w) or (a == w and b == v):
            return True
    return False


@njit(cache=True, nogil=True)
def _open_pair(
    trial: Trial, able: BoolArray, head: FloatArray, tail: FloatArray, limit: float, pairs: IntArray
) -> tuple[int, int]:
    """Return the two ops of one device, each in either order, that have least room for both; (-1, -1) if none has."""
    least, most = trial.least, limit * (1.0 + ROUNDING)
    best, first, second = np.inf, -1, -1
    n, d = able.shape
    for v in range(n):
        for w in range(v):
            for i in range(d):
                if not able[v, i] or not able[w, i] or least[v, i] <= 0.0 or least[w, i] <= 0.0:
                    continue
                both = least[v, i] + least[w, i]
                forth = most - (head[v, i] + both + tail[w, i])
                back = most - (head[w, i] + both + tail[v, i])
                if min(forth, back) < 0.0 or forth + back >= best:
                    continue
                if is_before(trial.ancestors, v, w) or is_before(trial.ancestors, w, v) or _decided(pairs, v, w):
                    continue
                best = forth + back
                first, second = (v, w) if forth >= back else (w, v)
    return first, second


@njit(cache=True, nogil=True)
def _open(flow: DataFlow, trial: Trial, stack: Stack, at: int, limit: float) -> bool:
    """Choose what to branch on at a depth; return whether there is anything."""
    v = _open_op(stack.able[at], trial.least, flow.group)
    stack.op[at], stack.other[at] = v, -1
    if v >= 0:
        stack.todo[at] = False
        for i in range(stack.able.shape[2]):
            stack.todo[at, i] = stack.able[at, v, i] and not _is_copy(stack.able[at], trial.kind, i)
        return True
    v, w = _open_pair(trial, stack.able[at], stack.head[at], stack.tail[at], limit, stack.pairs[:at])
    stack.op[at], stack.other[at] = v, w
    stack.todo[at] = False
    stack.todo[at, :2] = v >= 0
    return v >= 0


@njit(cache=True, nogil=True)
def _next(trial: Trial, stack: Stack, at: int) -> int:
    """Return the most promising choice left at a depth, -1 if none is: the device with most room, or the order."""
    v, chosen, best = stack.op[at], -1, np.inf
    for i in range(stack.todo.shape[1]):
        if stack.todo[at, i]:
            length = float(i)
            if stack.other[at] < 0:
                length = stack.head[at, v, i] + trial.least[v, i] + stack.tail[at, v, i]
            if length < best:
                best, chosen = length, i
    return chosen


@njit(cache=True, nogil=True)
def _descend(flow: DataFlow, stack: Stack, at: int, choice: int) -> None:
    """Copy a depth to the one below and make a choice there."""
    able = stack.able[at + 1]
    able[:], stack.head[at + 1], stack.tail[at + 1] = stack.able[at], stack.head[at], stack.tail[at]
    stack.pairs[at] = -1
    if stack.other[at] >= 0:
        pair = (stack.op[at], stack.other[at]) if choice == 0 else (stack.other[at], stack.op[at])
        stack.pairs[at, 0], stack.pairs[at, 1] = pair
        return
    for w in range(len(able)):
        if flow.group[w] == flow.group[stack.op[at]]:
            for i in range(able.shape[1]):
                able[w, i] = able[w, i] and i == choice


@njit(cache=True, nogil=True)
def branch(flow: DataFlow, trial: Trial, stack: Stack, limit: float, nodes: int) -> tuple[int, int]:
    """Refute a limit on every choice of devices and orders, depth first.

    Parameters
    ----------
    flow, trial
        The problem.
    stack
        Where the search is, changed in place.
    limit
        Seconds.
    nodes
        Most choices to look at; 0: narrow what the search begins with once, see `tighten`.

    Returns
    -------
    `REFUTED`, `STANDS` where some choice of all devices and orders is not refuted (or none deeper can be made), or
    `STOPPED`; and the choices looked at. What `tighten` returns, and 0, where none is to be looked at.
    """
    used = 0
    if nodes == 0:
        return tighten(flow, trial, stack.able[0], stack.head[0], stack.tail[0], limit, stack.pairs[:0]), used
    if stack.at[0] < 0:
        stack.at[0] = 0
        if not _open(flow, trial, stack, 0, limit):
            return STANDS, 0
    at = stack.at[0]
    while at >= 0:
        choice = _next(trial, stack, at)
        if choice < 0:
            at -= 1
            continue
        if used >= nodes:
            stack.at[0] = at
            return STOPPED, used
        used += 1
        stack.todo[at, choice] = False
        _descend(flow, stack, at, choice)
        below = at + 1
        pairs = stack.pairs[:below]
        if tighten(flow, trial, stack.able[below], stack.head[below], stack.tail[below], limit, pairs) == REFUTED:
            continue
        if below >= len(stack.op) - 1 or not _open(flow, trial, stack, below, limit):
            stack.at[0] = below
            return STANDS, used
        at = below
    return REFUTED, used
