"""Common divisors of floats, exactly, and rounding up to their multiples."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinit.exact.solvers.quantum import exact_quantum, round_up


@given(
    multiples=st.lists(st.integers(0, 10**6), min_size=1, max_size=8),
    unit=st.integers(1, 1000),
    exponent=st.integers(-60, 60),
)
def test_the_quantum_divides_everything(multiples: list[int], unit: int, exponent: int) -> None:
    """Multiples of a dyadic number have a quantum that is a multiple of it and divides them all."""
    base = Fraction(unit) * Fraction(2) ** exponent
    values = np.array([float(multiple * base) for multiple in multiples])
    quantum = exact_quantum(values)
    if not values.any():
        assert quantum == 0
        return
    assert quantum == float(base * math.gcd(*multiples))
    assert all((Fraction(value) / Fraction(quantum)).denominator == 1 for value in values.tolist())


@pytest.mark.parametrize("values", [[0.0], [], [0.1, 0.3], [1.0, 1e-300], [1e300, 1.0], [2.0**53, 1.0]])
def test_no_quantum_where_sums_would_round(values: list[float]) -> None:
    """Where sums span more than 2^53 multiples there is none."""
    assert exact_quantum(np.array(values)) == 0


@given(bound=st.floats(0, 1e9), quantum=st.sampled_from([0.25, 3.0, 1.0, 1536.0]))
def test_rounding_up(bound: float, quantum: float) -> None:
    """The result is the next multiple: at least the bound, less than one multiple above it."""
    raised = round_up(bound, quantum)
    assert raised % quantum == 0
    assert bound <= raised <= bound + quantum


def test_without_a_quantum_nothing_is_raised() -> None:
    """A quantum of 0 says that nothing is known."""
    assert round_up(1.5, 0.0) == 1.5
    assert round_up(math.inf, 1.0) == math.inf
