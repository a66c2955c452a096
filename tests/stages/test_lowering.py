"""From graphs and hardware to arrays: costs, classes, merged ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlinit.costs.roofline import op_times, roofline
from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.stages.lowering import lower_stages


def test_colocated_ops_and_what_lies_between_are_merged() -> None:
    """A and c are tied and b lies between: one node; a's and c's tensors to d stay two tensors."""
    ops = [(name, {"time_s": 1.0, "out_bytes": 2.0, **({"colocate": 1} if name in "ac" else {})}) for name in "abcd"]
    graph = Graph.build(ops, [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")])
    lowered = lower_stages(graph, Hardware.pipeline(2, bandwidth=2.0), "pipeline")
    assert lowered.node_of_op.tolist() == [0, 0, 0, 1]
    assert lowered.problem.work_s.tolist() == [[3.0, 1.0]]
    assert lowered.problem.tensor_src.tolist() == [0, 0]
    assert lowered.problem.in_s.tolist() == [[1.0, 1.0]]


def test_merging_keeps_a_topological_order() -> None:
    """Merged nodes are numbered and ordered so that every edge runs forward in the order."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = 12
        ops = [
            (f"n{i}", {"time_s": 1.0, "colocate": int(rng.integers(4))} if i % 3 == 0 else {"time_s": 1.0})
            for i in range(n)
        ]
        edges = [(f"n{i}", f"n{j}") for i in range(n) for j in range(i + 1, n) if rng.random() < 0.15]
        problem = lower_stages(Graph.build(ops, edges), Hardware.pipeline(2), "pipeline").problem
        position = np.empty(problem.num_nodes, int)
        position[problem.order] = np.arange(problem.num_nodes)
        tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
        assert (position[tail] < position[problem.succ]).all()


def test_equal_devices_form_one_class() -> None:
    """Devices that cost the same share a class; a slower one, a smaller one and an unlinked-cost one do not."""
    graph = Graph.build([("a", {"time_s": {"x": 1.0, "y": 2.0}, "out_bytes": 1}), ("b", {"time_s": 1.0})], [("a", "b")])
    devices = [Device("p", "x"), Device("q", "y"), Device("r", "x"), Device("s", "x", memory_bytes=5.0)]
    lowered = lower_stages(graph, Hardware.mesh(devices, 1.0), "pipeline")
    assert lowered.problem.stage_class.tolist() == [0, 1, 0, 2]
    assert lowered.class_devices == ((0, 2), (1,), (3,))


def test_times_are_looked_up_from_the_most_specific() -> None:
    """Device name before kind before any device before the roofline; forbidden is infinite."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"time_s": {"d0": 1.0, "gpu": 2.0, "*": 3.0}, "flops": 100}),
        ("b", {"time_s": {"gpu": 2.0, "*": 3.0}}),
        ("c", {"time_s": 3.0}),
        ("d", {"flops": 100, "param_bytes": 30, "out_bytes": 10}),
        ("e", {"time_s": 1.0, "forbidden": ["gpu"]}),
    ]
    graph = Graph.build(ops, [("c", "d")])
    device = Device("d0", "gpu", flops_per_s=50.0, bytes_per_s=10.0, launch_s=0.5)
    # d: 100 / 50 = 2 s of operations, (30 + 10) / 10 = 4 s of bytes, and half a second of launch.
    assert op_times(graph, device).tolist() == [1.0, 2.0, 3.0, 4.5, np.inf]


def test_what_is_missing_is_named() -> None:
    """An op without a time, and devices without a link, are errors that name them."""
    graph = Graph.build([("a", {"flops": 1}), ("b", {"time_s": 1.0})], [("a", "b")])
    with pytest.raises(InvalidGraph, match="'a' has no time on device 'stage0'"):
        lower_stages(graph, Hardware.pipeline(2), "pipeline")
    split = Hardware((Device("x"), Device("y")), np.array([[np.inf, 0.0], [0.0, np.inf]]), np.zeros((2, 2)))
    timed = Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [("a", "b")])
    with pytest.raises(InvalidHardware, match="no path links device 'x'"):
        lower_stages(timed, split, "pipeline")


def test_unknown_sizes_are_counted_as_zero_aloud() -> None:
    """Tensors without a size raise a warning that names the first."""
    graph = Graph.build([("a", {"time_s": 1.0}), ("b", {"time_s": 1.0})], [("a", "b")])
    with pytest.warns(UserWarning, match="first: 'a'"):
        lower_stages(graph, Hardware.pipeline(2, bandwidth=1.0), "pipeline")


def test_views_take_no_time() -> None:
    """An op noted as a view of a tensor takes no time, whatever the tensor's size."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"flops": 0.0, "out_bytes": 1e6}),
        ("b", {"flops": 0.0, "out_bytes": 1e6, "view": True}),
    ]
    device = Device("d0", "gpu", flops_per_s=1e9, bytes_per_s=1e9, launch_s=1e-5)
    np.testing.assert_allclose(roofline(Graph.build(ops, [("a", "b")]), device), [1e-3 + 1e-5, 0.0])
