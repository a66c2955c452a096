"""Nodes of ONNX by the axes that their ops have: see `rlinit.importers.common.axes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinit.importers.common import axes
from rlinit.importers.common.tensors import TensorType

_ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Clip",
    "Cast", "Where", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "Min",
    "Max", "Sum", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Gelu",
    "Mish", "Swish", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Cos", "Sin", "PRelu", "IsNaN",
    "ThresholdedRelu", "Mod", "BitShift",
)  # fmt: skip
_FIRST = frozenset({"Identity", "Dropout", "Expand", "QuantizeLinear", "DequantizeLinear"})
"""Elementwise in the first tensor that they read; the others are constants."""

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"})

Found = axes.Labels | dict[str, Any] | None


def axes_of(node: Any, types: Mapping[str, TensorType], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what is noted of a node as ``axes``, and the tensors it speaks of; nothing where nothing is known.

    Parameters
    ----------
    node
        Of the standard operators.
    types
        Of all tensors.
    values
        Stored tensors that shapes may be computed from, by their names.
    """
    names = [name for name in node.input if name]
    known = [types[name].shape if name in types else None for name in (*names, *node.output[:1])]
    shapes = [shape for shape in known if shape is not None]
    if len(shapes) < len(known) or not names or not node.output:
        return {}, []
    *read, made = shapes
    given = {one.name: one for one in node.attribute}
    found = _found(node.op_type, _Attributes(given, names, values), read, made)
    if found is None:
        return {}, []
    if isinstance(found, list):
        return {"labels": found}, names[: len(found) - 1]
    return found, names[: len(found["labels"]) - 1 if "labels" in found else 1]


class _Attributes:
    """Attributes of a node, and constants that it reads in their place."""

    def __init__(self, given: Mapping[str, Any], names: list[str], values: Mapping[str, Any]) -> None:
        self._given, self._names, self._values = given, names, values

    def number(self, name: str, usual: int) -> int:
        """Return a whole number."""
        return int(self._given[name].i) if name in self._given else usual

    def numbers(self, name: str, place: int = -1) -> list[int] | None:
        """Return whole numbers of an attribute or of the constant that is read at a place; None where they are none."""
        if name in self._given:
            return [int(value) for value in self._given[name].ints]
        stored = self._values.get(self._names[place]) if 0 <= place < len(self._names) else None
        if stored is None:
            return None
        import onnx

        return [int(value) for value in onnx.numpy_helper.to_array(stored).reshape(-1)]

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._given[name].s.decode()) if name in self._given else ""


def _found(kind: str, given: _Attributes, read: list[axes.Shape], made: axes.Shape) -> Found:
    n = len(read[0])
    if kind in _ELEMENTWISE:
        return axes.aligned(read, made)
    if kind in _FIRST:
        return axes.aligned(read[:1], made)
    if kind in _VIEWS:
        return {"view": True}
    if kind in _POOLS:
        return axes.pooled(read[:1], made) if kind != "InstanceNormalization" else axes.by_channel(read, made)
    if kind in ("Softmax", "LogSoftmax", "Hardmax"):  # before opset 13, over all dimensions from the axis on
        return axes.aligned(read, made, range(given.number("axis", 1) % max(1, n), n))
    if kind in ("LayerNormalization", "RMSNormalization"):
        return axes.normalised(read, made, n - given.number("axis", -1) % n)
    return _product(kind, given, read, made) or _moved(kind, given, read, made)


def _product(kind: str, given: _Attributes, read: list[axes.Shape], made: axes.Shape) -> Found:
    if kind == "MatMul":
        return axes.matmul(read, made)
    if kind == "Gemm":
        return axes.matmul(read, made, turned=(bool(given.number("transA", 0)), bool(given.number("transB", 0))))
    if kind == "Einsum":
        return axes.einsum(given.text("equation"), read)
    if kind == "Conv":
        return axes.convolution(read, made, given.number("group", 1))
    if kind == "BatchNormalization" and not given.number("training_mode", 0):
        return axes.by_channel(read, made, len(made))
    if kind == "Attention" and len(read) >= 3:
        return axes.attention(read[:4], made)
    return None


def _moved(kind: str, given: _Attributes, read: list[axes.Shape], made: axes.Shape) -> Found:
    n = len(read[0])
    if kind == "Transpose":
        return axes.permuted(given.numbers("perm") or range(n)[::-1])
    if kind == "Split":
        return {"parts": given.number("axis", 0) % n}
    if kind == "Concat":
        return axes.joined(len(read), made, given.number("axis", 0), new=False)
    if kind == "Gather" and len(read) == 2:
        axis = given.number("axis", 0)
        if n == 2 and axis == 0 and len(read[1]) > 0:
            return axes.lookup(read[1], made)
        return axes.without(read, axis) if not read[1] else None
    if kind == "Slice":
        starts, along, steps = given.numbers("starts", 1), given.numbers("axes", 3), given.numbers("steps", 4)
        if starts is None or len(starts) != 1 or along is None or steps not in (None, [1]):
            return None
        return axes.sliced(read[0], along[0], starts[0])
    if kind.startswith("Reduce"):
        dims = given.numbers("axes", 1)
        adds, keep = kind in ("ReduceSum", "ReduceMean"), bool(given.number("keepdims", 1))
        return axes.reduced(read[0], made, range(n) if dims is None else dims, keep=keep, adds=adds)
    return None
