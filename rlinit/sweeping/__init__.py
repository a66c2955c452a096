"""Sweeps: one model on many kinds of hardware, side by side."""
