"""Many calls in one process leave nothing behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.hardware import Device, Hardware
from tests.draws import draws

STATM = Path("/proc/self/statm")


def resident_mb() -> float:
    """Return the megabytes of memory that this process has."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(not STATM.exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency", "throughput"])
def test_calls_do_not_add_up(objective: Any) -> None:
    """After 30 calls that load and compile what they need, more take less than 55 kB each."""
    names = [f"op{v}" for v in range(12)]
    ops = [
        (name, {"time_s": {"*": {1: 1.0 + v % 3, 2: 2.0 + v % 3}}, "param_bytes": 1e3, "out_bytes": 100.0})
        for v, name in enumerate(names)
    ]
    graph = rlinit.Graph.build(ops, [(names[u], names[v]) for v in range(12) for u in range(max(0, v - 2), v)])
    hardware = Hardware.pipeline(3, bandwidth=1e3)
    options: Any = {}
    if objective in ("latency", "throughput"):
        hardware = Hardware.mesh([Device("a"), Device("b")], 1e3)
    if objective == "throughput":
        options = {"inputs": 2, "method": "heft"}
    before = 0.0
    more = draws(125)
    for seed in range(30 + more):
        plan = rlinit.schedule(graph, hardware, objective=objective, seed=seed, **options)
        assert plan.values is not None
        assert options or plan.status == "optimal"
        if seed == 29:
            before = resident_mb()
    assert resident_mb() - before < 0.055 * more
