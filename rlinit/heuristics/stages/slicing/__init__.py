"""Orders cut into stages (MTPP, SliceGraph and BRKGA)."""
