"""Types and shapes of a model's tensors: ONNX's inference, helped over arithmetic that it does not follow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinit.errors import InvalidGraph
from rlinit.importers.common.tensors import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Values = dict[str, NDArray[Any]]

_RENAMED = {"float": "float32", "double": "float64", "string": "strings"}
"""Names of element types in ONNX that are others here."""

_FOLDABLE = frozenset(
    {"Shape", "Size", "Constant", "ConstantOfShape", "Range", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice"}
    | {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Max", "Min", "Cast", "Reshape", "Identity", "Where", "Equal"}
    | {
        "Transpose",
        "Not",
        "And",
        "Or",
        "Less",
        "Greater",
        "Floor",
        "Ceil",
        "ReduceProd",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
    }
)
"""Ops on numbers of known value that shapes are computed with; none runs a subgraph."""

_MAX_ELEMENTS = 1 << 20
"""Elements of a tensor worth evaluating for a shape."""

_MAX_ROUNDS = 16
"""Of inference: values that one round evaluates give shapes to the next."""


def inferred_types(model: Any) -> dict[str, TensorType]:
    """Return the types of a model's tensors, as far as they follow from its inputs' types.

    Inference follows most arithmetic on shapes by itself. Where it does not, numbers that are known are evaluated
    and it is run again, until nothing new is found. A Range is never left to it unless its numbers are known and
    few: it writes them all down, and a file of 200 bytes could fill the memory; with one in a subgraph, it follows no
    arithmetic.

    Parameters
    ----------
    model
        A ModelProto whose nodes are in order and whose large constants are inputs; it is not changed.

    Raises
    ------
    InvalidGraph
        Shapes that contradict each other.
    """
    has_range = any(node.op_type == "Range" for node in model.graph.node)
    data_prop = not any(_has_range(subgraph) for node in model.graph.node for subgraph in _subgraphs(node))
    values: Values = {}
    elements: dict[str, int] = {}
    types: dict[str, TensorType] = {}
    if has_range:
        for value in _run(model, data_prop=False).graph.value_info:
            elements[value.name] = value.type.tensor_type.elem_type
        _evaluate(model, types, values)
    for _ in range(_MAX_ROUNDS):
        types = {}
        _collect(_run(_with_values(model, values, elements), data_prop=data_prop).graph, types)
        types.update((name, _described(name, array)) for name, array in values.items())
        known = len(values)
        if all(tensor.shape is not None for tensor in types.values()) and not has_range:
            break
        _evaluate(model, types, values)
        if len(values) == known:
            break
    return types


def _subgraphs(node: Any) -> list[Any]:
    found = []
    for attribute in node.attribute:
        found += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return found


def _has_range(graph: Any) -> bool:
    return any(node.op_type == "Range" or any(map(_has_range, _subgraphs(node))) for node in graph.node)


def element_name(element: int) -> str:
    """Return the name of an element type by its number."""
    import onnx

    try:
        name = str(onnx.TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"elements of the unknown type {element}"
    return _RENAMED.get(name, name)


def _run(model: Any, *, data_prop: bool) -> Any:
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=data_prop)
    except Exception as problem:  # InferenceError, and ValueError or RuntimeError for malformed models
        reason = " ".join(line.strip() for line in str(problem).splitlines() if line.strip())
        raise InvalidGraph(f"the shapes of the model contradict each other: {reason[:400]}") from problem


def _described(name: str, array: NDArray[Any]) -> TensorType:
    return TensorType(name, str(array.dtype), array.shape)


def _with_values(model: Any, values: Values, elements: Mapping[str, int]) -> Any:
    """Return a model whose nodes of known value are constants, and whose other Ranges are inputs of unknown length."""
    import onnx

    cut = [node for node in model.graph.node if node.op_type == "Range" and not set(node.output) <= set(values)]
    if not values and not cut:
        return model
    changed = onnx.ModelProto(ir_version=model.ir_version)
    changed.opset_import.extend(model.opset_import)
    graph = changed.graph
    graph.name = model.graph.name
    graph.node.extend(
        node
        for node in model.graph.node
        if not (node.output and set(node.output) <= set(values)) and node.op_type != "Range"
    )
    graph.input.extend(model.graph.input)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, elements.get(name, 7), [None]) for node in cut for name in node.output
    )
    graph.initializer.extend(model.graph.initializer)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
    graph.value_info.extend(model.graph.value_info)
    graph.output.extend(value for value in model.graph.output if value.name not in values)
    return changed


def _evaluate(model: Any, types: Mapping[str, TensorType], values: Values) -> None:
    """Add the values of nodes all of whose inputs are known, and of the shapes of tensors whose type is."""
    import onnx

    for tensor in model.graph.initializer:
        values.setdefault(tensor.name, onnx.numpy_helper.to_array(tensor))
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _FOLDABLE or node.domain not in ("", "ai.onnx") or set(node.output) <= set(values):
            continue
        found = _value_of(node, opsets, types, values)
        if found is not None:
            values.update(zip(node.output, found, strict=False))
    for name in stored:
        values.pop(name, None)


def _value_of(
    node: Any, opsets: dict[str, int], types: Mapping[str, TensorType], values: Values
) -> Sequence[NDArray[Any]] | None:
    """Return the values of a node's outputs; None where they are not known, too many, or not to be had."""
    from onnx.reference import ReferenceEvaluator

    given = {name: values[name] for name in node.input if name and name in values}
    if node.op_type in ("Shape", "Size") and node.input and node.input[0] not in given:
        tensor = types.get(node.input[0])
        if tensor is None or tensor.shape is None or math.prod(tensor.shape) >= 1 << 62:
            return None
        given = {node.input[0]: np.broadcast_to(np.zeros((), np.bool_), tensor.shape)}
    elif len(given) < len({name for name in node.input if name}) or _num_made(node, given) > _MAX_ELEMENTS:
        return None
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(node, opsets=opsets).run(None, given)
    except Exception:  # what cannot be evaluated stays unknown, and is refused by name where its shape is needed
        return None
    arrays = [np.asarray(array) for array in found]
    return arrays if all(array.size <= _MAX_ELEMENTS for array in arrays) else None


def _num_made(node: Any, given: Values) -> float:
    """Return a bound on the elements a node makes."""
    arrays = list(given.values())
    if node.op_type == "Range" and len(arrays) == 3 and all(array.size == 1 for array in arrays):
        start, limit, delta = (float(given[name].item()) for name in node.input)
        return math.inf if delta == 0 else max(0.0, (limit - start) / delta)
    if node.op_type == "ConstantOfShape":
        return math.prod(float(size) for array in arrays for size in array.reshape(-1))
    if node.op_type == "Constant":
        return float(sum(math.prod(attribute.t.dims) for attribute in node.attribute if attribute.HasField("t")))
    return math.prod(float(max(1, array.size)) for array in arrays)


def _collect(graph: Any, types: dict[str, TensorType]) -> None:
    """Note the types of a graph's tensors and of those of its subgraphs; tensors of the outermost graph win."""
    for node in graph.node:
        for subgraph in _subgraphs(node):
            _collect(subgraph, types)
    for tensor in graph.initializer:
        types[tensor.name] = TensorType(tensor.name, element_name(tensor.data_type), tuple(tensor.dims))
    for value in (*graph.value_info, *graph.output, *graph.input):
        if not value.type.HasField("tensor_type"):
            types[value.name] = TensorType(value.name, "no tensor", None)
            continue
        tensor = value.type.tensor_type
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        known = tensor.HasField("shape") and all(size is not None and size >= 0 for size in sizes)
        shape = tuple(size for size in sizes if size is not None) if known else None
        types[value.name] = TensorType(value.name, element_name(tensor.elem_type), shape)
