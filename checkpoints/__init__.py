"""Trained weights (safetensors), each with a card beside it: configuration, data, seed, measured quality."""

if __name__ != "rlinit.checkpoints":
    raise ImportError("import this package as rlinit.checkpoints, not as checkpoints")
