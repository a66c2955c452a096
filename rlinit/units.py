"""Seconds, bytes and rates as people write and read them."""

from __future__ import annotations

import math
import re

__all__ = ["format_bytes", "format_seconds", "parse_quantity"]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {f"{prefix}i": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_UNITS: dict[str, dict[str, float]] = {
    "bytes": {f"{p}{u}": size for p, size in (_DECIMAL | _BINARY).items() for u in ("B", "bytes")},
    "bytes/s": {
        f"{p}{u}/s": size * share
        for p, size in (_DECIMAL | _BINARY).items()
        for u, share in (("B", 1.0), ("bytes", 1.0), ("b", 1 / 8), ("bit", 1 / 8))
    }
    | {f"{p}bps": size / 8 for p, size in _DECIMAL.items()},
    "operations/s": {f"{p}{u}": size for p, size in _DECIMAL.items() for u in ("FLOPS", "FLOP/s", "OPS", "OP/s")},
    "seconds": _SECONDS,
}
"""Units in which a quantity may be written, and how much each is; lower-case b is a bit, as in Gb/s."""

_EXAMPLES = {"bytes": "16GB", "bytes/s": "25 GB/s", "operations/s": "8.1 TFLOPS", "seconds": "5us"}


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


def parse_quantity(text: str, unit: str) -> float:
    """Return the number that a text such as "16GB" stands for.

    >>> parse_quantity("16GB", "bytes"), parse_quantity("8 MiB", "bytes"), parse_quantity("100 Gb/s", "bytes/s")
    (16000000000.0, 8388608.0, 12500000000.0)

    Parameters
    ----------
    text
        A number and a unit; KB is 1000 bytes, KiB 1024, and Gb/s are bits a second.
    unit
        What it measures: ``bytes``, ``bytes/s``, ``operations/s`` or ``seconds``.

    Raises
    ------
    ValueError
        It is not of that form; the message gives an example.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][-+]?[0-9]{1,3})?)\s*([^\s\d]*)\s*", text)
    size = _UNITS[unit].get(found[2]) if found else None
    try:
        if found is None or size is None:
            raise ValueError
        number = float(found[1]) * size
        if math.isinf(number):
            raise ValueError
        return number
    except ValueError:
        raise ValueError(f"expected {unit} as a number or such as '{_EXAMPLES[unit]}', got {text[:40]!r}") from None
