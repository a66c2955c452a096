"""The bound by loads: what is kept between calls."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.time_windows import possible_batches
from rlinit.exact.placements.bounds import load
from tests.placement_cases import random_placement_problem


@pytest.mark.parametrize("seed", range(20))
def test_a_kept_bound_is_the_one_computed_anew(seed: int) -> None:
    """Equal batches give what a fresh copy of the problem gives; other batches are looked at anew."""
    problem = random_placement_problem(seed, 8, 3)
    allowed = possible_batches(problem)
    first = load.load_lagrangian(problem, allowed, Budget())
    assert load.load_lagrangian(problem, allowed.copy(), Budget()) is first
    fewer = allowed.copy()
    able = np.flatnonzero(fewer[0, :, 1])
    fewer[0, able[1:]] &= np.arange(fewer.shape[2]) == 0
    narrow = load.load_lagrangian(problem, fewer, Budget())
    fresh = load.load_lagrangian(replace(problem), fewer, Budget())
    assert (narrow.bound_s, narrow.weight.tolist()) == (fresh.bound_s, fresh.weight.tolist())
    assert narrow.bound_s >= first.bound_s * (1.0 - 1e-4)


def test_what_ended_early_is_not_kept() -> None:
    """A call without time left keeps nothing, and nothing outlives its problem."""
    problem = random_placement_problem(3, 8, 3)
    allowed = possible_batches(problem)
    early = load.load_lagrangian(problem, allowed, Budget(0.0))
    assert load.load_lagrangian(problem, allowed, Budget()) is not early
    seen = weakref.ref(problem)
    del problem
    gc.collect()
    assert seen() is None
