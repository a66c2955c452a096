"""Baselines: what simple rules give, by the plan's own evaluation, and never better than the plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.comparison.baselines import BEST_DEVICE, baseline_lines, cut_in_shares
from rlinit.comparison.placements import DATA_PARALLEL, PLACEMENT_BASELINES, placement_baselines
from rlinit.comparison.stages import STAGE_BASELINES
from rlinit.errors import InvalidPlan
from rlinit.files import write_json
from rlinit.placements.lowering import lower_placement
from tests.placement_cases import placement_plan

CHAIN = rlinit.Graph.build(
    [(f"v{i}", {"time_s": {"slow": 2.0, "fast": 1.0}, "param_bytes": 4.0, "out_bytes": 1.0}) for i in range(6)],
    [(f"v{i}", f"v{i + 1}") for i in range(5)],
)


def two_devices(fast_bytes: float = 100.0, slow_bytes: float = 100.0, bandwidth: float = 1.0) -> rlinit.Hardware:
    """Return a slow and a fast device."""
    devices = [rlinit.Device("s", "slow", slow_bytes), rlinit.Device("f", "fast", fast_bytes)]
    return rlinit.Hardware.mesh(devices, bandwidth)


def test_shares_are_kept() -> None:
    """Parts are consecutive and as large as their shares, parts without a share are empty, weights of zero count."""
    assert cut_in_shares(np.ones(6), [1, 1]).tolist() == [0, 0, 0, 1, 1, 1]
    assert cut_in_shares(np.ones(6), [1, 0, 2]).tolist() == [0, 0, 2, 2, 2, 2]
    assert cut_in_shares(np.zeros(4), [1, 1]).tolist() == [0, 0, 1, 1]
    assert cut_in_shares(np.array([5.0, 1, 1, 1, 1, 1]), [1, 1]).tolist() == [0, 1, 1, 1, 1, 1]
    rng = np.random.default_rng(0)
    for _ in range(50):
        part = cut_in_shares(rng.random(30), rng.random(5))
        assert (np.diff(part) >= 0).all()
        assert part.max() <= 4


def test_a_chain_by_hand() -> None:
    """Six ops on a slow and a fast device: each rule's makespan is what the rule says."""
    plan = rlinit.schedule(CHAIN, two_devices(), objective="latency")
    assert tuple(plan.baselines) == tuple(name for name in PLACEMENT_BASELINES if name != DATA_PARALLEL)
    assert plan.baselines[BEST_DEVICE] == 6.0
    assert plan.baseline_notes[BEST_DEVICE] == "f"
    assert plan.baselines["equal layers"] == 3 * 2.0 + 1.0 + 3 * 1.0
    assert plan.baselines["split by speed"] == 2 * 2.0 + 1.0 + 4 * 1.0
    assert plan.baselines["split by memory"] == 10.0
    assert plan.value == 6.0
    assert plan.ratio_to(BEST_DEVICE) == 1.0
    assert "1.00x of the best single device (f: 6 s)" in baseline_lines(plan)


def test_what_does_not_fit_has_a_reason() -> None:
    """A model no device holds has no best single one, unlimited memory no proportion, and a full device is named."""
    plan = rlinit.schedule(CHAIN, two_devices(20.0, 26.0), objective="latency", resident="tensors")
    assert plan.baselines[BEST_DEVICE] is None
    assert "no device holds the whole model" in plan.baseline_notes[BEST_DEVICE]
    assert plan.ratio_to(BEST_DEVICE) is None
    assert "device 'f' would hold" in plan.baseline_notes["split by speed"]
    assert plan.baselines["equal layers"] is not None
    open_ended = rlinit.schedule(CHAIN, two_devices(float("inf")), objective="latency")
    assert "device 'f' has no limit of memory" in open_ended.baseline_notes["split by memory"]
    with pytest.raises(InvalidPlan, match="no baseline 'luck'; expected one of best single device"):
        plan.ratio_to("luck")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("objective", "inputs"), [("latency", None), ("throughput", 4)])
def test_no_placement_is_worse_than_a_baseline(seed: int, objective: str, inputs: int | None) -> None:
    """A plan of `auto` is at most as long as every baseline, and each of those passes the checker."""
    rng = np.random.default_rng(seed)
    ops = [
        (f"v{i}", {"time_s": float(rng.random()), "param_bytes": float(rng.integers(1, 5)), "out_bytes": 1.0})
        for i in range(12)
    ]
    edges = [(f"v{i}", f"v{j}") for i in range(12) for j in range(i + 1, 12) if rng.random() < 0.25]
    graph = rlinit.Graph.build(ops, edges)
    devices = [rlinit.Device(f"d{i}", memory_bytes=float(rng.integers(60, 260))) for i in range(3)]
    hardware = rlinit.Hardware.mesh(devices, 5.0)
    if objective == "throughput":
        seconds = {device.name: {1: 1.0, 2: 1.5, 3: 1.7, 4: 2.0} for device in devices}
        graph = rlinit.Graph.build([(name, {**row, "time_s": seconds}) for name, row in ops], edges)
    rules: dict[str, Any] = {"objective": objective, "inputs": inputs, "resident": "tensors"}
    plan = rlinit.schedule(graph, hardware, **rules, time_limit_s=0.2)
    problem = lower_placement(graph, hardware, objective, inputs=inputs).problem  # type: ignore[arg-type]
    for one in placement_baselines(problem, graph, hardware, Budget()):
        assert plan.baselines[one.name] == one.value
        if one.schedule is not None and one.value is not None:
            assert plan.value <= one.value * (1 + 1e-12)
            rlinit.verify(placement_plan(problem, one.schedule, graph, hardware, method=one.name), graph, hardware)
        else:
            assert one.note


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_stages_are_compared_with_equal_cuts(objective: str, tmp_path: Path) -> None:
    """Stage plans have baselines of their own, are no worse, and keep them in their files; older files load."""
    hardware = rlinit.Hardware.pipeline(3, bandwidth=2.0, memory=30.0)
    graph = rlinit.Graph.build(
        [(f"v{i}", {"time_s": 1.0 + i, "param_bytes": 4.0, "out_bytes": 1.0}) for i in range(6)],
        [(f"v{i}", f"v{i + 1}") for i in range(5)],
    )
    plan = rlinit.schedule(graph, hardware, objective=objective)  # type: ignore[arg-type]
    assert tuple(plan.baselines) == STAGE_BASELINES
    assert plan.baselines[BEST_DEVICE] == (21.0 if objective == "pipeline" else 24.0)
    if objective == "pipeline":
        assert plan.baselines["equal layers"] == 0.5 + 5.0 + 6.0
        assert plan.baselines["equal work"] == 0.5 + 4.0 + 5.0 + 0.5
    else:
        assert plan.baselines["equal bytes"] == 8.0
        assert plan.baseline_notes["equal work"] == "the memory objective has no times"
    assert all(value is None or plan.value <= value for value in plan.baselines.values())
    plan.save(tmp_path / "plan.json")
    assert rlinit.Plan.load(tmp_path / "plan.json") == plan
    plain = dataclasses.replace(plan, baselines={}, baseline_notes={})
    data = plain.to_dict()
    del data["baselines"], data["baseline_notes"]
    write_json(tmp_path / "old.json", data)
    assert rlinit.Plan.load(tmp_path / "old.json") == plain


def test_a_named_method_is_shown_as_it_is() -> None:
    """A heuristic asked for by name is not replaced by a better baseline, which the plan shows beside it."""
    plan = rlinit.schedule(CHAIN, two_devices(), objective="latency", method="best-device")
    assert plan.method == "best-device"
    row = rlinit.Graph.build([(f"v{i}", {"time_s": 1.0, "out_bytes": 1.0}) for i in range(4)], [])
    worse = rlinit.schedule(row, rlinit.Hardware.pipeline(3, bandwidth=0.1), method="natural")
    assert worse.method == "natural"


def test_small_gains_are_said() -> None:
    """A placement over two devices that gains 2% over one says so; one that gains half says nothing."""
    ops = {"a": 98.0, "b": 2.0, "c": 0.0}
    graph = rlinit.Graph.build(
        [(name, {"time_s": seconds, "out_bytes": 0.0}) for name, seconds in ops.items()], [("a", "c"), ("b", "c")]
    )
    hardware = rlinit.Hardware.mesh([rlinit.Device("x"), rlinit.Device("y")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="latency")
    assert plan.value == 98.0
    assert any("would take only 2.0% longer" in note for note in plan.notes)
    even = rlinit.Graph.build([(name, {"time_s": 1.0}) for name in "ab"], [])
    assert rlinit.schedule(even, hardware, objective="latency").notes == ()


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_a_limit_that_is_over_at_once_still_gives_stages(objective: Any) -> None:
    """Rules are begun until one that cuts gives a schedule: here the second, since the first is no cut."""
    graph = rlinit.Graph.build([(f"v{i}", {"time_s": 1.0, "param_bytes": 4.0, "out_bytes": 0.0}) for i in range(6)], [])
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), objective=objective, time_limit_s=1e-6)
    rlinit.verify(plan, graph, rlinit.Hardware.pipeline(2))
    assert plan.value == (3.0 if objective == "pipeline" else 12.0)
    assert plan.baseline_notes["equal bytes"] == "not computed: the time limit had passed"
