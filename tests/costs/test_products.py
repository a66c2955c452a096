"""Which ops are products, and what their inner dimension costs."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.certificates import check
from rlinit.costs.products import products
from rlinit.costs.roofline import op_times, roofline
from rlinit.devices.efficiency import Efficiency
from rlinit.hardware import Device
from tests.draws import draws


def graph_of(m: int, n: int, k: int, bias: int = 0) -> rlinit.Graph:
    """Return a product of (m, k) and (k, n), in two bytes a number, after its input."""
    precision = ["fp16", "fp16"]
    row: dict[str, Any] = {"op": "linear", "flops": 2.0 * m * n * k, "param_bytes": 2 * (k * n + bias)}
    return rlinit.Graph.build(
        [
            ("x", {"op": "input", "out_bytes": 2 * m * k, "flops": 0.0, "precision": precision}),
            ("y", {**row, "out_bytes": 2 * m * n, "precision": precision}),
        ],
        [("x", "y")],
    )


@settings(max_examples=draws(50), deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(20, 5000))
def test_sizes_follow_from_figures(m: int, n: int, k: int) -> None:
    """Rows, outputs and inner dimension come back, with or without a bias."""
    for bias in (0, n):
        found = products(graph_of(m, n, k, bias))
        assert (found.op.tolist(), found.n.tolist(), found.k.tolist()) in (([1], [n], [k]), ([], [], []))
        if not bias:
            assert found.m.tolist() == [m]


def test_what_is_no_product() -> None:
    """Products of two tensors, ops without figures and convolutions are none."""
    graph = rlinit.Graph.build(
        [
            ("a", {"op": "input", "out_bytes": 64, "flops": 0.0}),
            ("b", {"op": "matmul", "out_bytes": 64, "flops": 128.0}),
            ("c", {"op": "linear", "out_bytes": 64, "param_bytes": 64}),
            ("d", {"op": "conv2d", "out_bytes": 64, "param_bytes": 64, "flops": 128.0}),
        ],
        [("a", "b"), ("b", "c"), ("c", "d")],
    )
    assert not len(products(graph).op)


def test_no_product_is_faster_than_its_inner_dimension() -> None:
    """A narrow product takes its inner dimension's seconds; the stand-alone checker says the same."""
    depth_s = 2.0**-20
    device = Device(
        "d", flops_per_s=1e15, bytes_per_s=1e15, efficiency={"matmul": Efficiency(launch_s=0.0, depth_s=depth_s)}
    )
    graph = graph_of(4, 8, 512)
    assert roofline(graph, device)[1] == 512 * depth_s
    hardware = rlinit.Hardware((device,), np.full((1, 1), np.inf), np.zeros((1, 1)))
    read = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "graph"))
    devices = check.Hardware(check.parse(json.dumps(hardware.to_dict()), "rlinit-hardware", "hardware")).devices
    assert read.time(1, devices[0]) == Fraction(512) * Fraction(depth_s)
    assert op_times(graph, device)[1] == 512 * depth_s


def test_ops_launched_by_the_host_take_at_least_its_time() -> None:
    """``host_s`` is a floor of the roofline, not of given times nor of views; the stand-alone checker says the same."""
    hardware = rlinit.Hardware.preset("h100+eager")
    device, graph = hardware.devices[0], graph_of(4, 8, 512)
    plain = roofline(graph, rlinit.Hardware.preset("h100").devices[0])
    assert plain[1] < device.host_s == 1e-5
    assert roofline(graph, device)[1] == 1e-5
    read = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "graph"))
    row = check.Hardware(check.parse(json.dumps(hardware.to_dict()), "rlinit-hardware", "hardware")).devices[0]
    assert read.time(1, row) == Fraction(1, 100000)
    timed = rlinit.Graph.build([("a", {"time_s": 1e-7})], [])
    assert op_times(timed, device)[0] == 1e-7
