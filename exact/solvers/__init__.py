"""Solvers that the formulations rest on: SCIP, linear programs with safe bounds, maximum flows."""
