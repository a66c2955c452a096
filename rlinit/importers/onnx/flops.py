"""Arithmetic of an ONNX node, from the shapes of its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv", "DeformConv"})
_PRODUCTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "DynamicQuantizeMatMul"})
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_WEIGHT_OF = {"QLinearConv": 3, "QLinearMatMul": 3}


def node_flops(
    op_type: str, attributes: Mapping[str, Any], inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> float:
    """Return the operations of one node; a multiply-add counts as two. As in torch's counter, the rest count none.

    ======================  ==================================================================
    op                      operations (E: output elements, W: the weight's shape, K: inner size)
    ======================  ==================================================================
    Conv and its kin        2 E prod(W[1:]), which has the groups in it
    ConvTranspose           2 (input elements) prod(W[1:])
    MatMul and its kin      2 E K
    Gemm                    2 E K
    Einsum                  2 prod of all index sizes, times (operands - 1)
    LSTM, GRU, RNN          2 T B (gates) H (I + H) for each direction
    Attention               2 B h Sq Sk (d + dv), heads of queries
    ======================  ==================================================================

    Parameters
    ----------
    op_type, attributes
        Of the node; integers, lists and bytes as they are.
    inputs, outputs
        Shapes, None where an optional one is absent or unknown.
    """
    if not outputs or outputs[0] is None:
        return 0.0
    made = math.prod(outputs[0])
    weight = _get(inputs, _WEIGHT_OF.get(op_type, 1))
    first = _get(inputs, 0)
    if op_type in _CONVOLUTIONS and weight:
        return 2.0 * made * math.prod(weight[1:])
    if op_type == "ConvTranspose" and weight and first:
        return 2.0 * math.prod(first) * math.prod(weight[1:])
    if op_type in _PRODUCTS and first:
        return 2.0 * made * first[-1]
    if op_type == "Gemm" and first and len(first) == 2:
        return 2.0 * made * first[0 if attributes.get("transA") else 1]
    if op_type == "Einsum":
        return _einsum(attributes.get("equation", b""), inputs)
    if op_type in _GATES and first and weight and len(weight) == 3 and len(first) == 3:
        steps_and_batch = first[0] * first[1]
        hidden = weight[1] // _GATES[op_type]
        return 2.0 * steps_and_batch * weight[0] * weight[1] * (weight[2] + hidden)
    if op_type == "Attention":
        return _attention(attributes, inputs)
    return 0.0


def _get(shapes: Sequence[Shape | None], place: int) -> Shape | None:
    return shapes[place] if place < len(shapes) else None


def _einsum(equation: bytes | str, inputs: Sequence[Shape | None]) -> float:
    """Return the operations of an Einsum with every pair of operands contracted over all indices."""
    text = equation.decode() if isinstance(equation, bytes) else equation
    sizes: dict[str, int] = {}
    for term, shape in zip(text.replace(" ", "").partition("->")[0].split(","), inputs, strict=False):
        if shape is None:
            return 0.0
        before, dots, after = term.partition("...")
        middle = [f".{i}" for i in range(len(shape) - len(before) - len(after))][::-1] if dots else []
        for index, size in zip([*before, *middle, *after], shape, strict=False):
            sizes[index] = max(size, sizes.get(index, 1))
    return 2.0 * math.prod(sizes.values()) * max(0, len(inputs) - 1)


def _attention(attributes: Mapping[str, Any], inputs: Sequence[Shape | None]) -> float:
    """Return the operations of the standard domain's Attention, on (B, h, S, d) or (B, S, h d) tensors."""
    query, key, value = (_get(inputs, place) for place in range(3))
    if not (query and key and value):
        return 0.0
    past = _get(inputs, 4)
    if len(query) == 4:
        batch, heads, length, width = query
        keys, value_width = key[2], value[3]
    else:
        heads, kv_heads = int(attributes.get("q_num_heads") or 1), int(attributes.get("kv_num_heads") or 1)
        batch, length, width = query[0], query[1], query[2] // heads
        keys, value_width = key[1], value[2] // kv_heads
    keys += past[2] if past else 0
    return 2.0 * batch * heads * length * keys * (width + value_width)
