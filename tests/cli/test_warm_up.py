"""Kernels compiled ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinit.cli import warm_up
from rlinit.kernels import compiled


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of marks that is empty; kernels stay where they are."""
    monkeypatch.setattr(warm_up, "cache_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_phase_runs_once(empty_cache: Path) -> None:
    """All steps run to the end on their small graphs, each is told once, and a second call has nothing to do."""
    steps: list[str] = []
    assert warm_up.compile_kernels(steps.append, time_limit_s=0.01, jobs=1) > 0
    assert sorted(steps) == sorted(warm_up._steps())
    assert warm_up.compile_kernels(steps.append, time_limit_s=0.01) == 0.0
    assert len(steps) == len(warm_up._steps())
    assert [path.name for path in empty_cache.iterdir()] == [f"compiled-{compiled.package_hash()}-0.01"]


def test_interrupting_ends_it_at_once(tmp_path: Path) -> None:
    """Ctrl-C does not wait for what is being compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    source = tmp_path / "run.py"
    source.write_text(
        "import signal\n"
        "from rlinit.cli.warm_up import compile_kernels\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background leaves out\n"
        "if __name__ == '__main__':\n    print(1, flush=True)\n    compile_kernels()\n"
    )
    command = [sys.executable, str(source)]
    root = Path(__file__).parents[2]
    environment["PYTHONPATH"] = str(root)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        time.sleep(3.0)
        began = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30.0)
    assert time.perf_counter() - began < 20.0
    assert not list(tmp_path.rglob("compiled-*"))
