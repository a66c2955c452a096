"""Exact formulations of the stage problem."""
