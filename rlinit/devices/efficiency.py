"""What ops of a class reach of a device's peak rates, by their size.

The roofline model of a device with efficiencies: an op of f operations that moves b bytes takes

    max(F(f) / flops_per_s, B(b) / bytes_per_s, k depth_s) + launch_s

where a product has k numbers in its inner dimension, which each part of the result goes through one after another, and
F(f) is what f operations count as: f / share at the sizes that `Efficiency.flops` gives a share for, linear
between them. So small ops may pay more for an operation than large ones (wave quantisation, half-performance length),
or less for a byte (caches).

References
----------
Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. Hockney: the half-performance length of
(r_inf, n_half), in Parallel Computers, 1981; a piecewise linear time generalises it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.errors import InvalidHardware
from rlinit.limits import MAX_TERMS, check_number, closest

_CLASSES = {
    "experts": r"moe|experts|grouped_mm",
    "generation": r"paged_attention|decode_attention|generation",
    "convolution": r"conv(?!ert)",
    "attention": r"attention|sdpa",
    "matmul": r"matmul|gemm|(^|_)linear|dense|(^|_)(add|b|badd|addb)?mm(_|$)|(^|_)(add)?mv(_|$)|(^|_)dot(_|$)"
    r"|einsum|tensordot|fully_connected|lstm|gru|rnn",
    "pooling": r"pool",
    "transcendental": r"softmax|gelu|silu|swish|(^|_)(tanh|sigmoid|exp|erf|pow|sin|cos|log|softplus|mish|elu)(_|$)",
    "normalisation": r"norm|reduce|cumsum|(^|_)(mean|sum|amax|amin|var|std|argmax|topk|sort)(_|$)",
    "lookup": r"embedding|gather|index|scatter|lookup",
}
"""Class -> what is searched for in an op's kind, in lower case with ``_`` for all but letters; the first one wins."""

OP_CLASSES = (*_CLASSES, "elementwise")
"""Classes of ops; what none of the others fits is ``elementwise``: additions, copies, shapes."""

_ALIKE = {"generation": "attention", "experts": "matmul"}
"""Class -> the one whose efficiency holds for it where a device has none of its own."""

Points = tuple[tuple[float, float], ...]
"""(size, share of the peak rate) by size."""


@functools.lru_cache(maxsize=4096)
def op_class(kind: str) -> str:
    """Return the class of `OP_CLASSES` that a kind of op belongs to; of fused kinds, the first class that occurs.

    >>> op_class("conv2d"), op_class("MatMul"), op_class("upsample_bilinear2d"), op_class("conv2d+relu")
    ('convolution', 'matmul', 'elementwise', 'convolution')
    """
    plain = re.sub(r"[^a-z]+", "_", kind.lower())
    return next((name for name, pattern in _CLASSES.items() if re.search(pattern, plain)), "elementwise")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What ops of one class reach.

    Parameters
    ----------
    flops, bytes
        Shares of ``flops_per_s`` and of ``bytes_per_s``: points (operations of an op, share) and (bytes that it moves,
        share), sizes ascending and shares above 0; a share above 1 is for caches. The time is linear between points;
        below the first and above the last their shares hold. Empty: 1.
    launch_s
        Fixed seconds of an op; None: the device's.
    depth_s
        Seconds of each number of a product's inner dimension; no product takes less than all of them.
    error
        Relative error to be expected of a typical op's time; None: not known.

    Raises
    ------
    InvalidHardware
        Sizes that do not ascend, a share or size that is not above 0, more than 64 points, or shares that make a larger
        op faster than a smaller one.
    """

    flops: Points = ()
    bytes: Points = ()
    launch_s: float | None = None
    depth_s: float = 0.0
    error: float | None = None

    def __post_init__(self) -> None:
        for what in ("flops", "bytes"):
            points = getattr(self, what)
            for point in points:
                for value in point:
                    if check_number(f"efficiency: {what}", value, InvalidHardware) <= 0:
                        raise InvalidHardware(f"efficiency: {what} has {point}; expected a size and a share above 0")
            if len(points) > MAX_TERMS:
                raise InvalidHardware(f"efficiency: {what} has {len(points)} points; expected at most {MAX_TERMS}")
            for (size, share), (larger, next_share) in pairwise(points):
                if not size < larger or size / share > larger / next_share * (1 + 1e-9):
                    raise InvalidHardware(
                        f"efficiency: {what} has {size:g} at {share:g} before {larger:g} at {next_share:g}; expected "
                        "ascending sizes, and no larger op faster than a smaller one"
                    )
        for what in ("launch_s", "depth_s", "error"):
            if getattr(self, what) is not None:
                check_number(f"efficiency: {what}", getattr(self, what), InvalidHardware)

    def counted_flops(self, flops: FloatArray) -> FloatArray:
        """Return the operations at the peak rate that take as long as so many operations of this class."""
        return _counted(self.flops, flops)

    def counted_bytes(self, moved: FloatArray) -> FloatArray:
        """Return the bytes at the peak bandwidth that take as long as so many bytes of this class."""
        return _counted(self.bytes, moved)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Efficiency:
        """Return what `to_dict` gave; a share may be one number, for all sizes.

        Raises
        ------
        InvalidHardware
            As for the class.
        """
        values = dict(data)
        for what in ("flops", "bytes"):
            given = values.get(what, ())
            rows: Sequence[Any] = given if isinstance(given, Sequence) else [[1.0, given]]
            values[what] = tuple((float(size), float(share)) for size, share in rows)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data: dict[str, Any] = {}
        for what in ("flops", "bytes"):
            if points := getattr(self, what):
                data[what] = [list(point) for point in points]
        data |= {"depth_s": self.depth_s} if self.depth_s else {}
        return data | {what: value for what in ("launch_s", "error") if (value := getattr(self, what)) is not None}


def class_on(name: str, efficiency: Mapping[str, Efficiency]) -> str:
    """Return the class whose efficiency of a device holds for ops of a class: itself, or the one it is like.

    Parameters
    ----------
    name
        The ops' class.
    efficiency
        Of the device.
    """
    return name if name in efficiency else _ALIKE.get(name, name)


def efficiencies_of(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Efficiency]:
    """Return efficiencies by class from their JSON form.

    Raises
    ------
    InvalidHardware
        An unknown class, or what `Efficiency` refuses; the message names the class.
    """
    found = {}
    for name, row in data.items():
        if name not in OP_CLASSES:
            raise InvalidHardware(
                f"efficiency has the unknown class {name!r}{closest(name, OP_CLASSES)}; expected some of "
                f"{', '.join(OP_CLASSES)}"
            )
        try:
            found[name] = Efficiency.from_dict(row)
        except InvalidHardware as problem:
            raise InvalidHardware(f"{name}: {problem}") from None
    return {name: found[name] for name in OP_CLASSES if name in found}


def _counted(points: Points, size: FloatArray) -> FloatArray:
    """Return size / share, linear between the points."""
    if not points:
        return size
    sizes = np.array([0.0, *(at for at, _ in points)])
    counts = np.array([0.0, *(at / share for at, share in points)])
    last = points[-1]
    beyond = size > last[0]
    inside = np.interp(size, sizes, counts)
    counted: FloatArray = np.where(beyond, size / last[1], np.where(np.isnan(size), math.nan, inside))
    return counted
