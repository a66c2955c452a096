"""Bounds on pipelines from intervals of ideals, cut finer where a trial bottleneck is not yet refuted."""
