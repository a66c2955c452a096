"""ONNX models as computation graphs: one op a node, weights by their shapes alone."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from rlinit.errors import BackendUnavailable, InvalidGraph
from rlinit.graph import Graph
from rlinit.importers.onnx_flops import node_flops
from rlinit.importers.onnx_shapes import TensorType, infer_types, is_small
from rlinit.importers.parameters import Holdings, Sharing

__all__ = ["from_onnx", "import_onnx", "load_onnx"]

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
    try:
        importlib.import_module("onnx.shape_inference")
        return importlib.import_module("onnx")
    except ImportError as problem:
        raise BackendUnavailable(f"reading ONNX models needs onnx ({problem}); pip install rlinit[onnx]") from problem


def load_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    sharing: Sharing = "colocate",
) -> Graph:
    """Read the graph of an ``.onnx`` file; see `from_onnx`. Weights in other files are not opened.

    Raises
    ------
    InvalidGraph
        A file that cannot be read, is no ONNX model, or names external data outside its folder; or a model that
        `from_onnx` refuses.
    BackendUnavailable
        onnx is not installed.
    """
    if not Path(path).is_file():
        raise InvalidGraph(f"cannot read {path}: there is no such file")
    onnx = import_onnx()
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except Exception as problem:  # protobuf's DecodeError is not among its public names
        raise InvalidGraph(f"cannot read {path} as an ONNX model: {problem}") from problem
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_location(tensor, Path(path))
            if is_small(tensor):
                _load_small(tensor, Path(path))
    return from_onnx(model, batch=batch, dims=dims, sharing=sharing, name=Path(path).stem)


def from_onnx(
    model: Any,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    sharing: Sharing = "colocate",
    name: str | None = None,
) -> Graph:
    """Return the computation graph of an ONNX model: one op for each node that depends on an input's values.

    Inputs are ops of kind "input". Initializers, and whatever is computed from them or from shapes alone, are bytes
    of the ops that read them (`Holdings`; a parameter is a constant of two or more dimensions read by a convolution, a
    matrix product, a recurrence or a lookup). Relabelled constants (transposed, dequantized, ...) count as they are
    stored. Functions of the model are inlined; a node with subgraphs (If, Loop, Scan) is one op that reads what they
    read, and has the operations of its largest branch, one iteration.

    Extras of an op: ``node`` (the node's name, or its first output where it has none), ``nodes`` (its place among
    the model's nodes, functions inlined), ``tensors`` (names of its outputs), ``outputs`` (a list of
    [type, dimension, ...]).

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
    import_onnx()
    if not model.HasField("graph") or not model.graph.node:
        raise InvalidGraph(f"{name or 'the ONNX model'} has no nodes; is this an ONNX model?")
    prepared, types, stored = infer_types(model, _sorted_nodes, batch, dims or {})
    return _Reader(prepared.graph, types, stored, Holdings(sharing)).graph(name or model.graph.name or "onnx")


# -- external data -------------------------------------------------------------------------------------------------


def _tensors(graph: Any) -> Iterator[Any]:
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
            for subgraph in _subgraphs_of(attribute):
                yield from _tensors(subgraph)


def _check_location(tensor: Any, path: Path) -> None:
    """Refuse external data outside the model's folder."""
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    folder = path.resolve().parent
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\")
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    inside = not absolute and ".." not in parts and "\0" not in location
    if not location or not inside or not Path(os.path.realpath(folder / location)).is_relative_to(folder):
        raise InvalidGraph(
            f"{path}: tensor {tensor.name!r} keeps its data in {location!r}; expected a file in the model's folder"
        )


def _load_small(tensor: Any, path: Path) -> None:
    """Read external data that shapes may be computed from."""
    from onnx import external_data_helper

    try:
        external_data_helper.load_external_data_for_tensor(tensor, str(path.resolve().parent))
    except Exception as problem:  # OSError, ValueError, and the checker's ValidationError
        raise InvalidGraph(f"{path}: cannot read the external data of tensor {tensor.name!r}: {problem}") from problem


# -- nodes ---------------------------------------------------------------------------------------------------------


def _subgraphs_of(attribute: Any) -> list[Any]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _reads(node: Any) -> list[str]:
    """Return the tensors a node reads, those its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for subgraph in _subgraphs_of(attribute):
            inner = {value.name for value in (*subgraph.input, *subgraph.initializer)}
            for step in subgraph.node:
                names += [name for name in _reads(step) if name not in inner]
                inner.update(step.output)
            names += [value.name for value in subgraph.output if value.name not in inner]
    return names


def _labels(graph: Any) -> list[str]:
    """Return a distinct name for each node."""
    taken = {value.name for value in graph.input}
    labels = []
    for place, node in enumerate(graph.node):
        label = node.name or f"{node.op_type}_{place}"
        if label in taken:
            label = next(f"{label}#{i}" for i in range(2, len(graph.node) + 3) if f"{label}#{i}" not in taken)
        taken.add(label)
        labels.append(label)
    return labels


def _sorted_nodes(graph: Any) -> list[int]:
    """Return the places of the nodes in an order in which tensors are made before they are read.

    Raises
    ------
    InvalidGraph
        A tensor that is read and never made, or made twice; a cycle.
    """
    labels = _labels(graph)
    maker: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        for name in node.output:
            if name and name in maker:
                raise InvalidGraph(f"nodes {labels[maker[name]]!r} and {labels[place]!r} both make the tensor {name!r}")
            if name:
                maker[name] = place
    given = {value.name for value in (*graph.input, *graph.initializer)}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    edges, sorted_already = [], True
    for place, node in enumerate(graph.node):
        for name in _reads(node):
            if name in maker:
                edges.append((labels[maker[name]], labels[place]))
                sorted_already &= maker[name] < place
            elif name not in given:
                raise InvalidGraph(f"node {labels[place]!r} reads the tensor {name!r}, which nothing makes")
    if sorted_already:
        return list(range(len(labels)))
    order: list[int] = Graph.build([(label, {}) for label in labels], edges).order.tolist()
    return order


@dataclass(slots=True)
class _Reader:
    """Turns the nodes of a graph with known shapes into ops."""

    source: Any
    types: Mapping[str, TensorType]
    stored: frozenset[str]
    holdings: Holdings
    rows: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    maker: dict[str, str] = field(default_factory=dict)  # tensor -> op
    held: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)  # constant -> stored tensors, whether matrices

    def graph(self, name: str) -> Graph:
        """Return the graph of the nodes."""
        self.held = {name: [(name, len(self._type(name, name).shape or ()) >= 2)] for name in self.stored}
        labels = _labels(self.source)
        read = {name for node in self.source.node for name in _reads(node)}
        read |= {value.name for value in self.source.output}
        for value in self.source.input:
            if value.name in read and value.name not in self.held:
                self._open_input(value.name)
        for place, (label, node) in enumerate(zip(labels, self.source.node, strict=True)):
            if self._is_constant(node):
                self._fold(node)
            else:
                self._open(label, place, node, read)
        if all(row["op"] == "input" for _, row in self.rows):
            raise InvalidGraph("no node of the model depends on an input's values; there is nothing to plan")
        for label, row in self.rows:
            row["param_bytes"] = self.holdings.param_bytes.get(label, 0)
            if self.holdings.label(label) is not None:
                row["colocate"] = self.holdings.label(label)
        return Graph.build(self.rows, self.edges, name=name)

    def _is_constant(self, node: Any) -> bool:
        if node.op_type in _RANDOM:
            return False
        if node.op_type in ("Shape", "Size") and node.domain in ("", "ai.onnx"):
            return True  # every shape is known
        return all(name in self.held for name in _reads(node))

    def _fold(self, node: Any) -> None:
        """Note what readers of a constant node's outputs hold."""
        for name in node.output:
            if not name:
                continue
            if node.op_type in _RELABELS and node.input:
                stored = 3 if node.op_type == "DequantizeLinear" else 1
                self.held[name] = [entry for source in node.input[:stored] if source for entry in self.held[source]]
            else:
                self.held[name] = [(name, False)]

    def _open_input(self, name: str) -> None:
        tensor = self._type(name, name)
        row = {"op": "input", "out_bytes": tensor.num_bytes, "flops": 0.0}
        self.rows.append((name, row | {"node": name, "tensors": [name], "outputs": [tensor.described]}))
        self.maker[name] = name

    def _open(self, label: str, place: int, node: Any, read: set[str]) -> None:
        for name in _reads(node):
            if name in self.maker:
                self.edges.append((self.maker[name], label))
            for stored, is_matrix in self.held.get(name, ()):
                is_parameter = is_matrix and node.op_type in _WEIGHT_READERS
                self.holdings.add(label, stored, self._type(stored, label).num_bytes, is_parameter=is_parameter)
        made = [name for name in node.output if name]
        used = [name for name in made if name in read] or made
        outputs = [self._type(name, label) for name in used]
        domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
        row = {
            "op": f"{domain}{node.op_type}",
            "out_bytes": sum(tensor.num_bytes for tensor in outputs),
            "flops": self._flops(node),
            "node": node.name or (made[0] if made else label),
            "nodes": [place],
            "tensors": made,
            "outputs": [tensor.described for tensor in outputs],
        }
        self.rows.append((label, row))
        self.maker.update((name, label) for name in made)

    def _type(self, tensor: str, label: str) -> TensorType:
        found = self.types.get(tensor)
        if found is None or found.shape is None:
            raise InvalidGraph(
                f"node {label!r}: the shape of tensor {tensor!r} is unknown or depends on data; it must be known. "
                "For an op that ONNX does not know, add the tensor's type to the graph's value_info"
            )
        return found

    def _flops(self, node: Any) -> float:
        branches = [subgraph for attribute in node.attribute for subgraph in _subgraphs_of(attribute)]
        if branches:
            return max(sum(self._flops(step) for step in branch.node) for branch in branches)
        attributes = {attribute.name: attribute.s or attribute.i for attribute in node.attribute}
        return node_flops(node.op_type, attributes, self._shapes(node.input), self._shapes(node.output))

    def _shapes(self, names: Iterable[str]) -> list[tuple[int, ...] | None]:
        found = [self.types.get(name) for name in names]
        return [tensor.shape if tensor is not None else None for tensor in found]

