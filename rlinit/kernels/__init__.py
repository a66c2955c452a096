"""Compiled (numba) kernels on arrays: passes over prefixes, orders, searches."""
