"""One model by torch and by ONNX: about the same ops, seconds and plans, whichever exporter wrote the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.costs.roofline import op_times
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.measurement.ops import placed_plan
from rlinit.stages.groups.layouts import layouts_of
from tests.late import late_imports

with late_imports():
    import onnx
    import torch

    from tests.importers.onnx import exported_models

MACHINE = Hardware.preset("t4+a100+cpu")
CASES = [
    *("vit, dynamo", "vit, TorchScript", "bert, dynamo", "bert, TorchScript", "gpt2, dynamo", "llama, dynamo"),
    *("swin, TorchScript", "layers, dynamo", "layers, TorchScript"),
]


def seconds(graph: Graph) -> Any:
    """Return the seconds of the ops that cost some on the A100."""
    found = op_times(graph, next(device for device in MACHINE.devices if device.name == "a100"))
    return found[found > 0]


@pytest.mark.parametrize("case", CASES)
def test_torch_and_onnx_agree(case: str, tmp_path: Path) -> None:
    """Ops that cost something, their seconds on one GPU, and the plan's value differ by less than a tenth."""
    pytest.importorskip("onnxscript", reason="torch exports to ONNX with onnxscript")
    model, args = exported_models.exported(case, tmp_path / "model.onnx")
    ours, theirs = Graph.from_torch(model, args), rlinit.load_graph(tmp_path / "model.onnx")
    assert len(seconds(theirs)) == pytest.approx(len(seconds(ours)), rel=0.1)
    assert seconds(theirs).sum() == pytest.approx(seconds(ours).sum(), rel=0.1)
    assert theirs.flops.sum() == pytest.approx(ours.flops.sum(), rel=0.1)
    plans = [rlinit.schedule(graph, MACHINE, objective="latency", time_limit_s=0.2) for graph in (ours, theirs)]
    assert plans[1].value == pytest.approx(plans[0].value, rel=0.1)
    check_nodes(theirs, tmp_path / "model.onnx", model, args)
    for degree in (2, 4):
        layouts = [layouts_of(graph, degree)[0] for graph in (ours, theirs)]
        flops = [
            float((layout.work * graph.flops).sum()) for layout, graph in zip(layouts, (ours, theirs), strict=True)
        ]
        sent = [sum(float(row.sum()) for row in layout.exchanged_bytes.values()) for layout in layouts]
        assert flops[1] == pytest.approx(flops[0], rel=0.05)
        assert sent[1] == pytest.approx(sent[0], rel=0.1)


def check_nodes(graph: Graph, path: Path, model: Any, args: Any) -> None:
    """Ops on two devices by turns run as the nodes that they stand for, with the model's outputs."""
    plan = placed_plan(graph, {op: f"d{at % 2}" for at, op in enumerate(graph.names)})
    read = onnx.load(path, load_external_data=False).graph.input
    made = rlinit.run(plan, path, *(value.numpy() for value in args[: len(read)]), graph=graph)
    with torch.no_grad():
        assert np.allclose(next(iter(made.values())), model(*args).numpy(), atol=1e-4)
    assert sum(len(row.get("nodes", [])) > 1 for row in graph.extras.values()) > 0
