"""Networks of the agents, with their checkpoints."""
