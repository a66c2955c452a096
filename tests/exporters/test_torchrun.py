"""Scripts for torchrun that run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.exporters.torchrun import stage_devices, to_torchrun_script
from tests.executors.plans import stage_plan
from tests.late import late_imports

with late_imports():
    import torch


FACTORY = """
import torch
def make():
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6))).eval()
    return net, (torch.randn(4, 8),)
"""


def planned(stages: list[int]) -> tuple[rlinit.Plan, rlinit.Graph]:
    """Return a plan that puts six layers, and the input on the first one's, on stages."""
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6))).eval()
    graph = rlinit.Graph.from_torch(net, (torch.randn(4, 8),))
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{at}", flops_per_s=1e9) for at in range(max(stages) + 1)], 1e9)
    return stage_plan(graph, hardware, [stages[0], *stages]), graph


def test_the_script_gives_what_the_model_gives(tmp_path: Path) -> None:
    """Two processes in an order of stages of the plan's own, two micro-batches: no difference."""
    plan, graph = planned([1, 1, 0, 0, 0, 0])
    assert stage_devices(plan, graph) == ("d1", "d0")
    (tmp_path / "models.py").write_text(FACTORY, encoding="utf-8")
    to_torchrun_script(plan, graph, tmp_path / "run.py", factory="models:make", microbatches=2)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "run.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split("largest difference")[1]) < 1e-6


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    """A factory or device of another form, and a plan that cuts inside a module, write nothing."""
    plan, graph = planned([0, 0, 1, 1, 1, 1])
    for wrong, said in (
        ({"factory": "models"}, "expected 'module:function'"),
        ({"factory": "models:make", "devices": {"d0": "tpu"}}, "expected 'cpu' or 'cuda:N'"),
        ({"factory": "models:make", "microbatches": 0}, "expected >= 1"),
    ):
        with pytest.raises(InvalidPlan, match=said):
            to_torchrun_script(plan, graph, tmp_path / "run.py", **wrong)
    assert not (tmp_path / "run.py").exists()
