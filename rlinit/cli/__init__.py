"""The command line: rlinit schedule, bound, inspect, run and the rest."""
