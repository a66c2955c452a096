"""Element types and shapes of the tensors of model files."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlinit.errors import InvalidGraph
from rlinit.importers.common.precision import Precision

_BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8e4m3fn": 8,
    "float8e4m3fnuz": 8,
    "float8e5m2": 8,
    "float8e5m2fnuz": 8,
    "float8e8m0": 8,
    "float4e2m1": 4,
    "complex128": 128,
    "complex64": 64,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "int2": 2,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "uint4": 4,
    "uint2": 2,
    "bool": 8,
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's name, element type and dimensions; None: unknown.

    Sizes are counted packed: two 4-bit numbers to a byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements; InvalidGraph for element types without a fixed size (strings, sequences)."""
        return self.bytes_in(Precision(), is_weight=False)

    def bytes_in(self, precision: Precision, *, is_weight: bool) -> int:
        """Return the bytes of its elements where numbers are kept as `precision` says.

        Parameters
        ----------
        precision
            Number types of weights and of activations; None keeps that of the file.
        is_weight
            Whether the tensor is a parameter.

        Raises
        ------
        InvalidGraph
            Elements without a fixed size (strings, sequences).
        """
        if self.dtype not in _BITS:
            raise InvalidGraph(f"tensor {self.name!r} holds {self.dtype}; expected numbers, whose size is known")
        is_float = self.dtype.startswith(("float", "bfloat"))
        count = math.prod(self.shape or ())
        return precision.bytes_of(count, _BITS[self.dtype], is_float=is_float, is_weight=is_weight)

    @property
    def described(self) -> list[str | int]:
        """[type, dimension, ...]."""
        return [self.dtype, *(self.shape or ())]
