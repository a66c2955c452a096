"""The agent that places ops on devices."""
