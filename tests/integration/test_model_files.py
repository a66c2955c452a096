"""A model file is planned, run and exported from the command line, also in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.plan import Plan
from tests.late import late_imports

with late_imports():
    import torch

    from tests.executors.models import TinyTransformer


ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
HARDWARE = "bandwidth = 1e9\n[[device]]\nname = 'd'\ncount = 2\nflops_per_s = 1e9\nbytes_per_s = 1e9\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model whose embedding is tied, hardware, an input, and plans made by commands."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (2, 7))
    program = torch.export.export(TinyTransformer().eval(), (tokens,), strict=False)
    torch.export.save(program, folder / "net.pt2")
    np.save(folder / "x.npy", tokens.numpy())
    (folder / "hw.toml").write_text(HARDWARE)
    for objective in ("pipeline", "latency"):
        assert main(schedule(folder, objective)) == 0
    return folder


def schedule(folder: Path, objective: str, *more: str) -> list[str]:
    """Return the command that plans the model of a folder."""
    named = ["schedule", str(folder / "net.pt2"), "--hw", str(folder / "hw.toml"), "--objective", objective]
    return [*named, "--out", str(folder / f"{objective}.json"), *more]


def run(folder: Path, objective: str, *more: str) -> list[str]:
    """Return the command that runs a plan of a folder on its input."""
    return ["run", str(folder / f"{objective}.json"), str(folder / "net.pt2"), "--inputs", str(folder / "x.npy"), *more]


def expected(folder: Path) -> Any:
    """Return what the model itself gives."""
    with torch.no_grad():
        return torch.export.load(folder / "net.pt2").module()(torch.from_numpy(np.load(folder / "x.npy")))


def test_another_process_gives_the_same(folder: Path) -> None:
    """A plan that was saved and is loaded in a new process gives the same output and the same trace."""
    code = "import sys, rlinit.cli.main as c; sys.exit(max(c.main(a.split('|')) for a in sys.argv[1:]))"
    commands = [run(folder, "latency", "--outputs", str(folder / "y.npz"))]
    commands.append(["export", str(folder / "latency.json"), "--trace", str(folder / "there.json")])
    subprocess.run([sys.executable, "-c", code, *map("|".join, commands)], cwd=ROOT, env=ENVIRONMENT, check=True)
    plan = Plan.load(folder / "latency.json")
    program = torch.export.load(folder / "net.pt2")
    mine = rlinit.run(plan, program, torch.from_numpy(np.load(folder / "x.npy")))
    torch.testing.assert_close(mine, expected(folder))
    torch.testing.assert_close(torch.from_numpy(np.load(folder / "y.npz")["output0"]), mine)
    plan.to_trace(folder / "here.json")
    assert (folder / "there.json").read_bytes() == (folder / "here.json").read_bytes()


def test_a_plan_says_its_time_and_is_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run prints the plan's own time and compares; export writes every format it is asked for."""
    assert main(run(folder, "pipeline", "--check")) == 0
    out = capsys.readouterr().out
    assert "the plan says" in out
    assert "outputs equal" in out
    formats = {"--trace": "t.json", "--dot": "g.dot", "--report": "r.html", "--plot": "p.svg", "--device-map": "m.json"}
    named = [part for flag, name in formats.items() for part in (flag, str(folder / name))]
    given = ["--hw", str(folder / "hw.toml")]
    assert main(["export", str(folder / "pipeline.json"), str(folder / "net.pt2"), *named, *given]) == 0
    assert all((folder / name).stat().st_size > 0 for name in formats.values())
    assert set(json.loads((folder / "m.json").read_text()).values()) <= {"d0", "d1"}


def test_sharing_is_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage holds a tied embedding that it reads, unless its readers stay together or have copies."""
    pipeline = Plan.load(folder / "pipeline.json")
    assert min(use.num_ops for use in pipeline.stages) > 0
    latency = Plan.load(folder / "latency.json")
    assert pipeline.graph_figures["param_bytes"] == latency.graph_figures["param_bytes"]
    assert sum(use.param_bytes for use in pipeline.stages) > pipeline.graph_figures["param_bytes"]
    with pytest.warns(UserWarning, match="import the model with sharing='hold'"):
        assert main(schedule(folder, "pipeline", "--sharing", "colocate", "--out", str(folder / "tied.json"))) == 0
    tied = Plan.load(folder / "tied.json")
    assert tied.value > pipeline.value
    capsys.readouterr()
    assert main(run(folder, "pipeline", "--sharing", "colocate", "--check")) == 0
    capsys.readouterr()
    assert main(run(folder, "pipeline", "--sharing", "copy", "--measure", "--hw", "cpu-t4-a100")) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "param bytes instead of" in err
    assert "--sharing" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "PLAN"], "give at least one of --trace, --plot"),
        (["export", "PLAN", "--dot", "FOLDER/g.dot"], "give it after the plan"),
        (["export", "PLAN", "MODEL", "--report", "FOLDER/r.html"], "give it with --hw"),
        (["export", "PLAN", "zoo:ResNet50", "--dot", "FOLDER/g.dot"], "ops in the plan only"),
        (["export", "PLAN", "--dot", "FOLDER/none/g.dot"], "does not exist"),
        (["run", "PLAN", "FOLDER/hw.toml"], "as a .pt2 file"),
        (["run", "MODEL", "MODEL"], "cannot read"),
        (["schedule", "MODEL", "--objective", "memory", "--activations"], "activations is for pipeline"),
        (["schedule", "MODEL", "--costs", "FOLDER/none.csv"], "none.csv"),
    ],
)
def test_wrong_input_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Exit code 2 and a message that says what to do."""
    names = {"PLAN": str(folder / "latency.json"), "MODEL": str(folder / "net.pt2"), "FOLDER": str(folder)}
    filled = []
    for argument in arguments:
        for name, value in names.items():
            argument = argument.replace(name, value)
        filled.append(argument)
    assert main(filled) == 2
    out, err = capsys.readouterr()
    assert message in " ".join(err.split())
    assert out == ""


@pytest.mark.slow
def test_a_pipeline_of_processes(folder: Path) -> None:
    """--executor pipeline starts a process a stage and gives the model's outputs."""
    command = run(folder, "pipeline", "--executor", "pipeline", "--check", "--outputs", str(folder / "z.npz"))
    done = subprocess.run(
        [sys.executable, "-m", "rlinit.cli.main", *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("outputs equal") == 1
    torch.testing.assert_close(torch.from_numpy(np.load(folder / "z.npz")["output0"]), expected(folder))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc to find processes")
def test_a_killed_process_ends_the_pipeline(folder: Path) -> None:
    """When one process of a pipeline is killed, the command fails within seconds and leaves no process behind."""
    command = [sys.executable, "-m", "rlinit.cli.main", *run(folder, "pipeline", "--executor", "pipeline")]
    mark = f"RLINIT_TEST_FOLDER={folder}"
    environment = {**ENVIRONMENT, "RLINIT_TEST_FOLDER": str(folder)}
    job = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    try:
        workers = wait_for(mark, "RANK=1")
        os.kill(workers[0], signal.SIGKILL)
        killed = time.monotonic()
        _, err = job.communicate(timeout=60)
        assert time.monotonic() - killed < 30
        assert job.returncode == 2
        assert b"a process of the pipeline failed" in b" ".join(err.split())
        assert with_variables(mark) == []
    finally:
        for left in with_variables(mark):
            os.kill(left, signal.SIGKILL)
        job.wait()


def with_variables(*settings: str) -> list[int]:
    """Return the processes that have some settings in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # another user's, or it ended just now
        if all(one.encode() in variables for one in settings):
            found.append(int(entry.name))
    return found


def wait_for(*settings: str) -> list[int]:
    """Return the processes with some settings, once there is one."""
    for _ in range(1200):
        found = with_variables(*settings)
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("the processes of the pipeline did not start")


def test_onnx_files_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of an ONNX file becomes files of its stages that run as the whole, and every other format that fits."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from rlinit.exporters import run_onnx_stages
    from tests.exporters.onnx.files import feeds_of, random_model, run_whole

    model = random_model(3)
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "hw.toml").write_text(HARDWARE)
    common = ["--hw", str(tmp_path / "hw.toml"), "--batch", "2"]
    plan = str(tmp_path / "plan.json")
    assert main(["schedule", str(tmp_path / "net.onnx"), *common, "--out", plan]) == 0
    capsys.readouterr()
    formats = ["--onnx-stages", "parts", "--openvino", "map.json"]
    named = [part if part.startswith("--") else str(tmp_path / part) for part in formats]
    named += ["--devices", "d0=CPU", "d1=GPU.0"]
    assert main(["export", plan, str(tmp_path / "net.onnx"), *common, *named, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert set(written) == {"onnx_stages", "openvino"}
    feeds = feeds_of(model, 2)
    parts, whole = run_onnx_stages(tmp_path / "parts", feeds), run_whole(model, feeds)
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-5, atol=1e-6)
