"""Data that are whole multiples of one number: values are, too, and a bound may be raised to the next multiple."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.limits import LARGEST_EXACT

_SUM_ROUNDING = Fraction(1, 10**6)
"""Relative room for the rounding of the sum of all values."""


def exact_quantum(values: FloatArray) -> float:
    """Return the largest number of which all values are whole multiples, 0 where it is too small to tell sums apart.

    Every float is a whole number times a power of two, so their common divisor is a matter of integers and no
    tolerance is involved. Sums of some of the values are multiples of the result as well, and are rounded in floats.

    Parameters
    ----------
    values
        Finite numbers >= 0, of which any selection may be added up.

    Returns
    -------
    float
        0 as well where there is no positive value, or where the sum of all is more than 2^53 times the result.

    Examples
    --------
    >>> exact_quantum(np.array([6.0, 1.5, 0.0]))
    1.5
    >>> exact_quantum(np.array([0.1, 0.3]))
    0.0
    """
    distinct = np.unique(values[values > 0])
    total = float(values.sum())
    if not len(distinct) or not math.isfinite(total):
        return 0.0
    mantissa, exponent = np.frexp(distinct)
    whole = (mantissa * 2.0**53).astype(np.int64)
    # Odd parts have their own divisor, powers of two that of the least.
    twos = whole & -whole
    power = int((np.log2(twos).astype(np.int64) + exponent).min()) - 53
    quantum = int(np.gcd.reduce(whole // twos)) * Fraction(2) ** power
    return 0.0 if Fraction(total) * (1 + _SUM_ROUNDING) >= quantum * LARGEST_EXACT else float(quantum)


def round_up(bound: float, quantum: float) -> float:
    """Return the smallest multiple of the quantum that is at least the bound; the bound where the quantum is 0.

    Parameters
    ----------
    bound
        A proven lower bound on something that is a multiple.
    quantum
        As `exact_quantum` returns it.
    """
    if quantum <= 0 or not math.isfinite(bound):
        return bound
    multiples = math.ceil(Fraction(bound) / Fraction(quantum))
    return max(bound, float(multiples * Fraction(quantum)))
