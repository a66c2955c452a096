"""Modules that run in a process of their own, which starts others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_module"]

ROOT = Path(__file__).resolve().parent.parent.parent


def run_module(*arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a module by its name, with what follows it, at the root of the project; torch takes one thread."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
