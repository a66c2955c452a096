"""The command line: rlinit schedule, bound, inspect, run and the rest."""

EXIT_CODES = {"input": 2, "infeasible": 3, "no_solution": 4, "interrupted": 130}
"""What the process ends with where it is not 0."""
