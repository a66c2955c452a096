"""Lower bounds on the placement problem."""
