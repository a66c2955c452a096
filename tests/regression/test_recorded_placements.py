"""Placements, bounds and published instances: equal inputs and seeds give what was recorded."""

from __future__ import annotations

import pytest

from tests.regression import recorded_plans


@pytest.mark.parametrize(
    "name",
    recorded_plans.names(
        recorded_plans.placement_heuristics,
        recorded_plans.placement_programs,
        recorded_plans.bounds,
        recorded_plans.published,
    ),
)
def test_a_result_is_what_was_recorded(name: str) -> None:
    """Status, numbers, assignment and starts are those of the record."""
    recorded_plans.check(name)
