"""Running a model on SCIP: statuses, limits, starts, callbacks, cancellation."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.exact.solvers import scip
from rlinit.exact.solvers.linear_model import Affine, LinearModel
from rlinit.exact.solvers.scip import RunSettings, Status, Termination, run_scip


def _makespan_model(num_jobs: int, num_machines: int, seed: int = 0) -> LinearModel:
    """Spread jobs of 1 to 10 units over equal machines: hard to prove beyond a few jobs."""
    weight = np.random.default_rng(seed).integers(1000, 10000, num_jobs) / 1000
    linear = LinearModel()
    x = [[linear.binary() for _ in range(num_machines)] for _ in range(num_jobs)]
    for row in x:
        linear.equal(Affine(dict.fromkeys(row, 1.0)), 1.0)
    loads = [Affine({x[i][j]: float(weight[i]) for i in range(num_jobs)}) for j in range(num_machines)]
    linear.objective = linear.max_of(0.0, float(weight.sum()), loads)
    return linear


def _all_on_first(linear: LinearModel, num_jobs: int, num_machines: int) -> FloatArray:
    point = np.zeros(linear.num_variables)
    point[: num_jobs * num_machines : num_machines] = 1.0
    return linear.complete(point)


def test_solves_to_optimality() -> None:
    """A small model ends optimal with bound equal to the objective of its point."""
    linear = _makespan_model(6, 2)
    run = run_scip(linear, budget=Budget(30))
    assert run.point is not None
    assert (run.status, run.termination) == (Status.OPTIMAL, Termination.COMPLETED)
    assert run.bound == pytest.approx(run.point[linear.objective], rel=1e-9)


def test_cutoff_below_the_optimum_is_infeasible_with_the_cutoff_as_bound() -> None:
    """Status infeasible under a cutoff means that nothing is better than the cutoff."""
    linear = _makespan_model(6, 2)
    best = run_scip(linear, budget=Budget(30)).bound
    run = run_scip(linear, budget=Budget(30), cutoff=best - 0.01)
    assert (run.status, run.point, run.bound) == (Status.INFEASIBLE, None, best - 0.01)


def test_infeasible_model_has_infinite_bound() -> None:
    """Without a cutoff, infeasible means that there is nothing at all."""
    linear = _makespan_model(3, 2)
    linear.at_most(Affine({0: 1.0, 1: 1.0}), 0.0)
    run = run_scip(linear, budget=Budget(30))
    assert (run.status, run.bound) == (Status.INFEASIBLE, np.inf)


def test_violated_constant_row_is_infeasible_without_a_search() -> None:
    """A row whose variables have all become constants still counts."""
    linear = _makespan_model(3, 2)
    linear.at_most(Affine(constant=2.0), 1.0)
    assert run_scip(linear, budget=Budget(30)).status is Status.INFEASIBLE


def test_spent_budget_starts_nothing() -> None:
    """An expired budget gives no solution and no bound."""
    run = run_scip(_makespan_model(6, 2), budget=Budget(0.0))
    assert (run.status, run.termination) == (Status.NO_SOLUTION, Termination.NOT_STARTED)
    assert run.bound == -np.inf


def test_time_limit() -> None:
    """The time limit ends a long search with its incumbent and a bound below it."""
    linear = _makespan_model(60, 4)
    begun = time.monotonic()
    run = run_scip(linear, budget=Budget(0.5))
    assert time.monotonic() - begun < 20
    assert (run.status, run.termination) == (Status.FEASIBLE, Termination.TIME_LIMIT)
    assert run.point is not None
    assert run.bound <= run.point[linear.objective]


def test_node_limit_repeats_identically() -> None:
    """Limits counted in nodes give the same point, bound and node count every time."""
    linear = _makespan_model(40, 3)
    first, second = (run_scip(linear, budget=Budget(60), node_limit=50) for _ in range(2))
    assert first.termination is Termination.NODE_LIMIT
    assert first.point is not None
    assert second.point is not None
    assert np.array_equal(first.point, second.point)
    assert (first.bound, first.nodes) == (second.bound, second.nodes)


def test_cancel_from_another_thread_returns_the_incumbent() -> None:
    """Cancelling the budget interrupts the search soon and keeps what was found."""
    budget = Budget(60)
    threading.Timer(0.7, budget.cancel).start()
    begun = time.monotonic()
    run = run_scip(_makespan_model(60, 4), budget=budget)
    assert time.monotonic() - begun < 20
    assert (run.status, run.termination) == (Status.FEASIBLE, Termination.INTERRUPTED)


def test_keyboard_interrupt_cancels_and_returns_the_incumbent() -> None:
    """Ctrl-C while waiting ends the run like a cancellation."""
    budget = Budget(60)

    def press(_: FloatArray) -> None:
        raise KeyboardInterrupt

    run = run_scip(_makespan_model(60, 4), budget=budget, on_point=press)
    assert budget.cancelled
    assert (run.status, run.termination) == (Status.FEASIBLE, Termination.INTERRUPTED)


def test_exception_in_a_callback_comes_out_as_it_is() -> None:
    """A callback's exception stops the run and is raised unchanged."""

    def fail(_: FloatArray) -> None:
        raise ZeroDivisionError("from the callback")

    with pytest.raises(ZeroDivisionError, match="from the callback"):
        run_scip(_makespan_model(60, 4), budget=Budget(60), on_point=fail)


def test_callbacks_run_in_the_calling_thread_and_improve() -> None:
    """Points and bounds arrive in the caller's thread, each better than the one before."""
    linear = _makespan_model(14, 3)
    threads: set[int] = set()
    values: list[float] = []
    bounds: list[float] = []

    def on_point(point: FloatArray) -> None:
        threads.add(threading.get_ident())
        values.append(float(point[linear.objective]))

    run_scip(linear, budget=Budget(30), on_point=on_point, on_bound=bounds.append)
    assert threads == {threading.get_ident()}
    assert values == sorted(values, reverse=True)
    assert bounds
    assert bounds == sorted(bounds)


def test_start_is_kept() -> None:
    """A feasible start survives a run that has no time to find anything better."""
    linear = _makespan_model(60, 4)
    start = _all_on_first(linear, 60, 4)
    run = run_scip(linear, budget=Budget(30), node_limit=0, start=start, settings=RunSettings(heuristics="off"))
    assert run.point is not None
    assert run.point[linear.objective] <= start[linear.objective] * (1 + 1e-9)


def test_infeasible_start_is_left_out() -> None:
    """A start that breaks a row is not taken for a solution."""
    linear = _makespan_model(6, 2)
    linear.at_most(Affine({0: 1.0}), 0.0)
    run = run_scip(linear, budget=Budget(30), start=_all_on_first(linear, 6, 2))
    assert run.point is not None
    assert run.point[0] < 0.5


def test_absolute_gap_is_feasible_not_optimal() -> None:
    """Stopping at a gap is reported as such."""
    linear = _makespan_model(60, 4)
    run = run_scip(linear, budget=Budget(30), absolute_gap=20.0)
    assert (run.status, run.termination) == (Status.FEASIBLE, Termination.GAP_LIMIT)


def test_unknown_status_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that the table does not explain is a failure, not a guess."""
    monkeypatch.delitem(scip._TERMINATIONS, "optimal")
    with pytest.raises(SolverFailure, match="'optimal'"):
        run_scip(_makespan_model(4, 2), budget=Budget(30))


def test_settings_reject_unknown_names() -> None:
    """A misspelt setting is an error that lists the choices."""
    with pytest.raises(ValueError, match=r"separation: expected one of .*'fastest'"):
        RunSettings(separation="fastest")


def test_relaxation_bound_is_below_the_optimum() -> None:
    """The LP's dual value bounds the integral optimum, and is the average load here."""
    linear = _makespan_model(7, 3)
    run = run_scip(linear, budget=Budget(30))
    assert run.point is not None
    bound = linear.relaxation_bound(10.0)
    assert 0 < bound <= run.point[linear.objective] * (1 + 1e-12)
    assert linear.relaxation_bound(0.0) == 0.0


@pytest.mark.parametrize("coefficient", [1e20, -3e25, np.inf, np.nan])
def test_a_coefficient_that_scip_takes_for_infinite_is_refused_by_row(coefficient: float) -> None:
    """SCIP refuses such input with "error in input data!"; here the row is named before SCIP sees it."""
    linear = _makespan_model(3, 2)
    linear.at_most(Affine({0: coefficient, 1: 1.0}), 1.0)
    with pytest.raises(SolverFailure, match=rf"row {len(linear.rows) - 1} .*of variable 0"):
        run_scip(linear, budget=Budget(30))


@pytest.mark.parametrize("side", [1e20, -2e22, np.nan])
def test_a_side_or_bound_that_scip_takes_for_infinite_is_refused(side: float) -> None:
    """SCIP would drop such a row in silence, or take a lower side for minus infinity."""
    linear = _makespan_model(3, 2)
    linear.equal(Affine({0: 1.0}), side)
    with pytest.raises(SolverFailure, match=r"row \d+ .*sides"):
        run_scip(linear, budget=Budget(30))
    linear = _makespan_model(3, 2)
    linear.upper[0] = abs(side)
    with pytest.raises(SolverFailure, match="variable 0"):
        run_scip(linear, budget=Budget(30))


def test_what_the_interface_of_scip_raises_is_a_solver_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exceptions have no class of their own, so every step around the search turns them into one."""

    def broken(*_args: object) -> None:
        raise ValueError("some call failed")

    monkeypatch.setattr(scip, "_build", broken)
    with pytest.raises(SolverFailure, match="SCIP failed: some call failed"):
        run_scip(_makespan_model(3, 2), budget=Budget(30))


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_relaxation_with_a_number_that_is_not_finite_is_a_solver_failure(number: float) -> None:
    """HiGHS' interface would raise a bare ValueError."""
    linear = _makespan_model(3, 2)
    linear.at_most(Affine({0: number, 1: 1.0}), 1.0)
    with pytest.raises(SolverFailure, match="not finite"):
        linear.relaxation_bound(10.0)
