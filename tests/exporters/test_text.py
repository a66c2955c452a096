"""Names that files cannot hold: controls, halves of surrogate pairs, markup, formulas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlinit.exporters import to_trace
from rlinit.exporters.text import markup, printable
from rlinit.plan import Plan
from rlinit.reports.figures import Steps, draw, steps_chart
from rlinit.units import format_bytes
from tests.executors.plans import random_case, stage_plan

NASTY = "a\x00b\ud800<&$x_{$ --> \uffff"


def renamed(plan: Plan) -> Plan:
    """Return a plan whose graph, ops and devices have a name that is hard to write."""
    return dataclasses.replace(
        plan,
        graph=NASTY,
        hardware=NASTY,
        batches=tuple(dataclasses.replace(batch, op=NASTY) for batch in plan.batches),
        transfers=tuple(dataclasses.replace(t, op=NASTY, target=NASTY) for t in plan.transfers),
        stages=tuple(dataclasses.replace(use, device=NASTY) for use in plan.stages),
        start_s={op: 0.0 for op in (NASTY,)} if plan.start_s else plan.start_s,
    )


def test_unwritable_letters_are_replaced() -> None:
    """What XML cannot hold becomes U+FFFD, all else stays."""
    assert printable(NASTY) == "a\ufffdb\ufffd<&$x_{$ --> \ufffd"
    assert printable("Faltung\t→ 变换 \U0001f600\n") == "Faltung\t→ 变换 \U0001f600\n"
    assert markup("\x1b<a href='x'>") == "\ufffd&lt;a href=&#x27;x&#x27;&gt;"


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("placed", [True, False])
def test_pictures_of_any_name(tmp_path: Path, kind: str, placed: bool) -> None:
    """A picture is drawn whatever things are called, and an SVG is valid XML."""
    plan, graph, hardware = random_case(1)
    if not placed:
        plan = stage_plan(graph, hardware, [0] * graph.num_ops)
    draw(renamed(plan), tmp_path / f"p.{kind}")
    if kind == "svg":
        ElementTree.parse(tmp_path / "p.svg")


def test_charts_of_any_name() -> None:
    """Charts in reports are valid XML."""
    ElementTree.fromstring(steps_chart([Steps(NASTY, [0.0], [1.0], "red")], 1.0, format_bytes))


def test_traces_of_any_name(tmp_path: Path) -> None:
    """A trace has no half of a surrogate pair, which JSON readers refuse."""
    to_trace(renamed(random_case(1)[0]), tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    assert "\\ud800" not in text
    assert "\\u0000" not in text
    assert json.loads(text)["otherData"]["graph"] == printable(NASTY)
