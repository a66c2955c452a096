"""How many examples slow properties draw: a fifth by default, many in ``make fuzz``."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["draws"]


def draws(count: int) -> int:
    """Return how many examples are drawn where `count` are thorough, by the profile of hypothesis; at least one.

    Parameters
    ----------
    count
        Examples that found what there was to find when the test was written.
    """
    return max(1, count * settings().max_examples // 100)
