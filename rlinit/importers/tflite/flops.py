"""Arithmetic of a TensorFlow Lite operator, from the shapes of its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]
_LSTM = (*range(1, 9), 16)
_RECURRENT = {
    "LSTM": _LSTM,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _LSTM,
    "BIDIRECTIONAL_SEQUENCE_LSTM": (*_LSTM, *range(18, 26), 33),
    "RNN": (1, 2),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (1, 2),
    "BIDIRECTIONAL_SEQUENCE_RNN": (1, 2, 5, 6),
    "SVDF": (1, 2),
}
"""Where the weight matrices are among the inputs."""


def operator_flops(
    kind: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None], *, is_left_transposed: bool = False
) -> float:
    """Return the operations of one operator; a multiply-add counts as two, operators not in the table count none.

    ====================  ======================================================================
    operator              operations (E: output elements, W: the weight's shape, X: the input's)
    ====================  ======================================================================
    CONV_2D               2 E prod(W[1:]), which has the groups in it
    CONV_3D               2 E prod(W[:-1])
    DEPTHWISE_CONV_2D     2 E W[1] W[2]
    TRANSPOSE_CONV        2 prod(X) prod(W[:-1])
    FULLY_CONNECTED       2 E W[-1]
    BATCH_MATMUL          2 E (the left operand's inner size)
    LSTM, RNN, SVDF       2 (steps) (elements of all weight matrices)
    ====================  ======================================================================

    Parameters
    ----------
    kind
        Name of the builtin operator.
    inputs, outputs
        Shapes; None where an optional tensor is absent.
    is_left_transposed
        BATCH_MATMUL: the left operand is stored transposed.
    """
    made = math.prod(outputs[0]) if outputs and outputs[0] is not None else 0
    first = inputs[0] if inputs else None
    weight = inputs[1] if len(inputs) > 1 else None
    if first is None or weight is None:
        return 0.0
    if kind == "CONV_2D":
        return 2.0 * made * math.prod(weight[1:])
    if kind == "CONV_3D":
        return 2.0 * made * math.prod(weight[:-1])
    if kind == "DEPTHWISE_CONV_2D" and len(weight) == 4:
        return 2.0 * made * weight[1] * weight[2]
    if kind == "TRANSPOSE_CONV" and len(inputs) > 2 and inputs[2] is not None:
        return 2.0 * math.prod(inputs[2]) * math.prod(weight[:-1])
    if kind == "FULLY_CONNECTED" and weight:
        return 2.0 * made * weight[-1]
    if kind == "BATCH_MATMUL" and len(first) > 1:
        return 2.0 * made * first[-2 if is_left_transposed else -1]
    if kind in _RECURRENT:
        matrices = [inputs[place] for place in _RECURRENT[kind] if place < len(inputs)]
        weights = [math.prod(shape) for shape in matrices if shape is not None]
        return 2.0 * math.prod(first[:-1]) * float(sum(weights))
    return 0.0
