"""Pipelines with chunks or loose ops, and training pipelines, on random small problems against brute force."""

from __future__ import annotations

import pytest

from tests.properties import fuzz


@pytest.mark.filterwarnings("ignore:.*give no out_bytes")
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_splits_agree_with_brute_force(first: int) -> None:
    """No false bound, no value that cannot be had, and the optimum where it is claimed."""
    for number in range(first, first + 50):
        case = fuzz.draw(number, seed=3)
        if case.options["objective"] == "pipeline" and not case.large:
            assert fuzz.attack_split(case) == "", number


def test_training_plans_agree_with_brute_force() -> None:
    """The same of training pipelines, through the public call."""
    for number in range(30):
        assert fuzz.attack_training(number, seed=3) == "", number
