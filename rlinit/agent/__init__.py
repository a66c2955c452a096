"""Learned agents: features, networks, checkpoints and decoding. Inference needs no torch."""
