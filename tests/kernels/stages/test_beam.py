"""The fullness by which a beam ranks its states, and gives them up, is a bound on the rest."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.kernels.stages.beam import rest_fullness
from tests.stage_cases import brute_force_pipeline, random_problem


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ops=st.integers(1, 5),
    scale=st.sampled_from([1e-9, 1.0, 1e12]),
    tight=st.sampled_from([0.5, 0.9, 1.0, 1.2]),
)
def test_no_rest_is_given_up_that_fits(seed: int, ops: int, scale: float, tight: float) -> None:
    """Whatever the prices to start from: at most the optimum over the limit, and finite where something keeps to it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, ops, 3, num_classes=3, density=0.3, io=0.0)
    work = scale * rng.integers(0, 9, (3, ops)).astype(np.float64)
    work[rng.random(work.shape) < 0.2] = np.inf
    optimum = brute_force_pipeline(dataclasses.replace(problem, work_s=work))
    limit = tight * (optimum if 0 < optimum < np.inf else scale)
    price = rng.uniform(0.1, 3.0, 3)
    full = rest_fullness(work, np.arange(ops), problem.class_count, limit, price, 12)
    if optimum <= limit:
        assert full * limit <= optimum * (1 + 1e-9)
    assert full <= 1 + 1e-9 or optimum > limit


def test_an_op_that_fits_no_device_left_ends_a_state() -> None:
    """An op that is quick only on a device that is used up, or slow on all, leaves nothing to hope for."""
    work = np.array([[1.0, 1.0], [9.0, 1.0]])
    price = np.ones(2)
    assert rest_fullness(work, np.arange(2), np.array([0, 1]), 5.0, price, 12) == np.inf
    assert rest_fullness(work, np.arange(2), np.array([1, 0]), 5.0, price, 12) == 0.4
    assert rest_fullness(work, np.arange(2), np.array([1, 0]), 1.5, price, 12) == np.inf
