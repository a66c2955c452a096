"""Checks of configuration fields: what is refused names the field, its value and the flag that sets it."""

from __future__ import annotations

from rlinit.errors import InvalidConfig


def require(holds: bool, field: str, value: object, expected: str) -> None:
    """Raise InvalidConfig unless `holds`.

    Parameters
    ----------
    holds
        Whether the value will do.
    field
        Dotted name of the field within a training configuration, such as ``optimiser.learning_rate``.
    value, expected
        What it is, and in words what it should be.

    Raises
    ------
    InvalidConfig
        `holds` is False.
    """
    if not holds:
        flag = "--" + field.replace("_", "-")
        raise InvalidConfig(f"{field} is {value!r}; expected {expected} (a key of the file, or the flag {flag})")


def require_share(field: str, value: float) -> None:
    """Raise InvalidConfig unless a field (see `require`) lies between 0 and 1."""
    require(0 <= value <= 1, field, value, "a share from 0 to 1")
