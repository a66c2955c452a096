"""Plans: JSON in and out, gaps, pictures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.plan import Plan, is_closed, relative_gap
from tests.checker.test_stages import HARDWARE, model, solved


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_json_round_trip_is_exact(tmp_path: Path, objective: str) -> None:
    """A saved plan reads back equal and still passes the checker."""
    plan = solved(objective)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    rlinit.verify(again, model(), HARDWARE)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """Truncated JSON, a wrong type and an unknown key are named with their place."""
    solved("pipeline").save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    data = json.loads(text)
    (tmp_path / "type.json").write_text(json.dumps(data | {"status": "great"}))
    (tmp_path / "key.json").write_text(json.dumps(data | {"colour": 1}))
    for name, message in (("half", "truncated"), ("type", "status"), ("key", "colour"), ("none", "none.json")):
        with pytest.raises(InvalidPlan, match=message):
            Plan.load(tmp_path / f"{name}.json")


def test_a_plan_prints_as_one_line() -> None:
    """It says for what it is, the value with its unit, and how good that is."""
    plan = dataclasses.replace(solved("pipeline"), status="feasible", values=(0.02,), bounds=(0.015,))
    assert repr(plan) == f"Plan('{plan.graph}' on '{plan.hardware}', pipeline 20 ms, feasible, gap 25.00%)"
    none = dataclasses.replace(plan, status="infeasible", values=None, assignment=None, message="op 'a' fits nowhere")
    assert repr(none) == f"Plan('{plan.graph}' on '{plan.hardware}', pipeline, infeasible: op 'a' fits nowhere)"


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    """A write that fails leaves the old file as it was and no temporary one."""
    from rlinit.files import write_json

    target = tmp_path / "x.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="nan"):
        write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_gaps_are_lexicographic() -> None:
    """The gap is that of the first level not proven; a zero value needs no bound."""
    assert relative_gap((4.0, 10.0, 3.0), (4.0, 5.0, 0.0)) == 0.5
    assert relative_gap((4.0, 0.0, 3.0), (4.0, 0.0, 3.0)) == 0.0
    assert relative_gap((0.0,), None) == 0.0
    assert relative_gap(None, (1.0,)) == float("inf")
    assert not is_closed(None, None)
    assert is_closed((1.0,), (1.0 - 1e-7,))
    assert not is_closed((1.0,), (1.0 - 1e-5,))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written(tmp_path: Path, suffix: str) -> None:
    """Every format is drawn for both objectives; an unknown one is refused and nothing is written."""
    for objective in ("pipeline", "memory"):
        plan = solved(objective)
        plan.plot(tmp_path / f"{objective}{suffix}")
        assert (tmp_path / f"{objective}{suffix}").stat().st_size > 1000
        with pytest.raises(InvalidPlan, match=r"\.svg, \.png or \.pdf"):
            plan.plot(tmp_path / "plan.bmp")
    assert not (tmp_path / "plan.bmp").exists()


def test_a_number_beyond_float64_is_refused(tmp_path: Path) -> None:
    """JSON has whole numbers of any size; values and bounds are seconds or bytes."""
    path = tmp_path / "plan.json"
    solved("pipeline").save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["bounds"] = [10**400]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InvalidPlan, match="too large to compute with"):
        Plan.load(path)


@pytest.mark.parametrize("damage", ["9" * 400, "[" * 100_000, "NaN"])
@pytest.mark.parametrize("load", [rlinit.Plan.load, rlinit.Graph.load, rlinit.Hardware.load])
def test_numbers_that_no_float_holds_are_refused_in_every_file(load: Any, damage: str, tmp_path: Path) -> None:
    """A number of 400 digits, lists in lists without end and NaN are told in one line, wherever they stand."""
    path = tmp_path / "damaged.json"
    path.write_text('{"format": "any", "figures": ' + damage + "}", encoding="utf-8")
    with pytest.raises(RlinitError, match=r"not valid JSON") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
