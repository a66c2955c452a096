"""Rows of the ledger are of mechanisms that there are, and phases quote them as they stand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.families.language_ledger import (
    LANGUAGE_MODELS,
    MECHANISMS,
    LanguageCase,
    fleet_gap,
    judge_language_case,
    serving_gap,
)
from benchmarks.families.serving import made_up
from benchmarks.learning.families import FAMILIES
from benchmarks.ledger import _METHODS, _PARTS
from benchmarks.portfolio import solve
from benchmarks.record import RESULTS
from rlinit import llm
from rlinit.hardware import Hardware

PATHS = sorted(RESULTS.glob("ledger_*.json"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_rows_are_of_phases_that_auto_has(path: Path) -> None:
    """A mechanism that went takes its row with it; some are parts of a phase."""
    data = json.loads(path.read_text(encoding="utf-8"))
    problem = data["settings"].get("problem") or path.stem.split("_")[1]
    names = {phase.name for table in _METHODS.get(problem, ()) for phase in table["auto"]}
    names |= set(_PARTS) if problem in _METHODS else set(MECHANISMS)
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


def test_each_part_of_a_phase_can_be_left_out() -> None:
    """What stands in the place of a part lets the search end with a schedule."""
    case = next(FAMILIES["latency"]["cells, four unlike devices"]())
    case = replace(case, options={**case.options, "transfers": "exclusive"})
    for _, side, concerns in _PARTS.values():
        assert concerns(case)
        with side():
            assert solve(case, "placements", 0.2)["gap"] < 1


def test_each_mechanism_of_language_models_runs_and_can_be_left_out() -> None:
    """What stands in its place takes what it takes, so that a plan without it is one."""
    model = llm.load({"model_type": "llama", "num_hidden_layers": 4}, prompt=64, output=8)
    cases = (
        LanguageCase("fleet", 12, partial(fleet_gap, made_up(3, 12, 3, 8, 2))),
        LanguageCase("model", 4, partial(serving_gap, model, Hardware.preset("2xl4+2xt4"), None)),
        next(LANGUAGE_MODELS["parts on any device"]()),
    )
    ran: set[str] = set()
    for case in cases:
        row = judge_language_case(case, 0.2, ())
        ran |= set(row["without"])
        assert all(0 <= side["gap"] <= 1 for side in (row["whole"], *row["without"].values()))
    assert ran == set(MECHANISMS)
