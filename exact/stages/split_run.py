"""Running the programs of splits with chunks or loose ops on SCIP: from a start, to a value and a safe bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import LinearModel
from rlinit.exact.solvers.scip import RunSettings, Status, run_scip
from rlinit.exact.stages.scaled_costs import safe_bound

__all__ = ["SplitModel", "SplitResult", "run_split"]

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


def run_split(
    model: SplitModel[ScheduleT],
    value_of: Callable[[ScheduleT], float],
    *,
    budget: Budget,
    start: ScheduleT | None,
    reference: float,
    lower: float,
    node_limit: int | None = None,
    on_solution: Callable[[ScheduleT], object] | None = None,
    on_bound: Callable[[float], object] | None = None,
) -> SplitResult[ScheduleT]:
    """Minimise the bottleneck of a program; values are recomputed, bounds discounted by SCIP's tolerances.

    Parameters
    ----------
    model
        The program. It holds every schedule of value at most `reference`, so it proves nothing beyond that.
    value_of
        Seconds of a schedule, inf where it is not feasible.
    budget
        Time limit and switch.
    start
        A schedule to start from, of value `reference`, or None.
    reference
        Seconds, inf without a start.
    lower
        A proven bound in seconds.
    node_limit
        Most branch-and-bound nodes, for limits that repeat identically.
    on_solution, on_bound
        Called in this thread with each better schedule and each better bound in seconds.
    """
    best, value = start, reference

    def offer(point: FloatArray) -> None:
        nonlocal best, value
        found = model.decode(point)
        seconds = value_of(found)
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
        proven = run.status is Status.INFEASIBLE
        return SplitResult(
            None, np.inf, np.inf if proven else bound, "infeasible" if proven else "no_solution", run.nodes
        )
    bound = min(bound, value)
    status: Literal["optimal", "feasible"] = "optimal" if value <= bound * (1 + _OPTIMAL_GAP) else "feasible"
    return SplitResult(best, value, bound, status, run.nodes)
