"""ONNX models with plans in them: checked, run, imported and read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.errors import InvalidGraph, InvalidPlan, RlinitError
from rlinit.exporters.onnx.annotated import (
    annotated_onnx,
    layer_assignment,
    read_onnx_annotations,
    to_onnx_annotated,
)
from rlinit.exporters.onnx.stages import onnx_stages
from rlinit.importers.onnx.reader import from_onnx
from rlinit.measurement.ops import placed_plan
from tests.exporters.onnx.files import (
    KINDS,
    feeds_of,
    helper,
    model_of,
    onnx,
    random_model,
    run_whole,
    slices,
    staged,
    weight,
)


def check_annotated(model: Any, annotated: Any, batch: int) -> None:
    """Check that an annotated model is valid, imports as the same graph, and gives what the model gives."""
    for value in annotated.graph.output:  # the checker wants a shape for outputs, which the models leave out
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(annotated)
    for value, true in zip(annotated.graph.output, model.graph.output, strict=True):
        value.CopyFrom(true)
    assert annotated.ir_version >= 11
    assert from_onnx(annotated, batch=batch).fingerprint() == from_onnx(model, batch=batch).fingerprint()
    feeds = feeds_of(model, batch)
    whole = run_whole(model, feeds)
    for name, value in run_whole(annotated, feeds).items():
        assert np.array_equal(value, whole[name])


@given(seed=st.integers(0, 100_000), k=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_stages_are_read_back(seed: int, k: int) -> None:
    """An annotated model is valid, gives what the model gives, and says of every node what the plan says."""
    model = random_model(seed)
    graph = from_onnx(model, batch=3)
    stages = slices(graph, k, np.random.default_rng(seed))
    annotated = annotated_onnx(staged(graph, stages, k), graph, model)
    check_annotated(model, annotated, 3)
    found = read_onnx_annotations(annotated)
    ops = [at for at in range(graph.num_ops) if graph.kinds[at] != "input"]
    assert found.op2stage == {graph.names[at]: stages[at] for at in ops}
    assert found.op2device == {graph.names[at]: f"d{stages[at]}" for at in ops}
    assert found.devices == tuple(f"d{j}" for j in range(k))
    assert found.graph_fingerprint == graph.fingerprint()


@pytest.mark.parametrize("seed", range(4))
def test_a_session_takes_the_assignment(seed: int) -> None:
    """ONNX Runtime puts every node on the provider of its device, and computes what the model does."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = random_model(seed)
    graph = from_onnx(model, batch=2)
    where = ("a(1); b", "cpu")
    op2device = {op: where[at % 2] for at, op in enumerate(graph.names)}
    annotated = annotated_onnx(placed_plan(graph, op2device), graph, model)
    said = layer_assignment(annotated, {where[0]: "cpu", where[1]: "cpu"})
    layers = {prop.value for node in annotated.graph.node for prop in node.metadata_props if prop.key == "layer_ann"}
    assert said == f"cpu({', '.join(f'={one}' for one in sorted(layers, key=said.index))})"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.layer_assignment_settings", said)
    session = onnxruntime.InferenceSession(annotated.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = feeds_of(model, 2)
    whole = run_whole(model, feeds)
    names = [value.name for value in session.get_outputs()]
    for name, value in zip(names, session.run(names, feeds), strict=True):
        assert np.allclose(value, whole[name], atol=1e-5)


def test_assignments_that_no_session_takes_are_refused() -> None:
    """A device without a designator, one that does not exist, and two GPUs in one session."""
    model = random_model(1)
    graph = from_onnx(model, batch=2)
    op2device = {op: f"d{at % 2}" for at, op in enumerate(graph.names)}
    annotated = annotated_onnx(placed_plan(graph, op2device), graph, model)
    for devices, said in (
        ({"d0": "cpu"}, "'d1' of the plan is ''"),
        ({"d0": "cpu", "d1": "tpu"}, "expected cpu, gpu"),
        ({"d0": "gpu:0", "d1": "gpu:1"}, "has one gpu"),
    ):
        with pytest.raises(InvalidPlan, match=said):
            layer_assignment(annotated, devices)
    assert layer_assignment(annotated, {"d0": "gpu:1", "d1": "cpu"}).count("=") == 2


@given(seed=st.integers(0, 100_000))
@settings(max_examples=10, deadline=None)
def test_devices_are_read_back(seed: int) -> None:
    """Placements have devices and no stages."""
    model = random_model(seed)
    graph = from_onnx(model, batch=2)
    where = [f"d{i}" for i in np.random.default_rng(seed).integers(0, 3, graph.num_ops)]
    annotated = annotated_onnx(placed_plan(graph, dict(zip(graph.names, where, strict=True))), graph, model)
    check_annotated(model, annotated, 2)
    found = read_onnx_annotations(annotated)
    assert found.op2stage == {}
    assert found.op2device == {
        name: place for name, place, kind in zip(graph.names, where, graph.kinds, strict=True) if kind != "input"
    }


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_kinds_of_models(make: Callable[[], Any]) -> None:
    """Models with quantized or sparse weights, functions, constant results, disorder or old formats keep working."""
    model = make()
    before = model.SerializeToString(deterministic=True)
    graph = from_onnx(model, batch=3)
    check_annotated(model, annotated_onnx(staged(graph, [0] * graph.num_ops, 1), graph, model), 3)
    assert model.SerializeToString(deterministic=True) == before


def two_products() -> Any:
    """Return a model of two products."""
    nodes = [helper.make_node("MatMul", [a, "w"], [b], name=f"n{b}") for a, b in (("x", "a"), ("a", "y"))]
    outputs = [helper.make_tensor_value_info("y", 1, ["N", 4])]
    return model_of(nodes, stored=[weight("w", 4, 4)], outputs=outputs)


def test_files(tmp_path: Path) -> None:
    """Weights of other files come along; writing a new plan replaces the old one and nothing else."""
    model = two_products()
    model.metadata_props.add(key="author", value="somebody")
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(model, str(tmp_path / "in.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    graph = rlinit.load_graph(tmp_path / "in.onnx", batch=2)
    first, second = staged(graph, [0, 0, 0], 2), staged(graph, [1, 1, 0], 2)
    to_onnx_annotated(first, graph, tmp_path / "in.onnx", tmp_path / "out.onnx")
    (tmp_path / "w.bin").unlink()
    path = tmp_path / "again.onnx"
    to_onnx_annotated(dataclasses.replace(first, hardware="new"), graph, tmp_path / "out.onnx", path)
    written = onnx.load(str(path))
    onnx.checker.check_model(written, full_check=True)
    assert len(written.configuration) == 1
    assert [len(step.device_configurations) for step in written.graph.node] == [1, 1]
    facts = {entry.key: entry.value for entry in written.metadata_props}
    assert facts["author"] == "somebody"
    assert facts["rlinit.hardware"] == "new"
    assert np.array_equal(run_whole(path, feeds_of(whole, 2))["y"], run_whole(whole, feeds_of(whole, 2))["y"])
    with pytest.raises(InvalidPlan, match="has the op 'ny', which the model does not have"):
        to_onnx_annotated(first, graph, model_of([helper.make_node("Neg", ["x"], ["y"], name="na")]), path)
    # Stage 1 runs first here, so that stages in the file are in the order in which they run.
    swapped = dataclasses.replace(second, assignment={"x": 1, "na": 1, "ny": 0})
    found = read_onnx_annotations(annotated_onnx(swapped, graph, whole))
    assert found.op2stage == {"na": 0, "ny": 1}
    assert found.op2device == {"na": "d1", "ny": "d0"}


def test_outputs_that_nothing_makes() -> None:
    """A model that promises a tensor it does not make is refused with its name."""
    model = two_products()
    graph = from_onnx(model)
    model.graph.output.append(helper.make_tensor_value_info("ghost", 1, [1]))
    with pytest.raises(InvalidGraph, match="gives the tensor 'ghost', which nothing makes"):
        annotated_onnx(staged(graph, [0, 0, 0], 1), graph, model)


def test_annotations_that_make_no_sense() -> None:
    """Files without the configuration, and nodes on several or unknown devices or without name, are refused by name."""
    model = two_products()
    with pytest.raises(InvalidPlan, match=r"configurations \[\]; expected one called 'rlinit'"):
        read_onnx_annotations(model)
    graph = from_onnx(model)
    annotated = annotated_onnx(staged(graph, [0, 0, 1], 2), graph, model)
    with pytest.raises(InvalidPlan, match=r"configurations \['rlinit'\]; expected one called 'other'"):
        read_onnx_annotations(annotated, "other")

    def changed(change: Callable[[Any], object]) -> Any:
        copied = onnx.ModelProto()
        copied.CopyFrom(annotated)
        change(copied.graph.node[1])
        return copied

    def broken(node: Any) -> list[Any]:
        specs: list[Any] = node.device_configurations[0].sharding_spec
        return specs

    for change, message in (
        (lambda node: broken(node)[0].device.append(0), "node 'ny' is on the devices"),
        (lambda node: [spec.device.__setitem__(0, 7) for spec in broken(node)], r"the devices \[7\] of 2"),
        (lambda node: [spec.device.pop() for spec in broken(node)], r"the devices \[\] of 2"),
        (lambda node: setattr(node, "name", "na"), "node 'na' is annotated twice"),
        (lambda node: setattr(node, "name", ""), "no name of its own"),
        (lambda node: node.device_configurations.append(node.device_configurations[0]), "annotated twice"),
        (lambda node: setattr(node.device_configurations[0], "pipeline_stage", -1), "expected one"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            read_onnx_annotations(changed(change))


def test_mutated_files_never_crash(tmp_path: Path) -> None:
    """Random changes of bytes give what the file says, or an error of this package, nothing else."""
    model = random_model(5)
    graph = from_onnx(model, batch=3)
    plan = staged(graph, slices(graph, 4, np.random.default_rng(0)), 4)
    whole = annotated_onnx(plan, graph, model).SerializeToString()
    rng = np.random.default_rng(1)
    calls: list[Callable[[Path], object]] = [
        read_onnx_annotations,
        lambda path: onnx_stages(plan, graph, path),
        lambda path: annotated_onnx(plan, graph, path),
    ]
    refused = 0
    for _ in range(120):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), int(rng.integers(1, 4))):
            content[at] = int(rng.integers(256))
        (tmp_path / "m.onnx").write_bytes(content)
        for call in calls:
            try:
                call(tmp_path / "m.onnx")
            except RlinitError:
                refused += 1
    assert 100 < refused < 360
