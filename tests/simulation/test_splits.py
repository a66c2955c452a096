"""Plans with chunks or loose ops, played, drawn and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.exporters import to_trace
from rlinit.graph import Graph
from rlinit.hardware import Hardware

SPLITS: list[dict[str, Any]] = [{"chunks": 2}, {"chunks": 2, "chunk_order": "free"}, {"contiguous": False}]


@pytest.fixture(scope="module", params=SPLITS, ids=str)
def planned(request: pytest.FixtureRequest) -> tuple[rlinit.Plan, Graph, Hardware]:
    """Return a plan of each kind, with what it is for."""
    seconds = [3.0, 1.0, 3.0, 1.0, 1.0, 3.0]
    ops = [(f"op{i}", {"time_s": s, "out_bytes": 2**-6, "param_bytes": 1.0}) for i, s in enumerate(seconds)]
    graph = Graph.build(ops, [(f"op{i}", f"op{i + 1}") for i in range(5)])
    hardware = Hardware.pipeline(2, bandwidth=1.0)
    return rlinit.schedule(graph, hardware, **request.param), graph, hardware


def test_finer_splits_are_drawn_and_traced(planned: tuple[rlinit.Plan, Graph, Hardware], tmp_path: Path) -> None:
    """Pictures, pages and traces are written."""
    plan, graph, hardware = planned
    plan.plot(tmp_path / "plan.svg")
    plan.report(tmp_path / "plan.html", graph, hardware)
    to_trace(plan, tmp_path / "trace.json")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("plan.svg", "plan.html", "trace.json"))


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_finer_splits_run_like_the_model(split: dict[str, Any]) -> None:
    """The local executor gives the model's outputs."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6))).eval()
    given = torch.ones(2, 8)
    graph = Graph.from_torch(model, (given,))
    hardware = Hardware.preset("edge-tpu-2")
    plan = rlinit.schedule(graph, hardware, method="anneal", **split)
    assert torch.equal(rlinit.run(plan, model, given, graph=graph), model(given))
