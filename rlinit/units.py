"""Seconds and bytes as people read them."""

from __future__ import annotations

import math

__all__ = ["format_bytes", "format_seconds"]


def format_seconds(seconds: float) -> str:
    """Return seconds with four significant digits in a fitting unit.

    >>> format_seconds(0.0177899), format_seconds(3.0e-6), format_seconds(75.0), format_seconds(0.0)
    ('17.79 ms', '3 us', '75 s', '0 s')
    """
    if math.isinf(seconds):
        return "inf"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}" if seconds / size < 1e6 else f"{seconds:.4g} s"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"


def format_bytes(count: float) -> str:
    """Return bytes with four significant digits in a fitting binary unit.

    >>> format_bytes(512), format_bytes(15.19e6), format_bytes(0)
    ('512 B', '14.49 MiB', '0 B')
    """
    if math.isinf(count):
        return "inf"
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if abs(count) >= 1024**power:
            return f"{count / 1024**power:.4g} {unit}"
    return f"{count:.4g} B"
