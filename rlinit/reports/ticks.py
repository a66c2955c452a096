"""Marks of an axis at round amounts: decimal for seconds, powers of two for bytes."""

from __future__ import annotations

import math


def round_ticks(end: float, most: int = 8, *, binary: bool = False) -> list[float]:
    """Return the multiples of a round step from 0 up to an end.

    >>> round_ticks(1.13), round_ticks(1.6 * 2**20, 4, binary=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 524288.0, 1048576.0, 1572864.0])

    Parameters
    ----------
    end
        Where the axis ends, above 0 and finite; otherwise there is the mark at 0 alone.
    most
        Marks at most, at least 3.
    binary
        Whether steps are powers of two, rather than 1, 2 or 5 times a power of ten.
    """
    if not (end > 0.0 and math.isfinite(end)):
        return [0.0]
    above = end / most * (1 + 1e-6)
    if binary:
        step = 2.0 ** math.ceil(math.log2(above))
    else:
        power = 10.0 ** math.floor(math.log10(above))
        step = next((scale * power for scale in (1.0, 2.0, 5.0) if scale * power >= above), 10.0 * power)
    count = int(end / step * (1 + 1e-9))
    return [float(f"{at * step:.12g}") for at in range(count + 1)]
