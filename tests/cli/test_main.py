"""The command line: tables for people, JSON for machines, exit codes, and errors one can act on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Return the path of a small model file."""
    ops = [(f"op{i}", {"time_s": 1.0 + i % 3, "param_bytes": 10 * i, "out_bytes": 4}) for i in range(12)]
    edges = [(f"op{i}", f"op{j}") for i in range(12) for j in (i + 1, i + 3) if j < 12]
    rlinit.Graph.build(ops, edges, name="toy").save(tmp_path / "toy.json")
    (tmp_path / "hw.toml").write_text("[[device]]\nname='d'\ncount=3\n")
    return str(tmp_path / "toy.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error of a command run in this process."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_schedule_prints_a_table_and_writes_files(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table names every stage, the proof and the status; plan and picture are written."""
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    hw = str(tmp_path / "hw.toml")
    code, out, _ = run(capsys, "schedule", model, "--hw", hw, "--out", str(plan), "--plot", str(picture))
    assert code == 0
    for text in ("toy", "d0", "d2", "optimal", "bottleneck"):
        assert text in out
    assert rlinit.Plan.load(plan).status == "optimal"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_json_output_is_the_plan(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str
) -> None:
    """--json prints exactly what --out writes, and nothing else."""
    hw = str(tmp_path / "hw.toml")
    out_path = tmp_path / "p.json"
    code, out, _ = run(
        capsys, "schedule", model, "--hw", hw, "--objective", objective, "--json", "--out", str(out_path)
    )
    assert code == 0
    assert json.loads(out) == json.loads(out_path.read_text())


def test_bound_inspect_and_bench_report(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other commands print tables and JSON."""
    hw = str(tmp_path / "hw.toml")
    code, out, _ = run(capsys, "bound", model, "--hw", hw, "--json")
    assert code == 0
    proven = json.loads(out)
    assert proven["source"]
    assert proven["bounds"][0] > 0
    assert run(capsys, "bound", model, "--hw", hw, "--objective", "memory")[0] == 0
    code, out, _ = run(capsys, "inspect", model, "--json")
    assert (code, json.loads(out)["ops"]) == (0, 12)
    assert "ideals" in run(capsys, "inspect", model)[1]
    code, out, _ = run(capsys, "bench", model, "--hw", hw, "--methods", "natural", "auto")
    assert code == 0
    assert "natural" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "missing.json"], "missing.json"),
        (["schedule", "model.xyz"], ".json"),
        (["schedule", "zoo:alexnet"], "ResNet50"),
        (["schedule", "MODEL", "--hw", "abacus"], "edge-tpu-K"),
        (["schedule", "MODEL", "--hw", "edge-tpu-4", "--method", "magic"], "auto, warm, milp, ideals"),
        (["schedule", "MODEL", "--window", "wide"], "--window"),
        (["schedule", "MODEL", "--window", "²"], "--window"),
        (["schedule", "MODEL", "--stages", "0"], "at least"),
        (["schedule", "MODEL", "--out", "no/such/folder/p.json"], "no/such/folder"),
        (["bound", "MODEL", "--method", "magic"], "expected auto, simple"),
    ],
)
def test_wrong_input_is_one_clear_line(
    model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Exit code 2, a message that names the culprit, no traceback, nothing on standard output."""
    code, out, err = run(capsys, *[model if a == "MODEL" else a for a in arguments])
    assert code == 2
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err
    assert out == ""


def test_infeasible_has_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An op that fits nowhere: exit code 3 and the reason; no picture is written."""
    rlinit.Graph.build([("big", {"time_s": 1, "param_bytes": 100})], []).save(tmp_path / "g.json")
    (tmp_path / "hw.toml").write_text("[[device]]\nname='d'\ncount=2\nmemory_bytes=10\n")
    picture = tmp_path / "p.png"
    code, out, _ = run(
        capsys, "schedule", str(tmp_path / "g.json"), "--hw", str(tmp_path / "hw.toml"), "--plot", str(picture)
    )
    assert code == 3
    assert "'big'" in out
    assert not picture.exists()


def test_ctrl_c_prints_the_incumbent(tmp_path: Path) -> None:
    """SIGINT to the process during a long run: exit code 130 and a valid plan on standard output."""
    ops = [(f"op{i}", {"time_s": 1.0 + (i * 37 % 11) / 7, "out_bytes": 1 + i * 13 % 5}) for i in range(200)]
    edges = [(f"op{i}", f"op{j}") for i in range(200) for j in (i + 1 + i % 7, i + 5 + i % 13) if j < 200]
    rlinit.Graph.build(ops, edges, name="long").save(tmp_path / "g.json")
    (tmp_path / "hw.toml").write_text("bandwidth = 1.0\n[[device]]\nname='d'\ncount=9\n")
    command = [
        sys.executable,
        "-m",
        "rlinit.cli.main",
        "schedule",
        str(tmp_path / "g.json"),
        "--hw",
        str(tmp_path / "hw.toml"),
    ]
    process = subprocess.Popen(
        [*command, "--method", "milp", "--agent", "natural", "--time-limit-s", "100", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    time.sleep(12.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, 0), err.decode()
    assert json.loads(out)["status"] in ("feasible", "optimal", "no_solution")
