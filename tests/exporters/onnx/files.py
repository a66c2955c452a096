"""ONNX models and plans for the exporters' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlinit.exporters.onnx.stages import run_onnx_stages, to_onnx_stages
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.plan import Plan
from tests.executors.plans import stage_plan

onnx: Any = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")
helper = onnx.helper

__all__ = [
    "KINDS",
    "check_parts",
    "feeds_of",
    "hardware",
    "helper",
    "model_of",
    "onnx",
    "random_model",
    "run_whole",
    "session_of",
    "slices",
    "staged",
    "weight",
]

_UNARY = ("Relu", "Sigmoid", "Neg", "Identity")


def random_model(seed: int, num_nodes: int = 12) -> Any:
    """Return a random model over tensors of shape (batch, 4), with weights, folded shapes, subgraphs and splits."""
    rng = np.random.default_rng(seed)
    nodes: list[Any] = []
    stored: list[Any] = []
    tensors = ["x", "z"]

    def pick() -> str:
        return tensors[int(rng.integers(max(0, len(tensors) - 6), len(tensors)))]

    def weight(*shape: int) -> str:
        name = f"w{len(stored)}"
        stored.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
        return name

    for at in range(num_nodes):
        kind, out = int(rng.integers(7)), f"t{at}"
        name = f"n{at}" if rng.random() < 0.7 else ""
        if kind <= 1:
            nodes.append(helper.make_node(str(rng.choice(_UNARY)), [pick()], [out], name=name))
        elif kind == 2:
            nodes.append(helper.make_node("Add", [pick(), pick()], [out], name=name))
        elif kind == 3:
            shared = "w0" if stored and stored[0].dims[:] == [4, 4] and rng.random() < 0.5 else weight(4, 4)
            nodes.append(helper.make_node("MatMul", [pick(), shared], [out], name=name))
        elif kind == 4:  # the shape of one tensor is all that is read of it
            nodes.append(helper.make_node("Shape", [pick()], [f"s{at}"]))
            nodes.append(helper.make_node("ConstantOfShape", [f"s{at}"], [f"c{at}"]))
            nodes.append(helper.make_node("Sub", [pick(), f"c{at}"], [out], name=name))
        elif kind == 5:
            nodes.append(helper.make_node("Split", [pick()], [f"a{at}", f"b{at}"], name=name, axis=1, num_outputs=2))
            nodes.append(helper.make_node("Concat", [f"b{at}", f"a{at}"], [out], name=f"cat{at}", axis=1))
        else:
            nodes += _branch(at, pick(), pick(), out, name)
        tensors.append(out)
    results = [tensors[-1], *(name for name in tensors[2:-1] if rng.random() < 0.2)]
    inputs = [helper.make_tensor_value_info(name, 1, ["N", 4]) for name in ("x", "z")]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in results]
    graph = helper.make_graph(nodes, f"random-{seed}", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def weight(name: str, *shape: int) -> Any:
    """Return a stored tensor of small numbers."""
    count = int(np.prod(shape))
    return onnx.numpy_helper.from_array(np.linspace(-1, 1, count, dtype=np.float32).reshape(shape), name)


def model_of(
    nodes: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    stored: Sequence[Any] = (),
    shape: Sequence[int | str] = ("N", 4),
) -> Any:
    """Return a model from x to y."""
    inputs = [helper.make_tensor_value_info("x", 1, list(shape))]
    results = list(outputs) if outputs is not None else [helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph(list(nodes), "made", inputs, results, list(stored))
    domains = sorted({step.domain for step in nodes} - {""})
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _branch(at: int, first: str, second: str, out: str, name: str) -> list[Any]:
    """Return an If whose branches read tensors from outside."""
    branches = []
    for step in ("Relu", "Neg"):
        inner = helper.make_tensor_value_info(f"{step}{at}", 1, None)
        branch = helper.make_graph([helper.make_node(step, [second], [f"{step}{at}"])], step, [], [inner])
        branches.append(branch)
    return [
        helper.make_node("ReduceSum", [first], [f"r{at}"], name=f"sum{at}", keepdims=0),
        helper.make_node("Cast", [f"r{at}"], [f"k{at}"], name=f"cast{at}", to=9),
        helper.make_node("If", [f"k{at}"], [f"i{at}"], name=name, then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", [f"i{at}", second], [out], name=f"sum_if{at}"),
    ]


def hardware(num_devices: int) -> Hardware:
    """Return devices d0, d1, ... with free links."""
    devices = tuple(Device(f"d{i}") for i in range(num_devices))
    size = (num_devices, num_devices)
    return Hardware(devices, np.full(size, np.inf), np.zeros(size), "free")


def slices(graph: Graph, k: int, rng: np.random.Generator) -> list[int]:
    """Return a random stage for each op, monotone along edges."""
    stages = np.zeros(graph.num_ops, np.int64)
    for v in graph.order.tolist():
        reads = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]
        least = int(stages[reads].max(initial=0))
        stages[v] = min(k - 1, least + int(rng.random() < 0.3) + int(rng.random() < 0.1))
    return [int(stage) for stage in stages]


def staged(graph: Graph, stages: list[int], k: int) -> Plan:
    """Return a stage plan."""
    return stage_plan(graph, hardware(k), stages, objective="memory")


def feeds_of(model: Any, batch: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return random inputs of shape (batch, 4)."""
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in stored]
    return {name: rng.normal(size=(batch, 4)).astype(np.float32) for name in names}


def session_of(model: Any) -> Any:
    """Return a quiet session on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_whole(model: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a model in onnxruntime."""
    session = session_of(model)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_parts(plan: Plan, graph: Graph, model: Any, feeds: dict[str, Any], folder: Path) -> int:
    """Write the parts of a model, check each file, and compare the chain with the whole; return the number of parts."""
    whole = run_whole(model, feeds)
    files = to_onnx_stages(plan, graph, model, folder)
    for path in files:
        part = onnx.load(str(path))
        # Shape inference takes sparse weights for scalars.
        onnx.checker.check_model(part, full_check=not part.graph.sparse_initializer)
    results = run_onnx_stages(folder, feeds)
    assert list(results) == list(whole)
    for name, value in whole.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    return len(files)


def quantized() -> Any:
    """Return a model whose weight is dequantized, transposed and annotated."""
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "scale")
    zero = onnx.numpy_helper.from_array(np.int8(3), "zero")
    stored = onnx.numpy_helper.from_array(np.arange(16, dtype=np.int8).reshape(4, 4), "q")
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
        helper.make_node(
            "Einsum", ["x", "t"], ["a"], equation="ij,jk->ik"
        ),  # onnxruntime would round inputs of a MatMul to 8 bits
        helper.make_node("Einsum", ["a", "t"], ["y"], equation="ij,jk->ik"),
    ]
    model = model_of(nodes, stored=[scale, zero, stored])
    note = model.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    return model


def functional() -> Any:
    """Return a model that calls a function of its own."""
    body = [helper.make_node("Relu", ["u"], ["v"]), helper.make_node("Add", ["v", "u"], ["w"])]
    function = helper.make_function("own", "twice", ["u"], ["w"], body, [helper.make_opsetid("", 20)])
    model = model_of(
        [helper.make_node("twice", ["x"], ["a"], domain="own"), helper.make_node("twice", ["a"], ["y"], domain="own")]
    )
    model.functions.append(function)
    return model


def sparse() -> Any:
    """Return a model with a sparse weight."""
    values = onnx.numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "w")
    places = onnx.numpy_helper.from_array(np.array([1, 6], np.int64), "places")
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 4]))
    return model


def fixed_results() -> Any:
    """Return a model that gives its inputs, a weight and a shape, and has an input that nothing reads."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("y", 1), ("s", 7), ("w", 1), ("x", 1), ("z", 1))
    ]
    model = model_of(nodes, outputs=outputs, stored=[weight("w", 2, 2)])
    model.graph.input.append(helper.make_tensor_value_info("z", 1, ["N", 4]))
    return model


def disordered() -> Any:
    """Return a model whose nodes are out of order."""
    return model_of(
        [
            helper.make_node("Neg", ["a"], ["y"]),
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Relu", ["y"], ["dead"]),
        ]
    )


def old() -> Any:
    """Return a model of an early format, in which stored tensors are inputs too."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])],
        stored=[weight("w", 4, 4)],
    )
    model.graph.input.append(helper.make_tensor_value_info("w", 1, [4, 4]))
    model.ir_version = 3
    model.opset_import[0].version = 9
    return model


def lone() -> Any:
    """Return a model of one node."""
    return model_of([helper.make_node("Neg", ["x"], ["y"])])


KINDS: list[Callable[[], Any]] = [quantized, functional, sparse, fixed_results, disordered, old, lone]
"""Models that differ in kind."""
