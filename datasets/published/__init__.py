"""Readers of published workloads."""
