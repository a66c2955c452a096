"""Calls of ATen ops by the axes that they have: see `rlinit.importers.common.axes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlinit.importers.common import axes
from rlinit.importers.common.axes import Labels, Shape

if TYPE_CHECKING:
    from torch.fx import Node

Found = Labels | dict[str, Any] | None

_PLAIN = frozenset({"dropout", "clone", "contiguous", "to", "_to_copy", "alias", "detach", "type_as", "gelu", "expand"})
_ALONG = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "sort", "topk", "argsort"})
_POOLS = frozenset(
    {"max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"}
    | {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d"}
    | {"upsample_bilinear2d", "upsample_nearest2d"}
)
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
    if not operands:
        return None
    given, shapes = _arguments(node), list(operands)
    found = (
        _normed(name, given, shapes, made) or _product(name, given, shapes, made) or _moved(name, given, shapes, made)
    )
    if found is None and (name in _PLAIN or torch.Tag.pointwise in getattr(node.target, "tags", ())):
        found = axes.aligned(shapes, made)
    return {"labels": found} if isinstance(found, list) else found


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by the names of its schema, those left out with their defaults."""
    schema = getattr(getattr(node.target, "_schema", None), "arguments", ())
    given = {one.name: value for one, value in zip(schema, node.args, strict=False)}
    return {one.name: one.default_value for one in schema if one.has_default_value()} | given | dict(node.kwargs)


def _normed(name: str, args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    """Return what is noted of norms, reductions and pools, and of ops along a dimension."""
    if name in _ALONG:
        return axes.aligned(shapes, made, [args.get("dim", -1)]) if len(shapes) == 1 else None
    if name in ("layer_norm", "rms_norm"):
        return axes.normalised(shapes, made, len(args["normalized_shape"]))
    if name == "batch_norm":
        rows = axes.by_channel(shapes, made, len(made))
        over_batch = bool(args.get("training"))
        return [[label if label == 1 or not over_batch else -1 for label in row] for row in rows]
    if name == "group_norm":
        return {"labels": axes.by_channel(shapes, made), "units": {"1": int(args["num_groups"])}}
    if name in ("sum", "mean", "amax", "amin", "all", "any"):
        dims = args.get("dim")
        dims = range(len(shapes[0])) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        return axes.reduced(shapes[0], made, dims, keep=bool(args.get("keepdim")), adds=name in ("sum", "mean"))
    return axes.pooled(shapes, made) if name in _POOLS else None


def _product(name: str, args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    if name == "linear":
        return axes.linear(shapes, made)
    if name in ("matmul", "mm", "bmm"):
        return axes.matmul(shapes, made)
    if name in ("addmm", "baddbmm"):
        added, *others = shapes
        rows = axes.matmul([*others, added], made)
        return None if rows is None else [rows[2], *rows[:2], rows[3]]
    if name in ("_grouped_mm", "grouped_mm_fallback"):
        return axes.grouped_matmul(shapes, made)
    if name == "einsum":
        return axes.einsum(str(args.get("equation", "")), shapes)
    if name in ("conv1d", "conv2d", "conv3d", "convolution"):
        plain = not args.get("transposed") and len(shapes[0]) == len(made)
        return axes.convolution(shapes, made, int(args.get("groups", 1))) if plain else None
    if name == "embedding":
        return axes.lookup(shapes[1], made)
    return axes.attention(shapes, made) if name == "scaled_dot_product_attention" else None


def _moved(name: str, args: dict[str, Any], shapes: list[Shape], made: Shape) -> Found:
    n, dim = len(shapes[0]), args.get("dim", 0)
    if name in ("permute", "transpose", "t", "mT"):
        order = list(range(n))
        if "dims" in args:
            order = [int(d) for d in args["dims"]]
        elif n >= 2:
            one, other = int(args.get("dim0", -1)) % n, int(args.get("dim1", -2)) % n
            order[one], order[other] = order[other], order[one]
        return axes.permuted(order) if len(order) == n else None
    if name in ("split", "split_with_sizes", "chunk", "tensor_split"):
        return {"parts": int(dim) % n}
    if name == "slice":
        start = args.get("start") or 0
        plain = args.get("step", 1) == 1 and isinstance(start, int)
        return axes.sliced(shapes[0], int(dim), start) if plain else None
    if name in ("select", "unbind"):
        return axes.without(shapes, int(dim))
    joins = name in ("cat", "concat", "stack")
    return axes.joined(len(shapes), made, int(dim), new=name == "stack") if joins else None
