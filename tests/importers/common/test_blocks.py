"""Layers, modules and named parts that stay whole, and what plans of such graphs can be exported to."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit import Graph, Hardware, load_graph
from rlinit.cli.main import main
from rlinit.errors import InvalidGraph, InvalidPlan, RlinitError
from rlinit.exporters import to_device_map, to_split_spec
from rlinit.hardware import Device
from rlinit.importers.common.blocks import blocks_of
from rlinit.measurement.ops import placed_plan
from tests.late import late_imports

with late_imports():
    import torch

    from tests.importers.common.models import Model


def x() -> Any:
    """Return (1, 5) tokens."""
    return torch.zeros(1, 5, dtype=torch.int64)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph.from_torch(Model().eval(), (x(),))


def hardware(count: int, memory: float = np.inf) -> Hardware:
    """Return unequal devices with launches, so that one of them alone is not the best under a tight memory."""
    devices = [Device(f"d{i}", f"k{i}", memory, flops_per_s=1e9 * (i + 1), bytes_per_s=1e9) for i in range(count)]
    return Hardware.mesh(devices, 1e9)


def test_layers_are_found(graph: Graph) -> None:
    """Each entry of the list is a block with the residual in it; other modules are blocks of their own."""
    blocks = blocks_of(graph)
    assert {block for block in blocks if block} == {"tokens", "norm", "head", *(f"layers.{i}" for i in range(6))}
    for v, block in enumerate(blocks):
        if graph.extras[v].get("module", "").startswith("layers.2"):
            assert block == "layers.2"
    assert blocks_of(graph, "op") == [None] * graph.num_ops
    assert "layers.2.up" in blocks_of(graph, "module")


def test_parts_by_class_and_path(graph: Graph) -> None:
    """Patterns fit paths and classes of modules; one that fits nothing is refused."""
    assert "layers.0" in blocks_of(graph, "op", ["Layer"])
    assert {block for block in blocks_of(graph, "op", ["layers.[01]"]) if block} == {"layers.0", "layers.1"}
    with pytest.raises(InvalidGraph, match="'Conv'"):
        graph.group("op", keep=["Layer", "Conv"])
    with pytest.raises(InvalidGraph, match="granularity"):
        blocks_of(graph, "all")  # type: ignore[arg-type]
    kept = graph.group("op", keep=["Layer"])
    assert Graph.from_torch(Model().eval(), (x(),), granularity="op", keep=["Layer"]) == kept


@pytest.mark.parametrize("count", [2, 3, 4])
def test_plans_of_layers_are_device_maps(graph: Graph, count: int) -> None:
    """A placement of whole layers is a device map, and none of its devices holds more than it can."""
    total = float(graph.param_bytes.sum())
    devices = hardware(count, 1.35 * total / count + 3000)
    layers = graph.group("layer")
    assert Graph.from_torch(Model().eval(), (x(),), granularity="layer") == layers
    plan = rlinit.schedule(layers, devices, objective="latency", resident="weights", time_limit_s=2)
    mapped = to_device_map(plan, layers)
    state = Model().state_dict()
    held = dict.fromkeys(mapped.values(), 0)
    for name, value in state.items():
        (path,) = [path for path in mapped if f"{name}.".startswith(f"{path}." if path else "")]
        held[mapped[path]] += 4 * value.numel()
    assert all(size <= device.memory_bytes for device in devices.devices for size in [held.get(device.name, 0)])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_plans_of_layers_are_split_specifications(graph: Graph, count: int) -> None:
    """Stages of whole layers are pieces of the program that begin with a module."""
    layers = graph.group("layer")
    plan = rlinit.schedule(layers, Hardware.pipeline(count, flops_per_s=1e9), objective="pipeline", time_limit_s=2)
    assert len({use for use in (plan.assignment or {}).values()}) > 1
    assert len(to_split_spec(plan, layers)) == len(set((plan.assignment or {}).values())) - 1


def test_maps_never_cut_a_module(graph: Graph) -> None:
    """A part whose ops are on two devices is refused by its name."""
    first = {op: at < graph.num_ops // 2 for at, op in enumerate(graph.names)}
    plan = placed_plan(graph, {op: "d0" if first[op] else "d1" for op in graph.names})
    with pytest.raises(InvalidPlan, match="cuts inside"):
        to_device_map(plan, graph)


def test_accelerate_takes_the_map(graph: Graph) -> None:
    """Folded modules are in the map, too, so that it covers every weight of the model."""
    hooks = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = Model().eval()
    layers = graph.group("layer")
    half = {op: "cpu" for op in layers.names}
    mapped = to_device_map(placed_plan(layers, half), layers)
    assert mapped == {"": "cpu"}
    names = [name for name, _ in model.named_parameters()]
    parts = to_device_map(
        placed_plan(layers, {op: "d0" if int(layers.colocation[v]) < 4 else "d1" for v, op in enumerate(layers.names)}),
        layers,
        devices={"d0": "cpu", "d1": "cpu"},
    )
    assert "places" in parts
    assert all(any(name.startswith(f"{path}.") for path in parts) for name in names)
    with torch.no_grad():
        expected = model(x())
        outputs = hooks.dispatch_model(model, device_map=parts, main_device="cpu", force_hooks=True)(x())
    assert torch.equal(outputs, expected)


def test_every_file_can_be_read_in_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`load_graph` and the command line keep repeated blocks and what patterns name together, whatever the file."""
    names = [f"/blocks.{layer}/{part}/op" for layer in range(3) for part in ("first", "second")]
    graph = Graph.build([(name, {"time_s": 1.0, "out_bytes": 1.0}) for name in names], list(itertools.pairwise(names)))
    graph.save(tmp_path / "g.json")
    layers = load_graph(tmp_path / "g.json", granularity="layer")
    assert layers.colocation.tolist() == [0, 0, 1, 1, 2, 2]
    assert load_graph(tmp_path / "g.json", keep=["blocks.1"]).colocation.tolist() == [-1, -1, 0, 0, -1, -1]
    assert load_graph(tmp_path / "g.json").colocation.max() == -1
    arguments = ["schedule", str(tmp_path / "g.json"), "--hw", "edge-tpu-3", "--granularity", "layer", "--json"]
    assert main(arguments) == 0
    stage = json.loads(capsys.readouterr().out)["assignment"]
    assert [stage[name] for name in names] == [0, 0, 1, 1, 2, 2]
    plan, dot = str(tmp_path / "plan.json"), tmp_path / "plan.dot"
    assert main([*arguments, "--out", plan]) == 0
    assert main(["export", plan, str(tmp_path / "g.json"), "--dot", str(dot)]) == 0
    assert dot.exists()


def test_blocks_are_found_in_names() -> None:
    """Names of Keras layers say their blocks; what is between goes along. A graph that says nothing is refused."""
    names = [
        "stem",
        *(f"conv{a}_block{b}_{what}" for a in (2, 3) for b in (1, 2) for what in ("1_conv", "1_bn", "add")),
    ]
    names += ["block_1_expand", "block_2_expand", "block3a_conv"]
    rows = [(name, {"time_s": 1.0}) for name in names]
    named = Graph.build(rows, list(itertools.pairwise(names)))
    assert {"conv2_block_2", "conv3_block_1", "conv3_block_2"} <= set(named.group("layer").groups)
    blocks = blocks_of(named)
    assert blocks[1:4] == ["conv2_block_1"] * 3
    assert blocks[-3:] == ["block_1", "block_2", "block_3a"]
    plain = Graph.build([("a", {"time_s": 1.0}), ("conv2d_1", {"time_s": 1.0})], [("a", "conv2d_1")])
    with pytest.raises(InvalidGraph, match="says which module or block"):
        plain.group("layer")


def test_blocks_are_found_in_onnx_scopes(tmp_path: Path) -> None:
    """Nodes of torch's exporter keep the modules around them in their metadata, by path and class."""
    onnx = pytest.importorskip("onnx")
    nodes = []
    for layer in range(3):
        for at, kind in enumerate(("Relu", "Sigmoid")):
            node = onnx.helper.make_node(kind, [f"t{2 * layer + at}"], [f"t{2 * layer + at + 1}"], f"n{layer}_{at}")
            for key, value in (
                ("name_scopes", ["", f"h.{layer}", f"h.{layer}.act", "x"]),
                ("class_hierarchy", ["a.Net", "a.Layer", "a.Act", "x"]),
            ):
                node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=str(value))
            nodes.append(node)
    nodes[-1].metadata_props[0].value = "[" * 200
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("t0", "t6")]
    made = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 20)]), tmp_path / "net.onnx")
    layers = load_graph(tmp_path / "net.onnx", granularity="layer")
    assert set(layers.groups) >= {"h.0", "h.1"}
    assert load_graph(tmp_path / "net.onnx", keep=["Layer"]).colocation.tolist() == [-1, 0, 0, 1, 1, -1, -1]


@pytest.mark.parametrize("objective", ["latency", "pipeline"])
def test_layers_whole_first_then_inside(graph: Graph, objective: Any) -> None:
    """One call plans layers whole and goes on inside them; the plan is for the graph's ops and never worse."""
    where = hardware(3)
    whole = rlinit.schedule(graph.group("layer"), where, objective=objective, time_limit_s=2)
    plan = rlinit.schedule(graph, where, objective=objective, refine="layer", time_limit_s=4)
    assert whole.value is not None
    assert plan.value is not None
    assert plan.value <= whole.value * (1 + 1e-9)
    assert any(note.startswith("with layers whole: ") for note in plan.notes)
    assert plan.provenance["start"] == "the plan with layers whole"
    rlinit.verify(plan, graph, where)
    with pytest.raises(RlinitError, match="expected one of them"):
        rlinit.schedule(graph, where, refine="layer", agent="heft")
    with pytest.raises(RlinitError, match="expected layer, module or none"):
        rlinit.schedule(graph, where, refine="op")  # type: ignore[arg-type]
