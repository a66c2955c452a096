"""What is said of a plan before it is used."""

from __future__ import annotations

from typing import Any

import pytest

import rlinit
from rlinit.comparison.advice import type_advice
from rlinit.hardware import Device, Hardware


def graph_in(stored: str, **row: Any) -> rlinit.Graph:
    """Return two ops whose outputs are kept in a type of numbers."""
    ops = [(name, {"flops": 1e6, "out_bytes": 4.0, "outputs": [[stored, [1]]]} | row) for name in ("a", "b")]
    return rlinit.Graph.build(ops, [("a", "b")])


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "int8"])
def test_edge_tpus_say_that_they_compute_in_int8(stored: str) -> None:
    """A pipeline of a model that is not in INT8 says so, once; one in INT8, on others or of given times does not."""
    said = [note for note in rlinit.schedule(graph_in(stored), Hardware.edge_tpus(2)).notes if "INT8" in note]
    assert len(said) == (stored != "int8")
    assert all("--dtype int8" in note for note in said)
    other = Hardware.mesh([Device("gpu", flops_per_s=1e9)])
    assert type_advice(graph_in(stored), other) == []
    assert type_advice(graph_in(stored, time_s=1.0), Hardware.edge_tpus(2)) == []


def test_batches_without_times_for_one_input_have_a_plan() -> None:
    """What costs are worth is said of times that there are: here those of two and four inputs."""
    quick, slow = {2: 1.0, 4: 1.5}, {2: 9.0, 4: 9.5}
    ops = [("a", {"flops": 1.0, "time_s": {"cpu": quick, "gpu": slow}})]
    ops += [("b", {"flops": 1.0, "time_s": {"cpu": slow, "gpu": quick}})]
    graph = rlinit.Graph.build(ops, [])
    devices = [Device(name, name, flops_per_s=1e9, bytes_per_s=1e9, batch_sizes=(2, 4)) for name in ("cpu", "gpu")]
    limits: dict[str, Any] = {"objective": "throughput", "inputs": 4, "method": "heft"}
    plan = rlinit.schedule(graph, Hardware.mesh(devices, 1e9), **limits)
    assert plan.assignment == {"a": "cpu", "b": "gpu"}
