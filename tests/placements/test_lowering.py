"""Lowering: what is called infeasible without search is infeasible by the checker, too."""

from __future__ import annotations

import pytest

import rlinit
from rlinit.placements.lowering import lower_placement


@pytest.mark.parametrize(("sizes", "memory"), [((0.1, 0.2), (0.3,)), ((0.1 + 0.2,), (0.3, 0.1))])
def test_a_memory_that_rounding_alone_overfills_holds_a_model(
    sizes: tuple[float, ...], memory: tuple[float, ...]
) -> None:
    """Three tenths as a sum are above three tenths by the last bit, for one op and for all of them."""
    graph = rlinit.Graph.build([(f"op{v}", {"time_s": 1.0, "param_bytes": size}) for v, size in enumerate(sizes)], [])
    devices = [rlinit.Device(f"d{i}", "kind", memory_bytes=room) for i, room in enumerate(memory)]
    hardware = rlinit.Hardware.mesh(devices, 1.0)
    assert sum(sizes) > memory[0]
    assert not lower_placement(graph, hardware, "latency", resident="weights").infeasible
    plan = rlinit.schedule(graph, hardware, objective="latency", resident="weights", method="heft")
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(len(sizes))


def test_a_memory_that_is_too_small_is_named() -> None:
    """An op larger than every memory, and a model larger than all of them, have no plan."""
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}", "kind", memory_bytes=2.0) for i in range(2)], 1.0)
    for sizes, what in (((2.1,), "needs 2 bytes"), ((2.0, 1.0, 1.5), "all devices together hold 4")):
        ops = [(f"op{v}", {"time_s": 1.0, "param_bytes": size}) for v, size in enumerate(sizes)]
        assert what in lower_placement(rlinit.Graph.build(ops, []), hardware, "latency").infeasible
