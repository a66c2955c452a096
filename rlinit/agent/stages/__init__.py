"""The agent that assigns ops to stages."""
