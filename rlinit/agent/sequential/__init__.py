"""Inc-ILP's pointer network, which picks one op after another."""
