"""Simulated annealing and evolution of mappings (DIVIML, Table 3)."""
