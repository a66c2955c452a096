"""Seconds, bytes and rates as people write and read them, and the types of numbers that bytes and rates go by."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

BITS: Mapping[str, int] = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits of a number in memory, by type; a TF32 number is stored as FP32."""

DTYPES = tuple(BITS)
"""What models are counted in and devices have rates for."""

PRECISION = "precision"
"""The extra of an op that says what weights and activations are counted in, a pair; None: as in the file."""

_WIDER = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "fp8": "fp16", "int8": "fp16", "int4": "int8"}
_FILES = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4"}

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {f"{prefix}i": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)}
MS_PER_S = 1000.0
"""Milliseconds of a second."""

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
    ('17.79 ms', '3 µs', '75 s', '0 s')
    """
    if math.isinf(seconds):
        return "inf"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
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


def rate_for(rates: float | Mapping[str, float] | None, dtype: str) -> float | None:
    """Return the operations a second on numbers of a type.

    Numbers of a type that a device has no rate for are widened to the next type that it has one for.

    Parameters
    ----------
    rates
        One for all types, or by type; None: not known.
    dtype
        One of `DTYPES`, or "" where nobody said: FP32, or the widest type there is a rate for.

    Returns
    -------
    float or None
        None without a rate for the type or a wider one.
    """
    if not isinstance(rates, Mapping):
        return rates
    if not dtype:
        return next(rates[one] for one in DTYPES if one in rates)
    while dtype not in rates and dtype in _WIDER:
        dtype = _WIDER[dtype]
    return rates.get(dtype)


def compute_type(extras: Mapping[str, Any]) -> str:
    """Return the type an op computes in: the wider one of its weights and activations; "" where nothing is said.

    Weights that are kept in fewer bits than activations are widened as they are read. What an importer was told wins
    over the type of the op's first output in the file; other types than those of `DTYPES` (FP64, integers that count
    something) go as FP32.

    Parameters
    ----------
    extras
        The op's, as an importer fills them: ``precision`` and ``outputs``.
    """
    weights, activations = extras.get(PRECISION) or (None, None)
    outputs = extras.get("outputs")
    if activations is None and outputs:
        stored = str(outputs[0][0])
        activations = "fp8" if stored.startswith("float8") else _FILES.get(stored, "fp32")
    if weights is None or activations is None:
        return str(activations or weights or "")
    return str(weights if BITS[weights] > BITS[activations] else activations)
