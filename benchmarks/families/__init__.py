"""Sets of published instances, scheduled one by one and held against the best values known."""
