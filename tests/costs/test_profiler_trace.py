"""Traces of torch.profiler as costs of a graph's ops."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from rlinit.cli.inputs import cost_table
from rlinit.costs.profiler_trace import load_trace
from rlinit.costs.table import InvalidCostTable
from rlinit.graph import Graph
from tests.late import late_imports

with late_imports():
    import torch


def chain(*kinds: str) -> Graph:
    """Return an input and ops of these kinds in a row."""
    names = ["x", *(f"op{at}" for at in range(len(kinds)))]
    rows = [("x", {"op": "input"}), *((name, {"op": kind}) for name, kind in zip(names[1:], kinds, strict=True))]
    return Graph.build(rows, list(itertools.pairwise(names)))


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", number: int = 0) -> dict[str, Any]:
    """Return an event as torch writes it, in microseconds."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": {"External id": number},
    }


def test_a_real_trace_gives_every_op_its_time(tmp_path: Path) -> None:
    """Three runs of a network: each op has a time, three repeats, and the graph takes them."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(inplace=True), torch.nn.Linear(64, 8)).eval()
    x = torch.randn(16, 64)
    graph = Graph.from_torch(net, (x,))
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            net(x)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    table = load_trace(tmp_path / "trace.json", graph, device="cpu")
    assert {row.op for row in table.rows} == set(graph.names)
    assert all(
        row.repeats == 3 and row.seconds > 0 for row in table.rows if graph.kinds[graph.index(row.op)] != "input"
    )
    assert table.apply(graph).times["cpu", 1].sum() > 0
    assert [row.seconds for row in cost_table(tmp_path / "trace.json", graph).rows] == [
        row.seconds for row in table.rows
    ]


def test_kernels_count_and_inner_calls_do_not(tmp_path: Path) -> None:
    """Kernels of a call and of those inside it are its time, if any; calls of other kinds are passed over."""
    rows = [
        event("aten::linear", 0, 50, number=1),
        event("aten::addmm", 10, 30, number=2),
        event("gemm", 100, 7, "kernel", 2),
        event("aten::empty", 55, 1),
        event("aten::relu_", 60, 5, number=3),
        event("aten::linear", 200, 40, number=4),
        event("gemm", 250, 9, "kernel", 4),
        event("aten::relu_", 260, 7, number=5),
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": rows}), encoding="utf-8")
    table = load_trace(tmp_path / "t.json", chain("linear", "relu"))
    assert [row.seconds for row in table.rows] == pytest.approx([8e-6, 6e-6, 0.0])
    assert [row.repeats for row in table.rows] == [2, 2, 0]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    """The file is named."""
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidCostTable, match=r"t\.json"):
        load_trace(tmp_path / "t.json", chain("linear"))


def test_a_trace_of_another_model_is_refused(tmp_path: Path) -> None:
    """An op without a call is named, with the calls there are."""
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event("aten::mul", 0, 1)]}), encoding="utf-8")
    with pytest.raises(InvalidCostTable, match="'op0' on; the calls begin with mul"):
        load_trace(tmp_path / "t.json", chain("linear"))
