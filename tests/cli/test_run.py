"""The commands that run and measure models: what they print, write and refuse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

from rlinit.cli.inputs import ReadingOptions
from rlinit.cli.run import Calibrate, Measure, Run, calibrate_costs, measure_model, run_plan
from rlinit.costs.table import CostRow, CostTable
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.executors import Execution
from rlinit.hardware import Device, Hardware
from rlinit.importers import load_graph
from rlinit.measurement.calibration import Calibration
from tests.executors.plans import random_plan, stage_plan
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn

    from rlinit.executors.local import LocalExecutor
    from tests.executors.models import Chain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, its measured costs, hardware, and plans made from them."""
    folder = tmp_path_factory.mktemp("cli")
    model = Chain(2, 8).eval()
    torch.export.save(torch.export.export(model, (torch.randn(1, 3, 8, 8),)), folder / "net.pt2")
    Hardware.mesh([Device("d0"), Device("d1")], 1e9).save(folder / "hw.json")
    command = Measure(folder / "net.pt2", folder / "costs.csv", ("d0=cpu", "d1=cpu"), repeats=3)
    command = dataclasses.replace(command, hw=str(folder / "hw.json"), hw_out=folder / "measured.json")
    assert measure_model(command) == 0
    graph = CostTable.load(folder / "costs.csv").apply(load_graph(folder / "net.pt2"))
    hardware = Hardware.load(folder / "measured.json")
    random_plan(graph, hardware, 1).save(folder / "latency.json")
    stage_plan(graph, hardware, [int(at > 4) for at in range(graph.num_ops)]).save(folder / "stages.json")
    return folder


def command_of(folder: Path, plan: str = "latency", **changes: object) -> Run:
    """Return a run of a plan of the folder."""
    base = Run(
        folder / f"{plan}.json",
        folder / "net.pt2",
        reading=ReadingOptions(costs=(str(folder / "costs.csv"),)),
        warmup=1,
        repeats=3,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_measured_links_are_written(folder: Path) -> None:
    """The hardware with measured links differs from the one given, in the links alone."""
    before, after = Hardware.load(folder / "hw.json"), Hardware.load(folder / "measured.json")
    assert before.devices == after.devices
    assert np.isinf(after.bandwidth).all()
    assert (before.bandwidth[0, 1], before.latency_s[0, 1]) == (1e9, 0.0)


@pytest.mark.parametrize("plan", ["latency", "stages"])
def test_a_plan_runs_and_is_measured(folder: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The outputs equal the model's, the report is written, and text says both times and the correlation."""
    report = folder / f"{plan}-report.json"
    command = command_of(folder, plan, measure=True, check=True, report=report, hw=str(folder / "measured.json"))
    assert run_plan(command) == 0
    out = capsys.readouterr().out
    for text in ("outputs equal", "predicted", "rank correlation", "furthest from the prediction", "d0"):
        assert text in out
    assert Calibration.load(report).repeats == 3


def test_json_and_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object; given inputs give the model's own outputs in the file."""
    value = torch.randn(1, 3, 8, 8)
    np.save(folder / "x.npy", value.numpy())
    command = command_of(folder, inputs=(folder / "x.npy",), outputs=folder / "y.npz", json=True, check=True)
    assert run_plan(command) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["difference"] <= 1e-3
    expected = torch.export.load(folder / "net.pt2").module()(value)
    np.testing.assert_allclose(np.load(folder / "y.npz")["output0"], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_reports_become_a_cost_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reported times replace the table's rows, the later report's win, and the other rows stay."""
    first = Calibration("net", "latency", 1.0, 1.0, 0.0, 1.0, 3, (), {})
    names = ("early.json", "late.json")
    from rlinit.measurement.calibration import OpTiming

    for name, seconds in zip(names, (0.5, 0.25), strict=True):
        row = OpTiming("conv2d", "d0", 1, 1.0, seconds, 0.0, 3)
        dataclasses.replace(first, ops=(row,)).save(folder / name)
    reports = tuple(folder / name for name in names)
    assert calibrate_costs(Calibrate(reports, folder / "new.csv", costs=folder / "costs.csv")) == 0
    old, new = CostTable.load(folder / "costs.csv"), CostTable.load(folder / "new.csv")
    assert len(new) == len(old)
    assert new.get("conv2d", "d0").seconds == 0.25  # type: ignore[union-attr]
    assert new.get("conv2d", "d1") == old.get("conv2d", "d1")
    assert "d0 at batch size 1" in capsys.readouterr().out
    assert calibrate_costs(Calibrate(reports, folder / "alone.csv", json=True)) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1


def test_throughput_plans_of_dynamic_programs_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program exported with a dynamic batch is measured at several sizes, and a throughput plan runs its inputs."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=shapes), tmp_path / "net.pt2")
    devices = ("d0=cpu", "d1=cpu")
    measure = Measure(tmp_path / "net.pt2", tmp_path / "costs.csv", devices, batches=(1, 2, 3, 4), repeats=2)
    assert measure_model(measure) == 0
    graph = CostTable.load(tmp_path / "costs.csv").apply(load_graph(tmp_path / "net.pt2"))
    sized = Hardware.mesh([Device(name, batch_sizes=(1, 2, 3, 4)) for name in ("d0", "d1")], 1e9)
    random_plan(graph, sized, 2, inputs=4).save(tmp_path / "latency.json")
    command = Run(
        tmp_path / "latency.json",
        tmp_path / "net.pt2",
        reading=ReadingOptions(costs=(str(tmp_path / "costs.csv"),)),
        check=True,
    )
    assert run_plan(dataclasses.replace(command, measure=True, repeats=2)) == 0
    assert "outputs equal" in capsys.readouterr().out


def test_plans_for_a_batch_of_a_dynamic_program_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for eight rows at once runs eight rows, whole, by stages or split into four inputs of two rows each."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=shapes), tmp_path / "net.pt2")
    sized = Hardware.mesh([Device(name, batch_sizes=(1, 2, 3, 4)) for name in ("d0", "d1")], 1e9)
    for batch, inputs in ((8, 1), (2, 4)):
        graph = load_graph(tmp_path / "net.pt2", batch=batch)
        rows = tuple(CostRow(op, device, b, 1.0) for op in graph.names for device in ("d0", "d1") for b in (1, 2, 3, 4))
        table = CostTable(rows)
        timed = table.apply(graph)
        table.save(tmp_path / "costs.csv")
        plans = [random_plan(timed, sized, 1, inputs=inputs)]
        if inputs == 1:
            plans.append(stage_plan(timed, sized, [int(at > 1) for at in range(timed.num_ops)]))
        for plan in plans:
            plan.save(tmp_path / "plan.json")
            command = Run(
                tmp_path / "plan.json",
                tmp_path / "net.pt2",
                reading=ReadingOptions(batch, costs=(str(tmp_path / "costs.csv"),)),
            )
            outputs = tmp_path / "y.npz"
            assert run_plan(dataclasses.replace(command, check=True, outputs=outputs)) == 0
            assert "outputs equal" in capsys.readouterr().out
            assert np.load(outputs)["output0"].shape == (8, 4)


def test_wrong_input_is_refused(folder: Path) -> None:
    """What does not fit is named, before anything is written."""
    cases: list[tuple[dict[str, object], str]] = [
        ({"reading": ReadingOptions(), "measure": True}, "name the cost table"),
        ({"model": folder / "hw.json"}, r"\.pt2"),
        ({"model": folder / "net.onnx"}, "no such file"),
        ({"model": folder / "net.keras"}, r"\.keras archive"),
        ({"model": folder / "net.pth"}, r"\.pt2 file.*never opened"),
        ({"model": folder / "missing.pt2"}, "missing"),
        ({"devices": ("d0",)}, "--devices 'd0'"),
        ({"devices": ("d7=cpu",)}, "'d7'"),
        ({"devices": ("d0=tpu",)}, "tpu"),
        ({"reading": ReadingOptions(dims=("n",))}, "--dims 'n'"),
        ({"inputs": (folder / "hw.json",)}, r"\.npy"),
        ({"inputs": (folder / "hw.json", folder / "hw.json")}, "2 files"),
        ({"report": folder / "r.json"}, "--measure"),
        ({"executor": "pipeline", "measure": True}, "local"),
        ({"outputs": folder / "no" / "y.npz"}, "does not exist"),
    ]
    for changes, message in cases:
        with pytest.raises(RlinitError, match=message):
            run_plan(dataclasses.replace(command_of(folder), **changes))  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan, match="hardware"):
        run_plan(command_of(folder, "stages", measure=True))
    assert not (folder / "r.json").exists()
    with pytest.raises(RlinitError, match="--hw-out"):
        measure_model(Measure(folder / "net.pt2", folder / "c.csv", hw="cpu-t4-a100"))
    with pytest.raises(RlinitError, match="at least one"):
        calibrate_costs(Calibrate((), folder / "c.csv"))
    with pytest.raises(InvalidPlan, match="fixed batch"):
        measure_model(Measure(folder / "net.pt2", folder / "c.csv", batches=(2,)))


def test_wrong_outputs_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--check refuses outputs that are not the model's."""
    honest = LocalExecutor.execute

    def broken(executor: LocalExecutor, *args: Any, **options: Any) -> Execution:
        result = honest(executor, *args, **options)
        return dataclasses.replace(result, outputs=result.outputs + 1.0)

    monkeypatch.setattr("rlinit.executors.local.LocalExecutor.execute", broken)
    with pytest.raises(InvalidPlan, match="differ from the model's own"):
        run_plan(command_of(folder, check=True))


def test_the_command_line_reads_into_the_commands(folder: Path) -> None:
    """Arguments as a person types them become the commands."""
    run = tyro.cli(Run, args=["plan.json", "net.pt2", "--measure", "--devices", "d0=cpu", "d1=cuda:0"])
    assert (run.plan, run.measure, run.devices) == (Path("plan.json"), True, ("d0=cpu", "d1=cuda:0"))
    measure = tyro.cli(Measure, args=["net.pt2", "costs.csv", "--batches", "1", "4"])
    assert (measure.out, measure.batches, measure.devices) == (Path("costs.csv"), (1, 4), ("cpu",))
    calibrate = tyro.cli(Calibrate, args=["a.json", "b.json", "--out", "c.csv"])
    assert calibrate.reports == (Path("a.json"), Path("b.json"))
