"""Optimal slicing of one topological order where the overflow of a slice counts its peak in that order."""

from __future__ import annotations

import math

import numpy as np

from rlinit.arrays import MOST_CELLS, FloatArray, IntArray, inverse_of
from rlinit.heuristics.stages.activations.kernel import slice_peaks
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.problem import StageAssignment, StageProblem
from rlinit.stages.states import StageStates, num_counted

_REPLAY_S = 3e-9
"""Seconds that an op of a slice takes when its peak is replayed."""


def slice_with_peaks(
    problem: StageActivations, op_order: IntArray, upper: float, seconds: float = math.inf
) -> StageAssignment | None:
    """Return the slicing of an order of ops with the smallest bottleneck, peaks taken in that order; None without one.

    Parameters
    ----------
    problem
        The problem.
    op_order
        (n_ops,) a topological order of the ops, those of one node together.
    upper
        Bottleneck of a schedule at hand; slices whose work alone exceeds it are left out.
    seconds
        How long it may take; None is returned at once where it would take longer.

    Notes
    -----
    Some n^2 costs for each class, of which only slices with less work than `upper` are filled in, and each peak is
    replayed: time grows with the square of the length of slices.

    References
    ----------
    MTPP, Algorithm 1 (SliceGraph), with the peak of the slice as written there.
    """
    base = problem.problem
    nodes = problem.node_of_op[op_order]
    order = np.ascontiguousarray(nodes[np.flatnonzero(np.diff(nodes, prepend=-1))], np.int64)
    if base.num_classes * len(order) ** 2 > MOST_CELLS:
        return None
    n, most = len(order), min(len(order), base.num_stages)
    if num_counted(base.class_count, most) * max(n + 1, base.num_classes) > MOST_CELLS:
        return None
    ends = _slice_ends(base, order, upper)
    if _REPLAY_S * len(op_order) / n * float(((ends - np.arange(n)) ** 2).sum()) / 2 > seconds:
        return None
    costs = _slice_costs(problem, op_order, order, ends)
    states = StageStates.counted(base.class_count, most)
    step = states.step
    label = np.full((len(step), n + 1), np.inf)
    back = np.full((len(step), n + 1), -1, np.int64)
    via = np.zeros((len(step), n + 1), np.int64)
    label[0, 0] = 0.0
    for state in range(len(step)):
        for c, after in enumerate(step[state].tolist()):
            if after < 0 or not np.isfinite(label[state]).any():
                continue
            through = np.maximum(label[state, :n, None], costs[c])
            best = through.min(axis=0)
            better = np.flatnonzero(best < label[after, 1:])
            label[after, 1 + better] = best[better]
            back[after, 1 + better] = through.argmin(axis=0)[better]
            via[after, 1 + better] = c
    state = int(np.argmin(label[:, n]))
    if not np.isfinite(label[state, n]):
        return None
    cuts, classes = states.trace(state, n, back, via)
    stage = np.empty(n, np.int64)
    stage[order] = np.searchsorted(cuts, np.arange(n), side="right")
    return StageAssignment(stage, base.completed_classes(classes))


def _slice_ends(base: StageProblem, order: IntArray, upper: float) -> IntArray:
    """Return (n,) how far slices from each node go whose work does not exceed a bottleneck on the fastest class."""
    n = len(order)
    lightest = np.append(0.0, np.cumsum(base.work_s[:, order].min(axis=0)))
    ends = np.searchsorted(lightest, lightest[:-1] + upper * (1.0 + 1e-9), side="right") - 1
    return np.clip(ends, np.arange(n) + 1, n).astype(np.int64)


def _slice_costs(problem: StageActivations, op_order: IntArray, order: IntArray, ends: IntArray) -> FloatArray:
    """Return (c, n, n) the seconds of each slice of nodes up to the ends on each class."""
    base, tensors = problem.problem, problem.tensors
    n, m = len(order), len(op_order)
    work = base.work_s[:, order]
    place = inverse_of(op_order)
    first = np.append(np.flatnonzero(np.diff(problem.node_of_op[op_order], prepend=-1)), m)
    reads = [np.sort(place[list(tensors.reads[v])]) for v in op_order.tolist()]
    indptr = np.append(0, np.cumsum([len(one) for one in reads])).astype(np.int64)
    last = np.array([max((place[w] for w in tensors.readers[v]), default=m) for v in op_order.tolist()], np.int64)
    sizes = np.array([tensors.size_bytes[v] for v in op_order.tolist()])
    peaks = slice_peaks(ends, first, sizes, indptr, np.concatenate(reads).astype(np.int64), last)
    known, position = np.isfinite(peaks), inverse_of(order)
    held = np.append(0.0, np.cumsum(base.param_bytes[order]))
    param = held[None, 1:] - held[:-1, None]
    costs = np.empty((base.num_classes, n, n))
    for c in range(base.num_classes):
        transfers = _slice_transfers(base, position, c)
        allowed = np.append(0, np.cumsum(~np.isfinite(work[c])))
        spent = np.append(0.0, np.cumsum(np.where(np.isfinite(work[c]), work[c], 0.0)))
        over = np.maximum(param + np.where(known, peaks, 0.0) - base.cache_bytes[c], 0.0)
        rate = float(base.overflow_s_per_byte[c])
        costs[c] = transfers + spent[None, 1:] - spent[:-1, None] + (over * rate if rate > 0 else 0.0)
        costs[c][~known | (allowed[None, 1:] > allowed[:-1, None]) | (param > base.memory_bytes[c])] = np.inf
    costs[:, np.tril_indices(n, -1)[0], np.tril_indices(n, -1)[1]] = np.inf
    return costs


def _slice_transfers(base: StageProblem, position: IntArray, c: int) -> FloatArray:
    """Return (n, n) the seconds of transfers of the slice from node l to node r of an order on a class.

    A tensor made at s costs slices that begin after s for the first of its readers from there on, and it costs those
    that begin up to s until its last reader; either is a rectangle in (l, r).
    """
    n, size = len(position), np.diff(base.tensor_indptr)
    owner, place = np.repeat(np.arange(len(size)), size), position[base.tensor_dst]
    by_place = np.lexsort((place, owner))
    tensor, reader, made = owner[by_place], place[by_place], position[base.tensor_src]
    first, last = np.diff(tensor, prepend=-1) != 0, np.diff(tensor, append=-1) != 0
    begin = np.where(first, made[tensor], np.roll(reader, 1)) + 1
    change = np.zeros((n + 1, n + 1))
    sent = base.out_s[c, tensor[last]]
    for rows, column, seconds in (
        ((begin, reader + 1), reader, base.in_s[c, tensor]),
        ((np.zeros_like(sent, np.int64), made[tensor[last]] + 1), made[tensor[last]], sent),
        ((np.zeros_like(sent, np.int64), made[tensor[last]] + 1), reader[last], -sent),
    ):
        np.add.at(change, (rows[0], column), seconds)
        np.add.at(change, (rows[1], column), -seconds)
    return np.asarray(np.maximum(change.cumsum(axis=0).cumsum(axis=1)[:n, :n], 0.0))
