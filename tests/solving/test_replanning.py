"""Plans of models, devices and costs that have changed: found by name, checked, and never worse than what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware

KINDS = ("x", "y", "z")


def network(seed: int, *, without: float = 0.0, colocated: bool = False) -> Graph:
    """Return a random graph of 30 ops, less a share of them; equal seeds have equal ops."""
    rng = np.random.default_rng(seed)
    kept = np.random.default_rng(seed + 1).random(30) >= without
    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(30):
        times = {kind: float(t) for kind, t in zip(KINDS, rng.integers(1, 20, 3), strict=True)}
        row: dict[str, Any] = {"time_s": times, "out_bytes": int(rng.integers(0, 9)), "param_bytes": 1}
        if rng.random() < 0.1:
            row["forbidden"] = [KINDS[1 + v % 2]]
        if colocated and v % 7 in (2, 3):
            row["colocate"] = f"g{v // 7}"
        ops.append((f"v{v}", row))
    edges = [(f"v{u}", f"v{v}") for v in range(30) for u in range(v) if rng.random() < 0.08 and kept[u] and kept[v]]
    return Graph.build([one for one, there in zip(ops, kept, strict=True) if there], edges, name="net")


def pipeline(count: int) -> Hardware:
    """Return equal devices in a row."""
    devices = tuple(Device(f"s{i}", kind="x") for i in range(count))
    return Hardware(devices, np.ones((count, count)), np.zeros((count, count)), "pipeline")


def machines(count: int, memory: float = 100.0) -> Hardware:
    """Return unlike devices that are all linked."""
    devices = tuple(Device(f"d{i}", kind=KINDS[i], memory_bytes=memory) for i in range(count))
    return Hardware(devices, np.ones((count, count)), np.zeros((count, count)), "machines")


@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize("transfers", ["parallel", "exclusive"])
@pytest.mark.parametrize("seed", range(4))
def test_placements_go_on_from_another_problem(seed: int, transfers: Any, colocated: bool) -> None:
    """New ops, a lost device and both end in checked plans; nothing of the old problem's bound is kept."""
    old = rlinit.schedule(
        network(seed, without=0.2, colocated=colocated), machines(3), objective="latency", time_limit_s=0.2
    )
    for devices in (3, 2):
        graph, hardware = network(seed, colocated=colocated), machines(devices)
        plan = rlinit.schedule(graph, hardware, objective="latency", transfers=transfers, agent=old, time_limit_s=0.2)
        rlinit.verify(plan, graph, hardware)
        alone = rlinit.schedule(graph, hardware, objective="latency", transfers=transfers, time_limit_s=0.2)
        assert plan.bound <= alone.value * (1 + 1e-9)
        assert alone.bound <= plan.value * (1 + 1e-9)
        assert str(plan.provenance["start"]).startswith("plan of another problem")


def test_small_changes_of_costs_keep_the_old_plan() -> None:
    """The old assignment is never lost: its value under the new costs is the worst that may come."""
    graph = network(0)
    old = rlinit.schedule(graph, machines(3), objective="latency", time_limit_s=0.5)
    slower = Graph.from_dict({**graph.to_dict(), "ops": [_slower(row) for row in graph.to_dict()["ops"]]})
    again = rlinit.schedule(slower, machines(3), objective="latency", agent=old, method="heft")
    assert again.value <= 1.1 * old.value * (1 + 1e-9)


def _slower(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "time_s": {kind: 1.1 * seconds for kind, seconds in row["time_s"].items()}}


def test_what_no_longer_fits_is_planned_anew() -> None:
    """Where the old placement breaks a limit of memory, the search begins from nothing."""
    graph = Graph.build([(f"v{v}", {"time_s": 1, "param_bytes": 10}) for v in range(4)], [], name="four")
    roomy, tight = machines(2), machines(2, memory=20.0)
    old = rlinit.schedule(graph, roomy, objective="latency", method="heft")
    for agent in (old, rlinit.schedule(graph, machines(1), objective="latency")):
        plan = rlinit.schedule(graph, tight, objective="latency", agent=agent)
        assert plan.value == 2.0


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
@pytest.mark.parametrize("seed", range(4))
def test_stages_go_on_from_another_problem(seed: int, objective: Any) -> None:
    """New ops, and one stage less or more, keep the order and end in checked plans; bounds are of the new problem."""
    old = rlinit.schedule(network(seed, without=0.2), pipeline(3), objective=objective, time_limit_s=0.2)
    for count in (2, 3, 4):
        graph, hardware = network(seed), pipeline(count)
        plan = rlinit.schedule(graph, hardware, objective=objective, agent=old, time_limit_s=0.2)
        rlinit.verify(plan, graph, hardware)
        alone = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=0.2)
        assert plan.bound <= alone.value * (1 + 1e-9)
        assert alone.bound <= plan.value * (1 + 1e-9)
        assert plan.provenance["start"] == "plan"


def test_plans_of_other_models_are_refused() -> None:
    """A plan that names none of the ops says nothing; the message says what it is for."""
    other = Graph.build([("w", {"time_s": 1})], [], name="other")
    objectives: tuple[Any, ...] = ("latency", "pipeline")
    for objective in objectives:
        hardware = machines(2) if objective == "latency" else pipeline(2)
        plan = rlinit.schedule(other, hardware, objective=objective)
        with pytest.raises(InvalidPlan, match="the plan to refine is for 'other'"):
            rlinit.schedule(network(0), hardware, objective=objective, agent=plan)
