"""Element types and shapes of the tensors of model files."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rlinit.errors import InvalidGraph
from rlinit.importers.common.precision import Precision

_ELEMENT = re.compile(r"(?:b?float|complex|u?int)(?P<bits>\d+)(?:[a-z]\w*)?|bool")
"""Names of element types whose size is known; ``float8e4m3fn`` is one of 8 bits."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's name, element type and dimensions; None: unknown.

    Sizes are counted packed: two 4-bit numbers to a byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.startswith(("float", "bfloat"))

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
        element = _ELEMENT.fullmatch(self.dtype)
        if element is None:
            raise InvalidGraph(f"tensor {self.name!r} holds {self.dtype}; expected numbers, whose size is known")
        count = math.prod(self.shape or ())
        return precision.bytes_of(count, int(element["bits"] or 8), is_float=self.is_float, is_weight=is_weight)

    @property
    def described(self) -> list[str | int]:
        """[type, dimension, ...]."""
        return [self.dtype, *(self.shape or ())]
