"""The command line: tables for people, JSON for machines, exit codes, and errors one can act on."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlinit
from rlinit.cli import compare, schedule, sweep
from rlinit.cli import run as run_commands
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
    assert json.loads(out)["layers"] == "none found"
    assert json.loads(out)["tensor_bytes"] > 0
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
        (["schedule", "MODEL", "--out", "tests"], "it is a folder"),
        (["schedule", "MODEL", "--plot", "picture.xyz"], ".svg"),
        (["schedule", "resnet50"], "did you mean 'zoo:resnet50'"),
        (["schedule", "MODEL", "l4+t4+cpu"], "named by --hw"),
        (["schedule", "MODEL", "--hardware", "abacus"], "edge-tpu-K"),
        (["schedule", "zoo:resnet50", "--batch", "4"], "--batch"),
        (["schedule", "zoo:resnet50", "--dims", "a=2"], "--dims"),
        (["schedule", "MODEL", "--objective", "throughput"], "--inputs"),
        (["schedule", "MODEL", "--seed", "-1"], "--seed"),
        (["schedule", "MODEL", "--objectiv", "memory"], "--objective"),
        (["schedul", "MODEL"], "did you mean 'schedule'"),
        (["nonsense"], "calibrate"),
        (["bound", "MODEL", "--method", "magic"], "expected auto, simple"),
        (["bound", "MODEL", "--objective", "latency", "--method", "magic"], "expected auto, path"),
        (["calibrate", "r.json", "--out", "table.xyz"], ".csv"),
        (["measure", "MODEL", "out.csv", "--hw", "cpu-t4-a100", "--hw-out", "x.toml"], "--hw-out x.toml"),
        (["doctor", "--out", "x.toml"], ".json"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "zoo:resnet50", "--method", "magic"], "unknown method 'magic'"),
        (["schedule", "zoo:resnet50", "--objective", "latency", "--method", "magic"], "unknown method 'magic'"),
        (["schedule", "zoo:resnet50", "--costs", "nosuch.csv"], "nosuch.csv"),
        (["schedule", "zoo:resnet50", "--plot", "picture.xyz"], ".svg"),
        (["bound", "zoo:resnet50", "--method", "magic"], "unknown bound 'magic'"),
        (["bench", "zoo:resnet50", "--methods", "natural", "magic"], "unknown method 'magic'"),
        (["sweep", "zoo:resnet50", "--hw", "edge-tpu-4", "--method", "magic"], "unknown method 'magic'"),
        (["measure", "net.pt2", "out.xyz"], "OUT out.xyz"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said_before_a_model_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """Unknown methods, files that are not there and endings that cannot be written are refused at once."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a model was read")

    for module in (compare, schedule, sweep):
        monkeypatch.setattr(module, "load_model", read)
    monkeypatch.setattr(run_commands, "_load_program", read)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_ctrl_c_ends_a_bound_with_the_best_so_far(tmp_path: Path) -> None:
    """A line of progress has the bound so far; Ctrl-C prints it, with exit code 130."""
    command = [*long_command(tmp_path)[:3], "bound", str(tmp_path / "g.json"), "--objective", "latency"]
    process = subprocess.Popen([*command, "--hw", str(tmp_path / "hw.toml")], stdout=-1, stderr=-1, text=True)
    assert process.stderr is not None
    told = ""
    while "bound" not in told:
        told = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "no latency schedule is below" in out
    assert "until Ctrl-C" in out


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """`rlinit --version` and `python -m rlinit --version` say the same."""
    assert run(capsys, "--version") == (0, f"rlinit {rlinit.__version__}\n", "")
    command = [sys.executable, "-m", "rlinit", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("rlinit ")


def test_explain_prints_the_strategy_and_solves_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The phases, whether each would run, in what share of the time, and why; as a table and as JSON."""
    code, out, _ = run(capsys, "schedule", model, "--explain", "--hw", "edge-tpu-4", "--objective", "memory")
    assert code == 0
    assert "annealing" in out
    assert "few ideals" in out
    code, out, _ = run(capsys, "schedule", model, "--explain", "--json", "--objective", "memory")
    rows = json.loads(out)
    assert rows[0]["name"] == "bound simple"
    assert {row["share"] for row in rows if row["name"] == "annealing" and row["runs"]} == {1.0}


def test_many_empty_stages_are_counted_and_not_listed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Five hundred stages for twelve ops: at most twelve rows, and how many stages are empty."""
    code, out, _ = run(capsys, "schedule", model, "--stages", "500", "--objective", "memory", "--hw", "edge-tpu-4")
    assert code == 0
    assert len(out.splitlines()) < 40
    assert "stages are empty" in out


def test_bench_measures_against_the_best_bound_of_any(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A heuristic that found the optimum is shown as optimal once another method proved it."""
    arguments = ("--objective", "memory", "--stages", "3", "--methods", "natural", "brkga", "ideals", "--json")
    code, out, _ = run(capsys, "bench", model, *arguments)
    assert code == 0
    rows = {row["method"]: row for row in json.loads(out)}
    assert rows["ideals"]["gap"] == 0.0
    best = rows["ideals"]["values"]
    for row in rows.values():
        assert (row["status"] == "optimal") == (row["values"] == best)


def test_a_plan_that_cannot_be_written_is_printed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails after solving loses nothing: the plan is on standard output, the reason on standard error."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rlinit.Plan, "save", full)
    out_path = str(tmp_path / "p.json")
    code, out, err = run(capsys, "schedule", model, "--json", "--objective", "memory", "--out", out_path)
    assert code == 2
    assert json.loads(out)["status"] == "optimal"
    assert "No space left" in err


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


def long_command(folder: Path, *options: str) -> list[str]:
    """Return a command that runs until it is interrupted."""
    ops = [(f"op{i}", {"time_s": 1.0 + (i * 37 % 11) / 7, "out_bytes": 1 + i * 13 % 5}) for i in range(200)]
    edges = [(f"op{i}", f"op{j}") for i in range(200) for j in (i + 1 + i % 7, i + 5 + i % 13) if j < 200]
    rlinit.Graph.build(ops, edges, name="long").save(folder / "g.json")
    (folder / "hw.toml").write_text("bandwidth = 1.0\n[[device]]\nname='d'\ncount=9\n")
    solving = [
        *(options or ("--method", "milp")),
        "--time-limit-s",
        "100",
        "--json",
        "--out",
        str(folder / "plan.json"),
    ]
    files = [str(folder / "g.json"), "--hw", str(folder / "hw.toml")]
    return [sys.executable, "-m", "rlinit", "schedule", *files, *solving]


@pytest.mark.parametrize(
    ("sent", "option"),
    [(signal.SIGINT, ("--method", "milp")), (signal.SIGTERM, ("--objective", "latency"))],
    ids=["ctrl-c", "sigterm"],
)
def test_an_interruption_prints_and_writes_the_incumbent(
    tmp_path: Path, sent: signal.Signals, option: tuple[str, str]
) -> None:
    """Ctrl-C and SIGTERM during a long run: exit code 130, and a plan on standard output and in the file."""
    process = subprocess.Popen(long_command(tmp_path, *option), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: however busy the machine, it is solving now
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err.decode()
    assert "Traceback" not in err.decode()
    assert json.loads(out)["status"] in ("feasible", "no_solution")
    assert rlinit.Plan.load(tmp_path / "plan.json").provenance["interrupted"]


@pytest.mark.parametrize("seconds", [0.15, 0.4, 0.8, 1.2])
def test_ctrl_c_at_once_shows_no_traceback(tmp_path: Path, seconds: float) -> None:
    """However early it comes, it ends the command quietly."""
    process = subprocess.Popen(long_command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if b"Fatal Python error" in err or (b"runpy.py" in err and b"cli" not in err):  # Python itself was still starting
        return
    assert process.returncode in (130, -signal.SIGINT), err.decode()  # before Python runs, the shell's own ending
    assert "rlinit" not in err.decode() or "Traceback" not in err.decode()


def test_a_saved_graph_is_exported_whatever_types_the_plan_names(tmp_path: Path) -> None:
    """The types of numbers that a plan was made for are not asked of a graph file, which has bytes alone."""
    graph = rlinit.Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [("a", "b", 8.0)])
    graph.save(tmp_path / "g.json")
    plan = rlinit.schedule(graph, rlinit.Hardware.preset("edge-tpu-2"), objective="pipeline")
    dataclasses.replace(plan, provenance={**plan.provenance, "dtype": "int8"}).save(tmp_path / "p.json")
    assert main(["export", str(tmp_path / "p.json"), str(tmp_path / "g.json"), "--dot", str(tmp_path / "g.dot")]) == 0
    assert (tmp_path / "g.dot").stat().st_size > 0
