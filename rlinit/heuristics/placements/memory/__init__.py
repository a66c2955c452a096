"""Starts and repairs where memory binds."""
