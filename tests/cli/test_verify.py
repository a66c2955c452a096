"""``rlinit schedule --certify`` and ``rlinit verify``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.hardware import Hardware


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """Return the path of three ops in a row."""
    ops = [(name, {"time_s": 1.0 + at, "out_bytes": 1.0}) for at, name in enumerate("abc")]
    rlinit.Graph.build(ops, [("a", "b"), ("b", "c")]).save(tmp_path / "g.json")
    return str(tmp_path / "g.json")


def test_what_is_certified_is_verified(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder that schedule writes holds all that verify asks for."""
    folder = tmp_path / "proof"
    assert main(["schedule", graph, "--hw", "edge-tpu-2", "--certify", str(folder)]) == 0
    names = ("plan", "graph", "hardware", "certificate")
    capsys.readouterr()
    assert main(["verify", *(str(folder / f"{name}.json") for name in names)]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact)")
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact)")
    assert main(["verify", str(folder), graph]) == 2
    assert "is a folder" in " ".join(capsys.readouterr().err.split())
    assert main(["verify", str(folder / "plan.json")]) == 2
    assert "or plan, graph and hardware" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("asked", [["--chunks", "2"], ["--training", "1f1b", "--microbatches", "4"], ["shared"]])
def test_a_plan_without_a_certificate_is_printed(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline that has no certificate is searched all the same, and a line says so; where none fits, it has one."""
    graph, hw, folder = tmp_path / "graph.json", tmp_path / "hw.json", tmp_path / "proof"
    ops = [(name, {"time_s": 1.0, "param_bytes": 2.0, "out_bytes": 1.0}) for name in "ab"]
    rlinit.Graph.build(ops, [("a", "b")]).save(graph)
    shared = asked == ["shared"]
    flags = ["schedule", str(graph), "--hw", str(hw), *([] if shared else asked), "--certify", str(folder)]
    for memory, code, told in ((1e9, 2, "are not checked here"), (1.0, 3, "the bound is certified")):
        devices = [rlinit.Device(f"d{i}", memory_bytes=memory, shares="host" if shared else "") for i in range(2)]
        mesh = Hardware.mesh(devices, 10.0)
        dataclasses.replace(mesh, sharing={"host": (1.0, 1.5)} if shared else {}).save(hw)
        assert main(flags) == code
        said = capsys.readouterr()
        assert said.out
        assert told in " ".join(said.err.split())
        assert (folder / "certificate.json").exists() == (code == 3)
    assert main(["verify", str(folder)]) == 0
    assert "infeasible" in capsys.readouterr().out


def test_stages_of_several_devices_go_through_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with replicas is written, printed with its groups, and verified against the devices there are."""
    menu = {1: [{"time_s": 4.0, "held_bytes": 2.0}], 2: [{"time_s": 2.5, "held_bytes": 1.0}]}
    ops = [(f"o{v}", {"menu": menu}) for v in range(4)]
    rlinit.Graph.build(ops, [(f"o{v}", f"o{v + 1}", 1.0) for v in range(3)]).save(tmp_path / "graph.json")
    rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(6)], 100.0).save(tmp_path / "hw.json")
    files = [str(tmp_path / name) for name in ("plan.json", "graph.json", "hw.json")]
    asked = ["--replicas", "auto", "--tensor-parallel", "auto", "--training", "1f1b", "--microbatches", "12"]
    assert main(["schedule", files[1], "--hw", files[2], *asked, "--out", files[0]]) == 0
    assert "replicas" in capsys.readouterr().out
    assert main(["verify", *files]) == 0
    assert "VERIFIED (value only" in capsys.readouterr().out
    assert main(["schedule", files[1], "--hw", files[2], *asked, "--certify", str(tmp_path / "c")]) == 0
    assert main(["verify", str(tmp_path / "c")]) == 0
    assert "VERIFIED (exact)" in capsys.readouterr().out
    assert main(["schedule", files[1], "--hw", files[2], *asked, "--certify-vipr", str(tmp_path / "v")]) == 2
    assert "have no proofs in this format" in " ".join(capsys.readouterr().err.split())
