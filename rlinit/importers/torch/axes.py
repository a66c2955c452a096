"""Which dimensions of what a call reads and makes belong together; `rlinit.stages.groups.layouts` splits ops by them.

What is noted of an op as ``axes`` is one of

===============================  ======================================================================================
``{"labels": [..., [...]]}``     a label of each dimension of each operand, then of its output. Of what dimensions of a
                                 label share out, each part of the output needs its part of the operands alone; a label
                                 that the output lacks is summed over. -1: all of the dimension is needed
``{"view": true}``               the elements in their order, in another shape
``{"parts": d}``                 outputs that follow each other along a dimension
``{"slice": [d, start]}``        one piece of a dimension
===============================  ======================================================================================

and as ``operands`` which op each operand is from, "" for parameters and constants, and its shape. ``units`` says into
how many equal parts a label falls at most: groups of channels, heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Node

Shape = tuple[int, ...]
Call = tuple[dict[str, Any], list[Shape], Shape]
"""Arguments by name, shapes of the operands, shape of the output."""

_PLAIN = frozenset({"dropout", "clone", "contiguous", "to", "_to_copy", "alias", "detach", "type_as", "gelu", "relu6"})
_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"})
_ALONG = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "sort", "topk", "argsort", "glu"})
_SUMS = frozenset({"sum", "mean", "amax", "amin"})
_POOLS = frozenset({"max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d"})
_POOLS |= {"adaptive_avg_pool2d", "adaptive_max_pool2d", "max_pool2d_with_indices", "upsample_bilinear2d"}
_POOLS |= {"upsample_nearest2d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"}
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution"})


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
    tags = getattr(node.target, "tags", ())
    rule = _RULES.get(name) or (_elementwise if name in _PLAIN or torch.Tag.pointwise in tags else None)
    call = (_arguments(node), list(operands), made)
    found = rule(call) if rule is not None else None
    return {"labels": found} if isinstance(found, list) else found


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by the names of its schema, those left out with their defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = {one.name: value for one, value in zip(schema, node.args, strict=False)}
    return {one.name: one.default_value for one in schema if one.has_default_value()} | given | dict(node.kwargs)


def _aligned(shapes: Sequence[Shape], made: Shape, whole: Sequence[int] = ()) -> list[list[int]]:
    """Return labels of operands that broadcast to the output, of which some dimensions are needed as a whole."""
    out = [-1 if d in whole else d for d in range(len(made))]
    rows = []
    for shape in shapes:
        at = len(made) - len(shape)
        rows.append([out[at + d] if at + d >= 0 and size == made[at + d] else -1 for d, size in enumerate(shape)])
    return [*rows, out]


def _elementwise(call: Call) -> list[list[int]]:
    return _aligned(call[1], call[2])


def _along(call: Call) -> list[list[int]]:
    args, shapes, made = call
    return _aligned(shapes[:1], made, [args.get("dim", -1) % max(1, len(made))])


def _normalised(call: Call) -> list[list[int]]:
    args, (shape, *others), made = call
    last = len(args.get("normalized_shape", [0]))
    rows = _aligned([shape], made, range(len(made) - last, len(made)))
    return [rows[0], *[[-1] * len(other) for other in others], rows[1]]


def _batch_norm(call: Call) -> list[list[int]]:
    _, (shape, *others), made = call
    rows = _aligned([shape], made)
    return [rows[0], *[[1] * len(other) for other in others], rows[1]]


def _group_norm(call: Call) -> dict[str, Any]:
    args, (shape, *others), made = call
    labels = [d if d < 2 else -1 for d in range(len(made))]
    return {"labels": [labels[: len(shape)], *[[1] * len(other) for other in others], labels], "units": {"1": args["num_groups"]}}


def _sums(call: Call) -> list[list[int]] | None:
    args, (shape, *_), made = call
    given = args.get("dim")
    dims = range(len(shape)) if given in (None, []) else [given] if isinstance(given, int) else given
    summed = {d % max(1, len(shape)) for d in dims}
    left = [d for d in range(len(shape)) if d not in summed]
    if args.get("keepdim"):
        left = [-1 if d in summed else d for d in range(len(shape))]
    return [list(range(len(shape))), left] if len(left) == len(made) else None


def _pooled(call: Call) -> list[list[int]]:
    _, (shape, *_), made = call
    spatial = len(made) - {1: 1, 2: 2, 3: 3}.get(len(made) - 2, len(made))
    labels = [d if d < spatial else -1 for d in range(len(made))]
    return [labels[: len(shape)], labels]


def _linear(call: Call) -> list[list[int]]:
    _, (shape, _, *bias), made = call
    n, k = len(made) - 1, len(made)
    return [[*range(len(shape) - 1), k], [n, k], *[[n] for _ in bias], list(range(len(made)))]


def _matmul(call: Call) -> list[list[int]] | None:
    _, (a, b, *_), made = call
    if len(a) < 2 or len(b) < 2:
        return None
    n, k = len(made) - 1, len(made)
    batch = _aligned([a[:-2], b[:-2]], made[:-2])
    return [[*batch[0], n - 1, k], [*batch[1], k, n], list(range(len(made)))]


def _add_matmul(call: Call) -> list[list[int]] | None:
    args, (bias, *others), made = call
    rows = _matmul((args, others, made))
    return None if rows is None else [_aligned([bias], made)[0], *rows]


def _einsum(call: Call) -> list[list[int]] | None:
    args, shapes, made = call
    left, arrow, right = str(args.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(shapes) or any(len(set(t)) < len(t) for t in (*terms, right)):
        return None
    letters = {letter: i for i, letter in enumerate(dict.fromkeys(left))}
    return [[letters[letter] for letter in term] for term in (*terms, right)]


def _grouped(call: Call) -> list[list[int]] | None:
    """Rows of a matrix by those of several, a run of rows each: experts."""
    _, (shape, weight, *others), made = call
    if len(shape) != 2 or len(weight) != 3 or len(made) != 2:
        return None
    return [[0, 2], [-1, 2, 1], *[[-1] * len(other) for other in others], [0, 1]]


def _convolution(call: Call) -> dict[str, Any] | None:
    args, (shape, weight, *bias), made = call
    groups, spatial = int(args.get("groups", 1)), [-1] * (len(made) - 2)
    if args.get("transposed") or len(shape) != len(made):
        return None
    apart, into = (1, -1) if groups > 1 else (2, 2)
    rows = [[0, apart, *spatial], [1, into, *spatial], *[[1] for _ in bias], [0, 1, *spatial]]
    return {"labels": rows, **({"units": {"1": groups}} if groups > 1 else {})}


def _embedding(call: Call) -> list[list[int]]:
    _, (_, indices, *_), made = call
    row = len(made)
    return [[row, len(made) - 1], list(range(len(indices))), list(range(len(made)))]


def _attention(call: Call) -> list[list[int]] | None:
    _, (q, k, v, *mask), made = call
    if len(made) != 4 or any(len(shape) != 4 for shape in (q, k, v)):
        return None
    masks = [[at if at in (0, 1) else -1 for at in row] for row in _aligned(mask, made)[:-1]]
    return [[0, 1, -1, -1], [0, 1, -1, -1], [0, 1, -1, -1], *masks, [0, 1, -1, -1]]


def _permuted(call: Call) -> list[list[int]] | None:
    args, (shape, *_), _ = call
    n = len(shape)
    order = list(range(n))
    if "dims" in args:
        order = [int(d) % n for d in args["dims"]]
    elif n >= 2:
        one, other = int(args.get("dim0", -1)) % n, int(args.get("dim1", -2)) % n
        order[one], order[other] = order[other], order[one]
    return [list(range(n)), order] if len(order) == n else None


def _pieces(call: Call) -> dict[str, Any]:
    args, (shape, *_), _ = call
    return {"parts": int(args.get("dim", 0)) % len(shape)}


def _slice(call: Call) -> dict[str, Any] | None:
    args, (shape, *_), _ = call
    d = int(args.get("dim", 0)) % len(shape)
    start = args.get("start") or 0
    if args.get("step", 1) != 1 or not isinstance(start, int):
        return None
    return {"slice": [d, max(0, start + shape[d]) if start < 0 else min(start, shape[d])]}


def _without(call: Call) -> list[list[int]]:
    """A dimension goes: one place of it, or each by itself."""
    args, (shape, *others), _ = call
    d = int(args.get("dim", 0)) % len(shape)
    labels = [-1 if at == d else at for at in range(len(shape))]
    return [labels, *[[-1] * len(other) for other in others], labels[:d] + labels[d + 1 :]]


def _joined(call: Call) -> list[list[int]]:
    args, shapes, made = call
    d = int(args.get("dim", 0)) % len(made)
    labels = [-1 if at == d else at for at in range(len(made))]
    return [*[labels] * len(shapes), labels]


def _stacked(call: Call) -> list[list[int]]:
    args, shapes, made = call
    d = int(args.get("dim", 0)) % len(made)
    labels = [-1 if at == d else at for at in range(len(made))]
    return [*[labels[:d] + labels[d + 1 :]] * len(shapes), labels]


_RULES: dict[str, Callable[[Call], list[list[int]] | dict[str, Any] | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _add_matmul,
    "baddbmm": _add_matmul,
    "einsum": _einsum,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "layer_norm": _normalised,
    "native_layer_norm": _normalised,
    "rms_norm": _normalised,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "permute": _permuted,
    "transpose": _permuted,
    "t": _permuted,
    "mT": _permuted,
    "expand": _elementwise,
    "slice": _slice,
    "select": _without,
    "unbind": _without,
    "cat": _joined,
    "concat": _joined,
    "stack": _stacked,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _pieces),
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(_SUMS, _sums),
    **dict.fromkeys(_POOLS, _pooled),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
}
"""Name of a call -> its labels, or what else is noted."""
