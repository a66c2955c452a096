"""Which nodes of an ONNX model only see a tensor otherwise: strides followed through it, as torch follows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlinit.importers.common.tensors import TensorType

Sizes = tuple[int, ...]

_RESHAPES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"})
"""Ops that keep the elements in their order."""


def values_of(graph: Any) -> dict[str, Any]:
    """Return the tensors that a prepared model stores with their values, by their names: those that say shapes.

    Parameters
    ----------
    graph
        A GraphProto.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return stored | {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}


def view_places(graph: Any, types: Mapping[str, TensorType], stored: Mapping[str, Any]) -> frozenset[int]:
    """Return the places of nodes whose output lies in their input's storage: nothing is computed or moved.

    A Transpose, an Expand, a Split, a Slice by steps of one and a Gather of one place are read by strides, and a
    Reshape is where the strides of its input allow it; elsewhere it copies. So do torch and what compiles a model; a
    runtime whose kernels copy at each Transpose takes longer.

    Parameters
    ----------
    graph
        A GraphProto whose nodes are in order.
    types
        Types of its tensors.
    stored
        From `values_of`.
    """
    laid: dict[str, Sizes] = {}
    views = set()
    for place, node in enumerate(graph.node):
        shapes = [_shape(name, types) for name in (*node.input[:1], *node.output)]
        if node.domain not in ("", "ai.onnx") or len(shapes) < 2 or None in shapes:
            continue
        source, *made = [shape for shape in shapes if shape is not None]
        strides = _seen(node, source, laid.get(node.input[0], contiguous(source)), made[0], stored, types)
        if strides is not None:
            views.add(place)
            laid.update((name, strides) for name in node.output if name)
    return frozenset(views)


def _shape(name: str, types: Mapping[str, TensorType]) -> Sizes | None:
    found = types.get(name)
    return found.shape if found is not None else None


def contiguous(shape: Sizes) -> Sizes:
    """Return the strides, in elements, of a tensor whose last dimension is dense.

    Parameters
    ----------
    shape
        Sizes of its dimensions.
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _seen(
    node: Any,
    source: Sizes,
    strides: Sizes,
    made: Sizes,
    stored: Mapping[str, Any],
    types: Mapping[str, TensorType],
) -> Sizes | None:
    """Return the strides by which a node's output lies in the storage of its first input; None where it does not."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in _RESHAPES:
        return reshaped(source, strides, made)
    if node.op_type == "Transpose":
        order = given["perm"].ints if "perm" in given else range(len(source))[::-1]
        return tuple(strides[axis] for axis in order)
    if node.op_type == "Split" or (node.op_type == "Slice" and _steps_of_one(node, stored)):
        return strides
    if node.op_type == "Expand":
        added = len(made) - len(source)
        kept = [stride if size != 1 else 0 for size, stride in zip(source, strides, strict=True)]
        return (*[0] * added, *kept)
    if node.op_type == "Gather" and _shape(node.input[1], types) == ():
        axis = given["axis"].i if "axis" in given else 0
        return tuple(stride for at, stride in enumerate(strides) if at != axis % len(strides))
    return None


def _steps_of_one(node: Any, stored: Mapping[str, Any]) -> bool:
    import onnx

    if len(node.input) < 5 or not node.input[4]:
        return True
    known = stored.get(node.input[4])
    return known is not None and bool((onnx.numpy_helper.to_array(known) == 1).all())


def reshaped(shape: Sizes, strides: Sizes, target: Sizes) -> Sizes | None:
    """Return the strides of a tensor seen in another shape; None where its elements have to be copied.

    Parameters
    ----------
    shape, strides
        Sizes and strides, in elements, of its dimensions.
    target
        The other shape, of as many elements.

    Examples
    --------
    >>> reshaped((2, 3, 4), (12, 4, 1), (6, 4)), reshaped((3, 2), (1, 3), (6,)), reshaped((3, 2), (1, 3), (3, 1, 2))
    ((4, 1), None, (1, 6, 3))
    """
    if math.prod(shape) == 0:
        return contiguous(target)
    if math.prod(shape) != math.prod(target):
        return None
    runs: list[list[int]] = [[1, 1]]  # [elements, stride of the last] of dimensions that lie one within the next
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    found: list[int] = []
    left, stride = runs.pop()
    for size in reversed(target):
        if left == 1 and size != 1:
            left, stride = runs.pop()
        if left % size:
            return None
        found.append(stride)
        left, stride = left // size, stride * size
    return tuple(found[::-1])
