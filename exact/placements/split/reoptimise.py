"""Solve parts of a schedule's sequence again, each exactly between what runs before it and what runs after it.

Blocks joined by several channels are scheduled one into the other with guesses of what is to come. Once there is a
schedule there is no need to guess: for a subsequence of its sequence, everything before gives when devices are free and
when tensors arrive where, everything after, left on its devices in its order, gives for each device and each tensor how
long the longest path from it to the end is. The best schedule of the subsequence between the two is what
:mod:`rlinit.exact.placements.split.search` finds, and only what ends earlier than the whole schedule does is searched
for. Subsequencees are taken from the last to the first, overlapping by half so that the ends of blocks are inside of
one, until a round over the sequence finds nothing better.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.split.search import Frontier, Target, advance, even_multipliers, root_bound, search_model
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority, timeline

_STRICTLY = 1.0 - 1e-9
"""What is found has to be this much better: sums in another order are no improvement."""


def resolve_blocks(
    problem: PlacementProblem,
    comm_s: FloatArray,
    placement: Placement,
    *,
    size: int,
    width: int,
    budget: Budget,
    max_work: int,
) -> tuple[Placement, int]:
    """Improve a schedule of a `latency` problem subsequence by subsequence.

    Parameters
    ----------
    comm_s
        (n, d, d) from :func:`rlinit.exact.placements.split.search.transfer_times`.
    placement
        Of one shard.
    size
        Ops of a subsequence, 2 to `MAX_BLOCK_OPS`.
    width
        Partial schedules kept of each layer.
    budget, max_work
        Nothing is begun beyond them; work is counted in partial schedules extended.

    Returns
    -------
    A placement whose makespan is no larger, and the work. Transfers that exclude others are beyond the search: with
    them the placement stays as it is.
    """
    if problem.transfers != "parallel":
        return placement, 0
    sequence = _Sequence(problem, comm_s, placement)
    value, work = makespan(problem, placement), 0
    stride = max(1, size // 2)
    shift = 0
    while work < max_work and not budget.expired:
        extended = sequence.sweep(size, stride, shift, width, budget, max_work - work)
        work += extended
        found = placement_from_priority(problem, sequence.device[:, None], sequence.rank())
        better = makespan(problem, found)
        if not better < value * _STRICTLY:
            break
        placement, value = found, better
        shift = (shift + max(1, stride // 2)) % stride
    return placement, work


class _Sequence:
    """A schedule as an order of the ops, each appended to its device.

    Attributes
    ----------
    order, device
        (n,) ops in their order, and the device of each op.
    """

    def __init__(self, problem: PlacementProblem, comm_s: FloatArray, placement: Placement) -> None:
        self.problem, self.comm_s = problem, comm_s
        self.order: IntArray = placement.sequence // problem.num_devices
        self.device: IntArray = placement.device[:, 0].copy()
        self.need = problem.weight_bytes + problem.shard_bytes
        self.multiplier = even_multipliers(problem.op_time_s)

    def rank(self) -> IntArray:
        """Return (n,) the place of each op in the order."""
        return inverse_of(self.order)

    def sweep(self, size: int, stride: int, shift: int, width: int, budget: Budget, max_work: int) -> int:
        """Solve all subsequences once, the last one first; return the work."""
        problem = self.problem
        times = timeline(problem, placement_from_priority(problem, self.device[:, None], self.rank()))
        self.value = times.makespan_s
        # What runs before a subsequence stays as it is until that subsequence's turn comes.
        end_s = times.end_s[np.arange(problem.num_ops), self.device]
        after = _After(self)
        work = 0
        for offset in range(max(0, problem.num_ops - size) + shift, -stride, -stride):
            begin = max(0, offset)
            stop = min(problem.num_ops, begin + size)
            if budget.expired or work >= max_work:
                break
            if begin >= stop:
                continue
            after.extend_to(stop)
            work += self._solve(begin, stop, end_s, after, width, max_work - work)
        return work

    def _solve(self, begin: int, stop: int, end_s: FloatArray, after: _After, width: int, max_work: int) -> int:
        """Solve one subsequence of the order; return the work."""
        problem = self.problem
        ops = self.order[begin:stop].copy()
        inside = np.zeros(problem.num_ops, np.bool_)
        inside[self.order[begin:]] = True
        sources = problem.edges[inside[problem.edges[:, 1]], 0]
        externals = np.unique(sources[~inside[sources]])
        k, local = len(externals), np.concatenate([externals, ops])
        tail_s = np.zeros_like(problem.op_time_s)
        tail_s[local] = after.tails(local)
        until_s = tail_s[local]
        tail_s[ops] = np.maximum(tail_s[ops], after.device_s)
        model = search_model(problem, self.comm_s, externals, ops, [Target(-1, -1)], tail_s, multiplier=self.multiplier)
        model = dataclasses.replace(model, time_s=self._pinned(model.time_s, k, ops))
        start = self._start(begin, stop, externals, end_s)
        cutoff = np.array([self.value * _STRICTLY])
        floor = root_bound(model, start)
        if floor[0] >= cutoff[0]:
            return 1
        found, _, work = advance(model, start, cutoff, np.maximum(floor, np.finfo(float).tiny), width, max(1, max_work))
        if len(found.root):
            until = np.take_along_axis(until_s[None], found.device[:, :, None].astype(np.int64), axis=2)[:, :, 0]
            ends = np.maximum((found.end_s + until).max(axis=1), (found.free_s + after.device_s).max(axis=1))
            best = int(ends.argmin())
            if ends[best] < cutoff[0]:
                self.value = float(ends[best])
                self.device[ops] = found.device[best, k:]
                self.order[begin:stop] = ops[np.argsort(found.rank[best, k:], kind="stable")]
        return work + 1

    def _start(self, begin: int, stop: int, externals: IntArray, end_s: FloatArray) -> Frontier:
        """Return what has run before a subsequence, with all that the rest of the schedule holds."""
        d, n = self.problem.num_devices, len(externals) + stop - begin
        before = self.order[:begin]
        outside = np.concatenate([before, self.order[stop:]])
        free, held, end = np.zeros((1, d)), np.zeros((1, d)), np.zeros((1, n))
        np.maximum.at(free[0], self.device[before], end_s[before])
        np.add.at(held[0], self.device[outside], self.need[outside])
        device = np.full((1, n), -1, np.int8)
        end[0, : len(externals)], device[0, : len(externals)] = end_s[externals], self.device[externals]
        return Frontier(free, end, device, held, np.zeros((1, n), np.int8), np.zeros(1, np.int64))

    def _pinned(self, time_s: FloatArray, num_fixed: int, ops: IntArray) -> FloatArray:
        """Return times that leave ops with group members outside of the subsequence where they are."""
        group = self.problem.group
        members = np.bincount(group, minlength=self.problem.num_ops)
        bound = members[group[ops]] > np.bincount(group[ops], minlength=self.problem.num_ops)[group[ops]]
        pinned = time_s.copy()
        rows = num_fixed + np.flatnonzero(bound)
        pinned[rows] = np.inf
        pinned[rows, self.device[ops[bound]]] = time_s[rows, self.device[ops[bound]]]
        return pinned


class _After:
    """What runs after a subsequence: longest paths from there to the end of everything.

    Attributes
    ----------
    device_s
        (d,) from the start of the first of these ops on a device, 0 where there is none.
    """

    def __init__(self, sequence: _Sequence) -> None:
        self.sequence = sequence
        self.begin = len(sequence.order)
        self.device_s = np.zeros(sequence.problem.num_devices)
        self.start_s = np.full(self.begin, -np.inf)

    def extend_to(self, begin: int) -> None:
        """Take in the ops of the order from place `begin` on."""
        sequence = self.sequence
        for v in sequence.order[begin : self.begin][::-1].tolist():
            j = int(sequence.device[v])
            rest = max(float(self.device_s[j]), float(self.tails(np.array([v]))[0, j]))
            self.start_s[v] = self.device_s[j] = float(sequence.problem.op_time_s[v, j]) + rest
        self.begin = begin

    def tails(self, ops: IntArray) -> FloatArray:
        """Return (k, d) longest paths from the end of each op, if on a device, through its tensor to the end."""
        problem, sequence = self.sequence.problem, self.sequence
        tails = np.zeros((len(ops), problem.num_devices))
        for tail, v in zip(tails, ops.tolist(), strict=True):
            for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]].tolist():
                if self.start_s[w] > -np.inf:
                    np.maximum(tail, sequence.comm_s[v, :, sequence.device[w]] + self.start_s[w], out=tail)
        return tails
