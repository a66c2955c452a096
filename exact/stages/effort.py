"""How far searches over stages go, and how often they look at the clock: the same wherever they do the same."""

from __future__ import annotations

FEW_IDEALS = 50_000
"""Up to here the dynamic program over ideals is the cheapest proof there is, so it runs before other bounds."""

NARROW = 1e-3
"""An interval that holds a threshold is not halved any more where it is this share of its upper end."""

PREPARATION = 0.05
"""Share of the time left that what makes a search or a bound better may take before it."""
