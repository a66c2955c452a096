"""Kernels compiled ahead."""

from __future__ import annotations

from rlinit.solving.warm_up import compile_kernels


def test_every_phase_runs() -> None:
    """All steps run to the end on their small graphs, and each is told once."""
    steps: list[str] = []
    assert compile_kernels(steps.append, time_limit_s=0.01) > 0
    assert len(steps) == len(set(steps)) == 9
