"""What plans are worth when costs are off, and the plan that bears it best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.errors import RlinitError
from rlinit.hardware import Device, Hardware

PROBLEMS: list[dict[str, Any]] = [
    {"objective": "pipeline"},
    {"objective": "pipeline", "chunks": 2},
    {"objective": "pipeline", "training": "1f1b", "microbatches": 4},
    {"objective": "latency"},
    {"objective": "throughput", "inputs": 3},
]


def graph_of() -> rlinit.Graph:
    """Return a chain with a branch, of two classes of ops."""
    rows = [
        (f"v{at}", {"op": ("conv2d", "add")[at % 2], "flops": 1e6 * (1 + at), "out_bytes": 1e3, "param_bytes": 10.0})
        for at in range(8)
    ]
    edges = [(f"v{at}", f"v{at + 1}") for at in range(7)] + [("v1", "v5")]
    return rlinit.Graph.build(rows, edges)


def hardware_of() -> Hardware:
    """Return two unlike devices."""
    devices = tuple(
        Device(f"d{at}", f"kind{at}", flops_per_s=1e9 * (1 + at), bytes_per_s=1e9, launch_s=1e-5) for at in range(2)
    )
    return Hardware(devices, np.full((2, 2), 1e9), np.full((2, 2), 1e-5))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: "-".join(map(str, one.values())))
def test_values_without_error_are_the_plans(problem: dict[str, Any]) -> None:
    """With errors of nothing every draw gives the plan's own value, and nothing decides."""
    graph, hardware = graph_of(), hardware_of()
    plan = rlinit.schedule(graph, hardware, **problem)
    found = plan.sensitivity(graph, hardware, spread=0.0, draws=3)
    assert found.values[0] == pytest.approx(plan.value)
    assert found.stays_best == 1.0
    assert found.decisive == {}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: "-".join(map(str, one.values())))
def test_draws_move_values(problem: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are the seed's; what decides are pairs of the graph's classes and the hardware's kinds."""
    if problem["objective"] == "pipeline":  # ends by itself in a second, unless the machine is busy
        monkeypatch.setattr("rlinit.solving.sensitivity._RIVAL_S", None)
    graph, hardware = graph_of(), hardware_of()
    plan = rlinit.schedule(graph, hardware, **problem)
    found, again = (plan.sensitivity(graph, hardware, spread=0.5, draws=12, seed=3) for _ in range(2))
    assert (found.values == again.values).all()
    assert found.values.shape[1] == 12
    assert np.ptp(found.values[0]) > 0
    assert (found.regret >= 0).all()
    assert {kind for kind, _ in found.decisive} <= {"kind0", "kind1"}
    assert {name for _, name in found.decisive} <= {"convolution", "elementwise"}
    assert "costs drawn 12 times" in str(found)


def test_the_robust_plan_is_verified_and_bounded() -> None:
    """It is a plan of the problem, with a bound that holds and the mean that it was chosen for."""
    graph, hardware = graph_of(), hardware_of()
    plain = rlinit.schedule(graph, hardware, objective="latency")
    plan = rlinit.schedule(graph, hardware, objective="latency", robust=True)
    rlinit.verify(plan, graph, hardware)
    assert plan.bounds is not None
    assert plain.bounds is not None
    assert plan.bounds[0] <= plain.value * (1 + 1e-9)
    assert "costs drawn 100 times" in plan.notes[-1]
    found = plain.sensitivity(graph, hardware)
    means = found.values.mean(axis=1)
    assert means.min() == means[found.plans.index(found.most_robust)]


def test_what_has_no_seconds_is_refused() -> None:
    """Plans of memory, no draws and negative errors get one line."""
    graph, hardware = graph_of(), hardware_of()
    with pytest.raises(RlinitError, match="no seconds"):
        rlinit.schedule(graph, hardware, objective="memory").sensitivity(graph, hardware)
    plan = rlinit.schedule(graph, hardware)
    for wrong in ({"draws": 0}, {"spread": -0.1}):
        with pytest.raises(RlinitError, match="expected at least 1"):
            plan.sensitivity(graph, hardware, **wrong)
