"""Properties of the multipliers by which a block's work is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from rlinit.arrays import FloatArray
from rlinit.exact.placements.split.search_bounds import best_multiplier
from tests.draws import draws


def _least_makespan(time_s: FloatArray, around_s: FloatArray) -> float:
    """Return the optimum of the assignment LP whose dual the multipliers are, in units of all loads being even."""
    n, d = time_s.shape
    loads = np.zeros((d, n * d + 1))
    whole = np.zeros((n, n * d + 1))
    bounds: list[tuple[float, float | None]] = []
    for v in range(n):
        for j in range(d):
            runs = bool(time_s[v, j] < np.inf)
            loads[j, v * d + j] = time_s[v, j] if runs else 0.0
            whole[v, v * d + j] = 1.0
            bounds.append((0.0, None if runs else 0.0))
    loads[:, -1] = -1.0
    result = linprog(
        np.eye(n * d + 1)[-1], A_ub=loads, b_ub=-around_s, A_eq=whole, b_eq=np.ones(n), bounds=[*bounds, (0.0, None)]
    )
    assert result.fun is not None
    return float(result.fun)


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
def test_multipliers_are_the_dual_of_the_assignment(seed: int, d: int, gaps: bool) -> None:
    """The weighted work is the optimum of the fractional assignment, and the multipliers sum to 1."""
    rng = np.random.default_rng(seed)
    time_s = rng.uniform(0.0, 1.0, (int(rng.integers(1, 9)), d))
    if gaps:
        lost = rng.random(time_s.shape) < 0.3
        lost[:, 0] = False
        time_s[lost] = np.inf
    around_s = rng.choice([0.0, 0.5, 2.0], d)
    multiplier = best_multiplier(time_s, around_s)
    assert (multiplier >= 0).all()
    assert multiplier.sum() == pytest.approx(1.0)
    worth = float(multiplier @ around_s + np.where(np.isfinite(time_s), multiplier * time_s, np.inf).min(axis=1).sum())
    assert worth == pytest.approx(_least_makespan(time_s, around_s), abs=1e-6)
