"""Searches for spans of units on devices: contiguous ones by a dynamic program, any by counts of equal units."""
