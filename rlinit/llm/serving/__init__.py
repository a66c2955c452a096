"""Serving on unlike machines: layouts that pass most tokens a second, and bounds on all of them."""
