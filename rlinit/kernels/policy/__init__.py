"""Compiled code of the learned policies: their features, rollouts and environment steps."""
