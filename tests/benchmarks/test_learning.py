"""The protocol by which learned parts are judged."""

from __future__ import annotations

import pytest

from benchmarks.learning.protocol import compare, primal_dual_integral


def test_equal_sides_are_open() -> None:
    """A part that changes nothing neither wins nor loses."""
    one = compare("f", "m", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (one.wins, one.losses, one.ratio, one.verdict) == (0, 0, 1.0, "open")


def test_a_verdict_needs_the_interval() -> None:
    """Better everywhere wins, worse everywhere loses, a mean that one problem makes is open."""
    theirs = [1.0] * 20
    assert compare("f", "m", [0.9] * 20, theirs).verdict == "wins"
    assert compare("f", "m", [1.1] * 20, theirs).verdict == "loses"
    assert compare("f", "m", [0.1] + [1.0] * 19, theirs).verdict == "open"


def test_pairs_must_be_positive_and_matched() -> None:
    """A figure of 0 has no logarithm, and a missing one no partner."""
    with pytest.raises(ValueError, match="positive"):
        compare("f", "m", [0.0], [1.0])
    with pytest.raises(ValueError, match="inhomogeneous"):
        compare("f", "m", [1.0], [1.0, 2.0])


def test_the_integral_counts_the_time_without_a_value() -> None:
    """1 until the first value, the gap from then on, nothing after the limit."""
    history = [(0.5, None, 1.0), (1.0, 4.0, 1.0), (2.0, 2.0, 1.0), (9.0, 1.0, 1.0)]
    assert primal_dual_integral(history, 4.0) == pytest.approx((1.0 + 0.75 + 2 * 0.5) / 4.0)
    assert primal_dual_integral(history, 4.0, best=2.0) == pytest.approx((1.0 + 0.5) / 4.0)
    assert primal_dual_integral([], 3.0) == 1.0
