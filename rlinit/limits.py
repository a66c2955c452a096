"""The numbers and names that a graph or hardware may have: those that can be computed with, and written anywhere."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

import numpy as np

from rlinit.errors import RlinitError

LARGEST = 1e30
"""Largest seconds, bytes, operations and rates: a hundred thousand products of two of them stay far within a float."""

LARGEST_BATCH = 2**31 - 1
"""Largest batch size."""

LARGEST_EXACT = 2**53
"""Counts up to here are exact as floats."""

MAX_DEVICES = 2048
"""Devices of one hardware: tables of every pair of them stay small."""

MOST_SHARDS, FEW_SHARDS = 16, 4
"""Most shards of inputs where a device takes batches of any size, on small and on large graphs (DIVIML,
Table 4: batches of L/4, L/2, 3L/4 and L)."""

MANY_TIMES = 500_000
"""Times of ops on devices for all numbers of shards, beyond which a graph is large."""

MAX_NESTING = 100
"""Lists or calls within each other that a file may have: far below where Python's recursion ends."""

MAX_TEXT = 10_000
"""Characters of a name or an expression in a file: those that tools write have some hundred."""

MAX_TERMS = 4096
"""Numbers, or terms multiplied out, that what is computed from a file may have, and bits of each."""

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What neither UTF-8 nor XML can hold: control characters, halves of surrogate pairs, non-characters."""


def check_name(what: str, name: object, error: type[RlinitError], *, empty: bool = False) -> None:
    """Check that a name is text that every format can hold.

    Parameters
    ----------
    what
        What bears the name, for the message.
    name
        The name.
    error
        What to raise.
    empty
        Whether it may be empty.

    Raises
    ------
    RlinitError
        An `error`: no string, an empty one where it may not be, or a character that cannot be written.
    """
    if not isinstance(name, str):
        raise error(f"{what} is {str(name)[:40]!r}, a {type(name).__name__}; expected a string")
    if not name and not empty:
        raise error(f"{what} is empty; expected at least one character")
    found = _UNWRITABLE.search(name)
    if found:
        raise error(
            f"{what} is {name[:40]!a}, with the character U+{ord(found[0]):04X}, which files cannot hold; rename it"
        )


def check_number(
    what: str, value: object, error: type[RlinitError], *, least: float = 0.0, unlimited: bool = False
) -> float:
    """Return a number as a float after checking that it can be computed with.

    Parameters
    ----------
    what
        What the number is, for the message.
    value
        The number, a Python or numpy one.
    error
        What to raise.
    least
        The smallest that is allowed.
    unlimited
        Whether infinity is allowed.

    Raises
    ------
    RlinitError
        An `error`: no number, NaN, too small, infinite where it may not be, or above `LARGEST`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise error(f"{what} must be a number, got {value!r}")
    if unlimited and value == math.inf:
        return math.inf
    expected = f"expected a finite number >= {least:g}" if least in (0.0, 1.0) else f"expected a number >= {least:g}"
    if isinstance(value, int) and abs(value) > LARGEST:  # may be beyond a float, and too long to print
        number = math.inf if value > 0 else -math.inf
        shown = f"about {'-' if value < 0 else ''}10^{int(value.bit_length() * math.log10(2.0))}"
    else:
        number, shown = float(value), str(value)
    if math.isnan(number):
        raise error(f"{what} is NaN ({shown}); {expected}")
    if number < least:
        raise error(f"{what} is {'negative' if number < 0 else 'too small'} ({shown}); {expected}")
    if number > LARGEST:
        wrong = "infinite" if value == math.inf else "too large to compute with"
        raise error(f"{what} is {wrong} ({shown}); {expected} and at most {LARGEST:g}")
    return number


def check_device_count(count: int, error: type[RlinitError], where: str = "") -> None:
    """Check that tables of every pair of devices stay small, before there are any.

    Parameters
    ----------
    count
        How many devices there will be.
    error
        What to raise.
    where
        What the message begins with, such as a file and ``": "``.

    Raises
    ------
    RlinitError
        An `error`: more than `MAX_DEVICES`.
    """
    if count > MAX_DEVICES:
        raise error(f"{where}{count:,} devices are too many; expected at most {MAX_DEVICES:,}")


def closest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name nearest to one that is not, "" if none is near.

    Parameters
    ----------
    name
        What was asked for.
    known
        The names there are.
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
