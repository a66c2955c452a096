"""How many shards inputs are split into, and placements on groups of devices as those on their members."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import check
from rlinit.certificates.programs import exact_plan
from rlinit.checker import batches
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.placements.list_scheduling.heuristics import whole_ops
from rlinit.placements.lowering import shard_inputs
from rlinit.placements.shards import on_groups, on_members
from rlinit.placements.timeline import held_bytes, makespan
from tests.placement_cases import random_placement_problem

ROOFLINE = Graph.build([("a", {"flops": 1e9, "out_bytes": 0}), ("b", {"flops": 2e9, "out_bytes": 0})], [("a", "b")])


def two(*batch_sizes: tuple[int, ...] | None) -> Hardware:
    """Return unlike devices with batch sizes."""
    devices = [
        Device(f"d{i}", "d", float("inf"), flops_per_s=(1 + i) * 1e12, batch_sizes=sizes)
        for i, sizes in enumerate(batch_sizes)
    ]
    return Hardware.mesh(devices, 1e9)


def timed(*sizes: int) -> Graph:
    """Return one op with times at some batch sizes only."""
    return Graph.build([("a", {"time_s": {"*": {size: 1.0 * size for size in sizes}}})], [])


@pytest.mark.parametrize(
    ("graph", "hardware", "inputs", "shard"),
    [
        (ROOFLINE, two(None, None), 1, 1),
        (ROOFLINE, two(None, None), 10, 1),
        (ROOFLINE, two(None, None), 128, 8),
        (ROOFLINE, two(None, None), 34, 17),
        (ROOFLINE, two(None, None), 37, 37),
        (ROOFLINE, two((2, 4), (8,)), 8, 2),
        (ROOFLINE, two((4,), None), 8, 1),
        (ROOFLINE, two((16,), None), 112, 8),
        (ROOFLINE, two((16,), None), 80, 8),
        (ROOFLINE, two((2,), None), 34, 2),
        (timed(4, 8, 12, 16), two(None, None), 16, 4),
        (timed(4, 16), two(None, None), 16, 16),
        (timed(4, 16), two((4, 16), (16,)), 16, 4),
    ],
)
def test_as_many_shards_as_divide_the_inputs_and_have_times(
    graph: Graph, hardware: Hardware, inputs: int, shard: int
) -> None:
    """At most sixteen where a device takes any batch, and only sizes with a time on it; else what devices name."""
    assert shard_inputs(graph, hardware, inputs) == shard


def test_both_checkers_deal_as_the_lowering_does() -> None:
    """Three computations of one definition agree, on devices with and without batch sizes, and times for some sizes."""
    rng, dealt = np.random.default_rng(5), set()
    for _ in range(300):
        inputs = int(rng.integers(1, 130))
        sizes = [tuple(rng.choice([1, 2, 3, 4, 6, 8, 16, 32, 64], 3).tolist()) for _ in range(3)]
        hardware = two(*(None if rng.random() < 0.5 else each for each in sizes[: int(rng.integers(1, 4))]))
        ops: list[tuple[str, dict[str, Any]]] = []
        for v in range(int(rng.integers(1, 4))):
            step = 1 if rng.random() < 0.5 else int(rng.integers(1, 6))
            times = {"time_s": {"*": dict.fromkeys(range(step, inputs + 1, step), 1.0)}}
            banned = {"forbidden": ["d0"]} if rng.random() < 0.3 else {}
            ops.append((f"op{v}", {"flops": 1.0} | banned | (times if rng.random() < 0.6 else {})))
        graph = Graph.build(ops, [])
        try:
            shard = shard_inputs(graph, hardware, inputs)
        except RlinitError:
            continue
        raw_graph = check.Graph(check.parse(json.dumps(graph.to_dict()), "rlinit-graph", "graph"))
        raw_hardware = check.Hardware(check.parse(json.dumps(hardware.to_dict()), "rlinit-hardware", "hardware"))
        assert batches.shard_size(graph, hardware, inputs) == shard
        assert check.shard_of(raw_graph, raw_hardware, inputs) == shard
        dealt.add((inputs, shard))
    assert len(dealt) > 100


def test_large_graphs_have_few_shards() -> None:
    """Costs and searches grow with the shards."""
    ops = [(f"op{v}", {"flops": 1e9}) for v in range(20_000)]
    assert shard_inputs(Graph.build(ops, []), two(None, None), 64) == 16


def test_a_plan_of_larger_shards_is_refined_in_smaller_ones() -> None:
    """The search goes on from it; shards that do not fit into each other are refused by their sizes."""
    coarse, fine = two((4, 8), (4, 8)), two(None, None)
    plan = rlinit.schedule(ROOFLINE, coarse, objective="throughput", inputs=8)
    refined = rlinit.schedule(ROOFLINE, fine, objective="throughput", inputs=8, agent=plan)
    assert (plan.shard_inputs, refined.shard_inputs) == (4, 1)
    assert plan.value is not None
    assert refined.value is not None
    assert refined.value <= plan.value
    with pytest.raises(InvalidPlan, match="in shards of 1, this problem in shards of 4"):
        rlinit.schedule(ROOFLINE, coarse, objective="throughput", inputs=8, agent=refined)


def test_each_pair_of_batches_in_parallel_moves_what_it_shares() -> None:
    """One consumer needs one shard and another both: the first waits for one alone, for the checker as well."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("u", {"time_s": {"d0": {1: 1.0, 2: 1.0}}, "out_bytes": 1.0, "forbidden": ["d1"]}),
        ("a", {"time_s": {"d0": {1: 5.0, 2: 99.0}, "d1": {1: 5.0, 2: 99.0}}}),
        ("b", {"time_s": {"d0": {1: 99.0, 2: 99.0}, "d1": {1: 0.5, 2: 0.5}}}),
    ]
    graph = Graph.build(ops, [("u", "a"), ("u", "b")])
    hardware = Hardware.mesh([Device("d0"), Device("d1")], 1.0)
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=2, resident="weights")
    assert plan.value == 7.5
    exact_plan(plan, graph, hardware)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("parts", [2, 4])
def test_groups_of_devices_are_at_most_as_fast_as_their_members(seed: int, parts: int) -> None:
    """A schedule of whole ops on groups is one of shards on devices, which holds as much and ends no later."""
    problem = random_placement_problem(
        seed, 8, 5, shards=4, memory_fraction=0.8, group_fraction=0.3, forbidden_fraction=0.0
    )
    merged, members = on_groups(problem, parts)
    assert members.shape == (5 // parts, parts)
    assert len(set(members.ravel().tolist())) == members.size
    found = whole_ops(merged, merged.order)
    if found is None:
        return
    placement = on_members(problem, members, found)
    assert (np.sort(placement.device, axis=1)[:, :: 4 // parts] == np.sort(members[found.device[:, 0]], axis=1)).all()
    assert makespan(problem, placement) <= makespan(merged, found) * (1 + 1e-9)
    held = held_bytes(problem, placement.device)[members]
    assert (held <= held_bytes(merged, found.device)[:, None] * (1 + 1e-9)).all()
