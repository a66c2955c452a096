"""Training steps over processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

ROOT = Path(__file__).resolve().parent.parent.parent


def test_loss_and_gradients_are_those_of_one_process() -> None:
    """Transformers with tied weights and networks with skips, by all schedules, on two and on four processes."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.executors.training_job", "2", "4"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
