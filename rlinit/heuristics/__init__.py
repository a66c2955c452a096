"""Heuristics that give full, feasible schedules, by name: of stages, and of placements."""
