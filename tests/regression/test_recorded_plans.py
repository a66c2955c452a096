"""Stage problems: equal inputs and seeds give the plans that were recorded."""

from __future__ import annotations

import pytest

from tests.regression import recorded_plans


def test_every_case_is_recorded_once() -> None:
    """The record lists the cases of all groups in their order."""
    assert len(recorded_plans.CASES) == sum(len(list(group())) for group in recorded_plans.GROUPS)
    assert list(recorded_plans.recorded()) == list(recorded_plans.CASES)


@pytest.mark.parametrize(
    "name",
    recorded_plans.names(recorded_plans.real_networks, recorded_plans.stage_heuristics, recorded_plans.stage_programs),
)
def test_a_result_is_what_was_recorded(name: str) -> None:
    """Status, numbers, assignment and orders are those of the record."""
    recorded_plans.check(name)
