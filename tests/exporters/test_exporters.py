"""Traces, Graphviz text, device maps and reports of plans."""

from __future__ import annotations

import dataclasses
import html.parser
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinit.errors import InvalidPlan
from rlinit.exporters import to_device_map, to_dot, to_report, to_trace
from rlinit.exporters.graphviz import dot_text
from rlinit.exporters.perfetto import trace_events
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import HistoryEntry, Plan
from rlinit.reports.critical_path import critical_path
from rlinit.reports.html import report_html
from tests.draws import draws
from tests.executors.plans import random_case, random_graph, random_hardware, stage_plan

SEEDS = st.integers(0, 100_000)
RULES = st.sampled_from(["parallel", "exclusive", "blocking"])


# -- traces ----------------------------------------------------------------------------------------------------------


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]), rule=RULES)
@settings(max_examples=draws(25), deadline=None)
def test_traces_hold_the_plan(seed: int, inputs: int, rule: str) -> None:
    """A trace has one complete event a batch and transfer, at its time on its device, and flows that match up."""
    plan, _, _ = random_case(seed, inputs=inputs, transfers=rule)  # type: ignore[arg-type]
    events = trace_events(plan)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = sorted(
        (e["name"], threads[e["pid"], e["tid"]], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1
    )
    expected = sorted((b.op, b.device, b.start_s * 1e6, (b.end_s - b.start_s) * 1e6) for b in plan.batches)
    assert spans == expected
    assert sum(e["ph"] == "X" and e["pid"] == 2 for e in events) == len(plan.transfers)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(plan.transfers)
    assert all(starts[at]["ts"] <= ends[at]["ts"] for at in starts)


def test_trace_files(tmp_path: Path) -> None:
    """Files are valid JSON, and name graph and bound."""
    plan, graph, hardware = random_case(2, transfers="exclusive")
    path = tmp_path / "trace.json"
    to_trace(plan, path)
    document = json.loads(path.read_text())
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {"plan: devices", "plan: transfers"}
    assert document["otherData"]["graph"] == plan.graph
    stages = stage_plan(graph, hardware, [min(2, level) for level in graph.level.tolist()])
    to_trace(stages, path)
    assert "input 0" in path.read_text()
    with pytest.raises(InvalidPlan, match="no times"):
        to_trace(stage_plan(graph, hardware, [0] * 8, objective="memory"), path)
    with pytest.raises(InvalidPlan, match="no schedule"):
        to_trace(dataclasses.replace(plan, assignment=None, status="no_solution"), path)


# -- Graphviz --------------------------------------------------------------------------------------------------------


def test_dot_names_every_op_and_edge(tmp_path: Path) -> None:
    """DOT text has every op and edge once, quotes hostile names, and colours by place."""
    hostile = ['a"b', "line\nbreak", "back\\slash", "<html>", "ünï"]
    graph = Graph.build(
        [(name, {"time_s": 1.0, "out_bytes": 2048.0}) for name in hostile], itertools.pairwise(hostile), name='"g"'
    )
    plan = stage_plan(graph, random_hardware(0, 2), [0, 0, 1, 1, 1])
    text = dot_text(graph, plan)
    assert len(re.findall(r"^  n\d+ \[", text, re.M)) == 5
    assert len(re.findall(r"^  n\d+ -> n\d+", text, re.M)) == 4
    assert text.count("2 KiB") == 1
    assert r'"a\"b"' in text
    assert r"back\\slash" in text
    path = tmp_path / "graph.dot"
    to_dot(graph, path)
    assert "fillcolor=white" in path.read_text()
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg", "-o", str(tmp_path / "graph.svg"), str(path)], check=True)
    with pytest.raises(InvalidPlan, match="another graph"):
        dot_text(random_graph(1), plan)


def test_dot_stripes_ops_that_are_dealt() -> None:
    """An op that runs on several devices is striped with their colours."""
    plan, graph, _ = random_case(11, inputs=3)
    dealt = {b.op for b in plan.batches if len(b.shards) < 3}
    assert dealt
    assert dot_text(graph, plan).count("style=striped") == len(dealt)


# -- device maps -----------------------------------------------------------------------------------------------------


def modules_graph() -> Graph:
    """Return six ops in nested modules."""
    paths = ["stem", "body.0.conv", "body.0.act", "body.1.conv", "body.1.act", "head"]
    ops = [(f"op{at}", {"time_s": 1.0, "module": path}) for at, path in enumerate(paths)]
    return Graph.build(ops, [(f"op{at}", f"op{at + 1}") for at in range(5)])


def test_device_maps_are_as_coarse_as_possible() -> None:
    """Whole models, whole blocks and single layers appear at the highest module that is on one device."""
    graph, hardware = modules_graph(), random_hardware(0, 2)
    for stages, expected in (
        ([0] * 6, {"": "d0"}),
        ([0, 0, 0, 1, 1, 1], {"stem": "d0", "body.0": "d0", "body.1": "d1", "head": "d1"}),
        ([0, 1, 1, 1, 1, 1], {"stem": "d0", "body": "d1", "head": "d1"}),
        ([0, 0, 1, 1, 1, 1], {"stem": "d0", "body.0.conv": "d0", "body.0.act": "d1", "body.1": "d1", "head": "d1"}),
    ):
        assert to_device_map(stage_plan(graph, hardware, stages), graph) == expected
    moved = to_device_map(stage_plan(graph, hardware, [0] * 6), graph, devices={"d0": "cuda:0"})
    assert moved == {"": "cuda:0"}


def test_cuts_inside_modules_are_refused() -> None:
    """A cut inside one module is refused with its name."""
    graph, hardware = modules_graph(), random_hardware(0, 2)
    plan = stage_plan(graph, hardware, [0, 0, 0, 0, 1, 1])
    named = {at: {**row, "module": "block" if at in (2, 3, 4) else f"layer{at}"} for at, row in graph.extras.items()}
    graph = dataclasses.replace(graph, extras=named)
    plan = dataclasses.replace(plan, graph_fingerprint=graph.fingerprint())
    with pytest.raises(InvalidPlan, match=r"cuts inside module 'block': op 'op2' runs on d0 and op 'op4' on d1"):
        to_device_map(plan, graph)
    with pytest.raises(InvalidPlan, match="which module"):
        to_device_map(stage_plan(random_graph(1), hardware, [0] * 8), random_graph(1))


def test_device_maps_load_in_accelerate() -> None:
    """Accelerate dispatches a real model by the map and gives its values."""
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    from tests.executors.models import Chain, graph_of

    model, x = Chain(2).eval(), torch.randn(1, 3, 4, 4)
    graph = graph_of(model, (x,))
    plan = stage_plan(graph, random_hardware(0, 1), [0] * graph.num_ops)
    expected = model(x)
    mapped = to_device_map(plan, graph, devices={"d0": "cpu"})
    dispatched = accelerate.dispatch_model(model, device_map=mapped, force_hooks=True)
    assert torch.equal(dispatched(x), expected)


# -- reports ---------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Checks that tags close in order and nothing is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Pass over a tag that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        """Close a tag."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)


def with_history(plan: Plan) -> Plan:
    """Return a plan with three entries of history."""
    entries = [
        HistoryEntry(0.1, None, (plan.value / 4,), "bounds"),
        HistoryEntry(0.2, (2 * plan.value,), (plan.value / 4,), "sweeps"),
        HistoryEntry(0.5, (plan.value,), (plan.value / 2,), "exact"),
    ]
    return dataclasses.replace(plan, history=tuple(entries), bounds=(plan.value / 2,), bound_source="critical path")


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]), rule=RULES, scale=st.sampled_from([1e-9, 1.0, 1e12]))
@settings(max_examples=draws(30), deadline=None)
def test_reports_of_placements(seed: int, inputs: int, rule: str, scale: float) -> None:
    """Reports are well-formed pages that load nothing and name every device."""
    plan, graph, hardware = random_case(seed, inputs=inputs, transfers=rule, scale=scale)  # type: ignore[arg-type]
    page = Page(report_html(with_history(plan), graph, hardware))
    text = " ".join(page.words)
    assert all(use.device in text for use in plan.devices)
    assert "What limits the plan" in text
    assert "nan" not in text.lower().split()


def test_reports_of_stage_plans(tmp_path: Path) -> None:
    """Reports of stage plans name the limiting stage; hostile names stay text."""
    name = "<script>alert('x')</script>"
    graph = Graph.build(
        [(name, {"time_s": 1.0, "param_bytes": 10.0}), ("b", {"time_s": 3.0, "param_bytes": 5.0})], [(name, "b")]
    )
    hardware = Hardware.pipeline(2)
    for objective, limit in (("pipeline", "Stage 1 on stage1 limits"), ("memory", "Stage 0 on stage0 limits")):
        plan = stage_plan(graph, hardware, [0, 1], objective=objective)
        if objective == "memory":
            plan = dataclasses.replace(plan, values=(10.0, 0.0, 0.0), bounds=(10.0, 0.0, 0.0))
        path = tmp_path / "report.html"
        to_report(plan, graph, hardware, path)
        assert limit in " ".join(Page(path.read_text()).words)
    with pytest.raises(InvalidPlan, match="another graph"):
        report_html(plan, random_graph(1), hardware)


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]), rule=RULES)
@example(seed=182, inputs=3, rule="parallel")  # ops of no length wait for each other at one time
@example(seed=413, inputs=1, rule="blocking")
@settings(max_examples=draws(40), deadline=None)
def test_critical_paths_are_gapless(seed: int, inputs: int, rule: str) -> None:
    """The members of a critical path follow each other from 0 to the makespan, without idling in these plans."""
    plan, graph, hardware = random_case(seed, inputs=inputs, transfers=rule)  # type: ignore[arg-type]
    path = critical_path(plan, graph, hardware)
    assert path[0].start_s == 0.0
    assert path[-1].end_s == plan.value
    for before, after in itertools.pairwise(path):
        assert after.start_s == pytest.approx(before.end_s, rel=1e-12)
    assert all(link.kind != "idle" for link in path)


def test_everything_is_exported() -> None:
    """The package's public names exist, and others do not."""
    import rlinit.exporters as exporters

    found: Any = [getattr(exporters, name) for name in exporters.__all__]
    assert all(callable(one) for one in found)
    with pytest.raises(AttributeError):
        exporters.nonsense  # noqa: B018
