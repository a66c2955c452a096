"""Plans laid over the ONNX model they were made for: which node each op is, and what every tensor is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.exporters.onnx.external_data import open_onnx
from rlinit.exporters.op_devices import check_graph
from rlinit.graph import Graph
from rlinit.importers.onnx.reader import import_onnx, joined, node_graph, node_reads
from rlinit.importers.onnx.shapes import inlined
from rlinit.importers.onnx.type_inference import element_name
from rlinit.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class OnnxFit:
    """A model whose nodes are known to be the ops of a graph.

    Parameters
    ----------
    model
        An ONNX `ModelProto`, the model's functions inlined.
    source
        The file beside which its large weights lie; None: it has none.
    op2places
        op -> places of its nodes in the model's graph, the one that gives its tensor last; inputs of the model have
        none. In an order in which tensors are made before they are read.
    place2name
        place -> what an import calls the node by itself: for the last node of an op, the op. Nodes that are not in it
        compute constants, or shapes, which are all known.
    maker
        tensor -> place of the node that makes it.
    types
        (element type as ONNX numbers it, dimensions) of the model's inputs and of what the nodes of ops make.
    stored
        Names of the tensors whose values the model holds.
    """

    model: Any
    source: Path | None
    op2places: Mapping[str, Sequence[int]]
    place2name: Mapping[int, str]
    maker: Mapping[str, int]
    types: Mapping[str, tuple[int, tuple[int, ...]]]
    stored: frozenset[str]

    def nodes_of(self, op: str) -> list[tuple[str, Any]]:
        """Return (name, node) of an op's nodes, in order."""
        return [(self.place2name[place], self.model.graph.node[place]) for place in self.op2places[op]]


def fit_onnx(plan: Plan, graph: Graph, model: Any) -> OnnxFit:
    """Check that a plan and a graph belong to an ONNX model, and return how.

    The model is imported again, with the sizes of its unknown dimensions that the graph has, and compared op by op.

    Parameters
    ----------
    plan
        A plan with a schedule.
    graph
        What the plan was made for, as `rlinit.load_graph` or `from_onnx` gives it; costs may have been added.
    model
        The ``.onnx`` file, or an `onnx.ModelProto` whose weights are loaded; it is not changed.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph, or the graph not for the model; the message names the first node that differs.
    InvalidGraph
        The model cannot be read.
    BackendUnavailable
        onnx is not installed.
    """
    check_graph(plan, graph)
    proto, source = open_onnx(model)
    whole = inlined(proto)
    apart = node_graph(whole, dims=_dims_of(whole, graph), name=graph.name)
    again = joined(apart, whole)
    _compare(graph, again)
    op2places, name2places = (
        {one.names[v]: list(map(int, row["nodes"])) for v, row in one.extras.items() if one.kinds[v] != "input"}
        for one in (again, apart)
    )
    maker = {name: place for place, node in enumerate(whole.graph.node) for name in node.output if name}
    stored = {tensor.name for tensor in whole.graph.initializer}
    stored |= {sparse.values.name for sparse in whole.graph.sparse_initializer}
    types = _types(whole, apart)
    given = {value.name for value in whole.graph.input}
    for value in whole.graph.output:
        if not any(value.name in known for known in (maker, stored, given)):
            raise InvalidGraph(f"the model gives the tensor {value.name!r}, which nothing makes")
    place2name = {places[0]: name for name, places in name2places.items()}
    return OnnxFit(whole, source, op2places, place2name, maker, types, frozenset(stored))


def renamed(node: Any, name: str) -> Any:
    """Return a node of another name, a copy if it has not: names of nodes may be missing, and need not be distinct.

    Parameters
    ----------
    node
        A `NodeProto`; it is not changed.
    name
        What an import calls it, see `OnnxFit.place2name`, so that an import of the copy calls it the same.
    """
    if node.name == name:
        return node
    copied = type(node)()
    copied.CopyFrom(node)
    copied.name = name
    return copied


def tensor_type(name: str, types: Mapping[str, tuple[int, tuple[int, ...]]]) -> Any:
    """Return the `ValueInfoProto` of a tensor.

    Parameters
    ----------
    name
        The name of the tensor in the model.
    types
        Of each tensor by name, the element type as ONNX numbers it, and the dimensions.
    """
    onnx = import_onnx()
    element, shape = types[name]
    return onnx.helper.make_tensor_value_info(name, element, list(shape))


def _dims_of(model: Any, graph: Graph) -> dict[str, int]:
    """Return the values that the graph was imported with for the unknown dimensions of the model's inputs."""
    sizes: dict[str, Sequence[int]] = {}
    for at, row in graph.extras.items():
        outputs = row.get("outputs")
        if graph.kinds[at] == "input" and outputs:
            sizes[graph.names[at]] = [int(size) for size in outputs[0][1:]]
    stored = {tensor.name for tensor in model.graph.initializer}
    unknown: list[tuple[str, int, str]] = []
    for value in model.graph.input:
        if value.name not in stored:
            axes = enumerate(value.type.tensor_type.shape.dim)
            unknown += [(value.name, axis, d.dim_param) for axis, d in axes if not d.HasField("dim_value")]
    symbols = {symbol: sizes[name][axis] for name, axis, symbol in unknown if axis < len(sizes.get(name, ()))}
    dims = {}
    for name, axis, symbol in unknown:
        given = sizes.get(name, ())
        # An input that nothing reads is no op; any size does for it.
        dims[f"{name}[{axis}]"] = given[axis] if axis < len(given) else symbols.get(symbol, 1) if symbol else 1
    return dims


def _compare(graph: Graph, again: Graph) -> None:
    """Refuse a graph that is not the model's."""
    known = set(graph.names)
    for name in again.names:
        if name not in known:
            raise InvalidPlan(f"the model has the node {name!r}, which the plan's graph {graph.name!r} does not have")
    there_are = set(again.names)
    for name in graph.names:
        if name not in there_are:
            raise InvalidPlan(f"the plan's graph {graph.name!r} has the op {name!r}, which the model does not have")
    for at, name in enumerate(graph.names):
        there = again.index(name)
        if graph.kinds[at] != again.kinds[there]:
            raise InvalidPlan(f"node {name!r} is {again.kinds[there]!r} in the model, {graph.kinds[at]!r} in the plan")
        mine, other = graph.extras.get(at, {}), again.extras[there]
        for key in ("tensors", "outputs"):
            if key in mine and mine[key] != other[key]:
                raise InvalidPlan(f"node {name!r} makes {other[key]} in the model, {mine[key]} in the plan's graph")
        for what, ours, theirs in (
            ("output bytes", graph.out_bytes[at], again.out_bytes[there]),
            ("operations", graph.flops[at], again.flops[there]),
        ):
            if not math.isnan(ours) and ours != theirs:
                raise InvalidPlan(f"node {name!r} has {theirs:g} {what} in the model, {ours:g} in the plan's graph")
    ours = {(graph.names[u], graph.names[v]) for u, v in graph.edges.tolist()}
    theirs = {(again.names[u], again.names[v]) for u, v in again.edges.tolist()}
    if ours != theirs:
        u, v = min(ours ^ theirs)
        owner = "the plan's graph" if (u, v) in ours else "the model"
        raise InvalidPlan(f"node {v!r} reads node {u!r} only in {owner}")


def _types(model: Any, graph: Graph) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the types of what ops make; the importer lists those of tensors that are read, in their order."""
    numbers = {element_name(number): number for number in import_onnx().TensorProto.DataType.values()}
    read = {name for node in model.graph.node for name in node_reads(node)} | {
        value.name for value in model.graph.output
    }
    types = {}
    for at in range(len(graph)):
        row = graph.extras[at]
        made = [name for name in row["tensors"] if name in read] or list(row["tensors"])
        for name, (element, *sizes) in zip(made, row["outputs"], strict=True):
            types[name] = (numbers[str(element)], tuple(int(size) for size in sizes))
    return types
