"""Kernels compiled on first use do not count against a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from rlinit.budget import Budget


def test_a_pause_is_left_out_of_the_budget_and_its_shares() -> None:
    """No time passes while paused, in shares that exist already either; pauses may overlap in threads."""
    budget = Budget(1.0)
    part = budget.share(0.5)
    with budget.paused():
        other = threading.Thread(target=_pause_for, args=(part, 0.2))
        other.start()
        time.sleep(0.1)
    other.join()
    assert budget.elapsed_s < 0.1
    assert part.remaining_s > 0.4
    assert not part.expired
    time.sleep(0.55)
    assert part.expired
    assert not budget.expired


def _pause_for(budget: Budget, seconds: float) -> None:
    with budget.paused():
        time.sleep(seconds)


def test_a_short_limit_on_a_fresh_machine_is_for_searching(tmp_path: Path) -> None:
    """With nothing compiled, a limit far below the seconds of compiling still finds and proves; progress says why."""
    code = (
        "import rlinit, numpy as np\n"
        "ops = [(f'op{v}', {'time_s': 1.0, 'out_bytes': 0.0}) for v in range(30)]\n"
        "graph = rlinit.Graph.build(ops, [(f'op{v}', f'op{v + 1}') for v in range(29)])\n"
        "seen = []\n"
        "plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(3, bandwidth=1.0), time_limit_s=1, method='natural',\n"
        "    progress=lambda entry: seen.append(entry.phase))\n"
        "print(plan.status, any(phase.startswith('compiling') for phase in seen))\n"
    )
    fresh = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    result = subprocess.run([sys.executable, "-c", code], env=fresh, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["optimal", "True"], result.stderr
