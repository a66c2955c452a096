"""The latency problem of dnn-partitioning: its evaluator on cases worked by hand, and the files."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.datasets.published.blocking_calls import blocking_latency, contiguous, load
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from tests.placement_cases import brute_force_placement

MS = 1e-3


def workload(folder: Path, **changes: Any) -> Path:
    """Write a diamond 0 -> {1, 2} -> 3: 10 ms on a core, 1, 2, 3, 4 ms away; each tensor moves in 0.5 ms."""
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": i + 1.0, "size": 100.0}
        | {"isBackwardNode": False}
        for i in range(4)
    ]
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in ((0, 1), (0, 2), (1, 3), (2, 3))]
    data = {"maxSizePerFPGA": 400.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges} | changes
    path = folder / "diamond.json"
    path.write_text(json.dumps(data))
    return path


A, B, CORE = 0, 1, 2


@pytest.mark.parametrize(
    ("devices", "calls", "milliseconds"),
    [
        # All on cores, which run 1 and 2 at once: 10 + 10 + 10.
        ([CORE, CORE, CORE, CORE], None, 30.0),
        # One call, nothing moves: 1 + 2 + 3 + 4.
        ([A, A, A, A], None, 10.0),
        # 0 on a core until 10; one tensor in (once for two uses), 2 + 3 + 4.
        ([CORE, A, A, A], None, 10.0 + 0.5 + 9.0),
        # The tensor of 0 leaves once, those of 1 and 2 come in: 1 + 2 + 3 on A with two tensors out, then core.
        ([A, A, A, CORE], None, 6.0 + 2 * 0.5 + 10.0),
        # A runs 0, 1 and sends both tensors until 4; B takes that of 0, runs 2, sends until 8; then the core.
        ([A, A, B, CORE], None, 4.0 + 0.5 + 3.0 + 0.5 + 10.0),
        # 3 on B waits for A until 1 + 2 + 0.5 + 3 + 0.5 = 7; two tensors in, 4.
        ([A, A, A, B], None, 7.0 + 1.0 + 4.0),
        # 1 on a core between two ops of A in one call: a path leaves the call and comes back.
        ([A, CORE, A, A], None, math.inf),
        # The same in two calls: [0, 2] sends two tensors until 5, core 1 is done at 15; call [3] takes both tensors in.
        ([A, CORE, A, A], [0, 0, 0, 1], 15.0 + 1.0 + 4.0),
        # Two calls with nothing between: 0 out 1.5, in, 2 + 3 + 4 until 11.
        ([A, A, A, A], [0, 1, 1, 1], 1.5 + 0.5 + 9.0),
        # Numbers of calls are an order only.
        ([A, A, A, A], [3, 7, 7, 7], 1.5 + 0.5 + 9.0),
        # Calls in the wrong order wait for one another.
        ([A, A, A, A], [1, 0, 0, 0], math.inf),
    ],
)
def test_splits_worked_by_hand(
    tmp_path: Path, devices: list[int], calls: list[int] | None, milliseconds: float
) -> None:
    """The latency of each split is what the model's text gives."""
    graph, hardware = load(workload(tmp_path))
    assert blocking_latency(graph, hardware, devices, calls) == pytest.approx(milliseconds * MS, rel=1e-12)


def test_calls_of_two_accelerators_may_not_wait_for_one_another() -> None:
    """Two contiguous calls with tensors both ways cannot run; in two calls each they can."""
    ops = [(str(i), {"time_s": {"accelerator": 1.0}, "out_bytes": 0.0}) for i in range(4)]
    graph = Graph.build(ops, [("0", "1"), ("2", "3")])
    hardware = Hardware.mesh([Device(f"a{i}", "accelerator", io_bandwidth=1.0) for i in range(2)], 1.0)
    # 0 and 3 on the first, 1 and 2 on the second.
    assert contiguous(graph, np.array([True, False, False, True]))
    assert blocking_latency(graph, hardware, [0, 1, 1, 0]) == math.inf
    assert blocking_latency(graph, hardware, [0, 1, 1, 0], [0, 1, 0, 1]) == 2.0


def test_what_is_not_allowed_is_infinite(tmp_path: Path) -> None:
    """Memory beyond an accelerator's, forbidden ops and torn groups cost infinity; groups on any cores are fine."""
    graph, hardware = load(workload(tmp_path, maxSizePerFPGA=399.0))
    assert blocking_latency(graph, hardware, [A] * 4) == math.inf
    assert blocking_latency(graph, hardware, [CORE] * 4) == pytest.approx(0.03)
    data = json.loads(workload(tmp_path).read_text())
    data["nodes"][1]["colorClass"] = data["nodes"][2]["colorClass"] = 5
    data["nodes"][3]["supportedOnFpga"] = 0
    graph, hardware = load(workload(tmp_path, nodes=data["nodes"]), cores=2)
    assert blocking_latency(graph, hardware, [A, A, A, A]) == math.inf
    assert blocking_latency(graph, hardware, [A, A, B, CORE]) == math.inf
    assert blocking_latency(graph, hardware, [A, A, CORE, CORE]) == math.inf
    assert blocking_latency(graph, hardware, [A, CORE, CORE + 1, CORE]) == pytest.approx(0.0215)


def test_links_go_through_the_memory_of_the_cpu(tmp_path: Path) -> None:
    """Transfers are free between cores, cost the edge's cost to an accelerator, and twice that between two."""
    graph, hardware = load(workload(tmp_path), cores=2)
    seconds = graph.out_bytes[0] / hardware.bandwidth
    assert seconds.tolist() == [
        [0.0, 1e-3, 5e-4, 5e-4],
        [1e-3, 0.0, 5e-4, 5e-4],
        [5e-4, 5e-4, 0.0, 0.0],
        [5e-4, 5e-4, 0.0, 0.0],
    ]
    assert [device.kind for device in hardware.devices] == ["accelerator"] * 2 + ["cpu"] * 2
    assert load(workload(tmp_path))[1].num_devices == 3


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_contiguity_is_what_its_definition_says(n: int, seed: int) -> None:
    """A set is contiguous if and only if no path runs from it outside and back to it."""
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    graph = Graph.build([(str(v), {}) for v in range(n)], [(str(u), str(v)) for u, v in pairs])
    reach = np.eye(n, dtype=bool)
    for u, v in sorted(pairs, reverse=True):
        reach[u] |= reach[v]
    member = rng.random(n) < 0.5
    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    returns = any(reach[u, x] and reach[x, v] for u in inside for x in outside for v in inside)
    assert contiguous(graph, member) == (not returns)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-9, 1.0, 1e12]))
def test_the_evaluator_solves_the_papers_inequalities(n: int, seed: int, cost: float) -> None:
    """Any split's latency is the least solution of the integer program's constraints, iterated from zero."""
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    away, at_home = rng.integers(1, 5, n).astype(float), rng.integers(1, 9, n).astype(float)
    ops = [
        (str(v), {"time_s": {"accelerator": away[v], "cpu": at_home[v]}, "out_bytes": cost * (v + 1)}) for v in range(n)
    ]
    graph = Graph.build(ops, [(str(u), str(v)) for u, v in pairs])
    devices = [Device(f"a{i}", "accelerator", io_bandwidth=2.0) for i in range(2)]
    hardware = Hardware.mesh([*devices, Device("c", "cpu", io_bandwidth=math.inf)], 2.0)
    device, call = rng.integers(0, 3, n), rng.integers(0, 2, n)
    machines = sorted({(i, c) for i, c in zip(device.tolist(), call.tolist(), strict=True) if i < 2})
    latency = np.zeros(n)
    finish = dict.fromkeys(machines, 0.0)
    settled = False
    for _ in range(2 * n + 2):
        before = latency.tolist(), dict(finish)
        for i, c in machines:
            inside = [v for v in range(n) if (device[v], call[v]) == (i, c)]
            enters = {u for u, v in pairs if v in inside and u not in inside}
            leaves = {u for u, v in pairs if u in inside and v not in inside}
            moved = sum(cost * (u + 1) / 2.0 for u in [*enters, *leaves])
            earlier = [finish[machine] for machine in machines if machine[0] == i and machine[1] < c]
            finish[i, c] = max([0.0, *latency[list(enters)], *earlier]) + away[inside].sum() + moved
            latency[inside] = finish[i, c]
        for v in np.flatnonzero(device == 2):
            latency[v] = max([0.0, *(latency[u] for u, w in pairs if w == v)]) + at_home[v]
        settled = before == (latency.tolist(), finish)
    value = blocking_latency(graph, hardware, device.tolist(), call.tolist())
    assert value == pytest.approx(latency.max() if settled else math.inf, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_latency_objective_bounds_blocking_calls_from_below(seed: int) -> None:
    """The best schedule with overlapping transfers and enough cores is no later than any split into calls."""
    rng = np.random.default_rng(seed)
    n = 4
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": float(rng.integers(1, 9)), "fpgaLatency": float(rng.integers(4))}
        | {"size": 0.0, "isBackwardNode": False}
        for i in range(n)
    ]
    costs = rng.integers(0, 3, n).astype(float)
    pairs = [(u, v) for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.6]
    edges = [{"sourceId": u, "destId": v, "cost": costs[u]} for u, v in pairs]
    with tempfile.TemporaryDirectory() as folder:
        path = workload(Path(folder), nodes=nodes, edges=edges, maxFPGAs=1, maxSizePerFPGA=1e9)
        graph, hardware = load(path, cores=n)
    lowered = lower_placement(graph, hardware, "latency")
    assert not lowered.infeasible
    best = brute_force_placement(lowered.problem)
    for device in itertools.product(range(2), repeat=n):
        for call in itertools.product(range(2), repeat=n):
            assert best <= blocking_latency(graph, hardware, device, call) * (1 + 1e-9)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Splits of a wrong length or range, other devices and negative numbers of cores are errors."""
    graph, hardware = load(workload(tmp_path))
    with pytest.raises(InvalidGraph, match="device_of_op has shape"):
        blocking_latency(graph, hardware, [0])
    with pytest.raises(InvalidGraph, match="device_of_op of op '3' is 3"):
        blocking_latency(graph, hardware, [0, 0, 0, 3])
    with pytest.raises(InvalidGraph, match="call_of_op of op '0' is -1"):
        blocking_latency(graph, hardware, [0] * 4, [-1, 0, 0, 0])
    with pytest.raises(InvalidGraph, match="kind 't4'"):
        blocking_latency(graph, Hardware.mesh([Device("x", "t4")]), [0] * 4)
    with pytest.raises(InvalidHardware, match="cores is -1"):
        load(workload(tmp_path), cores=-1)
    with pytest.raises(InvalidHardware, match="at least one device"):
        load(workload(tmp_path, maxFPGAs=0), cores=0)


@pytest.mark.parametrize(
    ("name", "num_ops", "accelerators"),
    [("layer-bert24_inference", 32, 5), ("layer-gnmt_inference", 96, 6), ("op-bert_l-3_inference", 235, 4)],
)
def test_published_workloads_are_read(name: str, num_ops: int, accelerators: int) -> None:
    """All files load; on cores alone the latency is the longest path of CPU times."""
    root = instances_root()
    if root is None or not (root / "dnn-partitioning" / "latency").is_dir():
        pytest.skip("the published instances are absent (set RLINIT_INSTANCES)")
    graph, hardware = load(root / "dnn-partitioning" / "latency" / f"{name}.json")
    assert graph.num_ops == num_ops
    assert [device.kind for device in hardware.devices] == ["accelerator"] * accelerators + ["cpu"] * 8
    longest = np.zeros(num_ops)
    for v in graph.order:
        into = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]
        longest[v] = longest[into].max(initial=0.0) + graph.times["cpu", 1][v]
    on_cores = blocking_latency(graph, hardware, [accelerators] * num_ops)
    assert on_cores == pytest.approx(longest.max(), rel=1e-12)
    # As many ops as fit, in topological order, on the accelerators: better than cores alone, and all calls contiguous.
    room = hardware.devices[0].memory_bytes
    device, used, filled = np.full(num_ops, accelerators), 0.0, 0
    for v in graph.order.tolist():
        if used + graph.param_bytes[v] > room:
            used, filled = 0.0, filled + 1
        if filled < accelerators:
            device[v], used = filled, used + graph.param_bytes[v]
    for i in range(accelerators):
        assert contiguous(graph, device == i)
    if (graph.colocation < 0).all() and not graph.forbidden:
        assert blocking_latency(graph, hardware, device.tolist()) < on_cores
