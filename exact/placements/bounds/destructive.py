"""Destructive bounds: refute a trial makespan by what it does to the windows of the ops, and raise the trial.

Suppose that a placement has a makespan of at most L. Then each op has on each device a window to start in, and windows
that get narrower narrow others (:mod:`~rlinit.exact.placements.bounds.destructive_kernel`):

- along data, with transfers: :func:`~rlinit.exact.placements.analysis.open_propagation.carry_open`;
- no op starts before what leads to it is done: for multipliers ``lambda >= 0`` of the devices of sum 1,
  ``head(v) >= h + sum of min_i lambda_i p(u, i)`` over the ancestors u of v that start at h or later; tails alike;
- in an interval ``[a, b]`` every device is busy at most ``b - a``: ``sum over ops of min_i lambda_i overlap(v, i) <=
  b - a``, with the least seconds of v on i that lie inside wherever in its window it starts. On one device alone the
  ops that run nowhere else count, which is no less than Jackson's pre-emptive schedule of their heads and tails;
- two ops of one device run one after the other; where windows leave one order only, that is taken;
- what is certain to be on a device fits its memory;
- what is known of the time between two ops, by their devices, keeps their heads and tails apart.

Where an op has no device left, or an interval needs more than its length, the makespan exceeds L; where all makespans
are multiples of a quantum, it is then at least the next. Branching over devices, then over orders on devices
(:mod:`~rlinit.exact.placements.bounds.destructive_branching`), refutes more: every choice has to be refuted. All of
this holds under any rule of transfers.

References
----------
Klein and Scholl, "Computing lower bounds by destructive improvement" (EJOR 112, 1999). Fernandez and Bussell, "Bounds
on the number of processors and time for multiprocessor optimal schedules" (IEEE TC 22, 1973), for the intervals.
Carlier and Pinson, "An algorithm for solving the job-shop problem" (Management Science 35, 1989), for the orders.
"""

from __future__ import annotations

import math

import numpy as np

from rlinit.arrays import MOST_CELLS, SAFETY, BoolArray, FloatArray, IntArray
from rlinit.budget import WATCH_S, Budget
from rlinit.exact.effort import CHOICES, CLOSE, MORE, PASSES, QUOTA
from rlinit.exact.placements.analysis.batches import DataFlow, data_flow
from rlinit.exact.placements.analysis.reachability import in_words, reachability
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.exact.placements.analysis.time_windows import close_groups, latest_end, possible_batches
from rlinit.exact.placements.bounds.destructive_branching import branch, new_stack
from rlinit.exact.placements.bounds.destructive_kernel import CHANGED, REFUTED, STANDS, STOPPED, Trial
from rlinit.exact.placements.bounds.load import load_lagrangian
from rlinit.exact.solvers.quantum import round_up
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import OPTIMALITY_TOLERANCE

_ENDS, _LAGS_ENDS = 64, 24
"""Most ends of intervals on each side in a pass; where lags are known, which say most, problems are large."""

_FIRST_STEP = 0.02
"""Of the largest trial: how far above the bound one is at first."""

_LAST_STEP = _FIRST_STEP / MORE
"""How close before it gets more choices instead."""

_OF_QUANTUM = 1e-3
"""Part of a quantum by which a multiple may be off: three times 0.2 is more than 0.6, and is not tried again."""


class DestructiveSearch:
    """Trials of makespans of a problem of one shard; :attr:`bound_s` is a lower bound at all times.

    :attr:`standing` are (n, 1) devices and (n, d) starts of the last choice that no trial refutes: with parallel
    transfers mostly a placement of that makespan.

    Parameters
    ----------
    problem
        What is placed.
    upper
        Bounds are not raised beyond this.
    allowed
        (n, d, 2) batches to choose from; None: all that are possible.
    weight
        (d,) multipliers of the devices, at least 0 and of sum 1; None: those of the best fractional assignment.
    lags
        Pairs (k, 2) of ops, sorted by the second of each, and (k, d, d) seconds of which ``start(b) - start(a)`` is
        proven to be no less, by the devices of both; -1 for the start and the end, where there is device 0 alone.
    like
        Another search of the same problem and lags, of which this one takes what trials share.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        *,
        upper: float = np.inf,
        allowed: BoolArray | None = None,
        weight: FloatArray | None = None,
        lags: tuple[IntArray, FloatArray] | None = None,
        like: DestructiveSearch | None = None,
    ) -> None:
        self.problem, self.upper = problem, upper
        self.weight: FloatArray | None = weight if like is None else like.weight
        self._lags: tuple[IntArray, FloatArray] | None = lags if like is None else like._lags
        possible = possible_batches(problem) if allowed is None else allowed.copy()
        close_groups(problem, possible)
        self._able = np.ascontiguousarray(possible[:, :, 1])
        self.bound_s = 0.0
        self.nodes = 0
        self.exhausted = False
        self.standing: tuple[IntArray, FloatArray] | None = None
        self._flow: DataFlow = data_flow(problem) if like is None else like._flow
        self._top = min(upper, latest_end(problem, possible))
        quantum = makespan_quantum(problem)
        self._quantum = quantum if quantum > OPTIMALITY_TOLERANCE * self._top else 0.0
        self._stands = self._hard = np.inf
        self._quota, self._step = 0, 0.0
        self._chunk = 16
        self._trial: Trial | None = None if like is None else like._trial

    def run(self, nodes: int, budget: Budget, target: float = np.inf) -> float:
        """Look at about `nodes` more choices and return the bound; stop early once it reaches `target`.

        What propagation alone refutes is found first, whatever the number.

        Parameters
        ----------
        nodes
            At least 0.
        budget
            Ends the search between rounds of propagation and between some choices.
        target
            Seconds.
        """
        last, target = self.nodes + nodes, min(target, self.upper)
        if not self._able.any(axis=1).all():
            self.bound_s, self.exhausted = self.upper, True
        while self.bound_s < target and not self.exhausted and not budget.expired:
            if self._quota > 0 and self.nodes >= last:
                break
            limit = self._next_limit()
            if limit is not None:
                self._try(limit, budget)
            elif self._quota == 0:
                self._quota, self._step = CHOICES, _FIRST_STEP
            else:
                self.exhausted = True
        return self.bound_s

    def raise_bound(self, bound: float) -> None:
        """Take a bound that something else proves; trials begin above it."""
        if self._quantum > 0.0:
            bound = round_up(bound * (1.0 - SAFETY), self._quantum)
        self.bound_s = max(self.bound_s, min(self.upper, bound))

    def _next_limit(self) -> float | None:
        """Return the makespan to try next; None where no more is to be learned.

        By propagation alone: the largest, then halfway. With branching: a step above the bound.
        """
        low, high = self.bound_s, min(self._stands, self._top)
        if self._quota == 0:
            high = min(high, self._hard)
            limit = high * (1.0 - SAFETY) if high >= self._top else 0.5 * (low + high)
        else:
            limit = min(high * (1.0 - SAFETY) if high >= self._top else 0.5 * (low + high), low + self._step * high)
        if self._quantum > 0.0:
            least, most = round(low / self._quantum), math.ceil(high / self._quantum - _OF_QUANTUM) - 1
            return None if most < least else self._quantum * min(max(least, limit // self._quantum), most)
        return None if high - low <= CLOSE * self._top else limit

    def _try(self, limit: float, budget: Budget) -> None:
        """Try to refute a limit and take what comes of it."""
        self.nodes += 1
        # A part of a quantum above the limit no makespan lies, but room for the rounding of long sums does.
        answer = self._answer(limit + _OF_QUANTUM * self._quantum, budget)
        if answer == REFUTED:
            self.bound_s = max(self.bound_s, min(self.upper, limit + self._quantum))
            self._step *= 2.0
        elif answer == STANDS:
            self._stands = limit
        else:
            self._hard = limit
            self._step *= 0.5
            if self._step < _LAST_STEP:
                self._quota, self._step = self._quota * MORE, _FIRST_STEP

    def _answer(self, limit: float, budget: Budget) -> int:
        """Return `REFUTED`, `STANDS` or `STOPPED` for a limit."""
        n, d = self._able.shape
        most = min(n + n * n // 4, max(2, 8 * MOST_CELLS // max(1, 17 * n * d)))
        trial, stack = self._prepared(budget), new_stack(self._able, most if self._quota > 0 else 0)
        for _ in range(PASSES):
            state, _ = branch(self._flow, trial, stack, limit, 0)
            if state != CHANGED or budget.expired:
                break
        if state == REFUTED:
            return REFUTED
        if self._quota == 0 or budget.expired:
            return STOPPED
        left = self._quota
        answer = STOPPED
        while answer == STOPPED and left > 0 and not budget.expired:
            before = budget.elapsed_s
            answer, used = branch(self._flow, trial, stack, limit, min(left, self._chunk))
            seconds = budget.elapsed_s - before
            left, self.nodes = left - max(1, used), self.nodes + used
            self._chunk = self._chunk * 2 if seconds < WATCH_S else max(1, self._chunk // 2)
        if answer == STANDS:
            self._note(stack.able[stack.at[0]], stack.head[stack.at[0]], stack.tail[stack.at[0]])
        return answer

    def _note(self, able: BoolArray, head: FloatArray, tail: FloatArray) -> None:
        """Keep a choice of devices that stands, each op on the one with most room, and when each would start."""
        length = np.full(able.shape, np.inf)
        length[able] = head[able] + self.problem.op_time_s[able] + tail[able]
        device = length.argmin(axis=1)[self.problem.group]
        self.standing = (device[:, None].astype(np.int64), head)

    def cut(self, value: float) -> None:
        """Look for nothing at `value` seconds or above any more: a placement has it."""
        self.upper, self._top = min(self.upper, value), min(self._top, value)

    def _prepared(self, budget: Budget) -> Trial:
        """Return what all trials share, the multipliers among it."""
        if self._trial is None:
            problem, n, d = self.problem, *self._able.shape
            ancestors = descendants = np.zeros((0, 0), np.int64)
            if n * n <= MOST_CELLS:
                reach = reachability(problem.order, problem.succ_indptr, problem.succ)
                ancestors, descendants = in_words(reach.T), in_words(reach)
            members = np.argsort(problem.group, kind="stable").astype(np.int64)
            first = np.flatnonzero(np.diff(problem.group[members], prepend=-1))
            if self.weight is None:
                loads = load_lagrangian(problem, np.stack([np.zeros_like(self._able), self._able], axis=2), budget)
                self.weight = loads.weight
                self.raise_bound(loads.bound_s)
            none = (np.zeros((0, 2), np.int64), np.zeros((0, d, d)))
            lag_ends, lag_s = self._lags or none
            ends = _ENDS if self._lags is None else _LAGS_ENDS
            self._trial = Trial(
                least=problem.op_time_s,
                weight=self.weight,
                ancestors=ancestors,
                descendants=descendants,
                indptr=np.append(first, n).astype(np.int64),
                members=members,
                held=problem.weight_bytes + problem.shard_bytes,
                capacity=problem.capacity_bytes * CAPACITY_SLACK,
                kind=_kinds(problem),
                most_ends=max(1, min(ends, math.isqrt(2 * QUOTA // max(1, n * d)))),
                lag_ends=lag_ends,
                lag_s=lag_s,
            )
        return self._trial


def _kinds(problem: PlacementProblem) -> IntArray:
    """Return (d,) the first of the devices alike to each."""
    kind = np.arange(problem.num_devices)
    for members in alike_devices(problem):
        for member in members[1:]:
            kind[member[0]] = members[0][0]
    return kind
