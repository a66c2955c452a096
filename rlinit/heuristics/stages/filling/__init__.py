"""Filling stages one after another up to a trial load."""
