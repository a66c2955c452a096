"""First answers are at least as good as each device alone and the naive splits, under the simulator's clock."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from benchmarks.families.first_answers import PRESETS, measure, naive_splits, placed, seconds_of
from rlinit import Graph, Hardware


def residual(blocks: int = 6) -> Graph:
    """Return blocks of two branches with weights, some of them views."""
    ops: list[tuple[str, dict[str, Any]]] = [("x", {"flops": 0.0, "param_bytes": 0.0, "out_bytes": 4e5})]
    edges, last = [], "x"
    for at in range(blocks):
        for branch, flops in (("a", 4e9), ("b", 1e9)):
            ops.append((f"{branch}{at}", {"flops": flops, "param_bytes": 2e6, "out_bytes": 4e5}))
            edges.append((last, f"{branch}{at}"))
        ops += [
            (f"v{at}", {"flops": 0.0, "param_bytes": 0.0, "out_bytes": 4e5, "view": True}),
            (f"add{at}", {"flops": 1e5, "param_bytes": 0.0, "out_bytes": 4e5}),
        ]
        edges += [(f"a{at}", f"v{at}"), (f"v{at}", f"add{at}"), (f"b{at}", f"add{at}")]
        last = f"add{at}"
    return Graph.build(ops, edges, name="residual")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("objective", ["latency", "pipeline"])
def test_never_worse(preset: str, objective: str) -> None:
    """On every preset, with half a second."""
    if preset == "gpt3-nodes" and objective == "latency":
        pytest.skip("thirty devices take seconds; the benchmark has them")
    row = measure(residual(), Hardware.preset(preset), objective, 0.5)
    assert row["value"] is not None
    assert not row["worse"], row


def test_the_clock_leaves_out_what_does_not_fit() -> None:
    """A device that is too small, and two without a link, have no time; alone the times add up."""
    graph = residual(2)
    hardware = Hardware.preset("jetson-orin/rpi5/1gbe")
    parts = dict(naive_splits(graph, hardware))
    assert {"all on jetson-orin", "all on rpi5", "equal layers", "by speed", "by memory"} == set(parts)
    alone = placed(graph, hardware, parts["all on rpi5"])
    assert seconds_of(alone, graph, hardware, "plan") >= 10e9 / float(hardware.devices[1].rate("fp32") or 0.0)
    small = dataclasses.replace(
        hardware,
        devices=tuple(dataclasses.replace(one, memory_bytes=1e6, reserve_bytes=0.0) for one in hardware.devices),
    )
    assert seconds_of(placed(graph, small, parts["all on rpi5"]), graph, small, "plan") == np.inf
