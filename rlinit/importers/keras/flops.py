"""Arithmetic of a Keras layer for one sample, counted from its weights and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlinit.errors import InvalidGraph

_MOVES_DATA = (
    *("InputLayer", "Reshape", "Flatten", "Permute", "RepeatVector", "Concatenate", "Masking", "Embedding", "Identity"),
    *("ZeroPadding", "Cropping", "UpSampling", "Dropout", "SpatialDropout", "AlphaDropout", "Gaussian", "Activity"),
)
"""What names of layers that compute nothing at inference begin with."""

_MERGES = frozenset({"Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"})
_TWO_AN_ELEMENT = frozenset({"BatchNormalization", "Normalization", "Rescaling"})


def layer_flops(layer: Any, in_elements: Sequence[int], out_elements: int) -> float:
    """Return the floating-point operations of one call of a layer on one sample; a multiply-add counts as two.

    =================================  =========================================================================
    layer                              operations (E: output elements, I: input elements, W: weights in a kernel)
    =================================  =========================================================================
    Conv                               2 E (W / filters), grouped convolutions included
    ConvTranspose                      2 I (W / input channels)
    DepthwiseConv                      2 E (window elements)
    SeparableConv                      2 (E / filters) W of the depthwise kernel + 2 E (W of the pointwise / filters)
    Dense                              2 E (input features)
    a bias, a fused activation         E each, on top of the five above
    MaxPooling, AveragePooling         E (window elements)
    Global pooling                     I
    BatchNormalization, Normalization  2 E, a scale and a shift at inference; Rescaling too
    Add, Multiply and other merges     (inputs - 1) E
    what only moves data               0 (inputs, reshaping, padding, cropping, concatenation, dropout, embedding)
    anything else                      E (activations and other elementwise layers; a guess for the rest)
    =================================  =========================================================================

    Parameters
    ----------
    layer
        A built Keras layer or operation.
    in_elements
        Elements of each input tensor.
    out_elements
        Elements of the output.

    Raises
    ------
    InvalidGraph
        A layer with a kernel that is not built.
    """
    kind = type(layer).__name__
    if kind.startswith(_MOVES_DATA):
        return 0.0
    if kind in _MERGES:
        return float((len(in_elements) - 1) * out_elements)
    if kind in _TWO_AN_ELEMENT:
        return 2.0 * out_elements
    if "Global" in kind and "Pooling" in kind:
        return float(sum(in_elements))
    if "Pooling" in kind and hasattr(layer, "pool_size"):
        return float(out_elements * math.prod(layer.pool_size))
    multiply_adds = _multiply_adds(layer, kind, sum(in_elements), out_elements)
    if multiply_adds is None:
        return float(out_elements)
    extra = int(getattr(layer, "bias", None) is not None) + int(_has_activation(layer))
    return 2.0 * multiply_adds + extra * out_elements


def _has_activation(layer: Any) -> bool:
    activation = getattr(layer, "activation", None)
    return activation is not None and getattr(activation, "__name__", "") != "linear"


def _multiply_adds(layer: Any, kind: str, in_elements: int, out_elements: int) -> float | None:
    """Return the multiply-adds of a layer with a kernel, None where the layer is none that is known."""
    if kind.startswith("SeparableConv"):
        depthwise, pointwise = _kernel(layer, "depthwise_kernel"), _kernel(layer, "pointwise_kernel")
        return float(out_elements / pointwise[-1] * math.prod(depthwise) + out_elements * pointwise[-2])
    if kind.startswith("DepthwiseConv"):
        return float(out_elements * math.prod(_kernel(layer)[:-2]))
    if kind.startswith("Conv") and kind.endswith("Transpose"):
        return float(in_elements * math.prod(_kernel(layer)[:-1]))
    if kind in ("Conv1D", "Conv2D", "Conv3D"):
        return float(out_elements * math.prod(_kernel(layer)[:-1]))
    if kind == "Dense":
        return float(out_elements * _kernel(layer)[0])
    return None


def _kernel(layer: Any, name: str = "kernel") -> tuple[int, ...]:
    """Return the shape of a kernel; InvalidGraph where the layer has none."""
    shape = tuple(getattr(getattr(layer, name, None), "shape", ()))
    if len(shape) < 2 or 0 in shape:
        raise InvalidGraph(
            f"layer {layer.name!r} ({type(layer).__name__}) has no {name} to count the operations of; expected a "
            "layer that is built"
        )
    return shape
