"""Dynamic programs over ideals: exact for pipelines and memory."""
