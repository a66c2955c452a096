"""Compiled code on stages."""
