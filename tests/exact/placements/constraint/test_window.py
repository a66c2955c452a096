"""Windows on CP-SAT: what is found is a better placement, the best where the window is the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.constraint.window import WindowSearch, solve_window
from rlinit.exact.solvers.cp_sat import ConstraintSettings, is_available
from rlinit.heuristics.placements.local_search import earliest_finish_start
from rlinit.placements.timeline import makespan, obstacle
from tests.exact.placements.test_milp import small_latency
from tests.placement_cases import brute_force_placement, random_placement_problem

pytestmark = pytest.mark.skipif(not is_available(), reason="OR-Tools is not installed, or highspy is loaded")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_window_of_all_ops_leads_to_the_optimum(seed: int) -> None:
    """With memory, groups and missing links, solved to the end."""
    problem = small_latency(seed)
    start = earliest_finish_start(problem)
    if start is None or not np.isfinite(value := makespan(problem, start)):
        return
    window = (0, problem.num_ops)
    found, ended = solve_window(problem, start, window, budget=Budget(20), settings=ConstraintSettings())
    reached = value if found is None else makespan(problem, found)
    assert ended in ("optimal", "infeasible")
    assert reached <= value
    assert reached == pytest.approx(brute_force_placement(problem), rel=2e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_outside_a_window_stays(seed: int) -> None:
    """The result fits, is no worse, and ops outside the window keep their devices, also those of its groups."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        int(rng.integers(2**31)),
        24,
        3,
        density=float(rng.uniform(0.1, 0.4)),
        scale=float(rng.choice([1.0, 1e-9, 1e12])),
        memory_fraction=float(rng.choice([np.inf, 0.7])),
        group_fraction=float(rng.choice([0.0, 0.3])),
        integer=bool(rng.integers(2)),
    )
    start = earliest_finish_start(problem)
    if start is None or not np.isfinite(value := makespan(problem, start)):
        return
    low, high = sorted(rng.choice(problem.num_ops + 1, 2, replace=False).tolist())
    found, _ = solve_window(problem, start, (low, high), budget=Budget(20), settings=ConstraintSettings(0.2))
    if found is None:
        return
    outside = np.ones(problem.num_ops, np.bool_)
    outside[start.sequence[low:high] // problem.num_devices] = False
    assert obstacle(problem, found) == ""
    assert makespan(problem, found) < value
    assert (found.device[outside] == start.device[outside]).all()


def test_windows_one_after_another_repeat() -> None:
    """Equal seeds lead to equal placements, which get better."""
    problem = random_placement_problem(5, 60, 3, density=0.1)
    start = earliest_finish_start(problem)
    assert start is not None
    results = []
    for _ in range(2):
        search, best = WindowSearch(problem, 3), start
        for _ in range(6):
            found = search.improve(best, Budget())
            if found is not None and makespan(problem, found) < makespan(problem, best):
                best = found
        results.append(best)
    assert makespan(problem, results[0]) < makespan(problem, start)
    assert (results[0].sequence == results[1].sequence).all()


@pytest.mark.parametrize(("seed", "first", "share"), [(36, 6, 0.911), (37, 4, 0.973), (38, 5, 0.963)])
def test_windows_on_equal_devices_are_not_narrowed(seed: int, first: int, share: float) -> None:
    """What runs before and after a window tells equal devices apart, so which of them an op takes matters."""
    problem = random_placement_problem(
        seed, 24, 3, density=0.15, identical=True, integer=bool(seed % 2), transfer=0.3, forbidden_fraction=0.0
    )
    start = earliest_finish_start(problem)
    assert start is not None
    window = (first, first + 10)
    found, _ = solve_window(problem, start, window, budget=Budget(20), settings=ConstraintSettings())
    assert found is not None
    assert makespan(problem, found) <= share * makespan(problem, start)
