"""The placement problem as a constraint program on CP-SAT."""
