"""Scheduling for latency and throughput from end to end."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.budget import Budget
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.errors import InvalidGraph, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.plan import Transfers
from rlinit.solving.common.incumbent import for_placement
from rlinit.solving.common.options import SolveOptions
from rlinit.solving.placement_phases import PlacementSearch
from rlinit.solving.placement_proofs import by_turns
from tests.placement_cases import brute_force_placement, random_placement_problem

GPUS = Hardware.preset("cpu-t4-a100")


def small_graph(seed: int, n: int, *, shards: int = 1) -> rlinit.Graph:
    """Return a random graph with times on two kinds of devices, some ops free and some tied."""
    rng = np.random.default_rng(seed)
    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(n):
        base = float(rng.integers(0, 5))
        times = {
            kind: {c: base * speed * (0.5 + 0.5 * c) for c in range(1, shards + 1)}
            for kind, speed in (("a", 1.0), ("b", float(rng.integers(1, 4))))
        }
        row = {"time_s": times, "out_bytes": float(rng.integers(0, 4)), "param_bytes": float(rng.integers(0, 4))}
        if rng.random() < 0.15:
            row["forbidden"] = [str(rng.choice(["a", "b"]))]
        if rng.random() < 0.2:
            row["colocate"] = "together"
        ops.append((f"op{v}", row))
    edges = [(f"op{u}", f"op{v}") for u, v in itertools.combinations(range(n), 2) if rng.random() < 0.35]
    return rlinit.Graph.build(ops, edges)


def devices(memory: float = float("inf"), sizes: tuple[int, ...] | None = None) -> Hardware:
    """Return two devices of kind a and one of kind b over slow links."""
    listed = [
        Device("a0", "a", memory, batch_sizes=sizes),
        Device("a1", "a", memory, batch_sizes=sizes),
        Device("b0", "b", memory, batch_sizes=sizes),
    ]
    return Hardware.mesh(listed, 2.0, latency_s=0.25)


@given(
    seed=st.integers(0, 10_000),
    transfers=st.sampled_from(["parallel", "exclusive", "blocking"]),
    memory=st.sampled_from([float("inf"), 12.0]),
)
@settings(max_examples=15, deadline=None)
def test_latency_agrees_with_brute_force(seed: int, transfers: Transfers, memory: float) -> None:
    """Closed plans have the value of the best schedule there is; bounds never exceed it."""
    graph, hardware = small_graph(seed, 5), devices(memory)
    plan = rlinit.schedule(graph, hardware, objective="latency", transfers=transfers, resident="tensors")
    lowered = lower_placement(graph, hardware, "latency", transfers=transfers)
    best = float("inf") if lowered.infeasible else brute_force_placement(lowered.problem)
    if best == float("inf"):
        assert plan.status == "infeasible"
        return
    assert plan.bound <= best * (1 + 1e-9)
    if transfers == "parallel":
        assert plan.status == "optimal"
        assert plan.value == pytest.approx(best, rel=1e-6)
    else:
        # Brute force goes first come, first served; the program may do better.
        assert plan.value <= best * (1 + 1e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_throughput_agrees_with_brute_force(seed: int) -> None:
    """Splitting inputs over devices is solved exactly on small problems."""
    graph = small_graph(seed, 3, shards=2)
    hardware = Hardware.mesh(devices(sizes=(1, 2)).devices[1:], 2.0, latency_s=0.25)
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=2)
    best = brute_force_placement(lower_placement(graph, hardware, "throughput", inputs=2).problem)
    if best == float("inf"):
        assert plan.status == "infeasible"
    else:
        assert plan.status == "optimal"
        assert plan.value == pytest.approx(best, rel=1e-6)


@pytest.fixture(scope="module")
def best() -> rlinit.Plan:
    """Return the optimal plan of a network of two modules."""
    graph = rwnn("ws", seed=1, num_modules=2, nodes_per_module=10)
    plan = rlinit.schedule(graph, GPUS, objective="latency", time_limit_s=60)
    assert plan.status == "optimal"
    return plan


@pytest.mark.parametrize("method", ["sweep", "heft", "met", "ea", "split", "milp"])
def test_every_method_gives_a_checked_plan(method: str, best: rlinit.Plan) -> None:
    """Each method ends with a plan that verifies, whose bound holds for the best schedule."""
    graph = rwnn("ws", seed=1, num_modules=2, nodes_per_module=10)
    plan = rlinit.schedule(graph, GPUS, objective="latency", method=method, time_limit_s=3)
    assert plan.status in ("optimal", "feasible")
    assert plan.bound <= best.value * (1 + 1e-9)
    assert best.value <= plan.value * (1 + 1e-9)


def test_plans_round_trip(tmp_path: Any) -> None:
    """A placement survives JSON, can be drawn, and can be refined."""
    graph = rwnn("er", seed=0, num_modules=1, nodes_per_module=10, batch_sizes=(1, 2, 3, 4))
    plan = rlinit.schedule(graph, GPUS, objective="throughput", inputs=4, method="sweep", transfers="exclusive")
    plan.save(tmp_path / "plan.json")
    loaded = rlinit.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    rlinit.verify(loaded, graph, GPUS)
    plan.plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    again = rlinit.schedule(
        graph, GPUS, objective="throughput", inputs=4, method="sweep", transfers="exclusive", agent=loaded, seed=1
    )
    assert again.value <= plan.value * (1 + 1e-12)
    assert plan.inputs_per_s == pytest.approx(4 / plan.value)


def test_same_seed_same_plan() -> None:
    """Without a time limit a schedule depends on nothing but its inputs and the seed."""
    graph = rwnn("ba", seed=2, num_modules=1, nodes_per_module=12)
    first, second = (rlinit.schedule(graph, GPUS, objective="latency", seed=3) for _ in range(2))
    assert first.batches == second.batches
    assert first.bounds == second.bounds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forbidden": ["a", "b"]}, "op 'op0' is forbidden on every device"),
        ({"param_bytes": 100.0}, "op 'op0' needs 10"),
    ],
)
def test_infeasible_problems_say_why(change: dict[str, Any], message: str) -> None:
    """What cannot be is a status with the op's name, not an error."""
    graph = rlinit.Graph.build([("op0", {"time_s": 1.0, "out_bytes": 1.0, **change}), ("op1", {"time_s": 1.0})], [])
    plan = rlinit.schedule(graph, devices(memory=50.0), objective="latency")
    assert plan.status == "infeasible"
    assert message in plan.message


def test_batch_sizes_that_do_not_add_up() -> None:
    """Batch sizes nobody supports make the problem infeasible, with the sizes named."""
    graph = rlinit.Graph.build([("op", {"time_s": {"*": {4: 1.0, 12: 2.0}}, "out_bytes": 0.0})], [])
    plan = rlinit.schedule(graph, devices(sizes=(4,)), objective="throughput", inputs=16)
    assert plan.status == "infeasible"
    assert "add up to 16 inputs" in plan.message


def test_missing_links_are_avoided_or_infeasible() -> None:
    """Ops that must talk go where a link is; if they cannot, the problem is infeasible."""
    parts = [Device("a", "a"), Device("b", "b")]
    apart = Hardware(tuple(parts), np.diag([np.inf, np.inf]), np.zeros((2, 2)))
    ops: list[tuple[str, dict[str, Any]]] = [
        ("x", {"time_s": {"a": 1.0, "b": 9.0}, "out_bytes": 1.0}),
        ("y", {"time_s": {"a": 9.0, "b": 1.0}}),
    ]
    free = rlinit.Graph.build(ops, [("x", "y")])
    plan = rlinit.schedule(free, apart, objective="latency")
    assert (plan.status, plan.value) == ("optimal", 10.0)
    tied = [(name, {**row, "forbidden": [other]}) for (name, row), other in zip(ops, ("b", "a"), strict=True)]
    stuck = rlinit.schedule(rlinit.Graph.build(tied, [("x", "y")]), apart, objective="latency")
    assert stuck.status == "infeasible"


def test_bad_arguments_are_refused() -> None:
    """Numbers of inputs, missing times and unknown names give errors that name them."""
    graph = rlinit.Graph.build([("op", {"time_s": {"a": 1.0}, "out_bytes": 0.0})], [])
    with pytest.raises(InvalidGraph, match="'op' has no time on device 'b0'"):
        rlinit.schedule(graph, devices(), objective="latency")
    timed = rlinit.Graph.build([("op", {"time_s": 1.0, "out_bytes": 0.0})], [])
    for wrong, message in (
        ({"objective": "throughput"}, "inputs is None"),
        ({"objective": "latency", "inputs": 3}, "inputs is 3"),
        ({"objective": "latency", "method": "magic"}, "unknown method 'magic'"),
        ({"objective": "pipeline", "transfers": "exclusive"}, "for latency and throughput"),
    ):
        arguments: dict[str, Any] = dict(wrong)
        with pytest.raises(RlinitError, match=message):
            rlinit.schedule(timed, devices(), **arguments)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_plain_cases(objective: Literal["latency", "throughput"]) -> None:
    """One device, identical devices, free links, zero costs and no edges at all work."""
    inputs = 1 if objective == "latency" else 4
    ops = [(f"op{v}", {"time_s": {"*": {b: float(v % 3) for b in (1, 2, 3, 4)}}, "out_bytes": 1.0}) for v in range(5)]
    graph = rlinit.Graph.build(ops, [])
    for hardware in (
        Hardware.mesh([Device("only")]),
        Hardware.mesh([Device("one"), Device("two")]),
        Hardware.mesh([Device("one"), Device("two"), Device("three")], 1e-3),
    ):
        plan = rlinit.schedule(graph, hardware, objective=objective, inputs=None if inputs == 1 else inputs)
        assert plan.status == "optimal"
    zero = rlinit.Graph.build([("a", {"time_s": 0.0}), ("b", {"time_s": 0.0})], [("a", "b")])
    plan = rlinit.schedule(zero, Hardware.mesh([Device("one"), Device("two")]), objective="latency")
    assert (plan.status, plan.value) == ("optimal", 0.0)


@pytest.mark.parametrize("inputs", [1, 4])
def test_a_limit_that_is_over_at_once_still_gives_a_schedule(inputs: int) -> None:
    """A first schedule is made however short the limit is."""
    graph = imagenet.load("mobilenetv2")
    objective: Literal["latency", "throughput"] = "latency" if inputs == 1 else "throughput"
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    plan = rlinit.schedule(
        graph, hardware, objective=objective, inputs=None if inputs == 1 else inputs, time_limit_s=1e-6
    )
    assert plan.status in ("feasible", "optimal")
    rlinit.verify(plan, graph, hardware)


@pytest.mark.parametrize("capacity", [3.0, 6.0])
def test_search_and_bounds_go_on_where_there_is_no_schedule_yet(capacity: float) -> None:
    """What proves that nothing fits, or raises the bound, does not wait for a schedule."""
    problem = random_placement_problem(5, num_ops=3, num_devices=2, zero_fraction=0.0, forbidden_fraction=0.0)
    problem = dataclasses.replace(
        problem, weight_bytes=np.full(3, 2.0), shard_bytes=np.zeros(3), capacity_bytes=np.full(2, capacity / 1.5)
    )
    incumbent = for_placement(problem, Budget(0.4), 0.0, None)
    by_turns(PlacementSearch.of(incumbent, SolveOptions(objective="latency", time_limit_s=0.4), None))
    optimum = brute_force_placement(problem)
    assert bool(incumbent.infeasible) == (optimum == np.inf)
    assert incumbent.infeasible or (incumbent.bounds is not None and 0.0 < incumbent.bounds[0] <= optimum * (1 + 1e-9))


@pytest.mark.parametrize("method", ["auto", "cp-sat", "sweep"])
def test_what_fuses_but_fits_no_device_together_is_scheduled_apart(method: str) -> None:
    """A chain of two ops of 4 and 5 bytes on devices of 6, then one where memory is full in pairs but not in chains."""
    graph = rlinit.Graph.build(
        [("a", {"time_s": 0.0, "param_bytes": 4, "out_bytes": 6}), ("b", {"time_s": 0.0, "param_bytes": 5})],
        [("a", "b")],
    )
    plan = rlinit.schedule(
        graph, _even_devices(2, 6.0), objective="latency", method=method, coarsen=True, resident="weights"
    )
    assert plan.value == 6.0
    ops = [(f"v{i}", {"time_s": 1.0, "param_bytes": size, "out_bytes": 0.0}) for i, size in enumerate((3, 3, 2, 2, 2))]
    graph = rlinit.Graph.build(ops, [("v0", "v2"), ("v1", "v3"), ("v1", "v4")])
    plan = rlinit.schedule(
        graph, _even_devices(2, 6.0), objective="latency", method=method, coarsen=True, resident="weights"
    )
    assert plan.status in ("optimal", "feasible")


def _even_devices(count: int, memory: float) -> Hardware:
    return Hardware.mesh([Device(f"d{i}", "any", memory_bytes=memory) for i in range(count)], 1.0)
