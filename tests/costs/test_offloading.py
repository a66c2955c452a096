"""Offloading: what an op takes whose weights come over the link at each pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rlinit
from rlinit.costs.offloading import offloaded
from rlinit.errors import InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware


def layers(count: int = 4) -> Graph:
    """Return a chain of layers of 10 bytes that take 1 s on the GPU and 5 s on the CPU."""
    ops = [
        (f"l{at}", {"time_s": {"gpu": 1.0, "cpu": 5.0}, "param_bytes": 10, "out_bytes": 0, "module": f"h.{at}"})
        for at in range(count)
    ]
    return Graph.build(ops, [(f"l{at}", f"l{at + 1}") for at in range(count - 1)])


def machine(memory: float) -> Hardware:
    """Return a host and a GPU behind a link of 5 bytes a second."""
    devices = (Device("cpu"), Device("gpu", memory_bytes=memory))
    return Hardware(devices, np.full((2, 2), 5.0), np.full((2, 2), 0.25), "host")


def test_weights_are_brought_at_each_pass() -> None:
    """Two of four layers fit beside the one that is brought; each other takes 10 / 5 + 0.25 s and 1 s on the GPU."""
    graph, hardware = offloaded(layers(), machine(30.0))
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="weights")
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(2 * 1.0 + 2 * (1.0 + 2.0 + 0.25))
    rlinit.verify(plan, graph, hardware)
    assert sorted(plan.to_device_map(graph).values()) == ["cpu", "cpu", "gpu", "gpu"]
    computed = rlinit.schedule(layers(), machine(30.0), objective="latency", resident="weights")
    assert computed.value == pytest.approx(3 * 1.0 + 5.0 + 0.25)


def test_all_fits_where_memory_is_enough() -> None:
    """Nothing is brought where all weights fit, and nothing is said of devices that only store."""
    graph, hardware = offloaded(layers(), machine(math.inf))
    assert rlinit.schedule(graph, hardware, objective="latency").value == pytest.approx(4.0)


@pytest.mark.parametrize(("store", "main", "memory"), [("disk", None, 30.0), ("cpu", "cpu", 30.0), ("cpu", None, 10.0)])
def test_what_cannot_be_offloaded_is_refused(store: str, main: str | None, memory: float) -> None:
    """A device that is not there, a device for itself, and no room for one layer."""
    with pytest.raises(InvalidHardware, match=r"expected two of|no room there"):
        offloaded(layers(), machine(memory), store=store, main=main)
