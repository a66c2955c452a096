"""Windows of a placement: how many ops they free, and which."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinit.heuristics.placements.local_search import earliest_finish_start
from rlinit.placements.window import placement_windows
from tests.placement_cases import random_placement_problem


@given(seed=st.integers(0, 1000), n=st.integers(1, 14), size=st.integers(1, 16))
def test_windows_hold_so_many_ops(seed: int, n: int, size: int) -> None:
    """A window frees as many ops as asked for, or all there are."""
    problem = random_placement_problem(seed, n, 3, forbidden_fraction=0.0)
    placement = earliest_finish_start(problem)
    assert placement is not None
    alone = (np.bincount(problem.group, minlength=n)[problem.group] == 1).all()
    for window in placement_windows(problem, placement, size):
        assert window.sum() == min(size, n) or not alone
