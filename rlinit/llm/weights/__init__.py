"""How weights are kept: number types, quantised checkpoints, and the mixtures of types in GGUF files."""
