"""Shares of peak rates by class and size: times, files, mistakes, and the stand-alone checker's own reading of them."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import check
from rlinit.costs.roofline import moved_bytes, roofline
from rlinit.costs.sources import cost_errors, cost_sources
from rlinit.devices.efficiency import OP_CLASSES, Efficiency, op_class
from rlinit.errors import InvalidHardware
from rlinit.hardware import Device

KINDS = (
    "fused_moe",
    "paged_attention_v1",
    *("conv2d", "DEPTHWISE_CONV_2D", "Conv2D", "ConvTranspose", "addmm", "mm", "MatMul", "FULLY_CONNECTED", "Dense"),
    *("linear", "bmm", "baddbmm", "scaled_dot_product_attention", "MaxPooling2D", "softmax.int", "gelu", "tanh", "exp"),
    *("layer_norm", "BatchNormalization", "mean.dim", "embedding", "Gather", "add.Tensor", "relu", "cat", "expand"),
    *("upsample_bilinear2d", "convert_element_type", "conv2d+relu", "input", "", "Wörter 7"),
)


def graph_of() -> rlinit.Graph:
    """Return ops of some classes and sizes, a view and a lookup among them."""
    rows: list[tuple[str, dict[str, Any]]] = [
        ("x", {"op": "input", "out_bytes": 4e4, "flops": 0.0}),
        ("small", {"op": "linear", "out_bytes": 4e4, "flops": 1e6, "param_bytes": 1e4}),
        ("view", {"op": "view", "out_bytes": 4e4, "flops": 0.0, "view": True}),
        ("large", {"op": "linear", "out_bytes": 4e4, "flops": 3.7e9, "param_bytes": 1e7}),
        ("words", {"op": "embedding", "out_bytes": 4e4, "flops": 0.0, "param_bytes": 1e9}),
        ("act", {"op": "gelu", "out_bytes": 4e4, "flops": 0.0}),
    ]
    return rlinit.Graph.build(rows, [(a, b) for (a, _), (b, _) in pairwise(rows)])


DEVICE = Device(
    "d",
    "gpu",
    flops_per_s=1e12,
    bytes_per_s=1e10,
    launch_s=1e-6,
    efficiency={
        "matmul": Efficiency(flops=((1e6, 0.1), (1e9, 0.5)), bytes=((1.0, 0.8),), launch_s=2e-6, error=0.3),
        "transcendental": Efficiency(bytes=((1e4, 2.0), (1e5, 0.4))),
    },
)


def test_times_are_linear_between_points() -> None:
    """At a point an op reaches its share, beyond the ends theirs, and between them the time is on a line."""
    one = DEVICE.efficiency["matmul"]
    sizes = np.array([0.0, 5e5, 1e6, 1e9, 4e9, (1e6 + 1e9) / 2])
    assert one.counted_flops(sizes).tolist() == pytest.approx([0.0, 5e6, 1e7, 2e9, 8e9, (1e7 + 2e9) / 2])
    graph = graph_of()
    seconds = roofline(graph, DEVICE)
    assert seconds[graph.index("small")] == pytest.approx(9e4 / 0.8 / 1e10 + 2e-6)
    assert seconds[graph.index("large")] == pytest.approx(7.4e9 / 1e12 + 2e-6)
    assert seconds[graph.index("view")] == 0.0
    assert seconds[graph.index("act")] == pytest.approx((5e3 + (2.5e5 - 5e3) * 7 / 9) / 1e10 + 1e-6)


def test_a_lookup_reads_what_it_gives() -> None:
    """Of a table of 1 GB, 40 kB are read where 40 kB come out; other ops read all their parameters."""
    graph = graph_of()
    moved = moved_bytes(graph)
    assert moved[graph.index("words")] == 4e4 + 4e4 + 4e4
    assert moved[graph.index("large")] == 4e4 + 4e4 + 1e7


def test_files_and_the_checker_agree(tmp_path: Path) -> None:
    """Efficiencies survive a file, a share may be one number, and the stand-alone checker gets the same seconds."""
    hardware = rlinit.Hardware.mesh([DEVICE], 1e9)
    hardware.save(tmp_path / "hw.json")
    assert rlinit.Hardware.load(tmp_path / "hw.json") == hardware
    (tmp_path / "hw.toml").write_text('[[device]]\nname = "d"\nefficiency.matmul = { flops = 0.5, launch_s = 1e-6 }\n')
    flat = rlinit.Hardware.load(tmp_path / "hw.toml").devices[0].efficiency["matmul"]
    assert flat == Efficiency(flops=((1.0, 0.5),), launch_s=1e-6)
    graph = graph_of()
    raw = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "the graph"))
    device = check.parse(json.dumps(hardware.to_dict()), "rlinit-hardware", "the hardware")["device"][0]
    for batch in (1, 3):
        mine = roofline(graph, DEVICE, batch)
        assert [float(raw.time(v, device, batch)) for v in range(len(graph))] == pytest.approx(mine.tolist(), rel=1e-12)


def test_the_checker_has_the_same_classes() -> None:
    """The stand-alone checker puts every kind of op into the class that the roofline does."""
    assert [check.op_class(kind) for kind in KINDS] == [op_class(kind) for kind in KINDS]
    assert {op_class(kind) for kind in KINDS} == set(OP_CLASSES)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"mat": {}}, "unknown class 'mat'; did you mean 'matmul'"),
        ({"matmul": {"flops": [[1e6, 0.5], [1e5, 0.6]]}}, "ascending sizes"),
        ({"matmul": {"flops": [[1e6, 0.1], [2e6, 0.9]]}}, "no larger op faster"),
        ({"matmul": {"bytes": [[0.0, 0.5]]}}, "above 0"),
    ],
)
def test_wrong_shares_are_refused(row: dict[str, Any], message: str) -> None:
    """An unknown class, sizes that do not ascend, shares of 0, and larger ops that would be faster are named."""
    with pytest.raises(InvalidHardware, match=message):
        rlinit.Hardware.from_dict({"device": [{"name": "d", "efficiency": row}]})


def test_sources_say_class_and_sureness() -> None:
    """Rows of an inspection name class, what it reaches, and the error of its model; peak rates are said to be so."""
    graph = graph_of()
    rows = {row.source: row for row in cost_sources(graph, DEVICE)}
    row = next(row for source, row in rows.items() if "matmul" in source)
    assert row.num_ops == 2
    assert row.sure == "modelled, within 30% for a typical op"
    assert {row.sure for row in cost_sources(graph, dataclasses.replace(DEVICE, efficiency={}))} == {
        "exact",
        "peak rates, not measured: exact to a factor at best",
    }
    assert cost_errors(graph, DEVICE).tolist() == [1.0, 0.3, 0.0, 0.3, 1.0, 1.0]


@pytest.mark.parametrize("name", ["2x3090+cpu", "rpi5", "m3-max"])
def test_presets_have_efficiencies(name: str) -> None:
    """Every device of a composed preset says what each class of ops reaches, and how sure that is."""
    for device in rlinit.Hardware.preset(name).devices:
        assert set(device.efficiency) >= set(OP_CLASSES) - {"experts", "generation"}
        assert all(one.error for one in device.efficiency.values())
