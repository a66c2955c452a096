"""Lower bounds on the stage problem."""
