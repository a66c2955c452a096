"""Plans of ONNX files, run part by part by onnxruntime: in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan
from rlinit.executors.onnx import OnnxExecutor
from rlinit.importers.onnx.reader import from_onnx
from rlinit.measurement.ops import placed_plan
from tests.exporters.onnx.files import feeds_of, onnx, random_model, run_whole, slices, staged


def check_outputs(found: Any, model: Any, feeds: Any) -> None:
    """Check outputs against those of the whole model."""
    for name, true in run_whole(model, feeds).items():
        assert np.allclose(found[name], true, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_outputs_are_those_of_the_whole_model(seed: int, tmp_path: Path) -> None:
    """Stages and placements of a file, without its graph, at the sizes of the inputs, in any form of the inputs."""
    model = random_model(seed)
    onnx.save(model, tmp_path / "m.onnx")
    feeds = feeds_of(model, 3)
    names = [value.name for value in model.graph.input if value.name in feeds]
    graph = from_onnx(model, batch=3)
    stages = slices(graph, 3, np.random.default_rng(seed))
    arrays = [feeds[name] for name in names]
    check_outputs(rlinit.run(staged(graph, stages, 3), tmp_path / "m.onnx", *arrays), model, feeds)
    placed = placed_plan(graph, {op: f"d{at % 2}" for at, op in enumerate(graph.names)})
    ran = OnnxExecutor().execute(placed, model, (), kwargs=feeds, devices={"d0": "cpu"})
    check_outputs(ran.outputs, model, feeds)
    assert ran.seconds > 0


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    """Inputs of other sizes, too few or unknown ones, and devices that onnxruntime does not have."""
    model = random_model(2)
    graph = from_onnx(model, batch=3)
    plan = placed_plan(graph, dict.fromkeys(graph.names, "d0"))
    feeds = feeds_of(model, 3)
    run = OnnxExecutor()
    with pytest.raises(InvalidPlan, match="not for the model with inputs of these sizes"):
        run.execute(plan, model, (), kwargs=feeds_of(model, 4))
    with pytest.raises(InvalidPlan, match="the model takes"):
        run.execute(plan, model, ())
    with pytest.raises(InvalidPlan, match="the model takes"):
        run.execute(plan, model, (), kwargs=feeds | {"other": np.ones(1)})
    with pytest.raises(InvalidPlan, match="expected 'cpu' or 'cuda:N'"):
        run.execute(plan, model, (), kwargs=feeds, devices={"d0": "tpu"})
    with pytest.raises(InvalidPlan, match="expected a module"):
        rlinit.run(plan, tmp_path / "m.tflite")


def test_the_command_line_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``schedule`` and ``run --check`` of a file in turn; measuring is refused."""
    onnx.save(random_model(5), tmp_path / "m.onnx")
    (tmp_path / "hw.toml").write_text('[[device]]\nname="d"\ncount=2\nflops_per_s=1e9\n', encoding="utf-8")
    model, plan = str(tmp_path / "m.onnx"), str(tmp_path / "plan.json")
    reading = ["--batch", "2"]
    settings = ["--objective", "latency", "--method", "heft", "--hw", str(tmp_path / "hw.toml"), "--out", plan]
    assert main(["schedule", model, *settings, *reading]) == 0
    capsys.readouterr()
    outputs = tmp_path / "outputs.npz"
    assert main(["run", plan, model, "--check", "--json", "--outputs", str(outputs), *reading]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["difference"] < 1e-4
    assert said["seconds"] > 0
    assert len(np.load(outputs).files) >= 1
    assert main(["run", plan, model, "--measure", *reading]) == 2


def test_keyword_arguments_of_a_program_are_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``rlinit run`` and ``measure`` give a program its keyword arguments, and the values it was exported for."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, *, scale: Any, twice: bool = True, mask: Any = None) -> Any:
            return torch.relu(x * scale)

    given = {"scale": torch.ones(3), "twice": False, "mask": None}
    program = torch.export.export(Net(), (torch.ones(2, 3),), given)
    torch.export.save(program, tmp_path / "net.pt2")
    (tmp_path / "hw.toml").write_text('[[device]]\nname="d"\nflops_per_s=1e9\n', encoding="utf-8")
    model, plan = str(tmp_path / "net.pt2"), str(tmp_path / "plan.json")
    settings = ["--objective", "latency", "--method", "best-device", "--hw", str(tmp_path / "hw.toml"), "--out", plan]
    assert main(["schedule", model, *settings]) == 0
    capsys.readouterr()
    assert main(["run", plan, model, "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] == 0.0
    assert main(["run", plan, model, "--measure", "--repeats", "2"]) == 0
    assert main(["measure", model, str(tmp_path / "costs.csv"), "--repeats", "2"]) == 0
    assert '"relu","cpu",1,' in (tmp_path / "costs.csv").read_text(encoding="utf-8")
