"""Roofline figures fitted to measured seconds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.costs.roofline import roofline
from rlinit.costs.table import CostRow, CostTable, InvalidCostTable
from rlinit.graph import Graph
from rlinit.hardware import Device
from rlinit.measurement.roofline_fit import fitted_device


def graph_of(seed: int, num_ops: int = 40) -> Graph:
    """Return a graph whose ops compute and move all kinds of amounts."""
    rng = np.random.default_rng(seed)
    rows = []
    for at in range(num_ops):
        flops = 0.0 if at % 3 == 0 else float(10 ** rng.uniform(4, 11))
        rows.append((f"op{at}", {"flops": flops, "out_bytes": float(10 ** rng.uniform(2, 8))}))
    edges = [(f"op{at}", f"op{at + 1}") for at in range(num_ops - 1)]
    return Graph.build(rows, edges)


def table_of(graph: Graph, device: Device, *, batches: tuple[int, ...] = (1,), sigma: float = 0.0) -> CostTable:
    """Return the seconds that the roofline model says, times random factors."""
    rng = np.random.default_rng(0)
    rows = []
    for batch in batches:
        seconds = roofline(graph, device, batch) * np.exp(sigma * rng.standard_normal(graph.num_ops))
        rows += [CostRow(op, device.name, batch, float(s)) for op, s in zip(graph.names, seconds, strict=True)]
    return CostTable(tuple(rows))


@given(seed=st.integers(0, 1000), rate=st.floats(9, 14), width=st.floats(9, 12), launch=st.floats(-7, -4))
@settings(max_examples=15, deadline=None)
def test_figures_of_a_roofline_come_back(seed: int, rate: float, width: float, launch: float) -> None:
    """Seconds made by the roofline model are reproduced by the fitted device."""
    graph = graph_of(seed)
    device = Device("d", flops_per_s=10**rate, bytes_per_s=10**width, launch_s=10**launch, memory_bytes=7.0)
    found = fitted_device(graph, table_of(graph, device, batches=(1, 4)), Device("d", memory_bytes=7.0))
    assert found.memory_bytes == 7.0
    for batch in (1, 2, 4):
        error = np.log(roofline(graph, found, batch) / roofline(graph, device, batch))
        assert np.abs(error).max() < 0.05


def test_noise_moves_the_figures_little() -> None:
    """Seconds that scatter by a fifth, and an op that is off by 1,000, give figures within a third."""
    graph, device = graph_of(1, 200), Device("d", flops_per_s=1e12, bytes_per_s=1e10, launch_s=1e-5)
    table = table_of(graph, device, sigma=0.2)
    odd = dataclasses.replace(table.rows[7], seconds=1000 * table.rows[7].seconds)
    found = fitted_device(graph, table.updated(CostTable((odd,))), device)
    for what in ("flops_per_s", "bytes_per_s", "launch_s"):
        assert math.log(getattr(found, what) / getattr(device, what)) == pytest.approx(0.0, abs=0.3)


def test_views_and_inputs_do_not_count() -> None:
    """Ops that copy nothing leave the fit as it is."""
    graph, device = graph_of(2), Device("d", flops_per_s=1e12, bytes_per_s=1e10, launch_s=1e-5)
    expected = fitted_device(graph, table_of(graph, device), device)
    rows: list[tuple[str, dict[str, Any]]]
    rows = [(op, {"flops": graph.flops[v], "out_bytes": graph.out_bytes[v]}) for v, op in enumerate(graph.names)]
    edges = [(graph.names[u], graph.names[v]) for u, v in graph.edges.tolist()]
    more: list[tuple[str, dict[str, Any]]] = [
        ("look", {"view": True, "flops": 0.0, "out_bytes": 1e9}),
        ("x", {"op": "input", "flops": 0.0}),
    ]
    larger = Graph.build([*rows, *more], edges)
    table = table_of(graph, device).updated(CostTable((CostRow("look", "d", 1, 1e-9), CostRow("x", "d", 1, 5.0))))
    assert fitted_device(larger, table, device) == expected


def test_too_little_is_refused() -> None:
    """Fewer than four ops, or none that computes, are not enough to fit anything."""
    device = Device("d", flops_per_s=1e12, launch_s=1e-6)
    small = graph_of(3, 3)
    with pytest.raises(InvalidCostTable, match="3 measured ops"):
        fitted_device(small, table_of(small, device), device)
    idle = Graph.build([(f"op{at}", {"flops": 0.0, "out_bytes": 4.0}) for at in range(6)], [])
    with pytest.raises(InvalidCostTable, match="0 of which compute"):
        fitted_device(idle, table_of(idle, device), device)
    with pytest.raises(InvalidCostTable, match="0 measured ops"):
        fitted_device(graph_of(4), CostTable(()), device)
