"""Several processes under torchrun train one network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.late import late_imports

with late_imports():
    import torch

    from tests.train.runs import tensors


ROOT = Path(__file__).resolve().parents[3]


def test_two_processes_end_with_equal_finite_weights(tmp_path: Path) -> None:
    """Started by torchrun on the CPU, two processes learn from different batches and end with the same weights."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.train.two_processes", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other = (torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    assert one["seeds"] != other["seeds"]
    for name, weight in one["weights"].items():
        assert torch.equal(weight, other["weights"][name]), name
        assert bool(torch.isfinite(weight).all())
        assert torch.equal(weight, tensors(tmp_path)[f"network.{name}"])
