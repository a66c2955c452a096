"""Ops that a file has taken apart, found by their expressions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlinit.coarsening.patterns import Pattern, matches, whole_ops, with_whole_ops
from rlinit.coarsening.rules import InvalidRules
from rlinit.graph import Graph


def graph_of(*rows: tuple[str, str, str]) -> Graph:
    """Return a graph of (name, kind, names of what it reads); kinds in small letters are views."""
    ops = []
    for at, (name, kind, _) in enumerate(rows):
        row = {"op": kind, "param_bytes": 2**at % 1000, "out_bytes": at + 1, "flops": 1.0, "node": name}
        row |= {"nodes": [at], "tensors": [f"{name}:0"]} | ({"view": True} if kind.islower() else {})
        ops.append((name, row))
    return Graph.build(ops, [(read, name) for name, _, reads in rows for read in reads.split()])


def found(graph: Graph, text: str, results: Sequence[int] = ()) -> list[list[str]]:
    """Return the ops of every place where a pattern fits."""
    return [[graph.names[v] for v in ops] for _, ops in matches(graph, [("It", Pattern.parse(text))], results)]


SILU = graph_of(("x", "Input", ""), ("s", "Sigmoid", "x"), ("y", "Mul", "x s"), ("z", "Mul", "y"))


def test_an_expression_is_one_op_that_stands_for_its_nodes() -> None:
    """What the ops hold and compute is added up, and the nodes and their tensors are named."""
    graph = with_whole_ops(SILU)
    assert graph.names == ("x", "y", "z")
    assert graph.kinds == ("Input", "Silu", "Mul")
    assert graph.flops.tolist() == [1.0, 2.0, 1.0]
    assert graph.param_bytes.tolist() == [1.0, 6.0, 8.0]
    assert graph.out_bytes.tolist() == [1.0, 3.0, 4.0]
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.extras[1]["nodes"] == [1, 2]
    assert graph.extras[1]["parts"] == [["s", "s:0"]]
    assert graph.extras[1]["node"] == "y"
    assert Graph.from_dict(graph.to_dict()).to_dict() == graph.to_dict()


def test_a_name_is_one_tensor() -> None:
    """A sigmoid of something else is no SiLU, and constants are not read."""
    assert found(SILU, "Mul(x, Sigmoid(x))") == [["s", "y"]]
    other = graph_of(("x", "Input", ""), ("w", "Relu", "x"), ("s", "Sigmoid", "x"), ("y", "Mul", "w s"))
    assert found(other, "Mul(x, Sigmoid(x))") == []
    assert found(other, "Mul(a, Sigmoid(x))") == [["s", "y"]]
    assert found(SILU, "Mul(Mul(x, Sigmoid(x)))") == [["s", "y", "z"]]
    assert found(SILU, "Mul(x, Mul(x, Sigmoid(x)))") == []


def test_no_tensor_but_the_last_may_be_read_elsewhere() -> None:
    """Not by another op, not through a view, not by whoever called the model."""
    rows = [("x", "Input", ""), ("s", "Sigmoid", "x"), ("y", "Mul", "x s")]
    assert found(graph_of(*rows, ("z", "Relu", "s")), "Mul(x, Sigmoid(x))") == []
    assert found(graph_of(*rows), "Mul(x, Sigmoid(x))", [1]) == []
    assert found(graph_of(*rows), "Mul(x, Sigmoid(x))", [2]) == [["s", "y"]]
    seen = [("x", "Input", ""), ("s", "Sigmoid", "x"), ("v", "view", "s"), ("y", "Mul", "x v")]
    assert found(graph_of(*seen), "Mul(x, Sigmoid(x))") == [["s", "v", "y"]]
    assert found(graph_of(*seen, ("z", "Relu", "v")), "Mul(x, Sigmoid(x))") == []
    assert found(graph_of(*seen, ("w", "view", "s")), "Mul(x, Sigmoid(x))") == []


def test_a_tensor_is_the_same_through_views() -> None:
    """Views before an expression stay outside it."""
    graph = graph_of(("x", "Input", ""), ("v", "view", "x"), ("s", "Sigmoid", "x"), ("y", "Mul", "v s"))
    assert found(graph, "Mul(x, Sigmoid(x))") == [["s", "y"]]


@pytest.mark.parametrize("mask", ["", " m"])
@pytest.mark.parametrize("scaled", [False, True])
def test_what_may_be_missing(mask: str, scaled: bool) -> None:
    """Attention with and without a mask and a scale; of two ways to fit, the one with more ops."""
    rows = [(name, "Input", "") for name in ("q", "k", "v", "m")]
    rows += [("qk", "MatMul", "q k"), ("scale", "Mul", "qk")] if scaled else [("scale", "MatMul", "q k")]
    rows += [("add", "Add", "scale" + mask), ("soft", "Softmax", "add"), ("out", "MatMul", "soft v")]
    graph = with_whole_ops(graph_of(*rows))
    assert graph.kinds.count("Attention") == 1
    assert graph.num_ops == 5


def test_the_order_of_the_graph_stays_one() -> None:
    """Two heads that share what they read become two ops; a chain of layers as many."""
    rows = [("x0", "Input", "")]
    for at in range(50):
        rows += [(f"m{at}", "MatMul", f"x{at}"), (f"a{at}", "Add", f"m{at}")]
        rows += [(f"s{at}", "Sigmoid", f"a{at}"), (f"x{at + 1}", "Mul", f"s{at} a{at}")]
    graph = with_whole_ops(graph_of(*rows))
    assert graph.kinds == ("Input", *("Gemm", "Silu") * 50)


@pytest.mark.parametrize(
    "text", ["", "x", "Add(", "Add)", "Add(x", "Add(x;)", "Add(x) Mul", "c = d = Add(x)", "Add(2)", "Add(x,)", "a=x"]
)
def test_malformed_expressions_are_refused(text: str) -> None:
    """With the expression in the message."""
    with pytest.raises(InvalidRules):
        Pattern.parse(text)


def test_all_that_is_shipped_parses() -> None:
    """And no expression is a single op."""
    assert {kind for kind, _ in whole_ops()} >= {"Attention", "Gelu", "Silu", "LayerNormalization", "Gemm"}
    assert all(pattern.reads for _, pattern in whole_ops())
