"""Stages of several devices: the problem as arrays, its lowering, and the way back to plans."""
