"""Calls of ATen ops by the axes that they have: see `rlinit.importers.common.axes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlinit.importers.common import axes
from rlinit.importers.common.axes import Labels, Shape

if TYPE_CHECKING:
    from torch.fx import Node

Found = Labels | dict[str, Any] | None
Rule = Callable[[dict[str, Any], list[Shape], Shape], Found]
"""From arguments by name, shapes of operands and of the output."""

_PLAIN = frozenset({"dropout", "clone", "contiguous", "to", "_to_copy", "alias", "detach", "type_as", "gelu", "expand"})
_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"})


def axes_of(node: Node, operands: Sequence[Shape], made: Shape) -> dict[str, Any] | None:
    """Return what is noted of a call as ``axes``; None where nothing is known of it.

    Parameters
    ----------
    node
        The call.
    operands
        Shapes of the tensors among its arguments, in their order.
    made
        Shape of its first output.
    """
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    if name in _VIEWS:
        return {"view": True}
    rule = _RULES.get(name)
    if rule is None and (name in _PLAIN or torch.Tag.pointwise in getattr(node.target, "tags", ())):
        rule = _elementwise
    found = rule(_arguments(node), list(operands), made) if rule is not None and operands else None
    return {"labels": found} if isinstance(found, list) else found


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by the names of its schema, those left out with their defaults."""
    schema = getattr(getattr(node.target, "_schema", None), "arguments", ())
    given = {one.name: value for one, value in zip(schema, node.args, strict=False)}
    return {one.name: one.default_value for one in schema if one.has_default_value()} | given | dict(node.kwargs)


def _elementwise(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.aligned(shapes, made)


def _along(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.aligned(shapes[:1], made, [args.get("dim", -1)]) if len(shapes) == 1 else None


def _layer_norm(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.normalised(shapes, made, len(args["normalized_shape"]))


def _batch_norm(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    rows = axes.by_channel(shapes, made, len(made))
    if args.get("training"):  # over the batch as well
        rows = [[label if label == 1 else -1 for label in row] for row in rows]
    return rows


def _group_norm(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return {"labels": axes.by_channel(shapes, made), "units": {"1": int(args["num_groups"])}}


def _sum(args: dict[str, Any], shapes: list[Shape], made: Shape, *, adds: bool = True) -> Found:
    dims = args.get("dim")
    dims = range(len(shapes[0])) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
    return axes.reduced(shapes[0], made, dims, keep=bool(args.get("keepdim")), adds=adds)


def _largest(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return _sum(args, shapes, made, adds=False)


def _pooled(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.pooled(shapes, made)


def _linear(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.linear(shapes, made)


def _matmul(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.matmul(shapes, made)


def _added_matmul(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    added, *others = shapes
    rows = axes.matmul([*others, added], made)
    return None if rows is None else [rows[2], *rows[:2], rows[3]]


def _grouped(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.grouped_matmul(shapes, made)


def _einsum(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.einsum(str(args.get("equation", "")), shapes)


def _convolution(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    if args.get("transposed") or len(shapes[0]) != len(made):
        return None
    return axes.convolution(shapes, made, int(args.get("groups", 1)))


def _embedding(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.lookup(shapes[1], made)


def _attention(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.attention(shapes, made)


def _permuted(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    n = len(shapes[0])
    order = list(range(n))
    if "dims" in args:
        order = [int(d) for d in args["dims"]]
    elif n >= 2:
        one, other = int(args.get("dim0", -1)) % n, int(args.get("dim1", -2)) % n
        order[one], order[other] = order[other], order[one]
    return axes.permuted(order) if len(order) == n else None


def _pieces(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return {"parts": int(args.get("dim", 0)) % len(shapes[0])}


def _slice(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    start = args.get("start") or 0
    plain = args.get("step", 1) == 1 and isinstance(start, int)
    return axes.sliced(shapes[0], int(args.get("dim", 0)), start) if plain else None


def _without(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.without(shapes, int(args.get("dim", 0)))


def _joined(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.joined(len(shapes), made, int(args.get("dim", 0)), new=False)


def _stacked(args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    return axes.joined(len(shapes), made, int(args.get("dim", 0)), new=True)


_NAMES: dict[Rule, str] = {
    _linear: "linear",
    _matmul: "matmul mm bmm",
    _added_matmul: "addmm baddbmm",
    _grouped: "_grouped_mm grouped_mm_fallback",
    _einsum: "einsum",
    _convolution: "conv1d conv2d conv3d convolution",
    _embedding: "embedding",
    _attention: "scaled_dot_product_attention",
    _layer_norm: "layer_norm rms_norm",
    _batch_norm: "batch_norm",
    _group_norm: "group_norm",
    _along: "softmax _softmax log_softmax _log_softmax cumsum sort topk argsort",
    _sum: "sum mean",
    _largest: "amax amin all any",
    _pooled: "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d "
    "upsample_bilinear2d upsample_nearest2d",
    _permuted: "permute transpose t mT",
    _pieces: "split split_with_sizes chunk tensor_split",
    _slice: "slice",
    _without: "select unbind",
    _joined: "cat concat",
    _stacked: "stack",
}
_RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
