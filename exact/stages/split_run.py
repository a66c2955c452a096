"""Running the programs of splits with chunks or loose ops on SCIP: from a start, to a value and a safe bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import LinearModel, OutOfTime
from rlinit.exact.solvers.scip import RunSettings, Status, run_scip
from rlinit.exact.stages.scaled_costs import safe_bound

ScheduleT = TypeVar("ScheduleT")

_OPTIMAL_GAP = 1e-6
"""Relative gap up to which a value counts as proven best."""


class SplitModel(Protocol[ScheduleT]):
    """A program that holds every schedule of value at most some ceiling."""

    @property
    def linear(self) -> LinearModel:
        """Its variables and rows; the objective is the bottleneck in units."""
        ...

    @property
    def unit(self) -> float:
        """Seconds that count as 1."""
        ...

    def encode(self, assignment: ScheduleT) -> FloatArray:
        """Return the point of a schedule."""
        ...

    def decode(self, point: FloatArray) -> ScheduleT:
        """Return the schedule of a point that satisfies the program up to SCIP's tolerance."""
        ...


@dataclass(frozen=True, slots=True)
class SplitResult(Generic[ScheduleT]):
    """What a program found and proved.

    Parameters
    ----------
    assignment, value
        The best schedule and its seconds; None and inf where there is none.
    bound
        Seconds; inf where nothing fits.
    status
        As for `StageResult`.
    nodes
        Branch-and-bound nodes.
    """

    assignment: ScheduleT | None
    value: float
    bound: float
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    nodes: int


@dataclass(frozen=True, slots=True)
class SplitProgram(Generic[ScheduleT]):
    """How a problem's program is written, and what its schedules are worth.

    Parameters
    ----------
    write
        (lower, upper, budget) -> the program of all schedules of at most `upper` seconds, of which none takes less than
        `lower`; raises `OutOfTime` once the budget has ended.
    value_of
        Seconds of a schedule, inf where it is not feasible.
    most
        Seconds that no schedule exceeds.
    """

    write: Callable[[float, float, Budget], SplitModel[ScheduleT]]
    value_of: Callable[[ScheduleT], float]
    most: float

    def solve(
        self,
        *,
        budget: Budget,
        start: ScheduleT | None = None,
        lower: float = 0.0,
        node_limit: int | None = None,
        on_solution: Callable[[ScheduleT], object] | None = None,
        on_bound: Callable[[float], object] | None = None,
    ) -> SplitResult[ScheduleT]:
        """Minimise the largest cost of a device; values are recomputed, bounds discounted by SCIP's tolerances.

        Parameters
        ----------
        budget
            Time limit and switch.
        start
            A schedule to start from, or None.
        lower
            A proven bound in seconds.
        node_limit
            Most branch-and-bound nodes, for limits that repeat identically.
        on_solution, on_bound
            Called in this thread with each better schedule and each better bound in seconds.

        Raises
        ------
        SolverFailure
            SCIP fails.
        """
        value = reference = np.inf if start is None else self.value_of(start)
        best = start = None if reference == np.inf else start
        # The program holds every schedule up to its ceiling, and proves nothing beyond.
        ceiling = min(reference * (1 + 1e-6), self.most)
        try:
            model = self.write(min(lower, ceiling), ceiling, budget)
        except OutOfTime:
            return SplitResult(start, reference, lower, "no_solution" if start is None else "feasible", 0)

        def offer(point: FloatArray) -> None:
            nonlocal best, value
            found = model.decode(point)
            seconds = self.value_of(found)
            if seconds < value:
                best, value = found, seconds
                if on_solution is not None:
                    on_solution(found)

        def safe(bound: float) -> float:
            return max(safe_bound(min(bound, reference / model.unit), model.unit), lower)

        def tell(bound: float) -> None:
            if on_bound is not None:
                on_bound(safe(bound))

        run = run_scip(
            model.linear,
            budget=budget,
            node_limit=node_limit,
            start=None if start is None else model.encode(start),
            settings=RunSettings(separation="default", heuristics="default"),
            on_point=offer,
            on_bound=tell,
        )
        if run.point is not None:
            offer(run.point)
        bound = safe(run.bound)
        if best is None:
            if run.status is Status.INFEASIBLE:
                return SplitResult(None, np.inf, np.inf, "infeasible", run.nodes)
            return SplitResult(None, np.inf, bound, "no_solution", run.nodes)
        bound = min(bound, value)
        closed = value <= bound * (1 + _OPTIMAL_GAP)
        return SplitResult(best, value, bound, "optimal" if closed else "feasible", run.nodes)
