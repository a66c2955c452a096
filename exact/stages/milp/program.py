"""Running a program of stages on SCIP: from a start, to a value that is recomputed and a bound that is safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import LinearModel, OutOfTime
from rlinit.exact.solvers.scip import BOUND_SAFETY, RunSettings, Status, run_scip, skipped_run
from rlinit.exact.stages.milp.scaled_costs import safe_bound
from rlinit.plan import OPTIMALITY_TOLERANCE
from rlinit.stages.problem import ScheduleT, StageResult, Value


class StageModel(Protocol[ScheduleT]):
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
class StageProgram(Generic[ScheduleT]):
    """How a problem's program is written, and what its schedules are worth.

    Parameters
    ----------
    write
        (lower, upper, budget) -> the program of all schedules of at most `upper` seconds, of which none takes less than
        `lower`, None where it sees that there is none; raises `OutOfTime` once the budget has ended.
    value_of
        Seconds of a schedule, inf where it is not feasible.
    most
        Seconds that no schedule exceeds.
    settings
        How SCIP searches.
    """

    write: Callable[[float, float, Budget], StageModel[ScheduleT] | None]
    value_of: Callable[[ScheduleT], float]
    most: float
    settings: RunSettings = field(default_factory=RunSettings)

    def solve(
        self,
        *,
        budget: Budget,
        start: ScheduleT | None = None,
        lower: float = 0.0,
        node_limit: int | None = None,
        on_solution: Callable[[ScheduleT], object] | None = None,
        on_bound: Callable[[Value], object] | None = None,
    ) -> StageResult[ScheduleT]:
        """Minimise the largest cost of a device; values are recomputed, bounds discounted by SCIP's tolerances.

        Parameters
        ----------
        budget
            Time limit and switch.
        start
            A schedule to start from, or None; the result is never worse.
        lower
            A proven bound in seconds.
        node_limit
            Most branch-and-bound nodes, for limits that repeat identically.
        on_solution, on_bound
            Called in this thread with each better schedule and each better bound.

        Raises
        ------
        SolverFailure
            SCIP fails.
        """
        value = reference = np.inf if start is None else self.value_of(start)
        best = start = None if reference == np.inf else start
        # The program holds every schedule up to its ceiling, and proves nothing beyond.
        ceiling = min(reference * (1 + 1e-6), self.most)

        def offer(found: ScheduleT) -> None:
            nonlocal best, value
            seconds = self.value_of(found)
            if seconds < value:
                best, value = found, seconds
                if on_solution is not None:
                    on_solution(found)

        try:
            model = self.write(min(lower, ceiling), ceiling, budget)
        except OutOfTime:
            run, bound = skipped_run(Status.NO_SOLUTION), min(lower, reference)
        else:
            if model is None:
                # Counted, not solved: only the rounding of sums stands between the reference and a bound.
                run, bound = skipped_run(Status.INFEASIBLE), max(reference * (1 - BOUND_SAFETY), lower)
            else:
                written, unit = model, model.unit

                def safe(bound: float) -> float:
                    return max(safe_bound(min(bound, reference / unit), unit), lower)

                def tell(bound: float) -> None:
                    if on_bound is not None:
                        on_bound((safe(bound),))

                run = run_scip(
                    model.linear,
                    budget=budget,
                    node_limit=node_limit,
                    start=None if start is None else model.encode(start),
                    settings=self.settings,
                    on_point=lambda point: offer(written.decode(point)),
                    on_bound=tell,
                )
                if run.point is not None:
                    offer(model.decode(run.point))
                bound = safe(run.bound)
        if best is None:
            if run.status is Status.INFEASIBLE or bound == np.inf:
                return StageResult(None, None, (np.inf,), "infeasible", run.nodes)
            return StageResult(None, None, (bound,), "no_solution", run.nodes)
        bound = min(bound, value)
        closed = value <= bound * (1 + OPTIMALITY_TOLERANCE)
        return StageResult(best, (value,), (bound,), "optimal" if closed else "feasible", run.nodes)
