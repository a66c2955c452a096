"""From a model to a schedule to a run: what `rlinit.schedule` finds is replayed, executed and exported."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

import rlinit
import rlinit.executors
from rlinit.exporters import to_dot, to_report, to_trace
from rlinit.reports.critical_path import critical_path
from rlinit.simulation.memory_profile import memory_profile
from rlinit.simulation.simulator import simulate
from tests.late import late_imports

with late_imports():
    import torch

    from tests.executors.models import Inception, check_same, graph_of


HARDWARE = rlinit.Hardware.mesh([rlinit.Device(f"d{i}", batch_sizes=(1, 2, 3, 4)) for i in range(3)], 4e3)
CASES = [("latency", 1, "parallel"), ("latency", 1, "exclusive"), ("throughput", 4, "parallel"), ("pipeline", 1, "")]


@pytest.mark.parametrize(("objective", "inputs", "transfers"), CASES)
def test_schedules_run(objective: str, inputs: int, transfers: str, tmp_path: Path) -> None:
    """A schedule gives the model's values, replays in its own time, and can be exported in every form."""
    model, x = Inception(blocks=1).eval(), torch.randn(max(inputs, 2), 3, 8, 8)
    graph = graph_of(model, (x,), batched=inputs > 1)
    options: dict[str, object] = {}
    if objective != "pipeline":
        options |= {"transfers": transfers, "method": "heft"}
    if inputs > 1:
        options |= {"inputs": inputs}
    plan = rlinit.schedule(graph, HARDWARE, objective=objective, **options)  # type: ignore[arg-type]
    rlinit.verify(plan, graph, HARDWARE)
    result = rlinit.executors.execute(plan, model, x, graph=graph)
    check_same(model, (x,), result.outputs, exact=False)
    if objective != "pipeline":
        run = simulate(plan, graph, HARDWARE)
        assert run.makespan_s == pytest.approx(plan.value, rel=1e-9)
        path = critical_path(plan, graph, HARDWARE)
        assert all(a.end_s == pytest.approx(b.start_s, rel=1e-9) for a, b in itertools.pairwise(path))
        peaks = memory_profile(plan, graph, HARDWARE)
        assert all(peaks[use.device].peak_bytes <= use.held_bytes * (1 + 1e-9) for use in plan.devices)
    to_trace(plan, tmp_path / "trace.json")
    to_dot(graph, tmp_path / "graph.dot", plan)
    to_report(plan, graph, HARDWARE, tmp_path / "report.html")
    assert plan.graph in (tmp_path / "report.html").read_text()


def test_plans_that_count_weights_alone_may_exceed_the_memory(tmp_path: Path) -> None:
    """Where a plan counts weights alone, the report says which device's memory its tensors exceed."""
    graph = rlinit.Graph.build([(f"v{i}", {"time_s": 1.0, "out_bytes": 100.0}) for i in range(3)], [("v0", "v2")])
    hardware = rlinit.Hardware.mesh([rlinit.Device("small", memory_bytes=50.0)])
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="weights")
    assert memory_profile(plan, graph, hardware)["small"].peak_bytes == 300.0
    to_report(dataclasses.replace(plan), graph, hardware, tmp_path / "report.html")
    assert "exceeds the memory of small" in (tmp_path / "report.html").read_text()
