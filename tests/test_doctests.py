"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest

import pytest

import rlinit
import rlinit.reports.ticks
import rlinit.units


@pytest.mark.parametrize("module", [rlinit, rlinit.reports.ticks, rlinit.units])
def test_examples(module: object) -> None:
    """Every example of the module gives the printed result."""
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
