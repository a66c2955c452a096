"""Simulating plans: an event queue, and memory over time."""
