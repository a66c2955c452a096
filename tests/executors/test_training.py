"""Training steps over processes."""

from __future__ import annotations

import importlib.util

import pytest

from tests.executors.processes import run_module

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_loss_and_gradients_are_those_of_one_process() -> None:
    """Transformers with tied weights and networks with skips, by all schedules, on two and on four processes."""
    result = run_module("tests.executors.training_job", "2", "4")
    assert result.returncode == 0, result.stderr[-3000:]
