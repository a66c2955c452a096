"""Types and shapes of every tensor of an ONNX model, for chosen values of its unknown dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.importers.tensors import TensorType

__all__ = ["infer_types", "is_small"]

_SMALL = 4096
"""Elements of an integer constant that shape inference may want to read."""

_STRING = 8
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    _STRING: "strings",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
}
"""TensorProto.DataType -> its name."""


def _type(name: str, element: int, shape: tuple[int, ...] | None) -> TensorType:
    return TensorType(name, _DTYPES.get(element, f"elements of the unknown type {element}"), shape)


def infer_types(
    model: Any, sorted_nodes: Callable[[Any], list[int]], batch: int | None, dims: Mapping[str, int]
) -> tuple[Any, dict[str, TensorType], frozenset[str]]:
    """Return a model without weights, the types of its tensors, and the names of those that are stored.

    The model's functions are inlined and its nodes in order; what was stored is an input.

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

    whole = _inlined(model)
    given = _initializer_types(whole.graph)
    light = _without_weights(whole, given)
    order = sorted_nodes(light.graph)
    if order != sorted(order):
        nodes = [onnx.NodeProto.FromString(light.graph.node[place].SerializeToString()) for place in order]
        del light.graph.node[:]
        light.graph.node.extend(nodes)
    _choose_dimensions(light.graph, set(given), batch, dims)
    try:
        inferred = onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=True)
    except Exception as problem:  # InferenceError, and ValueError or RuntimeError for malformed models
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        raise InvalidGraph(f"the shapes of the model contradict each other: {' '.join(lines)[:400]}") from problem
    types: dict[str, TensorType] = {}
    _collect(inferred.graph, types)
    types.update(given)
    return light, types, frozenset(given)


def _inlined(model: Any) -> Any:
    """Return the model with its functions put in place of their calls."""
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
        types[name] = _type(name, element, tuple(sizes))
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
    graph.output.extend(model.graph.output)
    for value in graph.output:
        if value.name not in unknown:  # declared for another batch size, maybe
            value.type.tensor_type.ClearField("shape")
    return light


def is_small(tensor: Any) -> bool:
    """Whether a stored tensor is one that shapes may be computed from."""
    return tensor.data_type in (6, 7) and 0 <= math.prod(tensor.dims) <= _SMALL


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
                    f"dimension {label} ({symbol or 'unnamed'}) is unknown; choose a value: dims={{{symbol or label!r}: ...}}"
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


def _collect(graph: Any, types: dict[str, TensorType]) -> None:
    """Note the types of a graph's tensors and of those of its subgraphs; tensors of the outermost graph win."""
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                _collect(subgraph, types)
    for tensor in graph.initializer:
        types[tensor.name] = _type(tensor.name, tensor.data_type, tuple(tensor.dims))
    for value in (*graph.value_info, *graph.output, *graph.input):
        if not value.type.HasField("tensor_type"):
            types[value.name] = TensorType(value.name, "no tensor", None)
            continue
        tensor = value.type.tensor_type
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        known = tensor.HasField("shape") and all(size is not None and size >= 0 for size in sizes)
        shape = tuple(size for size in sizes if size is not None) if known else None
        types[value.name] = _type(value.name, tensor.elem_type, shape)
