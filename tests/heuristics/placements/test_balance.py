"""Loads of devices alone: the largest one is minimised, with memory and colocation, and `auto` begins from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlinit
from rlinit.solving.api import explain
from rlinit.solving.common.options import SolveOptions


def unrelated_jobs(
    num_jobs: int, num_machines: int, seed: int, *, chained: bool = False
) -> tuple[rlinit.Graph, rlinit.Hardware, np.ndarray]:
    """Jobs with times of their own on every machine, without precedence or one after another."""
    time = np.random.default_rng(seed).integers(10, 100, (num_jobs, num_machines)).astype(float)
    ops = [
        (f"job{v}", {"time_s": {f"m{i}": t for i, t in enumerate(row.tolist())}, "out_bytes": 0.0})
        for v, row in enumerate(time)
    ]
    machines = [rlinit.Device(f"m{i}") for i in range(num_machines)]
    edges = list(itertools.pairwise(name for name, _ in ops)) if chained else []
    return rlinit.Graph.build(ops, edges), rlinit.Hardware.mesh(machines, 1e9), time


@pytest.mark.parametrize("seed", range(10))
def test_few_jobs_end_near_the_optimum(seed: int) -> None:
    """Seven jobs on three unrelated machines, within 2%."""
    graph, hardware, time = unrelated_jobs(7, 3, seed)
    optimum = min(
        max(sum(time[v, i] for v in range(7) if on[v] == i) for i in range(3))
        for on in itertools.product(range(3), repeat=7)
    )
    plan = rlinit.schedule(graph, hardware, objective="latency", method="balance")
    assert optimum * (1 - 1e-9) <= plan.value <= 1.02 * optimum


def test_colocated_jobs_stay_together_and_memory_holds() -> None:
    """Two jobs of one group share a machine, and no machine takes more bytes than it has."""
    ops = [(f"job{v}", {"time_s": 1.0, "param_bytes": 10.0, "colocate": v // 2}) for v in range(8)]
    machines = [rlinit.Device(f"m{i}", memory_bytes=20.0 if i else 60.0) for i in range(3)]
    graph, hardware = rlinit.Graph.build(ops, []), rlinit.Hardware.mesh(machines, 1e9)
    plan = rlinit.schedule(graph, hardware, objective="latency", method="balance")
    assert plan.value == 4.0


def test_auto_begins_from_balanced_loads() -> None:
    """Jobs on unrelated machines are spread better than by list scheduling; `auto` does so unless paths are long."""
    graph, hardware, _ = unrelated_jobs(200, 10, 0)
    balanced = rlinit.schedule(graph, hardware, objective="latency", method="balance")
    heft = rlinit.schedule(graph, hardware, objective="latency", method="heft")
    assert balanced.value < 0.9 * heft.value
    chain, _, _ = unrelated_jobs(200, 10, 0, chained=True)
    options = SolveOptions(objective="latency")
    for problem, wanted in ((graph, True), (chain, False)):
        assert wanted in {row.runs for row in explain(problem, hardware, options) if row.name == "balanced loads"}
