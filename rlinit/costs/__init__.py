"""Costs of ops: the roofline model, and tables of measured times."""
