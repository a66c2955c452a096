"""Slicing an order where tensors in flight count."""
