"""Cuts of one order into runs, a run a device."""
