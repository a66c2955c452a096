"""Bounds of a segment by CP-SAT: trial makespans of a constraint program that knows the lags of shorter segments.

The program is that of `rlinit.exact.placements.constraint.model`, with the devices of the ends fixed and, for each
shorter segment (u, w), ``start(w) >= start(u) + T[x_u, x_w]``. Times and lags are rounded down to whole steps, so what
it proves holds (`rlinit.exact.placements.constraint.integer_times`). It is far stronger where its horizon is close, so
a trial is a little above the bound: refuted, it is the bound; met, the least makespan below it is exact.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.constraint.integer_times import IntegerTimes
from rlinit.exact.placements.constraint.model import ConstraintModel
from rlinit.exact.solvers.cp_sat import ConstraintSearch, ConstraintSettings
from rlinit.placements.problem import PlacementProblem

_FIRST_STEP, _LAST_STEP = 0.02, 0.004
"""Of the bound: how far above it a trial is at first; how close before it gets more work instead."""

_FIRST_WORK, _MORE = 0.05, 3.0
"""Deterministic work of a trial at first, and what that grows by when even close trials stop: a third of a second for
segments of 100 ops on four devices."""

_CHOICES = 5_000
"""Choices of a search by trials that take as long as a unit of deterministic work: 1.4 ms and 7 s there."""

_BUILDING = 30
"""Choices that take as long as writing a program down."""


class SegmentProgram:
    """Trials of a segment with devices of its ends; :attr:`bound_s` is a lower bound at all times.

    Parameters
    ----------
    problem
        Of the segment.
    upper
        Bounds are not raised beyond this.
    allowed
        (n, d, 2) batches to choose from.
    lags
        As of `DestructiveSearch`; read anew for each trial.
    """

    def __init__(
        self, problem: PlacementProblem, upper: float, allowed: BoolArray, lags: tuple[IntArray, FloatArray] | None
    ) -> None:
        time_s = np.where(allowed, problem.time_s, np.inf)
        time_s[:, :, 0] = 0.0
        self._problem, self._lags = dataclasses.replace(problem, time_s=time_s), lags
        self._step, self._limit = _FIRST_STEP, _FIRST_WORK
        self.upper, self.bound_s, self.work = upper, 0.0, 0
        self.exhausted = self.solved = False

    def run(self, floor: float, budget: Budget) -> float:
        """Make one trial and return the bound.

        Parameters
        ----------
        floor
            Seconds that something else proves.
        budget
            Ends the trial.
        """
        self.bound_s = max(self.bound_s, floor)
        trial = min(self.upper, self.bound_s * (1.0 + self._step))
        if self.bound_s >= self.upper or not 0.0 < trial < np.inf:
            self.exhausted = True
            return self.bound_s
        times = IntegerTimes.of(self._problem, trial)
        model = ConstraintModel(self._problem, times, times.floor(trial), self._lags)
        search = ConstraintSearch(model, budget, ConstraintSettings(self._limit, relaxations=False))
        ended = search.run(lambda _: None, lambda _: None)
        self.work += _BUILDING + round(_CHOICES * search.work)
        self.bound_s = max(self.bound_s, min(self.upper, search.bound * times.unit_s))
        if ended == "infeasible":
            self._step *= 2.0
        elif ended == "optimal":
            self.exhausted = self.solved = True
        elif not budget.expired:
            self._step *= 0.5
            if self._step < _LAST_STEP:
                self._step, self._limit = _FIRST_STEP, self._limit * _MORE
        return self.bound_s
