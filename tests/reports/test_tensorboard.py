"""Plans in TensorBoard's logs, read back by its own reader."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.errors import BackendUnavailable, InvalidPlan
from rlinit.graph import Graph
from rlinit.plan import HistoryEntry
from rlinit.reports.tensorboard import to_tensorboard
from tests.executors.plans import random_case, random_graph, random_hardware, stage_plan

pytest.importorskip("tensorboard", reason="tensorboard is not installed")


def read(folder: Path) -> Any:
    """Return the events of a folder."""
    accumulators: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = accumulators.EventAccumulator(str(folder))
    found.Reload()
    return found


def test_a_certified_plan(tmp_path: Path) -> None:
    """A schedule's history ends at its value and bound, at its times; text and picture are there."""
    graph = Graph.build([(f"op{at}", {"time_s": 1.0 + at % 3, "out_bytes": 1.0}) for at in range(9)], [])
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(3), objective="pipeline")
    to_tensorboard(plan, tmp_path / "run", graph=graph, started_s=1000.0)
    found = read(tmp_path / "run")
    values, bounds = found.Scalars("history/value/bottleneck_s"), found.Scalars("history/bound/bottleneck_s")
    assert values[-1].value == pytest.approx(plan.value)
    assert bounds[-1].value == pytest.approx(plan.bound)
    assert [event.step for event in found.Scalars("history/gap")][-1] == len(plan.history) - 1
    assert values[-1].wall_time <= 1000.0 + plan.history[-1].time_s + 1e-6
    times = [event.value for event in found.Scalars("stages/time_s")]
    assert times == pytest.approx([use.time_s for use in plan.stages])
    (text,) = found.Tensors("plan/text_summary")
    assert f"| status | {plan.status} |" in text.tensor_proto.string_val[0].decode()
    (image,) = found.Images("plan")
    assert image.encoded_image_string[:4] == b"\x89PNG"
    assert image.width > image.height > 100


def test_graphs_are_coloured_by_place(tmp_path: Path) -> None:
    """The graph has every op once, below its module, with its device, what it reads, and its time."""
    plan, graph, _ = random_case(3)
    to_tensorboard(plan, tmp_path / "placed", graph=graph)
    found = read(tmp_path / "placed")
    nodes = {node.name: node for node in found.Graph().node}
    assert {name: node.device for name, node in nodes.items()} == dict(plan.assignment or {})
    edges = {(read, name) for name, node in nodes.items() for read in node.input}
    assert edges == {(graph.names[u], graph.names[v]) for u, v in graph.edges.tolist()}
    stats = found.RunMetadata("times").step_stats.dev_stats
    assert sum(len(device.node_stats) for device in stats) == len(plan.batches)
    hostile = ["a:0", "a:1", "^b", "c d", "x/y"]
    ops = [(name, {"time_s": 1.0, "module": "body.0"}) for name in hostile]
    nested = Graph.build(ops, [("a:0", "^b")])
    staged = stage_plan(nested, random_hardware(0, 2), [0, 0, 1, 1, 1])
    to_tensorboard(staged, tmp_path / "staged", graph=nested)
    nodes = {node.name: node for node in read(tmp_path / "staged").Graph().node}
    assert sorted(nodes) == ["body/0/_b", "body/0/a_0", "body/0/a_1", "body/0/c_d", "body/0/x.y"]
    assert nodes["body/0/_b"].device == "stage 1 (d1)"
    assert list(nodes["body/0/_b"].input) == ["body/0/a_0"]


def test_plans_without_schedule_or_numbers(tmp_path: Path) -> None:
    """A plan that found nothing is logged all the same; infinities and missing values are left out."""
    plan, graph, _ = random_case(1)
    history = (HistoryEntry(0.5, None, (0.0,), "bounds"), HistoryEntry(1.0, None, (float("inf"),), "proof"))
    nothing = dataclasses.replace(
        plan, status="infeasible", assignment=None, values=None, batches=(), devices=(), history=history, message="a|b"
    )
    to_tensorboard(nothing, tmp_path, graph=graph)
    found = read(tmp_path)
    assert found.Tags()["scalars"] == ["history/bound/makespan_s"]
    assert not found.Tags()["graph"]
    (text,) = found.Tensors("plan/text_summary")
    assert r"| message | a\|b |" in text.tensor_proto.string_val[0].decode()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of other graphs, and a missing package, are refused before anything is written."""
    plan, _, _ = random_case(1)
    with pytest.raises(InvalidPlan, match="another graph"):
        to_tensorboard(plan, tmp_path / "run", graph=random_graph(2))

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match="pip install tensorboard"):
        to_tensorboard(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()
