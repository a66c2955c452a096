"""The times by which a beam ranks its states, and gives them up, are those of the devices that are left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.heuristics.stages.beam.kernel import rest_times, times_after
from rlinit.heuristics.stages.beam.search import Beam
from rlinit.heuristics.stages.filling.search import FillSettings
from tests.draws import draws
from tests.stage_cases import brute_force_pipeline, random_problem


@settings(max_examples=draws(200), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-9, 1.0, 1e12]),
    blend=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_times_are_those_of_the_devices_left(seed: int, scale: float, blend: float) -> None:
    """Blend 0: the cheapest time; 1: the harmonic mean; infinite where no device that is left keeps to the limit."""
    rng = np.random.default_rng(seed)
    work = scale * rng.integers(0, 9, (3, 4)).astype(np.float64)
    work[rng.random(work.shape) < 0.3] = np.inf
    room, limit = rng.integers(0, 3, 3), 6.0 * scale
    times, value, placed = np.empty((4, 4)), np.empty(4), np.zeros(4, np.int8)
    rest_times(work, placed, room, limit, times)
    for c in np.flatnonzero(room):
        times_after(work, placed, int(c), int(room.sum()), limit, blend, times, value)
        left = np.repeat(work, room - (np.arange(3) == c), axis=0)
        for v in range(4):
            allowed = left[left[:, v] <= limit, v]
            if len(allowed) == 0:
                assert value[v] == np.inf
            elif allowed.min() == 0:
                assert value[v] == 0
            else:
                least = allowed.min()
                mean = max(least, len(left) / (1 / allowed).sum())
                assert value[v] == pytest.approx(least ** (1 - blend) * mean**blend, rel=1e-5)


def test_a_state_whose_rest_fits_the_last_device_is_completed() -> None:
    """Ops that the last device alone can take are all put there, though nothing is left to compare them with."""
    problem = random_problem(3, 7, 3, num_classes=3, density=0.4, io=0.0)
    optimum = brute_force_pipeline(problem)
    found, _ = Beam(FillSettings(problem), 0, Budget())(optimum * (1 + 1e-9), 8)
    assert found is not None
