"""Plans as text, tables and charts."""

from __future__ import annotations

import dataclasses
import itertools
import re
from xml.etree import ElementTree

import pytest

import rlinit
from rlinit import Device, Graph, Hardware
from rlinit.plan import Plan
from rlinit.reports.facts import layer_view
from rlinit.reports.gantt import chart_of, merged_runs
from rlinit.reports.html import report_html
from rlinit.reports.ticks import round_ticks

HARDWARE = Hardware.mesh([Device("host", "cpu"), Device("gpu0", "gpu"), Device("gpu1", "gpu")], 1e3)


def two_towers(length: int) -> Graph:
    """Return two chains of ops that are best run side by side, in modules."""
    names = [[f"t{tower}.{at}" for at in range(length)] for tower in range(2)]
    ops = [
        (name, {"time_s": 1.0, "param_bytes": 4.0, "out_bytes": 1.0, "module": f"tower{tower}.layers.{at // 4}.linear"})
        for tower, chain in enumerate(names)
        for at, name in enumerate(chain)
    ]
    edges = [(a, b) for chain in names for a, b in itertools.pairwise(chain)]
    return Graph.build(ops, [*edges, (names[0][0], names[1][1])])


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Graph]:
    """Return a placement of more batches than are drawn one by one."""
    graph = two_towers(90)
    return rlinit.schedule(graph, HARDWARE, objective="latency", method="heft"), graph


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("scale", [1e-9, 3.7e-4, 1.0, 1.13, 999.0, 1e12])
def test_ticks_are_round_and_few(scale: float, binary: bool) -> None:
    """Marks start at 0, are evenly spaced and at most as many as asked for, and the last is near the end."""
    ticks = round_ticks(scale, 6, binary=binary)
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0.0
    assert scale / 2 < ticks[-1] <= scale * (1 + 1e-9)
    assert all(step == pytest.approx(ticks[1]) for step in (b - a for a, b in itertools.pairwise(ticks)))
    assert round_ticks(float("inf")) == [0.0]


def test_long_placements_are_drawn_in_runs(planned: tuple[Plan, Graph]) -> None:
    """Above 150 batches those without a pause between them are one bar; bars hold every batch once, without overlap."""
    plan, graph = planned
    chart = chart_of(plan, graph, HARDWARE)
    assert len(plan.batches) == 180
    assert len(chart.runs) < 20
    assert sorted(b.op for run in merged_runs(plan) for b in run.batches) == sorted(graph.names)
    for device in chart.devices:
        mine = sorted((run.start_s, run.end_s) for run in chart.runs if run.device == device)
        assert all(first[1] < second[0] for first, second in itertools.pairwise(mine))


def test_parallel_transfers_and_the_critical_path_are_shown(planned: tuple[Plan, Graph]) -> None:
    """With graph and hardware, transfers that a plan does not list are drawn, and what the makespan waits for."""
    plan, graph = planned
    assert not chart_of(plan).moves
    chart = chart_of(plan, graph, HARDWARE)
    assert chart.moves
    assert set(chart.links) == {lane for lane, _, _ in chart.moves}
    assert sum(link.end_s - link.start_s for link in chart.path) == pytest.approx(plan.value)
    assert chart.height > len(chart.devices)
    levels = list(chart.levels.values())
    assert all(b - a > 0.5 for a, b in itertools.pairwise(levels))


def test_a_plan_prints_as_a_table(planned: tuple[Plan, Graph]) -> None:
    """`print` shows each device and what is proven, in lines of at most 80 columns; `repr` stays one line."""
    plan, _ = planned
    lines = str(plan).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(any(line.startswith(use.device) for line in lines) for use in plan.devices)
    assert any(line.startswith(f"{plan.status}: ") for line in lines)
    assert any("x of the best single device" in line for line in lines)
    assert "\n" not in repr(plan)
    hopeless = rlinit.schedule(
        Graph.build([("a", {"time_s": 1.0, "param_bytes": 9.0})], []),
        Hardware.mesh([Device("d", memory_bytes=1.0)], 1.0),
        objective="latency",
    )
    assert "infeasible: " in str(hopeless)
    assert "infeasible: " in hopeless._repr_html_()


def test_notebooks_show_hostile_names_as_text(planned: tuple[Plan, Graph]) -> None:
    """The HTML of a notebook is well-formed whatever things are called."""
    plan = dataclasses.replace(planned[0], graph="<script>alert('x')</script>\x00")
    page = ElementTree.fromstring(f"<div>{plan._repr_html_()}</div>")
    assert "<script>alert('x')</script>" in "".join(page.itertext())


def test_reports_say_what_they_rest_on(planned: tuple[Plan, Graph]) -> None:
    """A report names version, seed, hardware, baselines and every op, and has a style for the dark."""
    plan, graph = planned
    page = report_html(plan, graph, HARDWARE)
    for word in (
        f"rlinit {rlinit.__version__}",
        ">seed<",
        "x of the best single device",
        "Hardware",
        "Layers",
        "Assignment",
    ):
        assert word in page
    assert all(f">{name}<" in page or f"</span> {name}<" in page for name in graph.names)
    assert "prefers-color-scheme: dark" in page


def test_layers_are_modules_that_repeat() -> None:
    """A layer's strip has one part for each stage that holds some of it, in the graph's order; none without modules."""
    graph = two_towers(8)
    plan = rlinit.schedule(graph, Hardware.pipeline(2), objective="pipeline")
    view = layer_view(plan, graph)
    assert re.findall(r"<td>(tower\d\.layers\.\d)</td>", view) == [
        f"tower{tower}.layers.{layer}" for tower in range(2) for layer in range(2)
    ]
    bare = Graph.build([("a", {"time_s": 1.0})], [])
    assert layer_view(rlinit.schedule(bare, Hardware.pipeline(1)), bare) == ""
