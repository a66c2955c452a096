"""Exact formulations of the placement problem."""
