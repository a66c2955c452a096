"""Affinities for OpenVINO."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.errors import InvalidPlan
from rlinit.exporters.openvino import openvino_affinities, to_openvino_map
from rlinit.graph import Graph
from tests.draws import draws
from tests.executors.plans import random_case, random_hardware, stage_plan

NAMES = {"d0": "CPU", "d1": "GPU.0", "d2": "GPU.1"}


@given(seed=st.integers(0, 100_000))
@settings(max_examples=draws(20), deadline=None)
def test_every_op_has_its_device(seed: int) -> None:
    """The map has every op of a plan once, on its device by OpenVINO's name."""
    plan, graph, _ = random_case(seed)
    found = openvino_affinities(plan, graph, devices=NAMES)
    assert found == {op: NAMES[str(device)] for op, device in (plan.assignment or {}).items()}


def hostile_graph() -> Graph:
    """Return ops whose names need quoting."""
    names = ['a"b', "<op>&amp;", "line\nbreak", "ünï", "tab\there"]
    return Graph.build([(name, {"time_s": 1.0}) for name in names], [])


def test_files_hold_any_name(tmp_path: Path) -> None:
    """Files hold the map, whatever the names, and the list of devices in the plan's order."""
    graph = hostile_graph()
    plan = stage_plan(graph, random_hardware(0, 3), [2, 0, 0, 1, 2])
    to_openvino_map(plan, graph, tmp_path / "map.json", devices=NAMES)
    written = json.loads((tmp_path / "map.json").read_text())
    assert written["affinities"] == openvino_affinities(plan, graph, devices=NAMES)
    assert written["affinities"]["ünï"] == "GPU.0"
    assert written["device"] == "HETERO:CPU,GPU.0,GPU.1"
    to_openvino_map(plan, graph, tmp_path / "map.json", devices={"d0": "CPU", "d1": "CPU", "d2": "GPU"})
    assert json.loads((tmp_path / "map.json").read_text())["device"] == "HETERO:CPU,GPU"


def test_names_are_those_of_the_model() -> None:
    """Nodes without a name go by their last output, others by their names and those of their outputs, unless told."""
    rows = [
        ("x", {"node": "x", "tensors": ["x"]}),
        ("Split_0", {"node": "left", "tensors": ["left", "right"]}),
        ("top", {"node": "top", "tensors": ["values", "places"]}),
        ("conv", {"node": "conv", "tensors": ["t1"]}),
        ("conv#2", {"node": "conv", "tensors": ["t2"]}),
    ]
    graph = Graph.build([(name, {"time_s": 1.0, **row}) for name, row in rows], [])
    hardware = random_hardware(0, 2)
    found = openvino_affinities(stage_plan(graph, hardware, [0, 1, 1, 0, 0]), graph, devices=NAMES)
    top = dict.fromkeys(["top", "top_values", "top_places"], "GPU.0")
    assert found == {"x": "CPU", "right": "GPU.0", **top, "conv": "CPU"}
    apart = stage_plan(graph, hardware, [0, 1, 1, 0, 1])
    with pytest.raises(InvalidPlan, match="ops 'conv' and 'conv#2' run on different devices"):
        openvino_affinities(apart, graph, devices=NAMES)
    told = openvino_affinities(apart, graph, devices=NAMES, names={"conv#2": "second"})
    assert told["second"] == "GPU.0"


def test_what_openvino_cannot_do_is_refused() -> None:
    """Devices by other names, dealt ops and other graphs are refused."""
    graph = hostile_graph()
    plan = stage_plan(graph, random_hardware(0, 1), [0] * 5)
    with pytest.raises(InvalidPlan, match=r"'d0' is no name of a device of OpenVINO.*devices=\{'d0': 'GPU.0'\}"):
        openvino_affinities(plan, graph)
    dealt, whole, _ = random_case(11, inputs=3)
    with pytest.raises(InvalidPlan, match="one device for each op"):
        openvino_affinities(dealt, whole, devices=NAMES)
    with pytest.raises(InvalidPlan, match="another graph"):
        openvino_affinities(plan, whole, devices=NAMES)
    with pytest.raises(InvalidPlan, match="no schedule"):
        openvino_affinities(dataclasses.replace(plan, assignment=None), graph, devices=NAMES)
