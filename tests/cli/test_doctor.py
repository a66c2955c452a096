"""``rlinit doctor``: this machine, measured, as a hardware file that plans are made for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.costs.roofline import op_times
from rlinit.datasets import imagenet
from rlinit.devices.efficiency import OP_CLASSES

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_the_file_is_ready_for_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The processor has memory and rates by type of numbers, read back as printed, and ops have times there."""
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
    assert set(OP_CLASSES) == set(cpu.efficiency)  # fitted to the probe
    for one in cpu.efficiency.values():
        assert one.bytes
        assert one.launch_s is not None
        assert 0.0 <= (one.error or 0.0) < 100.0
    assert said["hardware"] == hardware.to_dict()
    assert said["versions"]["rlinit"] == rlinit.__version__
    graph = imagenet.load("mobilenetv2", dtype="fp32")
    assert (op_times(graph, cpu) > 0).all()


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
