"""Rows of the ledger are of mechanisms that there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ledger import _METHODS
from benchmarks.record import RESULTS
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS

PATHS = sorted(RESULTS.glob("ledger_*.json"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_rows_are_of_phases_that_auto_has(path: Path) -> None:
    """A mechanism that went takes its row with it; starts are named after their heuristics."""
    data = json.loads(path.read_text(encoding="utf-8"))
    problem = data["settings"].get("problem") or path.stem.split("_")[1]
    names = {phase.name for table in _METHODS[problem] for phase in table["auto"]}
    names |= {f"start {name}" for name in PLACEMENT_HEURISTICS}
    assert {row["mechanism"] for row in data["rows"]} <= names
