"""``make gpu`` on a machine without one: what can run on the processor does, and the rest says what is missing."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from rlinit.hardware import Device
from tests.late import late_imports

with late_imports():
    import torch


if importlib.util.find_spec("transformers") is None:  # looked for, not imported: that takes a second
    pytest.skip("transformers is not installed", allow_module_level=True)


@pytest.mark.slow
def test_the_parts_run_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of plans equal the model's own, costs and passes are compared with what was measured."""
    from benchmarks.components import gpu
    from benchmarks.components.gpu import PARTS, Scale, measure

    rates = gpu._measured

    def measured(place: str) -> Device:
        try:
            return rates(place)
        except SystemExit as refusal:  # nothing below depends on the rates
            if "too busy" not in str(refusal):
                raise
            return Device(place, flops_per_s=1e10, bytes_per_s=1e10)

    monkeypatch.setattr(gpu, "_measured", measured)
    found = measure(list(PARTS), Scale("cpu", layers=1, width=64, tokens=4, repeats=2))
    assert all(row["scattered: largest difference"] == 0.0 for row in found["executors"])
    assert all(row["measured, s"] > 0 for row in [*found["costs"][1:], *found["llm"]])
    assert all(row["predicted, s"] > 0 for row in [*found["costs"][1:], *found["llm"]])
    assert "no GPU" in found["tests"][0]["tests"]


def test_without_a_gpu_it_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is skipped silently: the exit code is 1, or 2 for a part that does not exist."""
    from benchmarks.components.gpu import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert main() == 1
    assert "torch sees no GPU" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["gpu", "--parts", "cost"])
    assert main() == 2
