"""The smallest bottleneck that a method reaches which can only be asked for one below a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from rlinit.arrays import NOTABLE, SAFETY
from rlinit.budget import Budget
from rlinit.stages.problem import ScheduleT, Value

_FIRST_STEP = 0.01
"""How far below the value the first threshold of an effort is, relatively."""

_GROWTH, _MOST_EFFORT = 1.5, 1024
"""Factor from effort to effort; the first one follows upon the largest."""

Attempt = Callable[[float, int, ScheduleT | None], tuple[ScheduleT | None, int]]
"""Takes (threshold, effort, best known); returns an assignment within the threshold, or None, and the work it took."""


@dataclass(slots=True)
class ThresholdSearch(Generic[ScheduleT]):
    """Bisection on the bottleneck, round after round with more effort, until the work allowed is spent.

    Parameters
    ----------
    value_of
        The value of an assignment.
    attempt
        Every call may come out otherwise.
    lower
        A bottleneck that none is below; the search ends where it is reached.
    budget
        When to stop.
    quantum
        Every bottleneck is a whole multiple of it; 0: not known.
    on_solution
        Called with each better assignment.
    best, value
        The best assignment so far and its value, None at first where there is none.
    work
        What the attempts took so far.
    """

    value_of: Callable[[ScheduleT], Value]
    attempt: Attempt[ScheduleT]
    lower: float
    budget: Budget
    quantum: float = 0.0
    on_solution: Callable[[ScheduleT], object] | None = None
    best: ScheduleT | None = None
    value: Value | None = None
    work: int = 0

    def run(self, ceiling: float, most_work: int) -> None:
        """Search below `ceiling`, a bottleneck that no assignment exceeds, until `most_work` is spent.

        At first it halves between the lower bound and the value. Then it steps down from the value: a step that leads
        somewhere is doubled, one that does not is halved, and where the smallest leads nowhere the effort grows.

        Parameters
        ----------
        ceiling
            Seconds.
        most_work
            In the unit in which `attempt` counts.
        """
        self._bisect(ceiling, most_work)
        effort, step = 1.0, _FIRST_STEP
        while self.work < most_work and not self.done:
            high = self._high(ceiling)
            target = self._multiple(max(self.lower, high * (1 - step)), self.lower)
            last = target >= high * (1 - SAFETY) or step <= NOTABLE
            if last:
                target = high * (1 - SAFETY)
            if self._try(target, int(effort)):
                step = min(2 * step, _FIRST_STEP)
            elif last or (self.quantum > 0.0 and high - target <= self.quantum * (1 + NOTABLE)):
                effort, step = effort * _GROWTH if effort < _MOST_EFFORT else 1.0, _FIRST_STEP
            else:
                step *= 0.5

    def _bisect(self, ceiling: float, most_work: int) -> None:
        """Halve between the lower bound and the value, with the least effort."""
        floor = self.lower
        if floor < self._high(ceiling) * (1 - SAFETY):
            self._try(floor, 1)
        while self.work < most_work and not self.done:
            high = self._high(ceiling)
            middle = self._multiple(0.5 * (floor + high), floor)
            if high - floor <= NOTABLE * high or middle >= high * (1 - SAFETY):
                break
            if not self._try(middle, 1):
                floor = middle

    @property
    def done(self) -> bool:
        """Whether the lower bound is reached, or the budget is over."""
        return self.budget.expired or (self.value is not None and self.value[0] <= self.lower)

    def _multiple(self, threshold: float, floor: float) -> float:
        """Return the largest multiple of the quantum up to a threshold, the next one where that is not over `floor`."""
        if self.quantum <= 0.0:
            return threshold
        multiple = math.floor(threshold / self.quantum) * self.quantum
        return multiple if multiple > floor * (1 + SAFETY) else max(multiple + self.quantum, floor)

    def _high(self, ceiling: float) -> float:
        return ceiling if self.value is None else min(self.value[0], ceiling)

    def _try(self, threshold: float, effort: int) -> bool:
        """Return whether an attempt improved the value."""
        found, work = self.attempt(threshold, effort, self.best)
        self.work += max(work, 1)
        return found is not None and self.offer(found)

    def offer(self, assignment: ScheduleT) -> bool:
        """Take an assignment that is feasible and better than the best; return whether it was."""
        value = self.value_of(assignment)
        if not math.isfinite(value[0]) or (self.value is not None and not value < self.value):
            return False
        self.best, self.value = assignment, value
        if self.on_solution is not None:
            self.on_solution(assignment)
        return True
