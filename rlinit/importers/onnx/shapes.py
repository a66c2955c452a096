"""Types and shapes of every tensor of an ONNX model, for chosen values of its unknown dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.importers.common.tensors import TensorType
from rlinit.importers.onnx.type_inference import element_name, inferred_types
from rlinit.limits import MAX_TERMS

_MAX_FLOATS = 8
"""Floats of a constant that shapes may be computed from: the scales of a Resize."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model ready to be read.

    Parameters
    ----------
    graph
        Its GraphProto: functions inlined, nodes in order, what was stored an input.
    places
        Where each node was among the model's nodes, functions inlined.
    types
        Types of all tensors.
    stored
        Names of the tensors whose values the model holds.
    """

    graph: Any
    places: list[int]
    types: dict[str, TensorType]
    stored: frozenset[str]


def infer_types(
    model: Any, sorted_nodes: Callable[[Any], list[int]], batch: int | None, dims: Mapping[str, int]
) -> Prepared:
    """Return a model ready to be read.

    Parameters
    ----------
    model
        A ModelProto; it is not changed.
    sorted_nodes
        Gives an order of a graph's nodes, or refuses it.
    batch, dims
        As for `from_onnx`.

    Raises
    ------
    InvalidGraph
        Shape inference finds a contradiction, or an input's dimension has no value.
    """
    import onnx

    whole = inlined(model)
    given = _initializer_types(whole.graph)
    light = _without_weights(whole, given)
    order = sorted_nodes(light.graph)
    if order != sorted(order):
        nodes = [onnx.NodeProto.FromString(light.graph.node[place].SerializeToString()) for place in order]
        del light.graph.node[:]
        light.graph.node.extend(nodes)
    _choose_dimensions(light.graph, set(given), batch, dims)
    types = inferred_types(light)
    types.update(given)
    return Prepared(light.graph, order, types, frozenset(given))


def inlined(model: Any) -> Any:
    """Return the model with its functions put in place of their calls; itself where it has none.

    Raises
    ------
    InvalidGraph
        The functions contradict each other.
    """
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as problem:  # the inliner raises RuntimeError and ValueError without names of its own
        raise InvalidGraph(f"the model's functions cannot be inlined: {problem}") from problem


def _initializer_types(graph: Any) -> dict[str, TensorType]:
    """Return the types of stored tensors; sparse ones count as if they were dense."""
    types = {}
    stored = [(tensor.name, tensor.data_type, tensor.dims) for tensor in graph.initializer]
    stored += [(sparse.values.name, sparse.values.data_type, sparse.dims) for sparse in graph.sparse_initializer]
    for name, element, sizes in stored:
        if any(size < 0 for size in sizes):
            raise InvalidGraph(f"initializer {name!r} has the dimensions {list(sizes)}; expected sizes >= 0")
        types[name] = TensorType(name, element_name(element), tuple(sizes))
    return types


def _without_weights(model: Any, given: Mapping[str, TensorType]) -> Any:
    """Return a copy whose stored tensors are inputs of the same type, but for what shapes may be computed from."""
    import onnx

    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(value for value in model.graph.input if value.name not in given)
    elements = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    elements |= {sparse.values.name: sparse.values.data_type for sparse in model.graph.sparse_initializer}
    kept = {tensor.name for tensor in model.graph.initializer if is_small(tensor)}
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in kept)
    for name, tensor in given.items():
        if name not in kept:
            graph.input.append(onnx.helper.make_tensor_value_info(name, elements[name], tensor.shape))
    unknown = {name for node in graph.node if not onnx.defs.has(node.op_type, node.domain) for name in node.output}
    graph.value_info.extend(value for value in model.graph.value_info if value.name in unknown)
    # Inference takes an output's type even where it is an input too, and its shape may be for another batch size.
    known = {value.name for value in graph.input} | kept
    graph.output.extend(value for value in model.graph.output if value.name not in known)
    for value in graph.output:
        if value.name not in unknown:  # declared for another batch size, maybe
            value.type.tensor_type.ClearField("shape")
    return light


def is_small(tensor: Any) -> bool:
    """Whether a stored tensor is one that shapes may be computed from."""
    limit = {1: _MAX_FLOATS, 6: MAX_TERMS, 7: MAX_TERMS, 9: MAX_TERMS}.get(tensor.data_type, -1)
    return bool(0 <= math.prod(tensor.dims) <= limit)


def _choose_dimensions(graph: Any, stored: set[str], batch: int | None, dims: Mapping[str, int]) -> None:
    """Give every input's dimensions a value."""
    if batch is not None and batch < 1:
        raise InvalidGraph(f"batch is {batch}; expected an integer >= 1")
    inputs = [value for value in graph.input if value.name not in stored]
    values = dict(dims)
    unused = set(dims)
    firsts = []
    for value in inputs:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise InvalidGraph(f"input {value.name!r} is not a tensor of known rank; expected one")
        first = value.type.tensor_type.shape.dim[:1]
        if first and not first[0].HasField("dim_value"):
            values.setdefault(first[0].dim_param or f"{value.name}[0]", batch or 1)
        elif first:
            firsts.append(first[0].dim_value)
    for value in inputs:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            label, symbol = f"{value.name}[{axis}]", size.dim_param
            if size.HasField("dim_value"):
                if size.dim_value < 0:
                    raise InvalidGraph(f"dimension {label} is {size.dim_value}; expected a size >= 0")
                continue
            chosen = values.get(label, values.get(symbol))
            if chosen is None:
                raise InvalidGraph(
                    f"dimension {label} ({symbol or 'unnamed'}) is unknown; choose a value: "
                    f"dims={{{symbol or label!r}: ...}}"
                )
            if chosen < 0:
                raise InvalidGraph(f"dimension {label} is {chosen}; expected a size >= 0")
            unused -= {label, symbol}
            size.dim_value = chosen
    if unused:
        raise InvalidGraph(f"dims names {sorted(unused)[0]!r}, which is no unknown dimension of an input")
    if batch is not None and firsts and len(firsts) == len(inputs) and batch not in firsts:
        raise InvalidGraph(
            f"the model's inputs have the fixed first dimension {firsts[0]}; batch is {batch}. Export the model with a "
            "dynamic one, or for that batch size"
        )
