"""Networks of model zoos."""
