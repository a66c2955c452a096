"""Beam search over stages, a stage a level."""
