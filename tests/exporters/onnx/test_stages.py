"""Plans as ONNX files, run in onnxruntime one after the other against the whole model."""

from __future__ import annotations

import dataclasses
import importlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.errors import BackendUnavailable, InvalidGraph, InvalidPlan, RlinitError
from rlinit.exporters.onnx import external_data
from rlinit.exporters.onnx.node_mapping import fit_onnx
from rlinit.exporters.onnx.stages import onnx_stages, run_onnx_stages, to_onnx_stages
from rlinit.graph import Graph
from rlinit.importers.onnx.reader import from_onnx
from rlinit.measurement.ops import placed_plan
from tests.draws import draws
from tests.exporters.onnx.files import (
    KINDS,
    check_parts,
    feeds_of,
    helper,
    model_of,
    onnx,
    random_model,
    slices,
    staged,
    weight,
)

SEEDS = st.integers(0, 100_000)
node = helper.make_node


@given(seed=SEEDS, k=st.integers(1, 6))
@settings(max_examples=draws(20), deadline=None)
def test_stages_equal_the_whole(seed: int, k: int) -> None:
    """Any monotone stages of any model give, file by file, what the model gives."""
    model = random_model(seed)
    graph = from_onnx(model, batch=3)
    plan = staged(graph, slices(graph, k, np.random.default_rng(seed)), k)
    with tempfile.TemporaryDirectory() as folder:
        check_parts(plan, graph, model, feeds_of(model, 3), Path(folder))


@given(seed=SEEDS, devices=st.integers(1, 4))
@settings(max_examples=draws(20), deadline=None)
def test_segments_of_devices_equal_the_whole(seed: int, devices: int) -> None:
    """Any placement of any model gives what the model gives, in files of one device each."""
    model = random_model(seed)
    graph = from_onnx(model, batch=2)
    where = [f"d{i}" for i in np.random.default_rng(seed).integers(0, devices, graph.num_ops)]
    plan = placed_plan(graph, dict(zip(graph.names, where, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        number = check_parts(plan, graph, model, feeds_of(model, 2), Path(folder))
    assert devices > 1 or number == 1
    op2device = dict(zip(graph.names, where, strict=True))
    for part in onnx_stages(plan, graph, model):
        assert {op2device[op] for op in part.ops} == {part.device}
        assert part.stage is None


def test_parts_say_what_they_are(tmp_path: Path) -> None:
    """Boundary tensors keep their names, shapes are the chosen ones, weights are kept, empty stages have no file."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="second"),
        node("MatMul", ["b", "w"], ["c"], name="third"),
        node("Add", ["c", "a"], ["y"], name="fourth"),
    ]
    model = model_of(nodes, stored=[weight("w", 4, 4)])
    graph = from_onnx(model, batch=7)
    plan = staged(graph, [0, 0, 1, 3, 3], 5)
    parts = onnx_stages(plan, graph, model)
    assert [(part.stage, part.device, part.takes, part.gives, part.ops) for part in parts] == [
        (0, "d0", ("x",), ("a",), ("first",)),
        (1, "d1", ("a",), ("b",), ("second",)),
        (3, "d3", ("b", "a"), ("y",), ("third", "fourth")),
    ]
    sizes = [
        [d.dim_value for d in value.type.tensor_type.shape.dim] for part in parts for value in part.model.graph.input
    ]
    assert sizes == [[7, 4]] * 4
    assert [[t.name for t in part.model.graph.initializer] for part in parts] == [["w"], [], ["w"]]
    facts = {entry.key: entry.value for entry in parts[2].model.metadata_props}
    assert facts == {"rlinit.device": "d3", "rlinit.stage": "3", "rlinit.graph_fingerprint": graph.fingerprint()}
    assert check_parts(plan, graph, model, feeds_of(model, 7), tmp_path / "new") == 3
    listed = json.loads((tmp_path / "new" / "parts.json").read_text())
    assert listed["inputs"] == ["x"]
    assert [row["file"] for row in listed["parts"]] == ["part_0.onnx", "part_1.onnx", "part_2.onnx"]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_kinds_of_models(make: Callable[[], Any], tmp_path: Path) -> None:
    """Models with quantized or sparse weights, functions, constant results, disorder or old formats can be cut."""
    model = make()
    before = model.SerializeToString(deterministic=True)
    graph = from_onnx(model, batch=3)
    ranks = dict(zip(graph.order.tolist(), range(graph.num_ops), strict=True))
    plan = staged(graph, [ranks[v] for v in range(graph.num_ops)], graph.num_ops)
    check_parts(plan, graph, model, feeds_of(model, 3), tmp_path)
    assert model.SerializeToString(deterministic=True) == before


def test_names_of_nodes_are_made_distinct(tmp_path: Path) -> None:
    """Nodes of one name, which onnxruntime refuses, are called like their ops, and nodes without a name too."""
    steps = [("x", "a", "same"), ("a", "b", "same"), ("b", "c", ""), ("c", "y", "same")]
    model = model_of([node("Neg", [read], [made], name=name) for read, made, name in steps])
    graph = from_onnx(model, batch=2)
    assert graph.names == ("x", "same", "same#2", "Neg_2", "same#3")
    plan = staged(graph, [0] * 5, 1)
    (part,) = onnx_stages(plan, graph, model)
    assert [step.name for step in part.model.graph.node] == list(part.ops) == list(graph.names[1:])
    to_onnx_stages(plan, graph, model, tmp_path)
    feeds = feeds_of(model, 2)
    assert np.array_equal(run_onnx_stages(tmp_path, feeds)["y"], feeds["x"])


def test_weights_in_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights come from the file beside the model, and go into files beside the parts where they are many."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "v"], ["b"]), node("Reshape", ["b", "s"], ["y"])]
    model = model_of(
        nodes, stored=[weight("w", 4, 4), weight("v", 4, 4), onnx.numpy_helper.from_array(np.array([-1, 2]), "s")]
    )
    path = tmp_path / "model" / "model.onnx"
    path.parent.mkdir()
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = rlinit.load_graph(path, batch=3)
    plan = staged(graph, [0, 0, 1, 1], 2)
    monkeypatch.setattr(external_data, "_MAX_INLINE_BYTES", 60)
    monkeypatch.setattr(external_data, "_LEAST_APART_BYTES", 50)
    monkeypatch.chdir(path.parent)
    check_parts(plan, graph, whole, feeds_of(whole, 3), tmp_path / "inline")
    for _ in range(2):  # once more over what is there
        results = [to_onnx_stages(plan, graph, path, tmp_path / "parts")]
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == [
        "part_0.data", "part_0.onnx", "part_1.data", "part_1.onnx", "parts.json",
    ]  # fmt: skip
    feeds = feeds_of(whole, 3)
    for name, value in run_onnx_stages(tmp_path / "parts", feeds).items():
        assert np.array_equal(value, run_onnx_stages(tmp_path / "inline", feeds)[name])
    assert len(results[0]) == 2
    (path.parent / "weights.bin").unlink()
    with pytest.raises(InvalidGraph, match=r"cannot read the external data of tensor 's'"):
        to_onnx_stages(plan, graph, path, tmp_path / "again")
    with pytest.raises(InvalidGraph, match=r"lies in another file; give the path"):
        onnx_stages(plan, graph, onnx.load(str(path), load_external_data=False))


def test_a_scheduled_network(tmp_path: Path) -> None:
    """A module exported by torch, scheduled for three devices, runs in three files and gives what the module gives."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from tests.executors.models import Inception

    module, inputs = Inception().eval(), (torch.randn(1, 3, 8, 8),)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*inputs))
    program = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
    path = tmp_path / "model.onnx"
    program.save(str(path), external_data=True)
    graph = rlinit.load_graph(path)
    plan = rlinit.schedule(graph, rlinit.Hardware.edge_tpus(3), objective="memory")
    plan.save(tmp_path / "plan.json")
    files = to_onnx_stages(rlinit.Plan.load(tmp_path / "plan.json"), graph, path, tmp_path / "parts")
    assert len(files) == 3
    feeds = dict(zip([op for op in graph.names if graph.kinds[graph.index(op)] == "input"], inputs, strict=True))
    results = run_onnx_stages(tmp_path / "parts", {name: value.numpy() for name, value in feeds.items()})
    for mine, true in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(mine, true.numpy(), rtol=1e-4, atol=1e-5)


# -- what is refused -------------------------------------------------------------------------------------------------


def chain(*kinds: str, name: str = "n") -> Any:
    """Return a chain of nodes over a (2, 4) input."""
    names = ["x", *(f"t{at}" for at in range(1, len(kinds))), "y"]
    nodes = [node(kind, [names[at]], [names[at + 1]], name=f"{name}{at}") for at, kind in enumerate(kinds)]
    return model_of(nodes, shape=[2, 4])


EDITS = [
    (chain("Relu", "Neg"), "graph .* has the op 'n2', which the model does not have"),
    (chain("Relu", "Neg", "Relu", "Relu"), "the model has the node 'n3', which the plan's graph .* does not have"),
    (chain("Relu", "Abs", "Relu"), "node 'n1' is 'Abs' in the model, 'Neg' in the plan"),
    (chain("Relu", "Neg", "Relu", name="m"), "the model has the node 'm0'"),
]


@pytest.mark.parametrize(("edited", "message"), EDITS)
def test_models_that_were_edited_are_refused(edited: Any, message: str) -> None:
    """A plan for another version of the model is refused with the first node that differs."""
    graph = from_onnx(chain("Relu", "Neg", "Relu"))
    plan = staged(graph, [0, 0, 1, 1], 2)
    with pytest.raises(InvalidPlan, match=message):
        onnx_stages(plan, graph, edited)


def rewired(*reads: Sequence[str]) -> Any:
    """Return a model of three sums with given inputs."""
    return model_of(
        [node("Add", list(pair), [f"y{at}" if at < 2 else "y"], name=f"n{at}") for at, pair in enumerate(reads)]
    )


def test_rewired_and_resized_models_are_refused() -> None:
    """So are models with other edges, sizes, types or weights' shapes."""
    model = rewired(("x", "x"), ("x", "y0"), ("y0", "y1"))
    graph = from_onnx(model, batch=2)
    plan = staged(graph, [0, 0, 0, 0], 1)
    assert fit_onnx(plan, graph, model).op2places == {"n0": [0], "n1": [1], "n2": [2]}
    with pytest.raises(InvalidPlan, match="node 'n2' reads node 'n0' only in the plan's graph"):
        onnx_stages(plan, graph, rewired(("x", "x"), ("x", "y0"), ("x", "y1")))
    product = model_of([node("MatMul", ["x", "w"], ["y"], name="n")], stored=[weight("w", 4, 5)])
    graph = from_onnx(product, batch=2)
    plan = staged(graph, [0, 0], 1)
    with pytest.raises(InvalidPlan, match=r"node 'n' makes \[\['float32', 2, 6\]\] in the model"):
        onnx_stages(plan, graph, model_of([node("MatMul", ["x", "w"], ["y"], name="n")], stored=[weight("w", 4, 6)]))
    fixed = model_of([node("MatMul", ["x", "w"], ["y"], name="n")], stored=[weight("w", 4, 5)], shape=[3, 4])
    with pytest.raises(InvalidPlan, match=r"node 'x' makes \[\['float32', 3, 4\]\] in the model"):
        onnx_stages(plan, graph, fixed)


def test_plans_that_do_not_fit_are_refused() -> None:
    """Plans of other graphs, without schedule, of an op on several devices, or whose stages form a circle."""
    model = chain("Relu", "Neg", "Relu")
    graph = from_onnx(model)
    plan = staged(graph, [0, 0, 1, 1], 2)
    other = from_onnx(chain("Relu", "Neg"))
    with pytest.raises(InvalidPlan, match="made for another graph"):
        onnx_stages(plan, other, model)
    with pytest.raises(InvalidPlan, match="no schedule"):
        onnx_stages(dataclasses.replace(plan, assignment=None, status="no_solution"), graph, model)
    with pytest.raises(InvalidPlan, match=r"stages \[0, 1\] read each other in a circle, which op 'n[012]'"):
        onnx_stages(staged(graph, [0, 0, 1, 0], 2), graph, model)
    with pytest.raises(InvalidPlan, match="op 'n1' is on stage 2; the plan has the stages 0 to 1"):
        onnx_stages(dataclasses.replace(plan, assignment={"x": 0, "n0": 0, "n1": 2, "n2": 0}), graph, model)
    with pytest.raises(InvalidPlan, match="does not place op 'n2'"):
        onnx_stages(dataclasses.replace(plan, assignment={"x": 0, "n0": 0, "n1": 1}), graph, model)
    placed = placed_plan(graph, dict.fromkeys(graph.names, "d0"))
    shared = {**dict(placed.assignment or {}), "n0": ("d0", "d1")}
    with pytest.raises(InvalidPlan, match="op 'n0' runs some inputs on d0 and some on d1"):
        onnx_stages(dataclasses.replace(placed, assignment=shared), graph, model)


def test_graphs_of_other_kinds_are_refused() -> None:
    """A graph that was not imported from ONNX fits no file."""
    graph = Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [("a", "b")])
    with pytest.raises(InvalidPlan, match="the model has the node 'x'"):
        onnx_stages(staged(graph, [0, 1], 2), graph, chain("Relu", "Neg"))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, damaged and foreign files, missing inputs and packages each give an error that says so."""
    model = chain("Relu", "Neg", "Relu")
    graph = from_onnx(model)
    plan = staged(graph, [0, 0, 1, 1], 2)
    with pytest.raises(InvalidGraph, match="there is no such file"):
        onnx_stages(plan, graph, tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(InvalidGraph, match=r"cannot read .*bad\.onnx|has no graph"):
        onnx_stages(plan, graph, tmp_path / "bad.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(InvalidGraph, match="has no graph"):
        onnx_stages(plan, graph, tmp_path / "empty.onnx")
    to_onnx_stages(plan, graph, model, tmp_path)
    with pytest.raises(InvalidPlan, match=r"part_0\.onnx takes 'x', which is not among the inputs"):
        run_onnx_stages(tmp_path, {})
    listed = json.loads((tmp_path / "parts.json").read_text())
    for changed in ("{", "[]", '{"format": "other"}', json.dumps({**listed, "format": "other"})):
        (tmp_path / "parts.json").write_text(changed)
        with pytest.raises(InvalidPlan, match=r"parts\.json"):
            run_onnx_stages(tmp_path, feeds_of(model, 2))
    listed["parts"][0]["file"] = "../part_0.onnx"
    (tmp_path / "parts.json").write_text(json.dumps(listed))
    with pytest.raises(InvalidPlan, match="in its own folder"):
        run_onnx_stages(tmp_path, feeds_of(model, 2))

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match="pip install onnxruntime"):
        run_onnx_stages(tmp_path, {})
    with pytest.raises(BackendUnavailable, match="onnx"):
        onnx_stages(plan, graph, model)


def test_mutated_files_never_crash(tmp_path: Path) -> None:
    """Random changes of bytes give what the file says, or an error of this package, nothing else."""
    model = random_model(5)
    graph = from_onnx(model, batch=3)
    plan = staged(graph, slices(graph, 4, np.random.default_rng(0)), 4)
    whole = model.SerializeToString()
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(120):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), int(rng.integers(1, 4))):
            content[at] = int(rng.integers(256))
        (tmp_path / "m.onnx").write_bytes(content)
        try:
            onnx_stages(plan, graph, tmp_path / "m.onnx")
        except RlinitError:
            refused += 1
    assert 30 < refused < 120
