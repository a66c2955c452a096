"""Stage problems as programs for SCIP: pipeline (MTPP, Figure 3), memory (Inc-ILP, equations 3 to 7), split runs."""
