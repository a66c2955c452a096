"""The best schedule and bound so far, with the history of how they came about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rlinit.budget import Budget
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.plan import HistoryEntry, relative_gap
from rlinit.stages.activation_problem import StageActivations, activation_value
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate

__all__ = [
    "ActivationIncumbent",
    "Incumbent",
    "PlacementIncumbent",
    "Progress",
    "StageIncumbent",
    "for_activations",
    "for_placement",
    "for_stages",
]

_ROUNDING = 1e-12
"""Relative difference of two float sums that is put down to the order of their terms."""

Progress = Callable[[HistoryEntry], None]
"""Called with every improvement of value or bound, and at every change of phase, from the solving thread."""


ProblemT = TypeVar("ProblemT")
ScheduleT = TypeVar("ScheduleT")


@dataclass(slots=True)
class Incumbent(Generic[ProblemT, ScheduleT]):
    """What is known so far about one problem. Never gets worse; every value is recomputed here.

    Parameters
    ----------
    problem
        The problem.
    value_of
        Gives the value of a schedule of the problem, infinite where it is not feasible.
    budget
        When to stop.
    target_gap
        Closed once the gap is at most this.
    progress
        Told about every improvement.
    """

    problem: ProblemT
    value_of: Callable[[ProblemT, ScheduleT], Value]
    budget: Budget
    target_gap: float
    progress: Progress | None
    assignment: ScheduleT | None = None
    values: Value | None = None
    bounds: Value | None = None
    method: str = ""
    bound_source: str = ""
    infeasible: str = ""
    note: str = ""
    phase: str = ""
    started: float = field(default_factory=time.monotonic)
    history: list[HistoryEntry] = field(default_factory=list)
    phase_s: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Gap between value and bound, as `Plan.gap`."""
        return relative_gap(self.values, self.bounds)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do: the target gap is reached, or infeasibility is proven."""
        return bool(self.infeasible) or self.gap <= self.target_gap

    @property
    def finished(self) -> bool:
        """Whether to stop: closed, or out of budget."""
        return self.ended()

    def ended(self, late: bool = False) -> bool:
        """Return whether to stop: closed, or out of budget; for what runs although `late`, closed or cancelled."""
        return self.closed or (self.budget.cancelled if late else self.budget.expired)

    def offer(self, assignment: ScheduleT | None, method: str) -> bool:
        """Take an assignment if it is feasible and better than the incumbent; return whether it was."""
        if assignment is None:
            return False
        values = self.value_of(self.problem, assignment)
        if values[0] == float("inf") or (self.values is not None and not _is_below(values, self.values)):
            return False
        self.assignment, self.values, self.method = assignment, values, method
        self._record()
        return True

    def raise_bound(self, bounds: Value, source: str) -> bool:
        """Take proven lower bounds on the full problem where they are better; return whether any was.

        A bound on one level holds for schedules that are optimal on the levels before it, whoever proved those, so the
        best of every level may be combined.
        """
        if self.bounds is not None:
            combined = tuple(map(max, self.bounds, bounds))
            if combined == self.bounds:
                return False
            bounds = combined
        self.bounds, self.bound_source = bounds, source
        self._record()
        return True

    def _record(self) -> None:
        entry = HistoryEntry(time.monotonic() - self.started, self.values, self.bounds, self.phase)
        self.history.append(entry)
        if self.progress is not None:
            self.progress(entry)

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Narrow the budget to a share of the time left while the body runs."""
        whole = self.budget
        if share < 1.0 and whole.remaining_s < float("inf"):
            self.budget = whole.share(share * whole.remaining_s)
        try:
            yield
        finally:
            self.budget = whole

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Name the phase that is running and add up its seconds."""
        started, outer = time.monotonic(), self.phase
        self.phase = name
        if self.progress is not None:
            self.progress(HistoryEntry(time.monotonic() - self.started, self.values, self.bounds, name))
        try:
            yield
        finally:
            self.phase = outer
            self.phase_s[name] = self.phase_s.get(name, 0.0) + time.monotonic() - started


StageIncumbent = Incumbent[StageProblem, StageAssignment]
PlacementIncumbent = Incumbent[PlacementProblem, Placement]
ActivationIncumbent = Incumbent[StageActivations, StageAssignment]


def for_stages(problem: StageProblem, budget: Budget, target_gap: float, progress: Progress | None) -> StageIncumbent:
    """Return what is known at first about a stage problem: nothing."""
    return Incumbent(problem, evaluate, budget, target_gap, progress)


def for_activations(
    problem: StageActivations, budget: Budget, target_gap: float, progress: Progress | None
) -> ActivationIncumbent:
    """Return what is known at first about a stage problem with activations: nothing."""
    return Incumbent(problem, activation_value, budget, target_gap, progress)


def for_placement(
    problem: PlacementProblem, budget: Budget, target_gap: float, progress: Progress | None
) -> PlacementIncumbent:
    """Return what is known at first about a placement problem: nothing."""
    from rlinit.placements.timeline import makespan

    def value_of(problem: PlacementProblem, placement: Placement) -> Value:
        return (makespan(problem, placement),)

    return Incumbent(problem, value_of, budget, target_gap, progress)


def _is_below(values: Value, others: Value) -> bool:
    """Compare lexicographically, where levels that differ by rounding alone are equal."""
    for value, other in zip(values, others, strict=True):
        if abs(value - other) > _ROUNDING * max(abs(value), abs(other)):
            return value < other
    return False
