"""Compiled code on placements: timelines, list scheduling, searches."""
