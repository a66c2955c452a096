"""Prefetching: the same batches however they are made."""

from __future__ import annotations

import os
import signal

import pytest

from rlinit.errors import TrainingFailure
from rlinit.train.core.data_loading import Prefetcher


def plan(step: int) -> int:
    """Ask for the step itself."""
    return step


def make(ask: int) -> int:
    """Make its square; there is none of 13, and 99 kills the process."""
    if ask == 13:
        raise ValueError("no square of 13")
    if ask == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return ask * ask


def test_workers_change_nothing() -> None:
    """With a worker and without, batches come in order; an error or death of a worker is raised where it belongs."""
    here = list(Prefetcher(plan, make, 3, 12, workers=0, ahead=2))
    assert here == [(step, step * step) for step in range(3, 12)]
    with Prefetcher(plan, make, 3, 14, workers=1, ahead=4) as loader:
        made = iter(loader)
        assert [next(made) for _ in range(10)] == [*here, (12, 144)]
        with pytest.raises(ValueError, match="no square of 13"):
            next(made)
    with Prefetcher(plan, make, 99, 100, workers=1, ahead=1) as loader, pytest.raises(TrainingFailure, match="died"):
        next(iter(loader))
