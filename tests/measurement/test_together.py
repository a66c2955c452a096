"""Processes that slow each other, as measured: what becomes of the hardware, refusals, and the command line."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.cli.run import Measure, measure_model
from rlinit.costs.table import CostTable
from rlinit.errors import ExecutionFailure, InvalidPlan, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.measurement.together import MeasuredSharing, measure_together
from tests.late import late_imports

with late_imports():
    import torch

    from tests.executors.models import Chain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and hardware of two processes."""
    folder = tmp_path_factory.mktemp("together")
    torch.export.save(torch.export.export(Chain(5, 8).eval(), (torch.randn(1, 3, 8, 8),)), folder / "net.pt2")
    devices = [Device(f"p{i}", "cpu", flops_per_s=1e9, bytes_per_s=1e9, io_bandwidth=7.0) for i in range(2)]
    Hardware.mesh(devices, 1e9).save(folder / "hw.json")
    return folder


def test_factors_and_links_become_hardware() -> None:
    """All devices share one processor; links take what handing over took, instead of what was written."""
    taken = {1 << 10: 1e-5 + 1e-6, 1 << 20: 1e-5 + 1024e-6}
    sharing = MeasuredSharing((1.0, 1.2, 1.7), ((1.0, 1.2, 1.7),), taken)
    hardware = sharing.apply(Hardware.pipeline(2, bandwidth=3.0), "socket")
    assert hardware.sharing == {"socket": (1.0, 1.2)}
    assert {(one.shares, one.io_bandwidth) for one in hardware.devices} == {("socket", None)}
    assert hardware.latency_s[0, 1] == pytest.approx(1e-5)
    assert hardware.bandwidth[0, 1] == pytest.approx((1 << 20) / 1024e-6)
    assert Hardware.from_dict(hardware.to_dict()) == hardware
    assert str(sharing).endswith("1: 1.00, 2: 1.20, 3: 1.70")


@pytest.mark.slow
def test_the_command_line_measures_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the processor's clock, fitted, together: hardware with efficiencies and factors, ready for plans."""
    out = folder / "measured.json"
    measure = Measure(
        folder / "net.pt2", folder / "costs.csv", ("p0=cpu", "p1=cpu"), repeats=2, threads=1, clock="processor",
        hw=str(folder / "hw.json"), hw_out=out, fit=True, together=True,
    )  # fmt: skip
    assert measure_model(measure) == 0
    assert "a process takes this times as long" in capsys.readouterr().out
    table = CostTable.load(folder / "costs.csv")
    assert table.notes["clock"] == "processor"
    hardware = Hardware.load(out)
    ((name, factors),) = hardware.sharing.items()
    assert {one.shares for one in hardware.devices} == {name}
    assert factors[0] == 1.0 <= factors[1] < 1000.0
    assert hardware.bandwidth[0, 1] > 0.0
    assert 0.0 <= hardware.latency_s[0, 1] < 10.0
    for one in hardware.devices:
        assert one.flops_per_s != 1e9
        assert "convolution" in one.efficiency
    graph = table.apply(rlinit.load_graph(folder / "net.pt2"))
    plan = rlinit.schedule(graph, hardware, objective="pipeline")
    assert plan.status == "optimal"
    alone = np.nansum(graph.times["p0", 1])
    assert plan.value <= alone * (1 + 1e-9)
    assert not math.isnan(plan.value)


def test_what_cannot_be_measured_is_refused_before_anything_is(folder: Path) -> None:
    """Devices that are not processes here, one device, a GPU, files that miss; the table is not written."""
    model, out, hw = folder / "net.pt2", folder / "none.csv", str(folder / "hw.json")
    Hardware.pipeline(1).save(folder / "one.json")
    cases = (
        (Measure(model, out, together=True), "--together needs --hw"),
        (Measure(model, out, fit=True), "--fit needs --hw"),
        (Measure(model, out, ("p0=cpu",), hw=hw, hw_out=folder / "h.json", together=True), "'p1'"),
        (Measure(model, out, ("p0=cpu", "p1=cuda:0"), hw=hw, hw_out=folder / "h.json", together=True), "'p1'"),
        (
            Measure(model, out, ("stage=cpu",), hw=str(folder / "one.json"), hw_out=folder / "h.json", together=True),
            "one device",
        ),
        (Measure(model, out, clock="processor"), "counts one thread"),
    )
    for command, message in cases:
        with pytest.raises(RlinitError, match=message):
            measure_model(command)
    assert not out.exists()
    program = torch.export.load(model)
    cases_of: list[dict[str, Any]] = [{"count": 1}, {"count": 2, "rounds": 0}, {"count": 2, "threads": 0}]
    for wrong in cases_of:
        with pytest.raises(InvalidPlan, match="expected >= 2, 1, 1, > 0"):
            measure_together(program, (), **wrong)


@pytest.mark.slow
def test_a_process_that_fails_is_noticed_at_once(folder: Path) -> None:
    """A model that cannot run on the inputs ends the measurement with a reason, not after two minutes."""
    started = time.monotonic()
    with pytest.raises(ExecutionFailure, match="ended before it answered"):
        measure_together(torch.export.load(folder / "net.pt2"), (), 2, rounds=1, seconds=0.01)
    assert time.monotonic() - started < 100.0


@pytest.mark.slow
def test_processes_know_what_transformers_gives() -> None:
    """A model that takes keyword inputs and gives a class of transformers runs in processes that never saw either."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    given = {"pixel_values": torch.ones(1, 3, 8, 8)}
    program = torch.export.export(transformers.ViTForImageClassification(config).eval(), (), given)
    found = measure_together(program, (), 2, kwargs=given, rounds=1, seconds=0.01)
    assert found.factors[0] == 1.0 <= found.factors[1]
