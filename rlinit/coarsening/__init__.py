"""Coarsening: operator fusion by rules, and contraction of graphs before they are scheduled."""
