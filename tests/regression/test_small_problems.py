"""Small problems that were called infeasible, or given up, though they have a plan."""

from __future__ import annotations

import dataclasses

import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware


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
