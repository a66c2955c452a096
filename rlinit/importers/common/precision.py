"""In how many bits numbers are kept: those of the file, or others that a model is to be planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.units import BITS, PRECISION

NumberType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4"]
Dtype = NumberType | tuple[NumberType, NumberType] | None
"""What weights and activations are kept in, or each of the two; None: what the file says."""

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of weights and of activations; only floating-point tensors change, so that tokens stay integers.

    Sizes are packed: two numbers of four bits to a byte. What quantisation adds beside (scales, zero points) is not
    counted. Operations stay as they are; a device's rate for them is that of the wider of the two types.

    Parameters
    ----------
    weights, activations
        None: as the file says.
    """

    weights: NumberType | None = None
    activations: NumberType | None = None

    @classmethod
    def of(cls, dtype: Dtype) -> Precision:
        """Return the types that an importer's `dtype` stands for.

        Raises
        ------
        InvalidGraph
            It is none of the known types, and no pair of them.
        """
        pair: Sequence[object] = dtype if isinstance(dtype, (tuple, list)) else (dtype, dtype)
        known = get_args(NumberType)
        if len(pair) != 2 or not all(one is None or one in known for one in pair):
            raise InvalidGraph(
                f"dtype is {dtype!r}; expected one of {', '.join(known)}, or a pair of them for weights and activations"
            )
        return cls(*pair)  # type: ignore[arg-type]

    def bytes_of(self, count: int, bits: int, *, is_float: bool, is_weight: bool) -> int:
        """Return the bytes of a tensor.

        Parameters
        ----------
        count
            Numbers in it.
        bits
            Bits of each as the file has them.
        is_float
            Whether they are floating-point numbers, or what stands for them.
        is_weight
            Whether it is stored with the model.
        """
        chosen = self.weights if is_weight else self.activations
        return (count * (BITS[chosen] if chosen and is_float else bits) + 7) // 8

    def noted(self) -> dict[str, list[str | None]]:
        """Return the extra by which `precision_of` tells it; empty where everything is as in the file."""
        if self.weights is None and self.activations is None:
            return {}
        return {PRECISION: [self.weights, self.activations]}


def precision_of(graph: Graph) -> str:
    """Return what a graph's bytes stand for: the types that were chosen, or the usual type of its tensors."""
    for row in graph.extras.values():
        if PRECISION in row:
            weights, activations = (one or "as in the file" for one in row[PRECISION])
            return f"weights {weights}, activations {activations}"
    types = [str(output[0]) for row in graph.extras.values() for output in row.get("outputs", ()) if output]
    if not types:
        return "not said"
    usual = max(sorted(set(types)), key=types.count)
    return f"as in the file: mostly {_SHORT.get(usual, usual)}"


def rescaled(graph: Graph, dtype: Dtype, *, bits: int) -> Graph:
    """Return a graph whose numbers all have `bits` bits, for other types.

    Parameters
    ----------
    graph
        Bytes of parameters and outputs are those of `bits` bits a number.
    dtype
        What to keep them in; None: the graph as it is.
    bits
        See above.

    Raises
    ------
    InvalidGraph
        As for `Precision.of`.
    """
    chosen = Precision.of(dtype)
    if not chosen.noted():
        return graph
    weights, activations = (BITS[one] / bits if one else 1.0 for one in (chosen.weights, chosen.activations))
    extras = {i: {**graph.extras.get(i, {}), **chosen.noted()} for i in range(graph.num_ops)}
    return replace(
        graph,
        param_bytes=np.ceil(graph.param_bytes * weights),
        shared=tuple(replace(one, size_bytes=float(np.floor(one.size_bytes * weights))) for one in graph.shared),
        out_bytes=np.ceil(graph.out_bytes * activations),
        further=replace(graph.further, size_bytes=np.ceil(graph.further.size_bytes * activations)),
        extras=extras,
    )


def dtype_of(text: str | None) -> Dtype:
    """Return the types that the command line and plans write as one, or as weights/activations."""
    weights, _, activations = (text or "").partition("/")
    found: Any = (weights, activations) if activations else weights or None
    return found  # type: ignore[no-any-return]


def chosen_dtype(graph: Graph) -> str | None:
    """Return the types an importer was told to count a graph in, as the command line writes them; None: the file's."""
    for row in graph.extras.values():
        if PRECISION in row and None not in row[PRECISION]:
            return "/".join(dict.fromkeys(row[PRECISION]))
    return None
