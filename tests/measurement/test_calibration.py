"""Predicted against measured times of plans, and measured transfers."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.costs.table import CostRow, CostTable, InvalidCostTable
from rlinit.errors import BackendUnavailable, InvalidHardware, InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.calibration import Calibration, OpTiming, calibrate, rank_correlation
from rlinit.measurement.ops import Measuring, measure_ops, placed_plan
from rlinit.measurement.transfers import MeasuredTransfers, TransferRow, measure_transfers
from tests.draws import draws
from tests.executors.plans import random_plan, stage_plan
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn

    from tests.executors.models import Chain


FAST = Measuring(warmup=1, repeats=3, threads=1)


def timing(op: str, predicted_s: float, measured_s: float, device: str = "d") -> OpTiming:
    """Return the timing of an op that was measured three times."""
    return OpTiming(op, device, 1, predicted_s, measured_s, 0.1 * measured_s, 3)


def calibration(*ops: OpTiming, predicted_s: float = 1.0) -> Calibration:
    """Return a calibration of some ops."""
    return Calibration("net", "latency", predicted_s, 2.0, 0.1, 1.5, 3, ops, {"device d": "a cpu"})


@pytest.fixture(scope="module")
def case() -> tuple[Any, tuple[Any, ...], Graph]:
    """Return an exported network, its inputs, and its graph with measured times on d0 and d1."""
    model, inputs = Chain(2, 8).eval(), (torch.randn(1, 3, 16, 16),)
    exported = export_program(model, inputs)
    graph = from_program(exported)
    table = measure_ops(exported, inputs, graph, devices={"d0": "cpu", "d1": "cpu"}, settings=FAST)
    return exported, inputs, table.apply(graph)


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    """Return two devices with a fast link."""
    return Hardware.mesh([Device("d0"), Device("d1")], 1e9)


def test_placements_are_compared_op_by_op(case: tuple[Any, tuple[Any, ...], Graph], hardware: Hardware) -> None:
    """Every op that computes has its predicted seconds from the plan and measured ones."""
    exported, inputs, graph = case
    plan = random_plan(graph, hardware, 3)
    found = calibrate(plan, exported, inputs, graph=graph, settings=FAST)
    assert {row.op for row in found.ops} == set(graph.names) - {"x"}
    assert found.predicted_s == plan.value
    for row in found.ops:
        assert row.predicted_s == pytest.approx(graph.times[row.device, 1][graph.index(row.op)])
        assert row.repeats == 3
        assert row.measured_s > 0
        assert plan.assignment is not None
        assert plan.assignment[row.op] == row.device
    assert 0 < found.least_s <= found.measured_s
    assert found.repeats == 3
    assert len(found.notes) == len(found.device_factors())
    assert all("1 threads" in note for note in found.notes.values())


def test_stage_plans_are_compared_with_graph_and_hardware(
    case: tuple[Any, tuple[Any, ...], Graph], hardware: Hardware
) -> None:
    """Stages take their op times from the graph; the whole is the sum of the stages, as one input goes through all."""
    exported, inputs, graph = case
    half = graph.num_ops // 2
    plan = stage_plan(graph, hardware, [int(at >= half) for at in range(graph.num_ops)])
    found = calibrate(plan, exported, inputs, graph=graph, hardware=hardware, settings=FAST)
    assert found.predicted_s == pytest.approx(sum(use.time_s for use in plan.stages))
    assert {row.device for row in found.ops} == {"d0", "d1"}
    with pytest.raises(InvalidPlan, match="give its graph and its hardware"):
        calibrate(plan, exported, inputs, graph=graph, settings=FAST)
    with pytest.raises(InvalidPlan, match="another graph or hardware"):
        calibrate(plan, exported, inputs, graph=graph, hardware=Hardware.mesh(hardware.devices, 1.0), settings=FAST)


def test_seconds_of_slower_devices_are_not_slowed_twice(case: tuple[Any, tuple[Any, ...], Graph]) -> None:
    """A plan from a calibrated table says of each op what was measured, on devices with a slowdown, too."""
    exported, inputs, graph = case
    slow = Hardware.mesh([Device("d0", slowdown=3.0)], 1e9)
    plan = random_plan(graph, slow, 3)
    found = calibrate(plan, exported, inputs, graph=graph, hardware=slow, settings=FAST)
    assert found.slowdowns == {"d0": 3.0}
    again = random_plan(found.table().apply(graph, partial=True), slow, 3)
    planned = {batch.op: batch.end_s - batch.start_s for batch in again.batches}
    for row in found.ops:
        assert planned[row.op] == pytest.approx(row.measured_s, rel=1e-9, abs=1e-12)


def test_stages_that_share_a_processor_are_measured_alone(case: tuple[Any, tuple[Any, ...], Graph]) -> None:
    """One input goes through all stages, one at a time: what each would lose to the others is not predicted of it."""
    exported, inputs, graph = case
    devices = [Device(name, shares="cpu") for name in ("d0", "d1")]
    shared = dataclasses.replace(Hardware.mesh(devices, 1e9), sharing={"cpu": (1.0, 1.5)})
    plan = rlinit.schedule(graph, shared)
    assert sum(use.num_ops > 0 for use in plan.stages) == 2
    found = calibrate(plan, exported, inputs, graph=graph, hardware=shared, settings=FAST)
    work_s = math.fsum(use.work_s for use in plan.stages)
    assert found.predicted_s == pytest.approx(math.fsum(use.time_s for use in plan.stages) - work_s * 0.5 / 1.5)
    assert math.fsum(row.predicted_s for row in found.ops) == pytest.approx(work_s / 1.5)
    assert found.slowdowns == {}


def test_batches_of_throughput_plans_are_compared_by_size(hardware: Hardware) -> None:
    """Ops that run in batches of several sizes are compared at each size."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    inputs = (torch.randn(4, 8),)
    graph = from_program(export_program(model, (torch.randn(1, 8),)))
    times = {(device, batch): np.full(graph.num_ops, 1e-3 * batch) for device in ("d0", "d1") for batch in range(1, 5)}
    graph = dataclasses.replace(graph, times=times)
    sized = Hardware.mesh([Device(name, batch_sizes=(1, 2, 3, 4)) for name in ("d0", "d1")], 1e9)
    plan = random_plan(graph, sized, 5, inputs=4)
    found = calibrate(plan, model, inputs, graph=graph, settings=FAST)
    planned = {(batch.op, batch.device, len(batch.shards)) for batch in plan.batches if batch.op != "input"}
    assert {(row.op, row.device, row.batch) for row in found.ops} == planned
    assert all(row.predicted_s == pytest.approx(1e-3 * row.batch) for row in found.ops)


def test_memory_plans_have_no_times(case: tuple[Any, tuple[Any, ...], Graph], hardware: Hardware) -> None:
    """A plan without times, or without a schedule, is refused."""
    exported, inputs, graph = case
    memory = stage_plan(graph, hardware, [0] * graph.num_ops, objective="memory")
    with pytest.raises(InvalidPlan, match="memory plan"):
        calibrate(memory, exported, inputs, graph=graph, hardware=hardware)
    empty = dataclasses.replace(memory, objective="latency", status="no_solution", assignment=None)
    with pytest.raises(InvalidPlan, match="no_solution"):
        calibrate(empty, exported, inputs, graph=graph)


def test_measured_seconds_feed_back(case: tuple[Any, tuple[Any, ...], Graph]) -> None:
    """What a run measured replaces the rows of the cost table, and a plan made from that predicts it exactly."""
    exported, inputs, graph = case
    plan = placed_plan(graph, dict.fromkeys(graph.names, "d0"))
    found = calibrate(plan, exported, inputs, graph=graph, settings=FAST)
    assert math.isinf(found.factor) or found.predicted_s == 0
    old = CostTable(
        tuple(
            CostRow(op, device, batch, float(seconds))
            for (device, batch), column in graph.times.items()
            for op, seconds in zip(graph.names, column, strict=True)
        )
    )
    new = old.updated(found.table())
    assert len(new) == len(old)
    changed = new.apply(graph)
    for row in found.ops:
        assert changed.times["d0", 1][graph.index(row.op)] == row.measured_s
    assert changed.times["d1", 1].tolist() == graph.times["d1", 1].tolist()


def test_disagreements_and_factors() -> None:
    """The op furthest from its prediction comes first, too fast or too slow; devices sum up their ops."""
    found = calibration(timing("a", 1.0, 1.1), timing("b", 5.0, 2.0), timing("c", 1.0, 3.0, "e"), timing("z", 0.0, 0.0))
    assert [row.op for row in found.disagreements(3)] == ["b", "c", "a"]
    assert found.device_factors() == pytest.approx({"d": 3.1 / 6.0, "e": 3.0})
    assert found.factor == 2.0
    assert math.isinf(calibration(predicted_s=0.0).factor)
    assert calibration().rank_correlation is None


def test_files_give_it_back(tmp_path: Path) -> None:
    """A calibration comes back from its file; damaged files are refused with the place."""
    found = calibration(timing("a", 1e-9, 1e12), timing("b", 0.0, 0.0))
    path = tmp_path / "c.json"
    found.save(path)
    assert Calibration.load(path) == found
    slowed = dataclasses.replace(found, slowdowns={"d": 2.0})
    slowed.save(tmp_path / "slowed.json")
    assert Calibration.load(tmp_path / "slowed.json") == slowed
    assert [row.seconds for row in slowed.table().rows] == [row.seconds / 2 for row in found.table().rows]
    data = json.loads(path.read_text())
    huge = [{**row, "measured_s": 10**400} for row in data["ops"]]
    for text in (
        path.read_text()[:50],
        *(json.dumps({**data, **wrong}) for wrong in ({"version": 2}, {"measured_s": -1}, {"spread_s": 10**400})),
        json.dumps({**data, "ops": huge}),
    ):
        path.write_text(text)
        with pytest.raises(InvalidCostTable, match=path.name):
            Calibration.load(path)


@given(values=st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12)), max_size=12))
@settings(max_examples=draws(60), deadline=None)
def test_rank_correlation_is_scipys(values: list[tuple[float, float]]) -> None:
    """Where it is defined, it is Spearman's coefficient; its sign turns with either argument."""
    from scipy.stats import spearmanr

    x, y = [a for a, _ in values], [b for _, b in values]
    found = rank_correlation(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert found is None
        return
    assert found is not None
    assert found == pytest.approx(float(spearmanr(x, y).statistic), abs=1e-9)
    assert rank_correlation(x, [-b for b in y]) == pytest.approx(-found, abs=1e-9)


# -- transfers ---------------------------------------------------------------------------------------------------


def test_links_are_fitted() -> None:
    """Rows on a line give its latency and bandwidth; the hardware gets them for measured pairs and keeps the others."""
    sizes = (4_096, 262_144, 16_777_216)
    rows = [TransferRow("a", "b", size, 1e-5 + size / 8e9, 0.0, 5) for size in sizes]
    rows += [TransferRow("b", "a", size, 2e-5, 0.0, 5) for size in sizes]
    rows += [TransferRow("a", "c", 4_096, 3e-6, 1e-6, 5)]
    found = MeasuredTransfers(tuple(rows))
    assert found.link("a", "b") == pytest.approx((1e-5, 8e9))
    assert found.link("b", "a")[0] == pytest.approx(2e-5)
    assert found.link("b", "a")[1] > 1e15
    assert found.link("a", "c") == (3e-6, math.inf)
    hardware = found.apply(Hardware.mesh([Device(name) for name in "abc"], 1e9, latency_s=1.0))
    assert hardware.bandwidth[0, 1] == pytest.approx(8e9)
    assert hardware.latency_s[0, 2] == 3e-6
    assert (hardware.bandwidth[2, 0], hardware.latency_s[2, 0]) == (1e9, 1.0)
    assert "a -> c" in str(found)
    with pytest.raises(InvalidHardware, match="'c'"):
        found.apply(Hardware.mesh([Device("a"), Device("b")], 1e9))
    with pytest.raises(InvalidHardware, match="not measured"):
        found.link("c", "a")


def test_zero_seconds_fit() -> None:
    """Transfers too fast to measure give no latency and unlimited bandwidth."""
    found = MeasuredTransfers(tuple(TransferRow("a", "b", size, 0.0, 0.0, 2) for size in (4, 4_000_000)))
    assert found.link("a", "b") == (0.0, math.inf)


def test_devices_on_one_processor_pay_the_wake_up_only() -> None:
    """Two names of the CPU hand on references: any size takes a latency, measured in both directions."""
    found = measure_transfers({"d0": "cpu", "d1": "cpu"}, settings=FAST)
    assert found.pairs == (("d0", "d1"), ("d1", "d0"))
    for pair in found.pairs:
        latency_s, bandwidth = found.link(*pair)
        assert 0 <= latency_s < 1.0
        assert math.isinf(bandwidth)
    assert all(row.repeats == 24 for row in found.rows)
    with pytest.raises(InvalidPlan, match="two or more"):
        measure_transfers(["cpu"])
    with pytest.raises(InvalidPlan, match="sizes >= 1"):
        measure_transfers({"d0": "cpu", "d1": "cpu"}, sizes=(0,))


def test_without_torch_the_extra_is_named(
    case: tuple[Any, tuple[Any, ...], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch is missing, the error says what to install."""
    exported, inputs, graph = case
    plan = placed_plan(graph, dict.fromkeys(graph.names, "d0"))
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (
        lambda: measure_ops(exported, inputs, graph),
        lambda: calibrate(plan, exported, inputs, graph=graph),
        lambda: measure_transfers({"d0": "cpu", "d1": "cpu"}),
    ):
        with pytest.raises(BackendUnavailable, match=r"rlinit\[torch\]"):
            call()
