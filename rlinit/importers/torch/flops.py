"""Arithmetic of an ATen op by torch's own formulas, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COUNTED = frozenset(
    {
        "_convolution",
        "_native_multi_head_attention",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_mm",
        "_transformer_encoder_layer_fwd",
        "addbmm",
        "addmm",
        "addmv",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "conv_tbc",
        "convolution",
        "dot",
        "einsum",
        "gru",
        "gru_cell",
        "inner",
        "linalg_multi_dot",
        "linear",
        "lstm",
        "lstm_cell",
        "matmul",
        "mm",
        "mv",
        "rnn_relu",
        "rnn_relu_cell",
        "rnn_tanh",
        "rnn_tanh_cell",
        "scaled_dot_product_attention",
        "tensordot",
    }
)
"""ATen ops that multiply matrices; every other op counts no operations, as in `torch.utils.flop_counter`."""


_GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback"})
"""Products of experts, in torch and in transformers, which torch has no formula for."""


def _dot(a: Sequence[int], _b: Sequence[int], *_: object, out_shape: object = None, **__: object) -> int:
    return 2 * a[0]


def _mv(a: Sequence[int], _b: Sequence[int], *_: object, out_shape: object = None, **__: object) -> int:
    return 2 * a[0] * a[1]


def _addmv(_c: object, a: Sequence[int], _b: object, *_: object, out_shape: object = None, **__: object) -> int:
    return 2 * a[0] * a[1]


class FlopTable:
    """Counts the operations of ops on tensors of given shapes, each combination once.

    An op is called on tensors without storage (the ``meta`` device) under `torch.utils.flop_counter`, whose formulas
    are those of `flop_registry`; composite ops (linear, einsum, attention, recurrent cells) are taken apart by
    torch itself. Matrix-vector and dot products, which torch leaves out, count two an element too.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[object, float] = {}

    @staticmethod
    def counts(target: Any) -> bool:
        """Whether an op multiplies matrices; all others have no operations."""
        packet = getattr(target, "overloadpacket", None)
        if packet is None:
            return False
        return (target.namespace == "aten" and packet.__name__ in _COUNTED) or packet.__name__ in _GROUPED

    def count(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
        """Return the floating-point operations of one call; a multiply-add counts as two.

        Parameters
        ----------
        target
            An `OpOverload`.
        args, kwargs
            Its arguments, tensors as tensors on the meta device.
        """
        if not self.counts(target):
            return 0.0
        key = (target, _signature(args), _signature(tuple(sorted(kwargs.items()))))
        if key not in self._known:
            grouped = target.overloadpacket.__name__ in _GROUPED
            self._known[key] = _grouped_mm(*args[:2]) if grouped else _count(target, args, kwargs)
        return self._known[key]


def _grouped_mm(a: Any, b: Any) -> float:
    """Return the operations of rows times the matrix of the group that each row is of: (R, K) and (G, K, N)."""
    return float(2 * math.prod(a.shape) * b.shape[-1])


def _signature(value: Any) -> object:
    """Return something hashable that tells two calls of different cost apart."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (tuple(value.shape), str(value.dtype))
    if isinstance(value, (list, tuple)):
        return tuple(_signature(entry) for entry in value)
    return repr(value)


def _count(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    own = {aten.dot: _dot, aten.mv: _mv, aten.addmv: _addmv}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=own) as counter:
        target(*args, **kwargs)
    return float(counter.get_total_flops())
