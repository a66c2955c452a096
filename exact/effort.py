"""How far searches go, and how often they look at the clock: the same wherever they do the same."""

from __future__ import annotations

QUOTA = 4_000_000
"""Pairs of ideals, arcs, overlaps, or as much compiled work, between looks at the budget: 20 to 100 ms."""

ROUNDS = 100
"""Sets of prices or weights, each from the loads that the ones before brought up, that are tried at most."""

PASSES = 8
"""Passes in which rows are added to a relaxation, or windows narrowed, before something dearer follows."""

CLOSE = 1e-7
"""Relative distance of value and bound at which a search ends, well below that of plans which count as optimal."""

MORE = 4
"""A try that its limit cut short is followed by one of so many times that limit."""

CHOICES = 200
"""Choices of devices and orders that are looked at before something else has its turn."""

PROGRAM_SIZE = 40_000
"""Ops times devices, or times stages, of the largest program: beyond, its first relaxation may take minutes."""

FEW_IDEALS = 50_000
"""Up to here the dynamic program over ideals is the cheapest proof there is, so it runs before other bounds."""

NARROW = 1e-3
"""An interval that holds a threshold is not halved any more where it is this share of its upper end."""

PREPARATION = 0.05
"""Share of the time left that what makes a search or a bound better may take before it."""
