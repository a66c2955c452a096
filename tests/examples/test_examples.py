"""The examples, at small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinit.errors import BackendUnavailable
from rlinit.importers.keras.reader import import_keras


def test_resnet50_runs_in_six_stages(tmp_path: Path) -> None:
    """The split by INT8 size is proven best, keeps every parameter, and each stage runs from its file."""
    try:
        import_keras()
    except BackendUnavailable as problem:
        pytest.skip(str(problem))
    from examples.keras_resnet50 import main

    run = main(size=32, out=tmp_path)
    assert run.plan.status == "optimal"
    assert run.plan.value == 4_748_544
    assert run.stage_params == tuple(int(use.param_bytes) for use in run.plan.stages)
    assert sum(run.stage_params) == 25_636_712
    assert max(run.stage_params) == run.plan.value
    assert run.difference < 1e-5
    assert len(list(tmp_path.glob("stage_*.keras"))) == 6


@pytest.mark.parametrize(("objective", "measured"), [("latency", False), ("latency", True), ("throughput", False)])
def test_googlenet_runs_on_three_devices(objective: str, measured: bool, tmp_path: Path) -> None:
    """The planned network gives what the network gives; plan, trace and report are written."""
    pytest.importorskip("torch", reason="torch is not installed")
    from examples.torch_googlenet import main

    result = main(
        objective,  # type: ignore[arg-type]
        size=64,
        blocks=3,
        divisor=8,
        inputs=2,
        measured=measured,
        method="heft",
        time_limit_s=None,
        out=tmp_path,
    )
    assert result.plan.bound <= result.plan.value
    assert result.difference < 1e-4
    assert json.loads((tmp_path / "plan.json").read_text())["graph"] == "GoogLeNet"
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
