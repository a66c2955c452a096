"""Sizes of the tensors of an exported program, its dynamic dimensions replaced by chosen numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from rlinit.errors import InvalidGraph

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class SizeTable:
    """Turns symbolic sizes into integers.

    Parameters
    ----------
    program
        Names the inputs whose dimensions are symbols, and the range of each symbol.
    batch
        Value of symbols that are the first dimension of an input; None: 1, or the least the program allows.
    dims
        ``"input[axis]"`` or ``"symbol"`` -> value.

    Raises
    ------
    InvalidGraph
        A symbol without a value, a value outside its range, or a key of `dims` that fits nothing.
    """

    def __init__(self, program: ExportedProgram, batch: int | None, dims: Mapping[str, int]) -> None:
        self.values: dict[Any, int] = {}
        self.where: dict[Any, str] = {}
        if batch is not None and batch < 1:
            raise InvalidGraph(f"batch is {batch}; expected an integer >= 1")
        open_keys = set(dims)
        user_inputs = set(program.graph_signature.user_inputs)
        firsts: list[int] = []
        for node in program.graph.nodes:
            value = node.meta.get("val")
            if node.op != "placeholder" or node.name not in user_inputs or not isinstance(value, torch.Tensor):
                continue
            firsts += [int(value.shape[0])] if value.dim() and isinstance(value.shape[0], int) else []
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                    symbol, label = size.node.expr, f"{node.name}[{axis}]"
                    self.where.setdefault(symbol, label)
                    given = next((dims[key] for key in (label, str(symbol)) if key in dims), None)
                    open_keys -= {label, str(symbol)}
                    least = self._least(program, symbol) if axis == 0 else None
                    chosen = given if given is not None else (batch or least if axis == 0 else None)
                    if chosen is not None and (symbol not in self.values or given is not None):
                        self.values[symbol] = self._checked(program, symbol, chosen, label)
        if open_keys:
            known = sorted(f"{label} ({symbol})" for symbol, label in self.where.items())
            raise InvalidGraph(
                f"dims names {sorted(open_keys)[0]!r}, which is no dynamic dimension; those are {known or 'none'}"
            )
        if batch is not None and not self.where and firsts and batch not in firsts:
            raise InvalidGraph(
                f"the program was exported for batch size {firsts[0]} and has no dynamic dimension; batch is {batch}. "
                "Export it with dynamic_shapes, or for that batch size"
            )

    def _least(self, program: ExportedProgram, symbol: Any) -> int:
        """Return the least size; a bound of 2 is what torch writes where none was given, and it runs 1 as well."""
        bounds = program.range_constraints.get(symbol)
        return int(bounds.lower) if bounds is not None and bounds.lower > 2 else 1

    def _checked(self, program: ExportedProgram, symbol: Any, value: int, label: str) -> int:
        bounds = program.range_constraints.get(symbol)
        if value < self._least(program, symbol) or (bounds is not None and value > bounds.upper):
            raise InvalidGraph(f"dimension {label} is {value}; the program allows {bounds or 'sizes from 1'}")
        return value

    def depends_on_data(self, value: Any) -> bool:
        """Whether a scalar is read out of a tensor."""
        return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and bool(free_unbacked_symbols(value))

    def size(self, value: Any, label: str) -> Any:
        """Return a size, or any other scalar, as a plain number; `label` names the node in messages.

        Parameters
        ----------
        value
            A number, or torch's symbol of one.
        label
            The node it belongs to, for messages.

        Raises
        ------
        InvalidGraph
            A dynamic dimension without a chosen value, or a size that depends on data.
        """
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expression = value.node.expr.subs(self.values)
        if not expression.free_symbols:
            return int(expression) if isinstance(value, torch.SymInt) else float(expression)
        if free_unbacked_symbols(value):
            raise InvalidGraph(
                f"node {label!r} has the size {value}, which depends on data (as nonzero and unique make); sizes must "
                "be known"
            )
        symbol = sorted(map(str, expression.free_symbols))[0]
        where = next((place for known, place in self.where.items() if str(known) == symbol), symbol)
        raise InvalidGraph(
            f"node {label!r} has the size {value}; choose a value for the dynamic dimension {where}: "
            f"dims={{{where!r}: ...}}"
        )

    def shape(self, tensor: torch.Tensor, label: str) -> list[int]:
        """Return the dimensions of a tensor.

        Parameters
        ----------
        tensor
            A tensor, fake ones as well.
        label
            The node it belongs to, for messages.
        """
        return [int(self.size(size, label)) for size in tensor.shape]


def dense_shape(tensor: torch.Tensor, sizes: SizeTable, label: str) -> list[int]:
    """Return the dimensions of a dense tensor.

    Parameters
    ----------
    tensor
        Of an exported program, with symbols among its sizes.
    sizes
        What the symbols stand for.
    label
        Names the node in messages.

    Raises
    ------
    InvalidGraph
        It is sparse, or has a size that is not known.
    """
    if tensor.layout != torch.strided:
        raise InvalidGraph(f"node {label!r} is a tensor of layout {tensor.layout}; expected a dense one")
    return sizes.shape(tensor, label)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    if isinstance(value, dict):
        return [tensor for entry in value.values() for tensor in tensors_of(entry)]
    return []
