"""ONNX models as graphs: bytes, operations, constants, sharing, dimensions, external data, damaged files."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit import Graph, load_graph
from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.importers.onnx.flops import node_flops
from rlinit.importers.onnx.reader import from_onnx, import_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
node = helper.make_node


def value(name: str, shape: Sequence[int | str | None] | None, dtype: int = FLOAT) -> Any:
    """Return the description of a tensor."""
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, *shape: int, dtype: Any = np.float32) -> Any:
    """Return an initializer of zeros."""
    return onnx.numpy_helper.from_array(np.zeros(shape, dtype), name)


def numbers(name: str, *values: int) -> Any:
    """Return an initializer of 64-bit integers."""
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (value("x", ["N", 4]),),
    outputs: Sequence[Any] = (value("y", None),),
    stored: Sequence[Any] = (),
    **rest: Any,
) -> Any:
    """Return a model of one graph."""
    graph = helper.make_graph(list(nodes), "made", list(inputs), list(outputs), list(stored), **rest)
    domains = {step.domain for step in nodes} - {"", "ai.onnx"}
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def edges(graph: Graph) -> set[tuple[str, str]]:
    """Return the edges by name."""
    return {(graph.names[u], graph.names[v]) for u, v in graph.edges}


def test_a_small_network_in_full() -> None:
    """Every column of a network small enough to count by hand; the batch is one unless chosen."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"], name="relu"),
        node("Add", ["a", "r"], ["s"], name="sum"),
        node("Flatten", ["s"], ["f"]),
        node("Gemm", ["f", "v", "c"], ["y"], name="head", transB=1),
    ]
    stored = [tensor("w", 4, 3, 3, 3), tensor("b", 4), tensor("v", 10, 256), tensor("c", 10)]
    model = model_of(nodes, [value("x", ["N", 3, 8, 8])], stored=stored)
    graph = from_onnx(model)
    assert graph.name == "made"
    assert graph.names == ("x", "conv", "relu", "sum", "Flatten_3", "head")
    assert graph.kinds == ("input", "Conv", "Relu", "Add", "Flatten", "Gemm")
    assert graph.param_bytes.tolist() == [0, 4 * 112, 0, 0, 0, 4 * 2570]
    assert graph.out_bytes.tolist() == [768, 1024, 1024, 1024, 1024, 40]
    assert graph.flops.tolist() == [0, 2 * 256 * 27, 0, 0, 0, 2 * 2560]
    assert ("conv", "sum") in edges(graph)
    assert graph.num_edges == 6
    noted = {"node": "conv", "nodes": [0], "tensors": ["a"], "outputs": [["float32", 1, 4, 8, 8]]}
    operands = [["x", 1, 3, 8, 8], ["", 4, 3, 3, 3], ["", 4]]
    labels = [[0, 2, -1, -1], [1, 2, -1, -1], [1], [0, 1, -1, -1]]
    assert graph.extras[1] == noted | {"axes": {"labels": labels}, "operands": operands}
    assert graph.extras[4]["node"] == "f"
    assert graph.extras[4]["view"]
    half = from_onnx(model, dtype=("int4", "fp16"))
    assert half.param_bytes.tolist() == (graph.param_bytes / 8).tolist()
    assert half.out_bytes.tolist() == (graph.out_bytes / 2).tolist()
    eight = from_onnx(model, batch=8)
    assert eight.out_bytes.tolist() == [8 * size for size in graph.out_bytes]
    assert eight.flops.tolist() == [8 * count for count in graph.flops]
    assert eight.param_bytes.tolist() == graph.param_bytes.tolist()
    assert [entry.name for entry in model.graph.initializer] == ["w", "b", "v", "c"]


def test_dimensions_are_chosen() -> None:
    """Unknown dimensions take the values given by name or place; without one the input is named."""
    inputs = [value("x", ["N", "T", 4]), value("z", ["N", None, 4])]
    model = model_of([node("MatMul", ["x", "w"], ["a"]), node("Concat", ["a", "z"], ["y"], axis=1)], inputs)
    model.graph.initializer.append(tensor("w", 4, 4))
    graph = from_onnx(model, batch=2, dims={"T": 5, "z[1]": 3})
    assert graph.out_bytes.tolist() == [4 * 2 * 5 * 4, 4 * 2 * 3 * 4, 4 * 2 * 5 * 4, 4 * 2 * 8 * 4]
    assert from_onnx(model, dims={"N": 2, "x[1]": 5, "z[1]": 3}) == graph
    with pytest.raises(InvalidGraph, match=r"x\[1\] \(T\) is unknown.*dims"):
        from_onnx(model, batch=2)
    with pytest.raises(InvalidGraph, match=r"z\[1\] \(unnamed\)"):
        from_onnx(model, dims={"T": 5})
    with pytest.raises(InvalidGraph, match="'Q'"):
        from_onnx(model, dims={"T": 5, "z[1]": 3, "Q": 1})
    with pytest.raises(InvalidGraph, match="batch is 0"):
        from_onnx(model, batch=0)
    with pytest.raises(InvalidGraph, match="expected a size >= 0"):
        from_onnx(model, dims={"T": -5, "z[1]": 3})
    fixed = model_of([node("Relu", ["x"], ["y"])], [value("x", [3, 4])])
    assert from_onnx(fixed, batch=3).out_bytes[0] == 48
    with pytest.raises(InvalidGraph, match="fixed first dimension 3"):
        from_onnx(fixed, batch=4)
    with pytest.raises(InvalidGraph, match="known rank"):
        from_onnx(model_of([node("Relu", ["x"], ["y"])], [value("x", None)]))


def test_declared_shapes_of_another_batch_do_not_matter() -> None:
    """Shapes written down for outputs and between are inferred anew."""
    model = model_of([node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["y"])], outputs=[value("y", [7, 4])])
    model.graph.value_info.append(value("a", [7, 4]))
    assert from_onnx(model, batch=2).out_bytes.tolist() == [32, 32, 32]


def test_shape_arithmetic_is_folded() -> None:
    """What is computed from shapes and constants is no op; its reader holds it."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Shape", ["a"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "rest"], ["sizes"], axis=0),
        node("Reshape", ["a", "sizes"], ["r"]),
        node("Constant", [], ["two"], value=tensor("", 1)),
        node("Mul", ["two", "two"], ["four"]),
        node("Sub", ["r", "four"], ["y"]),
    ]
    model = model_of(nodes, stored=[tensor("w", 4, 6), numbers("zero", 0), numbers("rest", 3, -1)])
    graph = from_onnx(model, batch=5)
    assert graph.kinds == ("input", "MatMul", "Reshape", "Sub")
    assert graph.param_bytes.tolist() == [0, 96, 24, 4]
    assert graph.constant_bytes.tolist() == [0, 0, 24, 4]
    assert graph.extras[3]["outputs"] == [["float32", 5, 3, 2]]


def test_scales_are_read() -> None:
    """The output of a Resize follows from its scales, which are constants in floating point."""
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "scales")
    resize = node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    graph = from_onnx(model_of([resize], [value("x", ["N", 3, 4, 5])], stored=[scales]))
    assert graph.extras[1]["outputs"] == [["float32", 1, 3, 8, 15]]
    assert graph.param_bytes.tolist() == [0, 16]


def test_ranges_are_bounded() -> None:
    """Positions are folded, also where their number is computed; a Range that would fill the memory is refused."""
    limits = [onnx.numpy_helper.from_array(np.array(number, np.int64), name) for number, name in [(0, "a"), (1, "c")]]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "c"], ["n"]),
        node("Range", ["a", "n", "c"], ["r"]),
        node("Cast", ["r"], ["f"], to=FLOAT),
        node("Add", ["x", "f"], ["y"]),
    ]
    graph = from_onnx(model_of(nodes, stored=limits))
    assert graph.kinds == ("input", "Add")
    assert graph.param_bytes.tolist() == [0, 16]
    huge = onnx.numpy_helper.from_array(np.array(10**11, np.int64), "n")
    with pytest.raises(InvalidGraph, match=r"unknown|Incompatible"):
        from_onnx(model_of(nodes[2:], stored=[*limits, huge]))
    squared = node("Mul", ["m", "m"], ["n"])
    million = onnx.numpy_helper.from_array(np.array(10**6, np.int64), "m")
    with pytest.raises(InvalidGraph, match=r"unknown|Incompatible"):
        from_onnx(model_of([squared, *nodes[2:]], stored=[*limits, million]))


def test_random_numbers_are_no_constant() -> None:
    """Random numbers are drawn at every call."""
    graph = from_onnx(
        model_of([node("RandomNormal", [], ["r"], shape=[1, 4]), node("Add", ["x", "r"], ["y"])], [value("x", [1, 4])])
    )
    assert graph.kinds == ("input", "RandomNormal", "Add")


def test_a_shared_weight_counts_once() -> None:
    """Products over one weight share it, or form a group; scalars and masks are copied; transposing changes nothing."""
    nodes = [
        node("Gather", ["table", "ids"], ["e"], name="embed"),
        node("Mul", ["e", "scale"], ["a"], name="scale_a"),
        node("Mul", ["a", "scale"], ["b"], name="scale_b"),
        node("Transpose", ["table"], ["t"]),
        node("MatMul", ["b", "t"], ["y"], name="head"),
    ]
    stored = [tensor("table", 100, 8), tensor("scale", 1, 8)]
    model = model_of(nodes, [value("ids", ["N", 3], INT64)], stored=stored)
    graph = from_onnx(model)
    assert graph.names == ("ids", "embed", "scale_a", "scale_b", "head")
    assert graph.param_bytes.tolist() == [0, 3200, 32, 32, 3200]
    assert [(one.size_bytes, one.readers) for one in graph.shared] == [(3200, (1, 4))]
    assert graph.total_param_bytes == 3264
    together = from_onnx(model, sharing="colocate")
    assert together.param_bytes.tolist() == [0, 3200, 32, 32, 0]
    assert together.colocation.tolist() == [-1, 0, -1, -1, 0]
    copies = from_onnx(model, sharing="copy")
    assert copies.param_bytes.tolist() == [0, 3200, 32, 32, 3200]
    assert copies.groups == copies.shared == ()


def test_quantized_weights_count_as_stored() -> None:
    """A dequantized constant is held in its stored form with its scale; packed four-bit numbers are half a byte."""
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, stored=[tensor("q", 4, 6, dtype=np.int8), tensor("s")])
    assert from_onnx(model).param_bytes.tolist() == [0, 24 + 4]
    assert from_onnx(model).constant_bytes.tolist() == [0, 24]
    stored = [helper.make_tensor("q", onnx.TensorProto.INT4, [3, 3], [1] * 9), tensor("s")]
    model = model_of(
        [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
        [value("x", [1, 3])],
        stored=stored,
    )
    model.opset_import[0].version = 21
    assert from_onnx(model).param_bytes.tolist() == [0, 5 + 4]


def test_outputs_of_one_node_are_one_tensor() -> None:
    """A node with several outputs has the bytes of those that are read."""
    nodes = [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2, name="split"), node("Relu", ["a"], ["y"])]
    graph = from_onnx(model_of(nodes))
    assert graph.out_bytes.tolist() == [16, 8, 8]
    nodes = [node("TopK", ["x", "k"], ["y", ""], name="top"), node("Relu", ["y"], ["z"])]
    graph = from_onnx(model_of(nodes, stored=[numbers("k", 2)], outputs=[value("y", None), value("z", None)]))
    assert graph.out_bytes[graph.index("top")] == 8


def test_branches_are_one_op_that_reads_what_they_read() -> None:
    """A condition depends on the tensors its branches take from outside and counts the larger branch."""

    def branch(steps: Sequence[Any]) -> Any:
        return helper.make_graph(list(steps), "branch", [], [value("q", None)])

    branches = {
        "then_branch": branch([node("MatMul", ["a", "w"], ["q"])]),
        "else_branch": branch([node("Relu", ["x"], ["q"])]),
    }
    nodes = [node("Tanh", ["x"], ["a"], name="tanh"), node("If", ["c"], ["y"], name="if", **branches)]
    graph = from_onnx(
        model_of(nodes, [value("x", ["N", 4]), value("c", [], onnx.TensorProto.BOOL)], stored=[tensor("w", 4, 4)])
    )
    assert edges(graph) == {("x", "tanh"), ("tanh", "if"), ("x", "if"), ("c", "if")}
    assert graph.param_bytes[graph.index("if")] == 64
    assert graph.flops.tolist()[-1] == 2 * 16


def test_functions_are_inlined() -> None:
    """A node that calls a function of the model becomes the function's nodes."""
    function = helper.make_function(
        "mine",
        "Twice",
        ["u"],
        ["v"],
        [node("Relu", ["u"], ["m"]), node("Tanh", ["m"], ["v"])],
        [helper.make_opsetid("", 20)],
    )
    model = model_of([node("Twice", ["x"], ["y"], domain="mine")])
    model.functions.append(function)
    assert from_onnx(model).kinds == ("input", "Relu", "Tanh")


def test_unknown_ops_are_generic() -> None:
    """An op of another domain has the bytes its types give and no operations; without types it is refused by name."""
    nodes = [node("Magic", ["x"], ["a"], domain="mine", name="magic"), node("Relu", ["a"], ["y"])]
    model = model_of(nodes)
    with pytest.raises(InvalidGraph, match=r"'magic'.*'a'"):
        from_onnx(model)
    model.graph.value_info.append(value("a", [1, 4]))
    graph = from_onnx(model)
    assert graph.kinds == ("input", "mine.Magic", "Relu")
    assert graph.out_bytes.tolist() == [16, 16, 16]
    assert graph.flops.sum() == 0


def test_names_are_made_distinct() -> None:
    """Nodes without names, and with the same name as others or as an input, get names of their own."""
    nodes = [node("Relu", ["x"], ["a"], name="x"), node("Relu", ["a"], ["b"], name="x"), node("Relu", ["b"], ["y"])]
    assert from_onnx(model_of(nodes)).names == ("x", "x#2", "x#3", "Relu_2")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "no nodes"),
        ([node("Relu", ["nope"], ["y"], name="r")], r"'r' reads the tensor 'nope'"),
        ([node("Relu", ["x"], ["y"], name="p"), node("Tanh", ["x"], ["y"], name="q")], "'p' and 'q' both make"),
        ([node("Add", ["x", "b"], ["a"], name="p"), node("Relu", ["a"], ["b"], name="q")], "cycle.*p.*q"),
        ([node("Relu", ["y"], ["y"], name="p")], "itself"),
        ([node("NonZero", ["x"], ["a"], name="p"), node("Cast", ["a"], ["y"], to=FLOAT)], "'p'.*'a'.*depends on data"),
        ([node("MatMul", ["x", "x"], ["y"], name="p")], "contradict"),
        ([node("Constant", [], ["y"], value=tensor("", 1))], "nothing to plan"),
        ([node("Cast", ["x"], ["a"], to=8), node("Cast", ["a"], ["y"], to=FLOAT)], "'a' holds strings"),
    ],
)
def test_malformed_models(nodes: Any, message: str) -> None:
    """What is wrong is told with the node or tensor it is wrong with."""
    with pytest.raises(InvalidGraph, match=message):
        from_onnx(model_of(nodes, [value("x", [3, 4])]))


def test_nodes_out_of_order_are_sorted() -> None:
    """Nodes written in another order give the same ops and edges."""
    nodes = [node("Relu", ["x"], ["a"], name="p"), node("Tanh", ["a"], ["b"], name="q"), node("Exp", ["b"], ["y"])]
    graph = from_onnx(model_of([nodes[1], nodes[0], node("Exp", ["b"], ["y"], name="Exp_2")]))
    assert edges(graph) == {("x", "p"), ("p", "q"), ("q", "Exp_2")}
    assert graph.extras[graph.index("p")]["nodes"] == [1]


def external(location: str, name: str = "w") -> Any:
    """Return an initializer whose data lies in a file."""
    weight = onnx.TensorProto(name=name, data_type=FLOAT, dims=[4, 4], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    return weight


def test_external_data_is_not_opened(tmp_path: Path) -> None:
    """Weights in a file beside the model count by their shapes, whether or not the file is there."""
    model = model_of([node("MatMul", ["x", "w"], ["y"])], stored=[external("sub/weights.bin")])
    onnx.save(model, tmp_path / "m.onnx")
    assert load_graph(tmp_path / "m.onnx").param_bytes.tolist() == [0, 64]


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../secret", "sub/../../secret", "", "..\\secret", "C:\\secret", "a\0b", "link/secret"]
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    """Locations outside the model's folder, by any spelling or by a link, are refused with the tensor's name."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    onnx.save(model_of([node("MatMul", ["x", "w"], ["y"])], stored=[external(location)]), tmp_path / "inside/m.onnx")
    with pytest.raises(InvalidGraph, match=r"tensor 'w' keeps its data in"):
        load_graph(tmp_path / "inside" / "m.onnx")
    inner = node("Constant", [], ["w"], value=external(location))
    onnx.save(model_of([inner, node("MatMul", ["x", "w"], ["y"])]), tmp_path / "inside" / "m.onnx")
    with pytest.raises(InvalidGraph, match="keeps its data in"):
        load_graph(tmp_path / "inside" / "m.onnx")


def test_external_shapes_are_read(tmp_path: Path) -> None:
    """Integers that shapes depend on are read from the file beside the model."""
    model = model_of([node("Reshape", ["x", "sizes"], ["y"])], [value("x", [3, 4])], stored=[numbers("sizes", 6, 2)])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.bin")
    assert load_graph(tmp_path / "m.onnx").extras[1]["outputs"] == [["float32", 6, 2]]
    (tmp_path / "m.bin").unlink()
    with pytest.raises(InvalidGraph, match="'sizes'"):
        load_graph(tmp_path / "m.onnx")


def test_not_a_model(tmp_path: Path) -> None:
    """Missing, empty, foreign and cut files are refused by name."""
    path = tmp_path / "bad.onnx"
    with pytest.raises(InvalidGraph, match=r"bad\.onnx"):
        load_graph(path)
    whole = model_of([node("Relu", ["x"], ["y"])]).SerializeToString()
    for content in (b"", b"junk" * 50, b"PK\3\4" + bytes(100), whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InvalidGraph, match="bad"):
            load_graph(path)


def test_mutated_files_never_crash(tmp_path: Path) -> None:
    """Random changes of bytes give a graph or an InvalidGraph, nothing else."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Reshape", ["a", "s"], ["r"]),
        node("Conv", ["i", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Flatten", ["c"], ["f"]),
        node("Add", ["r", "f"], ["y"]),
    ]
    inputs = [value("x", ["N", 4]), value("i", ["N", 1, 2, 2])]
    whole = model_of(nodes, inputs, stored=[tensor("w", 4, 4), tensor("k", 1, 1, 3, 3)]).SerializeToString()
    random_state = random.Random(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(random_state.randint(1, 4)):
            content[random_state.randrange(len(content))] = random_state.randrange(256)
        (tmp_path / "m.onnx").write_bytes(content)
        try:
            load_graph(tmp_path / "m.onnx")
        except InvalidGraph:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "outputs", "flops"),
    [
        ("Conv", {}, [(1, 4, 8, 8), (6, 2, 3, 3)], [(1, 6, 8, 8)], 2 * 384 * 18),
        ("QLinearConv", {}, [(1, 4, 8, 8), (), (), (6, 4, 3, 3)], [(1, 6, 8, 8)], 2 * 384 * 36),
        ("ConvTranspose", {}, [(1, 4, 8, 8), (4, 6, 3, 3)], [(1, 6, 10, 10)], 2 * 256 * 54),
        ("MatMul", {}, [(2, 3, 4), (4, 5)], [(2, 3, 5)], 2 * 30 * 4),
        ("MatMul", {}, [(4,), (4,)], [()], 8),
        ("Gemm", {"transA": 1}, [(4, 3), (4, 5)], [(3, 5)], 2 * 15 * 4),
        ("Gemm", {}, [(3, 4), (4, 5)], [(3, 5)], 2 * 15 * 4),
        ("Einsum", {"equation": b"...ij, jk -> ...ik"}, [(2, 3, 4), (4, 5)], [(2, 3, 5)], 2 * 2 * 3 * 4 * 5),
        ("LSTM", {}, [(7, 2, 4), (1, 20, 4), (1, 20, 5)], [(7, 1, 2, 5)], 2 * 14 * 20 * 9),
        ("GRU", {}, [(7, 2, 4), (2, 15, 4), (2, 15, 5)], [(7, 2, 2, 5)], 2 * 14 * 2 * 15 * 9),
        ("Attention", {}, [(2, 8, 16, 64)] * 3, [(2, 8, 16, 64)], 2 * 2 * 8 * 16 * 16 * 128),
        ("Attention", {"q_num_heads": 8, "kv_num_heads": 2}, [(2, 16, 512), (2, 16, 128), (2, 16, 128)], [()], 2**20),
        ("Relu", {}, [(3, 4)], [(3, 4)], 0),
        ("Conv", {}, [(1, 4, 8, 8), None], [(1, 6, 8, 8)], 0),
    ],
)
def test_operations(op: str, attributes: Any, inputs: Any, outputs: Any, flops: float) -> None:
    """Operations equal a count by hand, a multiply-add being two."""
    assert node_flops(op, attributes, inputs, outputs) == flops


def test_a_large_file(tmp_path: Path) -> None:
    """Six thousand nodes that share 50 weights are read in proportion; the full size is in the benchmarks."""
    nodes, last = [], "x"
    for i in range(2000):
        nodes += [
            node("MatMul", [last, f"w{i % 50}"], [f"a{i}"]),
            node("Relu", [f"a{i}"], [f"b{i}"]),
            node("Add", [f"b{i}", last], [f"c{i}"]),
        ]
        last = f"c{i}"
    model = model_of(nodes, outputs=[value(last, None)], stored=[tensor(f"w{i}", 4, 4) for i in range(50)])
    onnx.save(model, tmp_path / "large.onnx")
    graph = load_graph(tmp_path / "large.onnx", batch=3)
    assert (graph.num_ops, graph.num_edges, len(graph.shared)) == (6001, 8000, 50)
    assert graph.total_param_bytes == 50 * 64
    assert graph.flops.sum() == 2000 * 2 * 3 * 16


def test_an_exported_module_agrees_with_the_module(tmp_path: Path) -> None:
    """A torch module and its ONNX export have the same operations and the same parameters."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from rlinit.importers.torch.export import from_torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    ).eval()
    x = torch.ones(2, 3, 8, 8)
    torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False, external_data=True)
    graph, direct = load_graph(tmp_path / "net.onnx"), from_torch(net, (x,))
    assert graph.flops.sum() == direct.flops.sum()
    weights = [graph.param_bytes[graph.kinds.index(kind)] for kind in ("Conv", "Gemm")]
    assert weights == [direct.param_bytes[direct.kinds.index(kind)] for kind in ("conv2d", "linear")]


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnx is missing the error names the extra."""

    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match=r"pip install rlinit\[onnx\]"):
        import_onnx()


def test_a_name_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    """Errors of packages that say several lines are cut to their first."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, 1, [2, 2]) for name in ("x", "w", "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "net", values[:2], values[2:]))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString().replace(b"MatMul", b"MatM\xdcl"))
    with pytest.raises(InvalidGraph, match="net is damaged") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)
