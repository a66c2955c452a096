"""Shares and order of phases: what an arm changes, what a race measures, and what is chosen from features."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.solving.placements import placement_strategy
from rlinit.train.tune import Arm, Trial, draw_problem, features, fit, integral, rearranged

HAND = placement_strategy("auto")


def test_an_empty_arm_changes_nothing() -> None:
    """No shift and no place: the strategy set by hand."""
    same = rearranged(HAND, Arm({}, {}))
    assert [phase.name for phase in same] == [phase.name for phase in HAND]
    assert [phase.share for phase in same] == pytest.approx([phase.share for phase in HAND])


def test_an_arm_shifts_shares_and_moves_phases() -> None:
    """Shares stay between 0 and 1, those of 1 stay, and nothing comes before the opening."""
    arm = Arm({"bound flow": -1.0, "windows": 50.0, "learned agent": 3.0}, {"bounds around and joined": -99.0})
    changed = rearranged(HAND, arm)
    share = {phase.name: phase.share for phase in changed}
    assert share["bound flow"] == pytest.approx(1.0 / (1.0 + 9.0 * np.e))
    assert 0.999 < share["windows"] <= 1.0
    assert share["learned agent"] == 1.0
    assert [phase.name for phase in changed[:5]] == [
        "bound path",
        "coarse schedule",
        "bound load",
        "learned agent",
        "bounds around and joined",
    ]
    assert sorted(phase.name for phase in changed) == sorted(phase.name for phase in HAND)


def test_the_choice_follows_a_feature() -> None:
    """Where one arm is better for small x and another for large x, the fit finds both; the mean alone does not."""
    x = np.linspace(-1.0, 1.0, 16)
    trials = [Trial(np.array([one]), np.array([one, -one])) for one in x.tolist()]
    weights, left_out, single = fit(trials)
    assert left_out < -0.3
    assert abs(single) < 1e-9
    assert (weights @ np.array([0.5, 1.0])).argmin() == 1


def test_the_integral_of_a_drawn_problem() -> None:
    """It lies between 0 and 1, and features are finite."""
    rng = np.random.default_rng(3)
    problem, limit_s = draw_problem(rng)
    assert np.isfinite(features(problem, limit_s)).all()
    assert 0.0 < integral(problem, HAND[:3], 0.2) <= 1.0
