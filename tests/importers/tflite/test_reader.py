"""TensorFlow Lite models as graphs: bytes, operations, quantized weights, batch sizes, damaged files."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from rlinit import Graph, load_graph
from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.importers.tflite.flops import operator_flops
from rlinit.importers.tflite.reader import from_tflite, import_tflite
from tests.importers.tflite.files import Operator, Tensor, tflite_file

tflite = pytest.importorskip("tflite", reason="tflite is not installed")
BUILTIN = tflite.BuiltinOperator
INT8, FLOAT16, INT4, STRING = 9, 1, 17, 5


def edges(graph: Graph) -> set[tuple[str, str]]:
    """Return the edges by name."""
    return {(graph.names[u], graph.names[v]) for u, v in graph.edges}


def small_network(**changes: Any) -> bytes:
    """Return a convolution with half-precision weights, an activation, a sum, and a dense layer in eight bits."""
    first = changes.pop("first", (-1,))
    tensors = [
        Tensor("image", (1, 8, 8, 3), signature=(*first, 8, 8, 3)),
        Tensor("half", (4, 3, 3, 3), code=FLOAT16, data=216),
        Tensor("kernel", (4, 3, 3, 3)),
        Tensor("bias", (4,), data=16),
        Tensor("conv", (1, 8, 8, 4), signature=(*first, 8, 8, 4)),
        Tensor("relu", (1, 8, 8, 4), signature=(*first, 8, 8, 4)),
        Tensor("sum", (1, 8, 8, 4), signature=(*first, 8, 8, 4)),
        Tensor("flat", (1, 256), signature=(*first, 256)),
        Tensor("shape", (2,), code=2, data=8),
        Tensor("weight", (10, 256), code=INT8, data=2560),
        Tensor("out", (1, 10), signature=(*first, 10)),
    ]
    operators = [
        Operator(BUILTIN.DEQUANTIZE, [1], [2]),
        Operator(BUILTIN.CONV_2D, [0, 2, 3], [4]),
        Operator(BUILTIN.RELU, [4], [5]),
        Operator(BUILTIN.ADD, [4, 5], [6]),
        Operator(BUILTIN.RESHAPE, [6, 8], [7]),
        Operator(BUILTIN.FULLY_CONNECTED, [7, 9, -1], [10]),
    ]
    return tflite_file(tensors, changes.get("operators", operators), [0], [10])


def test_a_small_network_in_full() -> None:
    """Every column of a network small enough to count by hand."""
    graph = from_tflite(small_network(), name="tiny")
    assert graph.name == "tiny"
    assert graph.kinds == ("input", "CONV_2D", "RELU", "ADD", "RESHAPE", "FULLY_CONNECTED")
    assert graph.param_bytes.tolist() == [0, 216 + 16, 0, 0, 8, 2560]
    assert graph.out_bytes.tolist() == [768, 1024, 1024, 1024, 1024, 40]
    assert graph.flops.tolist() == [0, 2 * 256 * 27, 0, 0, 0, 2 * 2560]
    names = dict(zip(graph.kinds, graph.names, strict=True))
    assert edges(graph) == {
        (names[u], names[v])
        for u, v in [
            ("input", "CONV_2D"),
            ("CONV_2D", "RELU"),
            ("CONV_2D", "ADD"),
            ("RELU", "ADD"),
            ("ADD", "RESHAPE"),
            ("RESHAPE", "FULLY_CONNECTED"),
        ]
    }
    extras = graph.extras[graph.index(names["CONV_2D"])]
    assert extras["node"] == "conv"
    assert extras["nodes"] == [1]
    assert extras["outputs"] == [["float32", 1, 8, 8, 4]]


def test_a_file_of_a_converter() -> None:
    """What litert-torch 0.10 wrote for Conv2d(3, 4, 3), BatchNorm2d, ReLU, pooling, Linear(4, 10) on 16 x 16 images."""
    graph = load_graph(Path(__file__).parent / "data" / "conv_net.tflite")
    assert graph.kinds == ("input", "TRANSPOSE", "CONV_2D", "MEAN", "FULLY_CONNECTED")
    assert graph.param_bytes.tolist() == [0, 16, 4 * 112, 8, 4 * 50]
    assert graph.out_bytes.tolist() == [3072, 3072, 4096, 16, 40]
    assert graph.flops.tolist() == [0, 0, 2 * 1024 * 27, 0, 80]


def test_the_batch_is_chosen(tmp_path: Path) -> None:
    """Tensors and operations grow with the batch, weights do not; fixed models refuse another size."""
    (tmp_path / "m.tflite").write_bytes(small_network())
    one, four = load_graph(tmp_path / "m.tflite"), load_graph(tmp_path / "m.tflite", batch=4)
    assert one.name == "m"
    assert four.out_bytes.tolist() == [4 * size for size in one.out_bytes]
    assert four.flops.tolist() == [4 * count for count in one.flops]
    assert four.param_bytes.tolist() == one.param_bytes.tolist()
    (tmp_path / "m.tflite").write_bytes(small_network(first=(1,)))
    assert load_graph(tmp_path / "m.tflite", batch=1) == one
    with pytest.raises(InvalidGraph, match="fixed"):
        load_graph(tmp_path / "m.tflite", batch=4)
    with pytest.raises(InvalidGraph, match="batch is 0"):
        load_graph(tmp_path / "m.tflite", batch=0)
    with pytest.raises(InvalidGraph, match="leave dims out"):
        load_graph(tmp_path / "m.tflite", dims={"n": 3})


def test_a_shared_buffer_is_held_once() -> None:
    """Layers over one buffer share it, form a group whose first op holds it, or hold a copy each."""
    tensors = [
        Tensor("x", (1, 4)),
        Tensor("w", (4, 4), data=64),
        Tensor("again", (4, 4), buffer=2),
        *(Tensor(name, (1, 4)) for name in "abc"),
    ]
    operators = [
        Operator(BUILTIN.FULLY_CONNECTED, [0, 1, -1], [3]),
        Operator(BUILTIN.TANH, [3], [4]),
        Operator(BUILTIN.FULLY_CONNECTED, [4, 2, -1], [5]),
    ]
    content = tflite_file(tensors, operators, [0], [5])
    shared = from_tflite(content)
    assert shared.param_bytes.tolist() == [0, 64, 0, 64]
    assert [(one.size_bytes, one.readers) for one in shared.shared] == [(64, (1, 3))]
    graph = from_tflite(content, sharing="colocate")
    assert graph.param_bytes.tolist() == [0, 64, 0, 0]
    assert graph.colocation.tolist() == [-1, 0, -1, 0]
    copies = from_tflite(content, sharing="copy")
    assert copies.param_bytes.tolist() == [0, 64, 0, 64]
    assert copies.groups == ()


def test_custom_and_stateful_operators() -> None:
    """Custom operators go by their own name and count bytes alone; state is held, random numbers are no constant."""
    tensors = [
        Tensor("x", (1, 4)),
        Tensor("state", (1, 8), is_variable=True),
        Tensor("seed", (1,), code=2, data=4),
        Tensor("noise", (1, 4)),
        Tensor("y", (1, 4), code=INT4),
    ]
    operators = [
        Operator(BUILTIN.RANDOM_UNIFORM, [2], [3]),
        Operator("MyOp", [0, 1, 3], [4]),
    ]
    graph = from_tflite(tflite_file(tensors, operators, [0], [4]))
    assert graph.kinds == ("input", "RANDOM_UNIFORM", "MyOp")
    assert graph.param_bytes.tolist() == [0, 4, 32]
    assert graph.out_bytes.tolist() == [16, 16, 2]
    assert graph.flops.sum() == 0


def test_operators_out_of_order_and_in_a_circle() -> None:
    """Operators are sorted; a cycle is refused by its operators."""
    tensors = [Tensor(name, (2,)) for name in "xabc"]
    forward = [Operator(BUILTIN.TANH, [1], [2]), Operator(BUILTIN.RELU, [0], [1])]
    graph = from_tflite(tflite_file(tensors, forward, [0], [2]))
    assert graph.kinds == ("input", "RELU", "TANH")
    circle = [Operator(BUILTIN.ADD, [0, 2], [1]), Operator(BUILTIN.RELU, [1], [2])]
    with pytest.raises(InvalidGraph, match=r"cycle.*RELU_1"):
        from_tflite(tflite_file(tensors, circle, [0], [2]))


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "flops"),
    [
        ("CONV_2D", [(1, 8, 8, 4), (6, 3, 3, 2)], [(1, 8, 8, 6)], 2 * 384 * 18),
        ("DEPTHWISE_CONV_2D", [(1, 8, 8, 4), (1, 3, 3, 8)], [(1, 8, 8, 8)], 2 * 512 * 9),
        ("CONV_3D", [(1, 4, 4, 4, 2), (3, 3, 3, 2, 5)], [(1, 2, 2, 2, 5)], 2 * 40 * 54),
        ("TRANSPOSE_CONV", [(4,), (6, 3, 3, 4), (1, 5, 5, 4)], [(1, 10, 10, 6)], 2 * 100 * 54),
        ("FULLY_CONNECTED", [(3, 4), (5, 4), None], [(3, 5)], 2 * 15 * 4),
        ("BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], 2 * 30 * 4),
        ("RNN", [(2, 4), (5, 4), (5, 5), (5,), (2, 5)], [(2, 5)], 2 * 2 * 45),
        ("TANH", [(2, 4)], [(2, 4)], 0),
        ("ADD", [(2, 4), (2, 4)], [(2, 4)], 0),
    ],
)
def test_operations(kind: str, inputs: Any, outputs: Any, flops: float) -> None:
    """Operations equal a count by hand, a multiply-add being two."""
    assert operator_flops(kind, inputs, outputs) == flops


def test_a_transposed_left_operand() -> None:
    """A batched product whose left operand is stored transposed has the inner size of the transpose."""
    tensors = [Tensor("a", (2, 4, 3)), Tensor("b", (2, 4, 5)), Tensor("c", (2, 3, 5))]
    product = Operator(BUILTIN.BATCH_MATMUL, [0, 1], [2], left_transposed=True)
    assert from_tflite(tflite_file(tensors, [product], [0, 1], [2])).flops.sum() == 2 * 30 * 4


@pytest.mark.parametrize(
    ("tensors", "operators", "message"),
    [
        ([Tensor("x", (2,)), Tensor("y", (2,))], [], "no operators"),
        ([Tensor("x", (2,)), Tensor("y", (2,))], [Operator(0, [0, 7], [1])], "refers to tensor 7"),
        ([Tensor("x", (2,)), Tensor("y", (-3,))], [Operator(0, [0, 0], [1])], r"'y'.*sizes >= 0"),
        ([Tensor("x", (2,)), Tensor("y", (2,), code=STRING)], [Operator(0, [0, 0], [1])], r"'y' holds strings"),
        ([Tensor("x", (2,)), Tensor("y", (2,), code=99)], [Operator(0, [0, 0], [1])], "unknown type 99"),
        ([Tensor("x", (2,)), Tensor("y", (2,)), Tensor("z", (2,))], [Operator(0, [0, 2], [1])], "nothing makes"),
        ([Tensor("x", (2,)), Tensor("y", (2,), buffer=9)], [Operator(0, [0, 0], [1])], "refers to buffer 9"),
        ([Tensor("x", (2,), data=8), Tensor("y", (2,), data=8)], [Operator(0, [1, 1], [1])], "edge to itself"),
        ([Tensor("x", (2,)), Tensor("y", (2,)), Tensor("w", (2,), data=8)], [Operator(0, [2, 2], [1])], "to plan"),
    ],
)
def test_malformed_models(tensors: Any, operators: Any, message: str) -> None:
    """What is wrong is told with the tensor or operator it is wrong with."""
    with pytest.raises(InvalidGraph, match=message):
        from_tflite(tflite_file(tensors, operators, [0], [1]))


def test_not_a_model(tmp_path: Path) -> None:
    """Missing, empty and foreign files are refused by name."""
    path = tmp_path / "bad.tflite"
    with pytest.raises(InvalidGraph, match=r"bad\.tflite"):
        load_graph(path)
    for content in (b"", b"TFL3", b"\0\0\0\0TFL3", b"junk" * 100):
        path.write_bytes(content)
        with pytest.raises(InvalidGraph, match="bad"):
            load_graph(path)


def test_mutated_files_never_crash() -> None:
    """Random changes of bytes, and every truncation, give a graph or an InvalidGraph, nothing else."""
    random_state = random.Random(0)
    whole = small_network()
    refused = 0
    for attempt in range(400):
        content = bytearray(whole)
        for _ in range(random_state.randint(1, 5)):
            content[random_state.randrange(8, len(content))] = random_state.choice((0, 1, 127, 128, 255))
        if attempt % 4 == 0:
            content = bytearray(whole[: random_state.randrange(len(whole))])
        try:
            from_tflite(bytes(content))
        except InvalidGraph:
            refused += 1
    assert refused > 50


def test_without_tflite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the schema's package is missing the error names the extra."""

    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match=r"pip install rlinit\[tflite\]"):
        import_tflite()
