"""Whose machine a plan was made for, and what that takes for granted."""

from __future__ import annotations

import dataclasses

import pytest

import rlinit
from rlinit.costs.sources import paper_machine
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Objective
from rlinit.reports.tables import plan_table, summary_lines

OPS = [(name, {"op": "conv", "flops": 1e9, "out_bytes": 4, "param_bytes": 4}) for name in "ab"]
GRAPH = Graph.build(OPS, [("a", "b")], name="net")


@pytest.mark.parametrize("name", ["cpu-t4-a100", "moirai-inter", "moirai-intra", "gpt3-nodes", "edge-tpu-3"])
def test_plans_for_a_papers_machine_say_so(name: str) -> None:
    """In the title of the table and in a note, also after a way through a file; what they name instead exists."""
    hardware = Hardware.preset(name)
    objective: Objective = "pipeline" if name.startswith("edge") else "latency"
    plan = rlinit.schedule(GRAPH, hardware, objective=objective, time_limit_s=1)
    said = [line for line in summary_lines(plan) if line.startswith(f"note: {name} is the machine of the paper ")]
    assert len(said) == 1
    assert "peak rates" in said[0]
    assert ", the machine of the paper " in plan_table(plan).title
    assert paper_machine(Hardware.from_dict(hardware.to_dict())) == paper_machine(hardware)
    if "for plans to run, " in said[0]:
        instead = said[0].partition("for plans to run, ")[2].removesuffix(" is alike")
        assert paper_machine(Hardware.preset(instead)) == ""


def test_other_machines_say_nothing() -> None:
    """Neither those of parts nor a user's own of the same name."""
    own = dataclasses.replace(Hardware.preset("t4+a100+cpu"), name="cpu-t4-a100")
    for hardware in (own, Hardware.preset("2xrtx3090+cpu"), Hardware.pipeline(3)):
        assert paper_machine(hardware) == ""
    plan = rlinit.schedule(GRAPH, own, objective="latency", time_limit_s=1)
    assert plan_table(plan).title == "net on cpu-t4-a100"
