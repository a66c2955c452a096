"""Learned parts against their hand-made rivals, by the protocol of docs/learning.md."""
