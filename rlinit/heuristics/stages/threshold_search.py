"""The smallest bottleneck that a method reaches which can only be asked for one below a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlinit.budget import Budget
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate

__all__ = ["ThresholdSearch"]

_CLOSE = 1e-4
"""Thresholds that differ by less than this share of the value are not told apart within one round."""

_BELOW = 1e-9
"""A threshold this much below a value, relatively, asks for anything better."""


@dataclass(slots=True)
class ThresholdSearch:
    """Bisection on the bottleneck, round after round with more effort, until the work allowed is spent.

    Parameters
    ----------
    problem
        The problem.
    attempt
        Called with (threshold, effort); returns an assignment within the threshold, or None, and the work it took.
        Every call may come out otherwise.
    lower
        A bottleneck that none is below; the search ends where it is reached.
    budget
        When to stop.
    best, value
        The best assignment so far and its value, None at first where there is none.
    work
        What the attempts took so far.
    """

    problem: StageProblem
    attempt: Callable[[float, int], tuple[StageAssignment | None, int]]
    lower: float
    budget: Budget
    best: StageAssignment | None = None
    value: Value | None = None
    work: int = 0

    def run(self, ceiling: float, most_work: int) -> None:
        """Search below `ceiling`, a bottleneck that no assignment exceeds, until `most_work` is spent.

        Each round tries the lower bound itself, then halves the interval between what it failed at and the value.

        Parameters
        ----------
        ceiling
            Seconds.
        most_work
            In the unit in which `attempt` counts.
        """
        effort = 1
        while self.work < most_work and not self.done:
            floor, high = self.lower, self._high(ceiling)
            self._try(floor, effort)
            while self.work < most_work and not self.done:
                high = self._high(ceiling)
                if high - floor <= _CLOSE * high:
                    self._try(high * (1 - _BELOW), effort)
                    break
                middle = 0.5 * (floor + high)
                if not self._try(middle, effort):
                    floor = middle
            effort *= 2

    @property
    def done(self) -> bool:
        """Whether the lower bound is reached, or the budget is over."""
        return self.budget.expired or (self.value is not None and self.value[0] <= self.lower)

    def _high(self, ceiling: float) -> float:
        return ceiling if self.value is None else min(self.value[0], ceiling)

    def _try(self, threshold: float, effort: int) -> bool:
        """Return whether an attempt improved the value."""
        found, work = self.attempt(threshold, effort)
        self.work += max(work, 1)
        return found is not None and self.offer(found)

    def offer(self, assignment: StageAssignment) -> bool:
        """Take an assignment that is feasible and better than the best; return whether it was."""
        value = evaluate(self.problem, assignment)
        if not math.isfinite(value[0]) or (self.value is not None and not value < self.value):
            return False
        self.best, self.value = assignment, value
        return True
