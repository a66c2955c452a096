"""Windows of a placement: how many ops they free, which, and what an agent's doubt changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinit.heuristics.placements.local_search import earliest_finish_start
from rlinit.placements.window import placement_windows
from tests.placement_cases import random_placement_problem


@given(seed=st.integers(0, 1000), n=st.integers(1, 14), size=st.integers(1, 16))
def test_windows_hold_so_many_ops(seed: int, n: int, size: int) -> None:
    """A window frees as many ops as asked for, or all there are; with doubt as well, whose size changes nothing."""
    problem = random_placement_problem(seed, n, 3, forbidden_fraction=0.0)
    placement = earliest_finish_start(problem)
    assert placement is not None
    alone = (np.bincount(problem.group, minlength=n)[problem.group] == 1).all()
    plain = list(placement_windows(problem, placement, size))
    even = list(placement_windows(problem, placement, size, np.ones(n)))
    for window, same in zip(plain, even, strict=True):
        assert window.sum() == min(size, n) or not alone
        assert np.array_equal(window, same)


@given(seed=st.integers(0, 1000), v=st.integers(0, 13))
def test_an_op_in_doubt_is_free_in_at_least_as_many_windows(seed: int, v: int) -> None:
    """Doubt about one op alone frees it wherever it was free before, and maybe elsewhere."""
    problem = random_placement_problem(seed, 14, 3, forbidden_fraction=0.0)
    placement = earliest_finish_start(problem)
    assert placement is not None
    doubt = np.zeros(14)
    doubt[v] = 1.0
    plain = placement_windows(problem, placement, 5)
    doubtful = placement_windows(problem, placement, 5, doubt)
    assert all(in_doubt[v] or not before[v] for before, in_doubt in zip(plain, doubtful, strict=True))
