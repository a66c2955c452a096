"""Which dimensions of what an op reads and makes belong together; `rlinit.stages.groups.layouts` splits ops by them.

What is noted of an op as ``axes`` is one of

===============================  ======================================================================================
``{"labels": [..., [...]]}``     a label of each dimension of each operand, then of its output. Each piece of a label's
                                 dimension in the output needs the same piece of the operands alone; a label that the
                                 output lacks is summed over. -1: all of the dimension is needed
``{"view": true}``               the elements in their order, in another shape
``{"parts": d}``                 outputs that follow each other along a dimension
``{"slice": [d, start]}``        one piece of a dimension
===============================  ======================================================================================

and as ``operands`` which op each operand is from, "" for parameters and constants, and its shape. ``units`` says of a
label into how many equal parts it falls at most: groups of channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Shape = tuple[int, ...]
Labels = list[list[int]]


def aligned(shapes: Sequence[Shape], made: Shape, whole: Iterable[int] = ()) -> Labels:
    """Return labels of operands that broadcast to the output.

    Parameters
    ----------
    shapes, made
        Of the operands and the output.
    whole
        Dimensions of the output of which all is needed; negative ones count from the last.
    """
    needed = {d % max(1, len(made)) for d in whole}
    out = [-1 if d in needed else d for d in range(len(made))]
    rows = []
    for shape in shapes:
        at = len(made) - len(shape)
        rows.append([out[at + d] if at + d >= 0 and size == made[at + d] else -1 for d, size in enumerate(shape)])
    return [*rows, out]


def by_channel(shapes: Sequence[Shape], made: Shape, kept: int = 2) -> Labels:
    """Return labels of an op that works on each channel, the second dimension, with numbers of the channel.

    Parameters
    ----------
    shapes, made
        Of the tensor, of numbers by channel, and of the output.
    kept
        How many leading dimensions are independent.
    """
    labels = [d if d < kept else -1 for d in range(len(made))]
    return [labels[: len(shapes[0])], *[[1] * len(other) for other in shapes[1:]], labels]


def normalised(shapes: Sequence[Shape], made: Shape, last: int) -> Labels:
    """Return labels of a norm over the last dimensions, with numbers for each place of those.

    Parameters
    ----------
    shapes, made
        As for `by_channel`.
    last
        How many dimensions.
    """
    tensor, out = aligned(shapes[:1], made, range(len(made) - last, len(made)))
    return [tensor, *[[-1] * len(other) for other in shapes[1:]], out]


def reduced(shape: Shape, made: Shape, dims: Iterable[int], *, keep: bool, adds: bool) -> Labels | None:
    """Return labels of what dimensions are reduced to.

    Parameters
    ----------
    shape, made
        Of tensor and output.
    dims
        What goes.
    keep
        Whether the output keeps dimensions of size one there.
    adds
        Whether results of pieces add up, as those of sums and means do; else all of a dimension that goes is needed.
    """
    gone = {d % max(1, len(shape)) for d in dims}
    left = [-1 if d in gone else d for d in range(len(shape)) if keep or d not in gone]
    read = [d if adds or d not in gone else -1 for d in range(len(shape))]
    return [read, left] if len(left) == len(made) else None


def pooled(shapes: Sequence[Shape], made: Shape) -> Labels:
    """Return labels of an op that mixes the dimensions behind the channel.

    Parameters
    ----------
    shapes, made
        As for `by_channel`.
    """
    labels = [d if d < 2 and len(made) > 2 else -1 for d in range(len(made))]
    return [labels[: len(shapes[0])], *[[-1] * len(other) for other in shapes[1:]], labels]


def linear(shapes: Sequence[Shape], made: Shape) -> Labels:
    """Return labels of a product with the transpose of a matrix, and a bias.

    Parameters
    ----------
    shapes, made
        Of input, matrix and, where there is one, bias, and of the output.
    """
    n, k = len(made) - 1, len(made)
    return [[*range(n), k], [n, k], *[[n] for _ in shapes[2:]], list(range(len(made)))]


def matmul(shapes: Sequence[Shape], made: Shape, *, turned: tuple[bool, bool] = (False, False)) -> Labels | None:
    """Return labels of a product of matrices, or batches of them; of what is added to it as well.

    Parameters
    ----------
    shapes, made
        Of both factors and what is added, and of the output.
    turned
        Which factors are transposed.
    """
    a, b, *added = shapes
    if len(a) < 2 or len(b) < 2 or len(made) < 2:
        return None
    n, k = len(made) - 1, len(made)
    batch = aligned([a[:-2], b[:-2]], made[:-2])
    ends = [[n - 1, k][:: -1 if turned[0] else 1], [k, n][:: -1 if turned[1] else 1]]
    others = [aligned([shape], made)[0] for shape in added]
    return [[*batch[0], *ends[0]], [*batch[1], *ends[1]], *others, list(range(len(made)))]


def grouped_matmul(shapes: Sequence[Shape], made: Shape) -> Labels | None:
    """Return labels of a product of runs of rows, each by a matrix of its own: experts.

    Parameters
    ----------
    shapes, made
        Of rows, matrices and what says where runs end, and of the output.
    """
    if [len(shape) for shape in (*shapes[:2], made)] != [2, 3, 2]:
        return None
    return [[0, 2], [-1, 2, 1], *[[-1] * len(other) for other in shapes[2:]], [0, 1]]


def einsum(equation: str, shapes: Sequence[Shape]) -> Labels | None:
    """Return labels of a sum of products.

    Parameters
    ----------
    equation
        As of NumPy's einsum, with its output.
    shapes
        Of the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(shapes) or any(len(set(t)) < len(t) for t in (*terms, right)):
        return None
    letters = {letter: i for i, letter in enumerate(dict.fromkeys(left))}
    return [[letters[letter] for letter in term] for term in (*terms, right)]


def convolution(shapes: Sequence[Shape], made: Shape, groups: int) -> dict[str, Any]:
    """Return what is noted of a convolution.

    Parameters
    ----------
    shapes, made
        Of input (batch, channels, ...), weight (out, in, ...) and, where there is one, bias, and of the output.
    groups
        Of channels.
    """
    spatial = [-1] * (len(made) - 2)
    apart, into = (1, -1) if groups > 1 else (2, 2)
    rows = [[0, apart, *spatial], [1, into, *spatial], *[[1] for _ in shapes[2:]], [0, 1, *spatial]]
    return {"labels": rows, **({"units": {"1": groups}} if groups > 1 else {})}


def lookup(indices: Shape, made: Shape) -> Labels:
    """Return labels of rows of a table by their numbers.

    Parameters
    ----------
    indices, made
        Shapes of the numbers and of the output.
    """
    row = len(made)
    return [[row, len(made) - 1], list(range(len(indices))), list(range(len(made)))]


def attention(shapes: Sequence[Shape], made: Shape) -> Labels | None:
    """Return labels of attention of (batch, heads, length, width), where keys and values may have fewer heads.

    Parameters
    ----------
    shapes, made
        Of queries, keys, values and masks, and of the output.
    """
    if any(len(shape) != 4 for shape in (*shapes[:3], made)):
        return None
    masks = [[at if at in (0, 1) else -1 for at in row] for row in aligned(shapes[3:], made)[:-1]]
    return [*[[0, 1, -1, -1] for _ in range(3)], *masks, [0, 1, -1, -1]]


def permuted(order: Sequence[int]) -> Labels:
    """Return labels of a tensor whose dimensions come in another order.

    Parameters
    ----------
    order
        Of the tensor's dimensions.
    """
    return [list(range(len(order))), [d % len(order) for d in order]]


def without(shapes: Sequence[Shape], dim: int) -> Labels:
    """Return labels of one place of a dimension, or of all its places one by one.

    Parameters
    ----------
    shapes
        Of the tensor, and what says which place.
    dim
        The dimension that goes.
    """
    d = dim % len(shapes[0])
    labels = [-1 if at == d else at for at in range(len(shapes[0]))]
    return [labels, *[[-1] * len(other) for other in shapes[1:]], labels[:d] + labels[d + 1 :]]


def joined(count: int, made: Shape, dim: int, *, new: bool) -> Labels:
    """Return labels of tensors that follow each other along a dimension.

    Parameters
    ----------
    count
        How many tensors.
    made, dim
        Shape of the output, and its dimension.
    new
        Whether the tensors lack it.
    """
    d = dim % len(made)
    labels = [-1 if at == d else at for at in range(len(made))]
    return [*[labels[:d] + labels[d + 1 :] if new else labels] * count, labels]


def sliced(shape: Shape, dim: int, start: int) -> dict[str, Any]:
    """Return what is noted of one piece of a dimension.

    Parameters
    ----------
    shape, dim
        Of the tensor, and the dimension.
    start
        Where the piece begins; negative ones count from the end.
    """
    d = dim % len(shape)
    return {"slice": [d, max(0, start + shape[d]) if start < 0 else min(start, shape[d])]}
