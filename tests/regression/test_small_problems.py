"""Small problems that were called infeasible, or given up, though they have a plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from tests.properties.brute_force import best_placement


def test_a_layer_colocated_with_another_can_be_recomputed() -> None:
    """A layer is recomputed wherever all of it is on one stage, although an op of it shares a node with others."""
    rows = [("a", 3.0, "layers.0.x", {}), ("b", 1.0, "layers.0.x", {"colocate": "pair"})]
    rows += [("c", 1.0, "layers.1.x", {"colocate": "pair"}), ("d", 1.0, "layers.1.x", {})]
    ops = [(name, {"time_s": 1.0, "out_bytes": size, "module": at, **more}) for name, size, at, more in rows]
    graph = Graph.build(ops, [("a", "b"), ("b", "c"), ("c", "d")])
    asked = {"training": "gpipe", "microbatches": 8, "recompute": "auto", "optimizer": 1.0}
    without = 8 * 6.0 + 4.0
    least = without - 8 * (3.0 + 1.0) + 3.0
    for memory, value, again in ((without, 12.0, ()), (without - 1, 14.0, ("layers.0",)), (least, 16.0, None)):
        hardware = Hardware.mesh([Device("gpu", memory_bytes=memory)], 1.0)
        plan = rlinit.schedule(graph, hardware, **asked)  # type: ignore[arg-type]
        assert (plan.status, plan.value) == ("optimal", value)
        assert plan.training is not None
        assert again is None or plan.training.stages[0].recomputed == again
    tight = Hardware.mesh([Device("gpu", memory_bytes=least - 1)], 1.0)
    assert rlinit.schedule(graph, tight, **asked).status == "infeasible"  # type: ignore[arg-type]


def test_a_plan_that_recomputes_all_leaves_none_out() -> None:
    """The checker refuses a plan with recompute='all' that keeps what is inside a layer."""
    ops = [(name, {"time_s": 1.0, "out_bytes": 1.0, "module": "layers.0.x"}) for name in ("a", "b")]
    graph, hardware = Graph.build(ops, [("a", "b")]), Hardware.mesh([Device("gpu")], 1.0)
    asked = {"training": "gpipe", "microbatches": 2, "optimizer": 1.0}
    plan = rlinit.schedule(graph, hardware, recompute="none", **asked)  # type: ignore[arg-type]
    assert plan.training is not None
    with pytest.raises(InvalidPlan, match="does not recompute"):
        rlinit.verify(
            dataclasses.replace(plan, training=dataclasses.replace(plan.training, recompute="all")), graph, hardware
        )


def test_an_op_goes_to_the_chunk_that_it_fits() -> None:
    """Interleaved training of one op: only the last chunks hold so few micro-batches that it fits."""
    graph = Graph.build([("a", {"time_s": 6.0, "param_bytes": 1.0, "out_bytes": 6.0, "backward_time_s": 2.0})], [])
    hardware = Hardware.mesh([Device(f"d{i}", "any", memory_bytes=size) for i, size in enumerate((9, 27, 27))], 1.0)
    asked = {"training": "interleaved", "microbatches": 12, "optimizer": 1.0, "chunks": 2}
    assert rlinit.schedule(graph, hardware, **asked).value == 8.0  # type: ignore[arg-type]
    tight = Hardware.mesh([Device(f"d{i}", "any", memory_bytes=9) for i in range(3)], 1.0)
    assert rlinit.schedule(graph, tight, **asked).status == "infeasible"  # type: ignore[arg-type]


def test_a_schedule_whose_live_tensors_just_fit_is_found() -> None:
    """Searches that estimate live tensors find none of the few schedules that fit; looking at all of them does."""
    rows: dict[str, dict[str, object]] = {
        "a": {"time_s": {"x": 0, "y": 8, "z": 9}, "out_bytes": 7, "forbidden": ["y"]},
        "b": {"time_s": {"x": 2, "y": 3, "z": 6}, "param_bytes": 7, "out_bytes": 7},
        "c": {"time_s": {"x": 8, "y": 5, "z": 0}, "out_bytes": 7, "outputs": {"p": 3, "q": 6}, "forbidden": ["x"]},
        "d": {"time_s": {"x": 0, "y": 1, "z": 8}, "param_bytes": 2, "out_bytes": 0},
    }
    graph = Graph.build(list(rows.items()), [("a", "c"), ("b", "c"), ("c", "d", 9.0)])
    devices = (Device("x", memory_bytes=14), Device("y", memory_bytes=41), Device("z", memory_bytes=7))
    rates = np.array([[np.inf, 4.0, 2.0], [1.0, np.inf, 1.0], [np.inf, 4.0, np.inf]])
    delays = np.zeros((3, 3))
    delays[1, 2] = 7.0
    hardware = Hardware(devices, rates, delays, "tight")
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="peak", method="auto")
    assert plan.status == "feasible"
    assert plan.value == best_placement(graph, hardware, 1, 1, "parallel", "peak") == 16.75
    assert rlinit.schedule(graph, hardware, objective="latency", resident="peak", method="heft").value < np.inf
