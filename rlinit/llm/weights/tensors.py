"""Tensors of a model, and how many bytes they take in a format with scales and zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from types import MappingProxyType

from rlinit.units import BITS


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix, or vectors, of a model.

    Parameters
    ----------
    name
        Path of its module in transformers, such as ``model.layers.3.self_attn.q_proj``, or its name in a GGUF file;
        of experts that of the first one.
    shape
        Outputs and inputs of a matrix, or the length of vectors that lie together.
    copies
        Experts, each with one of its own.
    num_bytes
        In the format it is kept in; 0 before one is chosen.
    """

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    num_bytes: int = 0

    @property
    def size(self) -> int:
        """Numbers stored."""
        return self.copies * prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether tokens are multiplied with it."""
        return len(self.shape) > 1


@dataclass(frozen=True, slots=True)
class Storage:
    """A format of weights: bits of a number, and what comes beside the numbers.

    Parameters
    ----------
    bits
        Of a number; of blocks that hold their scales, all bits of a block over its numbers.
    group
        Rows (outputs) and columns (inputs) of a matrix that share a scale and a zero; 0: all.
    group_bits
        Of the scale and the zero of a group.
    column_bits
        Of what is kept for each column of a matrix, such as its group.
    tensor_bytes
        Of what is kept once a matrix.
    """

    bits: float
    group: tuple[int, int] = (0, 0)
    group_bits: float = 0
    column_bits: int = 0
    tensor_bytes: int = 0

    def bytes_of(self, tensor: Tensor) -> int:
        """Return the bytes of a tensor in this format; vectors have no scales.

        Parameters
        ----------
        tensor
            Of any shape.
        """
        if not tensor.is_matrix:
            return ceil(tensor.size * self.bits / 8)
        rows, columns = tensor.shape
        groups = prod(-(-whole // (part or whole or 1)) for whole, part in zip(tensor.shape, self.group, strict=True))
        bits = rows * columns * self.bits + groups * self.group_bits + columns * self.column_bits
        return tensor.copies * (ceil(bits / 8) + self.tensor_bytes)


PLAIN: Mapping[str, Storage] = MappingProxyType({name: Storage(bits) for name, bits in BITS.items()})
"""Types of numbers without scales: ``int4`` is 4.0 bits."""
