"""Graphs held in arrays, joined to a batch: the disjoint union of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Any)

NUMBERED = ("pred", "succ", "group")
"""Fields of features and of arrays for rollouts that hold numbers of nodes."""


def disjoint_union(parts: Sequence[T], numbered: Sequence[str] = ()) -> T:
    """Return bundles of arrays of some graphs as one of all of them, in their order.

    Parameters
    ----------
    parts
        Bundles of one class, at least one. Fields whose names end in ``ptr`` are pointers, which go on counting; all
        have the pointers `pred_indptr` by node.
    numbered
        Fields that hold numbers of nodes, which are shifted; where numbers are those within the graph, none.
    """
    nodes = np.cumsum([0, *(len(part.pred_indptr) - 1 for part in parts)])

    def whole(name: str) -> NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        if name.endswith("ptr"):
            return np.cumsum(np.concatenate([[0], *map(np.diff, arrays)]), dtype=np.int64)
        if name in numbered:
            arrays = [array + first for array, first in zip(arrays, nodes[:-1], strict=True)]
        return np.concatenate(arrays)

    kind: type[T] = type(parts[0])
    union: T = kind(**{name: whole(name) for name in kind.__annotations__})
    return union
