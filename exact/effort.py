"""How far searches for bounds go, and how often they look at the clock: the same wherever they do the same."""

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

ENDS = 32
"""Starts, and ends, of intervals that are looked at in a pass over a device."""

PROGRAM_SIZE = 40_000
"""Ops times devices, or times stages, of the largest program: beyond, its first relaxation may take minutes."""
