"""Rows of the ledger are of mechanisms that there are, and phases quote them as they stand."""

from __future__ import annotations

import json
import re
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


def test_phases_quote_recorded_rows() -> None:
    """What a phase's reason quotes of the ledger, ratio, interval and number of problems, is a row of a stored file."""
    stored = {
        (row["mechanism"], *(f"{row[key]:.2f}" for key in ("integral", "from", "to")), str(row["problems"]))
        for path in PATHS
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
    }
    quotes = re.compile(r"ledger[^:;]*: ([0-9.]+) \(([0-9.]+) to ([0-9.]+)\) on (\d+) problems")
    quoted = {
        (phase.name, *found.groups())
        for tables in _METHODS.values()
        for table in tables
        for phase in table["auto"]
        for found in quotes.finditer(phase.because)
    }
    assert quoted
    assert quoted <= stored
