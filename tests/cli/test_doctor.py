"""``rlinit doctor``: this machine, measured, as a hardware file that plans are made for."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.cli.warm_up import compiled_bytes
from rlinit.costs.roofline import op_times
from rlinit.datasets import imagenet
from rlinit.devices.efficiency import OP_CLASSES
from rlinit.measurement import machine
from rlinit.measurement.cache import MeasuredCache

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_the_file_is_ready_for_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor has memory and rates by type of numbers, read back as printed, and ops have times there."""
    for name, value in (("_NEAR", 1e9), ("_OFF", 1e9)):
        monkeypatch.setattr(machine, name, value)  # whatever else runs here
    assert main(["doctor", "--json", "--seconds", "0.001", "--out", str(tmp_path / "here.json")]) == 0
    said = json.loads(capsys.readouterr().out)
    hardware = rlinit.Hardware.load(tmp_path / "here.json")
    cpu = hardware.devices[0]
    assert cpu.kind == "cpu"
    assert 1e8 < cpu.memory_bytes < 1e14
    assert isinstance(cpu.flops_per_s, dict)
    assert {"fp32", "fp16", "bf16"} <= set(cpu.flops_per_s)
    assert 1e5 < (cpu.rate("fp32") or 0.0) < 1e15
    assert 1e6 < (cpu.bytes_per_s or 0.0) < 1e14
    assert 0 < cpu.launch_s < 1e-2
    assert set(OP_CLASSES) - {"experts", "generation"} == set(cpu.efficiency)  # fitted to the probe
    for one in cpu.efficiency.values():
        assert one.bytes
        assert one.launch_s is not None
        assert 0.0 <= (one.error or 0.0) < 100.0
    assert said["hardware"] == hardware.to_dict()
    assert said["versions"]["rlinit"] == rlinit.__version__
    graph = imagenet.load("mobilenetv2", dtype="fp32")
    assert (op_times(graph, cpu) > 0).all()


def test_figures_of_a_machine_at_other_work_are_withheld(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number is printed or written that this process had no processor for; each has its reason."""
    monkeypatch.setattr(machine, "_NEAR", -1.0)
    monkeypatch.setattr(machine, "_PATIENCE_S", 0.0)
    quick = ["doctor", "--seconds", "0.001"]
    assert main([*quick, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hardware"] is None
    assert set(said["withheld"]) == {f"cpu: {what}" for what in ("fp32", "fp16", "bf16", "bandwidth", "launch")}
    assert main(quick) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "cpu: fp32 is not known: this process had the processor for" in out
    assert main([*quick, "--out", str(tmp_path / "here.json")]) == 2
    assert not (tmp_path / "here.json").exists()


def test_a_figure_is_compared_with_the_best_before(tmp_path: Path) -> None:
    """What takes twice as long as before is withheld; what is quicker is kept for the next time."""
    calm = machine._Runs(1.0, 1.0, 0.0, 0.0)
    cache = MeasuredCache(tmp_path, "here")
    first = machine._Figures("cpu", cache)
    first.take("fp32", calm, units=4.0)
    assert (first.rate("fp32"), first.withheld) == (4.0, {})
    second = machine._Figures("cpu", cache)
    second.take("fp32", calm, units=1.0)
    second.take("fp16", dataclasses.replace(calm, near=0.5), units=1.0)
    assert second.rate("fp32") is second.rate("fp16") is None
    assert "4 times as slow as before" in second.withheld["fp32"]
    assert "50% or more longer" in second.withheld["fp16"]
    assert cache.read()["machine fp32"].seconds == 0.25


def test_work_is_repeated_until_the_processor_was_there_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in which this process did not work are no measurement; patience ends."""
    import torch

    monkeypatch.setattr(machine, "_PATIENCE_S", 0.02)
    runs = machine._timed(lambda: time.sleep(0.002), torch.device("cpu"), 0.0)
    assert "had the processor" in runs.disturbed


def test_kernels_that_are_compiled_are_counted() -> None:
    """What was compiled for these sources counts in bytes, whether or not `rlinit compile` went through."""
    graph = rlinit.Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [("a", "b")])
    rlinit.schedule(graph, rlinit.Hardware.pipeline(2), objective="pipeline")
    assert compiled_bytes() > 0


def test_only_a_processor_is_timed_by_its_own_clock() -> None:
    """The probe of one thread counts the time at work on a CPU; a GPU has no such clock."""
    import torch

    from rlinit.measurement.machine import probe_settings

    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [probe_settings(cpu, threads).clock for threads in (1, 2, None)] == ["processor", "wall", "wall"]
    assert probe_settings(gpu, 1).clock == "wall"


def test_wrong_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not there and a measurement without time are refused before anything is measured."""
    assert main(["doctor", "--out", str(tmp_path / "none" / "here.json")]) == 2
    assert main(["doctor", "--seconds", "0"]) == 2
    assert "expected a number > 0" in capsys.readouterr().err
