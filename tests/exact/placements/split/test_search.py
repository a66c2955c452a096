"""Properties of the exact search over the schedules of one block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.split.search import Target, search, search_model, transfer_times
from rlinit.exact.placements.split.state_layers import Frontier
from rlinit.placements.problem import PlacementProblem
from tests.draws import draws
from tests.exact.placements.split.cases import any_placement_problem, brute_force


def whole(problem: PlacementProblem) -> Frontier:
    """Return the empty schedule."""
    n, d = problem.num_ops, problem.num_devices
    return Frontier(
        np.zeros((1, d)),
        np.zeros((1, n)),
        np.full((1, n), -1, np.int8),
        np.zeros((1, d)),
        np.zeros((1, n), np.int8),
        np.zeros(1, np.int64),
    )


def _search(problem: PlacementProblem, **options: object) -> tuple[float, float]:
    none = np.zeros(0, np.int64)
    model = search_model(problem, transfer_times(problem), none, problem.order, [Target(-1, -1)])
    result = search(model, whole(problem), np.array([np.inf]), Budget(), **options)  # type: ignore[arg-type]
    return float(result.value_s[0]), float(result.bound_s[0])


@settings(max_examples=draws(120), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_search_is_exact(seed: int, memory: bool) -> None:
    """The search finds the optimum of brute force, with memory and groups, and proves it."""
    problem = any_placement_problem(seed, max_ops=6, memory=memory)
    value, bound = _search(problem)
    best = brute_force(problem)
    assert value == pytest.approx(best, rel=1e-9, abs=0)
    assert bound == pytest.approx(best, rel=1e-9, abs=0)


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
def test_narrow_passes_bound_the_optimum(seed: int, width: int, memory: bool) -> None:
    """A pass too narrow to prove anything leaves a bound that is one, and a value that is one."""
    problem = any_placement_problem(seed, max_ops=6, memory=memory)
    value, bound = _search(problem, widths=(width,))
    best = brute_force(problem)
    assert bound <= best * (1 + 1e-12)
    assert value >= best * (1 - 1e-12)
