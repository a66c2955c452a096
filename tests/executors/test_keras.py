"""Plans of Keras models run layer by layer, and give what the model gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit import Hardware
from rlinit.cli.main import main
from rlinit.errors import BackendUnavailable, ExecutionFailure, InvalidPlan
from rlinit.executors.keras_layers import KerasExecutor
from rlinit.importers.keras.reader import from_keras, import_keras

HARDWARE = "bandwidth = 1e9\n[[device]]\nname = 'd'\ncount = 2\nflops_per_s = 1e9\nbytes_per_s = 1e9\n"
X = np.linspace(-1.0, 1.0, 2 * 6 * 6 * 3, dtype=np.float32).reshape(2, 6, 6, 3)


@pytest.fixture(scope="module")
def model() -> Any:
    """Return two blocks, a model in it, a layer that is called twice, operations on tensors and two outputs."""
    try:
        keras = import_keras()
    except BackendUnavailable as problem:
        pytest.skip(str(problem))
    layers = keras.layers
    inner_in = keras.Input((6, 6, 4))
    inner = keras.Model(inner_in, layers.ReLU()(layers.Conv2D(4, 1)(inner_in)), name="inner")
    shared = layers.Conv2D(4, 3, padding="same", name="shared")
    x = entry = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, padding="same", name="stem")(x)
    for at in range(2):
        y = layers.Conv2D(4, 3, padding="same", name=f"block_{at}_conv")(x)
        x = layers.Add(name=f"block_{at}_add")([x, layers.BatchNormalization(name=f"block_{at}_bn")(shared(y))])
    pooled = layers.GlobalAveragePooling2D()(inner(x))
    return keras.Model(entry, [layers.Dense(3)(pooled), keras.ops.mean(x * 2.0, axis=[1, 2])])


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keras")
    model.save(folder / "net.keras")
    (folder / "hw.toml").write_text(HARDWARE)
    return folder


@pytest.mark.parametrize("objective", ["latency", "pipeline"])
@pytest.mark.parametrize("grouped", [False, True])
def test_outputs_are_those_of_the_model(model: Any, folder: Path, objective: Any, grouped: bool) -> None:
    """Placements and stages, of layers or of blocks kept whole, of the model or of its file."""
    graph = from_keras(model)
    graph = graph.group("layer") if grouped else graph
    plan = rlinit.schedule(graph, Hardware.load(folder / "hw.toml"), objective=objective, time_limit_s=1)
    for what in (model, folder / "net.keras"):
        outputs = rlinit.run(plan, what, X, devices={"d0": "cpu", "d1": "cpu"})
        for mine, true in zip(outputs, model(X), strict=True):
            left, right = map(import_keras().ops.convert_to_numpy, (mine, true))
            assert np.abs(left - right).max() < 1e-6


def test_the_command_line_runs_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``schedule`` and ``run --check`` of a ``.keras`` file in turn, blocks kept whole; measuring is refused."""
    net, plan, outputs = (str(folder / name) for name in ("net.keras", "plan.json", "y.npz"))
    how = ["--hw", str(folder / "hw.toml"), "--objective", "latency", "--method", "heft", "--granularity", "layer"]
    assert main(["schedule", net, *how, "--out", plan]) == 0
    capsys.readouterr()
    assert main(["run", plan, net, "--check", "--batch", "3", "--outputs", outputs, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-6
    assert [array.shape for array in np.load(outputs).values()] == [(3, 3), (3, 4)]
    assert main(["run", plan, net, "--measure"]) == 2


def test_what_does_not_fit_is_told(model: Any, folder: Path) -> None:
    """Another model, dealt inputs, a missing input and a layer that fails are named."""
    keras, graph, hardware = import_keras(), from_keras(model), Hardware.load(folder / "hw.toml")
    plan = rlinit.schedule(graph, hardware, objective="latency", method="heft")
    with pytest.raises(InvalidPlan, match="the model takes by order"):
        KerasExecutor().execute(plan, model, ())
    entry = keras.Input((4,))
    other = keras.Model(entry, keras.layers.Dense(2)(entry))
    with pytest.raises(InvalidPlan, match=r"is in the (plan|model) only"):
        KerasExecutor().execute(plan, other, (np.zeros((1, 4), np.float32),))
    dealt = rlinit.schedule(graph, hardware, objective="throughput", inputs=2, method="best-device")
    with pytest.raises(InvalidPlan, match="throughput"):
        rlinit.run(dealt, model, X)
    with pytest.raises(ExecutionFailure, match="op 'stem' failed on cpu"):
        rlinit.run(plan, model, X[..., :2])
