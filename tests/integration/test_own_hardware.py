"""The hardware file of the page on own models and devices does what the page says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit import Graph, Hardware
from rlinit.costs.table import CostRow, CostTable

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/own_models_and_devices.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hardware(tmp_path_factory: pytest.TempPathFactory) -> Hardware:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path_factory.mktemp("page") / "hw.toml"
    path.write_text(text)
    return Hardware.load(path)


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 4)).eval()
    return Graph.from_torch(net, (torch.ones(1, 3, 8, 8),))


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency", "throughput"])
def test_an_imported_model_can_be_planned(hardware: Hardware, graph: Graph, objective: Any) -> None:
    """All objectives work on the file's devices without a measured time."""
    inputs = 4 if objective == "throughput" else None
    plan = rlinit.schedule(graph, hardware, objective=objective, inputs=inputs, time_limit_s=2)
    assert plan.status in ("optimal", "feasible")


def test_a_table_of_the_host_alone(hardware: Hardware, graph: Graph) -> None:
    """Times measured on the kind of the host replace its rates and nothing else."""
    table = CostTable(tuple(CostRow(op, "cpu", 1, 1.0) for op in graph.names))
    plan = rlinit.schedule(table.apply(graph), hardware, objective="latency", time_limit_s=2)
    assert plan.value < 1.0
    assert set((plan.assignment or {}).values()) <= {"acc0", "acc1"}


def test_the_graph_beside_it(hardware: Hardware) -> None:
    """The networkx graph above the file has times on all of its devices."""
    (code,) = re.findall(r"```python\n(import networkx.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"rlinit": rlinit}
    exec(code, names)
    plan = rlinit.schedule(names["graph"], hardware, objective="latency", time_limit_s=2)
    assert plan.status == "optimal"
