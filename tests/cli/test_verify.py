"""``rlinit schedule --certify`` and ``rlinit verify``."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main


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


def test_a_plan_that_cannot_be_certified_is_printed(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is shown and kept, the message says what the checker does not take, and the code is not 0."""
    folder = tmp_path / "proof"
    assert main(["schedule", graph, "--hw", "edge-tpu-2", "--chunks", "2", "--certify", str(folder)]) == 2
    told = capsys.readouterr()
    assert "bottleneck" in told.out
    assert "cannot be certified: chunks" in told.err
    plan = [str(folder / f"{name}.json") for name in ("plan", "graph", "hardware")]
    assert main(["verify", *plan]) == 1
    assert capsys.readouterr().out.startswith("REFUTED: chunks")
