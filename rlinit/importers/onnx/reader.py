"""ONNX models as computation graphs: one op a node, weights by their shapes alone."""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from rlinit.coarsening.patterns import with_whole_ops
from rlinit.errors import InvalidGraph, RlinitError, first_line, imported
from rlinit.graph import Graph
from rlinit.importers.common.graph_builder import Assembly, Step, distinct_labels, order_of
from rlinit.importers.common.parameters import Sharing
from rlinit.importers.common.precision import Dtype, Precision
from rlinit.importers.common.tensors import TensorType
from rlinit.importers.onnx.axes import axes_of
from rlinit.importers.onnx.flops import node_flops
from rlinit.importers.onnx.layouts import values_of, view_places
from rlinit.importers.onnx.shapes import Prepared, infer_types, is_small
from rlinit.limits import MAX_TEXT

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_RELABELS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "DequantizeLinear"})
"""Ops on a constant whose reader holds the constant as it is stored, not their output."""

_WEIGHT_READERS = frozenset(
    {"Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"}
    | {"Gather", "Einsum", "LSTM", "GRU", "RNN"}
)
"""Ops whose constant matrices are parameters; see `Holdings`."""


def import_onnx() -> Any:
    """Return the onnx module.

    Raises
    ------
    BackendUnavailable
        onnx is not installed.
    """
    imported("onnx.shape_inference", "reading ONNX models", "rlinit[onnx]")
    return importlib.import_module("onnx")


def read_onnx(path: Path) -> tuple[Any, bool]:
    """Return the model of a file, and whether large weights were left in other files.

    Parameters
    ----------
    path
        Of the model.

    Raises
    ------
    BackendUnavailable
        onnx is not installed.
    InvalidGraph
        The file cannot be read or is no ONNX model, or data lie outside its folder.
    """
    if not path.is_file():
        raise InvalidGraph(f"cannot read {path}: there is no such file")
    onnx = import_onnx()
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except Exception as problem:  # protobuf's DecodeError is not among its public names
        raise InvalidGraph(f"cannot read {path} as an ONNX model: {problem}") from problem
    left = False
    for at, tensor in enumerate(stored_tensors(model.graph)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            check_location(tensor, path)
            # Initializers come first; large ones are read when they are written, others may be needed for shapes.
            if at < len(model.graph.initializer) and not is_small(tensor):
                left = True
            else:
                load_values(tensor, path)
    return model, left


def from_onnx(
    model: Any,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    sharing: Sharing = "hold",
    dtype: Dtype = None,
    name: str | None = None,
) -> Graph:
    """Return the computation graph of an ONNX model: one op for each node that depends on an input's values.

    What exporters take apart (attention, norms, activations, linear layers; ``rlinit/coarsening/whole_ops.toml``) is
    one op again, so that a model has about the ops that it has by `from_torch`. What only sees a tensor otherwise (a
    Transpose, a Slice, most Reshapes) is a view, as there. Inputs are ops of kind "input". Initializers, and whatever
    is computed from them or from shapes alone, are bytes of the ops that read them (`Holdings`; a parameter is a
    constant of two or more dimensions read by a convolution, a matrix product, a recurrence or a lookup). Relabelled
    constants (transposed, dequantized, ...) count as they are stored. Functions of the model are inlined; a node with
    subgraphs (If, Loop, Scan) is one op that reads what they read, and has the operations of its largest branch, one
    iteration.

    Extras of an op: ``node`` (its last node's name, or that node's first output where it has none), ``nodes`` (places
    of its nodes among the model's, functions inlined), ``tensors`` (names of its outputs), ``outputs`` (a list of
    [type, dimension, ...]), ``parts`` (of an op with several nodes, name and tensors of each before the last).

    Parameters
    ----------
    model
        An `onnx.ModelProto`; it is not changed.
    batch
        Value of an unknown first dimension of inputs; None: 1.
    dims
        Values of other unknown dimensions of inputs, by their name in the model or as ``"input[axis]"``.
    sharing
        See `Holdings`.
    dtype
        What floating-point weights and activations are counted in; see `Precision`.
    name
        The graph's name, by default that of the model's graph.

    Raises
    ------
    InvalidGraph
        A model without nodes, a tensor read but not made, or made twice, a cycle, a shape that is unknown or depends
        on data; the message names the node.
    BackendUnavailable
        onnx is not installed.
    """
    apart = node_graph(model, batch=batch, dims=dims, sharing=sharing, dtype=dtype, name=name)
    return joined(apart, model)


def joined(apart: Graph, model: Any) -> Graph:
    """Return the graph of a model with what exporters take apart whole again.

    Parameters
    ----------
    apart
        From `node_graph`.
    model
        The model, whose outputs no op may keep to itself.
    """
    given = {value.name for value in model.graph.output}
    results = [v for v, row in apart.extras.items() if not given.isdisjoint(row["tensors"])]
    return with_whole_ops(apart, results)


def node_graph(
    model: Any,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    sharing: Sharing = "colocate",
    dtype: Dtype = None,
    name: str | None = None,
) -> Graph:
    """Return the graph of an ONNX model with each node by itself; all else as for `from_onnx`.

    Parameters
    ----------
    model, batch, dims, sharing, dtype, name
        As for `from_onnx`.

    Raises
    ------
    InvalidGraph, BackendUnavailable
        As for `from_onnx`.
    """
    import_onnx()
    precision = Precision.of(dtype)
    if not model.HasField("graph") or not model.graph.node:
        raise InvalidGraph(f"{name or 'the ONNX model'} has no nodes; is this an ONNX model?")
    try:
        prepared = infer_types(model, sorted_nodes, batch, dims or {})
        return _assembled(prepared, sharing, precision).graph(name or model.graph.name or "onnx")
    except RlinitError:
        raise
    except Exception as problem:  # a damaged message: names that are no text, missing fields, sizes beyond bounds
        raise InvalidGraph(f"{name or 'the ONNX model'} is damaged: {first_line(problem)}") from problem


def _assembled(prepared: Prepared, sharing: Sharing, precision: Precision) -> Assembly:
    """Return the ops of a prepared model."""
    graph, types = prepared.graph, prepared.types
    values = values_of(graph)
    views = view_places(graph, types, values)
    nodes = enumerate(zip(_labels(graph), prepared.places, graph.node, strict=True))
    steps = [_step(label, place, node, types, values, at in views) for at, (label, place, node) in nodes]
    read = {name for step in steps for name in step.reads} | {value.name for value in graph.output}
    assembly = Assembly(types, prepared.stored, read, sharing, precision=precision)
    for value in graph.input:
        assembly.add_input(value.name)
    for step in steps:
        assembly.add(step)
    return assembly


# -- external data -------------------------------------------------------------------------------------------------


def stored_tensors(graph: Any) -> Iterator[Any]:
    """Yield every tensor stored in a graph, its subgraphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for subgraph in subgraphs_of(attribute):
                yield from stored_tensors(subgraph)


def check_location(tensor: Any, path: Path) -> None:
    """Refuse external data outside the model's folder.

    Parameters
    ----------
    tensor
        A `TensorProto` with external data.
    path
        The model file.

    Raises
    ------
    InvalidGraph
        The tensor (named) says that its data lies elsewhere, or does not say where.
    """
    location = str(next((entry.value for entry in tensor.external_data if entry.key == "location"), ""))
    folder = path.resolve().parent
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\")
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    inside = not absolute and ".." not in parts and "\0" not in location
    if not location or not inside or not Path(os.path.realpath(folder / location)).is_relative_to(folder):
        raise InvalidGraph(
            f"{path}: tensor {tensor.name!r} keeps its data in {location!r}; expected a file in the model's folder"
        )


def load_values(tensor: Any, path: Path) -> None:
    """Read the external data of a tensor of the model at `path` into the tensor itself.

    Parameters
    ----------
    tensor
        A `TensorProto` with external data; it is changed.
    path
        The model file.

    Raises
    ------
    InvalidGraph
        The file with the data cannot be read, or is too short.
    """
    from onnx import external_data_helper

    try:
        external_data_helper.load_external_data_for_tensor(tensor, str(path.resolve().parent))
    except Exception as problem:  # OSError, ValueError, and the checker's ValidationError
        raise InvalidGraph(f"{path}: cannot read the external data of tensor {tensor.name!r}: {problem}") from problem
    tensor.ClearField("data_location")
    del tensor.external_data[:]


# -- nodes ---------------------------------------------------------------------------------------------------------


def subgraphs_of(attribute: Any) -> list[Any]:
    """Return the subgraphs that an attribute of a node holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def node_reads(node: Any) -> list[str]:
    """Return the tensors a node reads, those its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for subgraph in subgraphs_of(attribute):
            inner = {value.name for value in (*subgraph.input, *subgraph.initializer)}
            for step in subgraph.node:
                names += [name for name in node_reads(step) if name not in inner]
                inner.update(step.output)
            names += [value.name for value in subgraph.output if value.name not in inner]
    return names


def _labels(graph: Any) -> list[str]:
    """Return a distinct name for each node."""
    wanted = [node.name or f"{node.op_type}_{place}" for place, node in enumerate(graph.node)]
    return distinct_labels(wanted, {value.name for value in graph.input})


def sorted_nodes(graph: Any) -> list[int]:
    """Return the places of the nodes in an order in which tensors are made before they are read."""
    given = {value.name for value in (*graph.input, *graph.initializer)}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    labels = _labels(graph)
    steps = [
        (label, node_reads(node), [name for name in node.output if name])
        for label, node in zip(labels, graph.node, strict=True)
    ]
    return order_of(steps, given)


def _step(
    label: str, place: int, node: Any, types: Mapping[str, TensorType], values: Mapping[str, Any], is_view: bool
) -> Step:
    """Return what there is to know of a node."""
    standard = node.domain in ("", "ai.onnx")
    makes = [name for name in node.output if name]
    constant: bool | None = None
    if node.op_type in _RANDOM:
        constant = False
    elif standard and node.op_type in ("Shape", "Size"):
        constant = True  # every shape is known
    stored = 3 if node.op_type == "DequantizeLinear" else 1
    axes, operands = axes_of(node, types, values) if standard else ({}, [])
    relabels = [name for name in node.input[:stored] if name] if standard and node.op_type in _RELABELS else None
    return Step(
        label,
        node.op_type if standard else f"{node.domain}.{node.op_type}",
        node_reads(node),
        makes,
        constant=constant,
        relabels=relabels,
        reads_weights=node.op_type in _WEIGHT_READERS,
        is_view=is_view,
        flops=lambda: _flops(node, types),
        extras={"node": node.name or (makes[0] if makes else label), "nodes": [place], **_scopes(node)},
        axes=axes,
        operands=operands,
    )


def _scopes(node: Any) -> dict[str, list[list[str]]]:
    """Return [path, class] of the torch modules around a node, which torch's exporter writes into its metadata."""
    said = {entry.key: entry.value for entry in node.metadata_props if len(entry.value) <= MAX_TEXT}
    try:
        paths = ast.literal_eval(said.get("pkg.torch.onnx.name_scopes", "[]"))
        classes = ast.literal_eval(said.get("pkg.torch.onnx.class_hierarchy", "[]"))
        rows = [[str(path), str(name).rpartition(".")[2]] for path, name in zip(paths, classes, strict=True)]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # not as torch writes it: no modules
        return {}
    return {"scopes": rows[:-1]} if len(rows) > 1 else {}


def _flops(node: Any, types: Mapping[str, TensorType]) -> float:
    """Return the operations of a node, those of its largest subgraph where it has some."""
    branches = [subgraph for attribute in node.attribute for subgraph in subgraphs_of(attribute)]
    if branches:
        return max(sum(_flops(step, types) for step in branch.node) for branch in branches)
    attributes = {attribute.name: attribute.s or attribute.i for attribute in node.attribute}
    return node_flops(node.op_type, attributes, _shapes(node.input, types), _shapes(node.output, types))


def _shapes(names: Iterable[str], types: Mapping[str, TensorType]) -> list[tuple[int, ...] | None]:
    found = [types.get(name) for name in names]
    return [tensor.shape if tensor is not None else None for tensor in found]
