"""Pipelines on devices that share a processor: values and bounds against all assignments, files, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import write_certificate
from rlinit.checker import stage_uses
from rlinit.errors import InvalidHardware, InvalidPlan, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.solving.common.incumbent import Incumbent


def random_case(seed: int) -> tuple[rlinit.Graph, Hardware]:
    """Return a small graph and two or three devices, some of which share something."""
    rng = np.random.default_rng(seed)
    n, scale = int(rng.integers(2, 6)), float(rng.choice([1e-9, 1.0, 1e6]))
    names = [f"d{i}" for i in range(int(rng.integers(2, 4)))]
    alike = bool(rng.integers(2))
    times = [
        dict.fromkeys(names, t) if alike else {name: float(rng.choice([t, 2 * t, 0.0])) * scale for name in names}
        for t in (scale * rng.integers(0, 4, n)).tolist()
    ]
    ops = [
        (
            f"v{v}",
            {"time_s": times[v], "out_bytes": float(rng.integers(0, 3)), "param_bytes": float(rng.integers(0, 3))},
        )
        for v in range(n)
    ]
    edges = [(f"v{u}", f"v{v}") for u in range(n) for v in range(u + 1, n) if rng.random() < 0.5]
    shared = rng.choice(["", "a", "b"], len(names), p=[0.2, 0.6, 0.2]).tolist()
    kinds = rng.choice(["", *names], len(names)).tolist()  # a name may be the kind of another device
    devices = [
        Device(name, kind, shares=share, memory_bytes=math.inf if alike else float(rng.integers(3, 9)))
        for name, kind, share in zip(names, kinds, shared, strict=True)
    ]
    sharing = {one: tuple(np.maximum.accumulate(1 + rng.integers(0, 3, 2) / 2).tolist()) for one in set(shared) - {""}}
    mesh = Hardware.mesh(devices, float(rng.choice([1.0, math.inf])) / scale, latency_s=scale / 8)
    graph = rlinit.Graph.build(ops, edges)
    if rng.random() < 0.3:
        graph = dataclasses.replace(graph, forbidden={str(rng.choice(names)): rng.random(n) < 0.5})
    return graph, dataclasses.replace(mesh, sharing=sharing)


def values(graph: rlinit.Graph, hardware: Hardware) -> Iterator[float]:
    """Yield the value of every monotone assignment, by the definition."""
    k = len(hardware)
    for order in itertools.permutations([device.name for device in hardware.devices]):
        for stages in itertools.product(range(k), repeat=graph.num_ops):
            if any(stages[u] > stages[v] for u, v in graph.edges.tolist()):
                continue
            assignment = dict(zip(graph.names, stages, strict=True))
            crowded = hardware.crowded({order[j] for j in set(stages)})
            uses = stage_uses(assignment, graph, crowded, list(order), "pipeline")
            room = {device.name: device.memory_bytes for device in hardware.devices}
            value = max(use.time_s for use in uses)
            if all(use.param_bytes <= room[use.device] for use in uses) and math.isfinite(value):
                yield value


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_values_and_bounds_are_those_of_all_assignments(start: int) -> None:
    """Plans reach the least value over all assignments, each as slow as its own devices make it, and prove no more."""
    for seed in range(start, start + 10):
        graph, hardware = random_case(seed)
        best = min(values(graph, hardware), default=math.inf)
        plan = rlinit.schedule(graph, hardware, objective="pipeline")
        if math.isinf(best):
            assert plan.status == "infeasible"
            continue
        assert plan.value == pytest.approx(best, rel=1e-9), seed
        assert plan.status == "optimal"
        assert rlinit.bound(graph, hardware, "pipeline").value <= best * (1 + 1e-9)
        rlinit.verify(plan, graph, hardware)


def two(factors: tuple[float, ...] = (1.0, 1.5)) -> Hardware:
    """Return two equal devices on one processor."""
    mesh = Hardware.mesh([Device("p0", shares="cpu"), Device("p1", shares="cpu")], 1e9)
    return dataclasses.replace(mesh, sharing={"cpu": factors})


CHAIN = rlinit.Graph.build(
    [(f"v{i}", {"time_s": 1.0, "out_bytes": 0.0}) for i in range(4)], [("v0", "v1"), ("v1", "v2"), ("v2", "v3")]
)


def test_sharers_pay_and_may_stay_idle() -> None:
    """Two stages of 2 s on one processor take 3 s at a factor of 1.5; at 2.5 everything on one device is better."""
    plan = rlinit.schedule(CHAIN, two(), objective="pipeline")
    assert plan.value == 3.0
    assert [use.work_s for use in plan.stages] == [3.0, 3.0]
    assert plan.baselines["best single device"] == 4.0
    alone = rlinit.schedule(CHAIN, two((1.0, 2.5)), objective="pipeline")
    assert alone.value == 4.0
    assert sorted(use.num_ops for use in alone.stages) == [0, 4]


def test_a_name_may_be_the_kind_of_another_device() -> None:
    """Where 'cpu' is idle, 'cpu1' of kind 'cpu' may work; sets on which nothing fits do not count for bounds."""
    devices = [Device("cpu", shares="p"), Device("cpu1", "cpu", shares="p")]
    hardware = dataclasses.replace(Hardware.mesh(devices, 1e9), sharing={"p": (1.0, 3.0)})
    ops = [(f"v{i}", {"time_s": {"cpu": 10.0, "cpu1": 1.0}, "out_bytes": 0.0}) for i in range(4)]
    graph = rlinit.Graph.build(ops, [(f"v{i}", f"v{i + 1}") for i in range(3)])
    plan = rlinit.schedule(graph, hardware, objective="pipeline")
    assert (plan.value, plan.bound, plan.status) == (4.0, 4.0, "optimal")
    only = dataclasses.replace(graph, forbidden={"cpu1": np.array([True, False, False, False])})
    assert rlinit.schedule(only, hardware, objective="pipeline").value == 30.0
    assert rlinit.bound(only, hardware, "pipeline").value <= 30.0


def test_what_sets_prove_is_not_told_as_a_bound() -> None:
    """Entries of the history but the last are of one set each: without bounds, and the best value told never rises."""
    told: list[rlinit.plan.HistoryEntry] = []
    plan = rlinit.schedule(CHAIN, two((1.0, 1.8)), objective="pipeline", progress=told.append)
    assert plan.bounds == (3.6,)
    assert {entry.bounds for entry in (*told, *plan.history[:-1])} == {None}
    assert (plan.history[-1].values, plan.history[-1].bounds) == (plan.values, plan.bounds)
    values = [entry.values[0] for entry in told if entry.values]
    assert values == sorted(values, reverse=True)


def test_a_limit_that_ends_early_leaves_bounds_that_hold() -> None:
    """Where nothing was found in time, no bound of one set is taken for one of all."""
    for seed in range(6):
        graph, hardware = random_case(seed)
        best = min(values(graph, hardware), default=math.inf)
        for limit in (1e-9, 0.02):
            plan = rlinit.schedule(graph, hardware, objective="pipeline", time_limit_s=limit)
            assert (plan.bounds or (0.0,))[0] <= best * (1 + 1e-9)
            assert plan.status != "infeasible" or math.isinf(best)
            assert plan.bounds is None or plan.values is not None


def test_more_sharers_than_factors_slow_in_proportion() -> None:
    """Of factors for two devices, four at work take twice the last."""
    devices = [Device(f"p{i}", shares="cpu", flops_per_s=1.0) for i in range(4)]
    hardware = dataclasses.replace(Hardware.mesh(devices), sharing={"cpu": (1.0, 1.1)})
    assert [device.slowdown for device in hardware.crowded(["p0", "p1", "p2", "p3"]).devices] == [2.2] * 4
    assert [device.slowdown for device in hardware.crowded(["p3"]).devices] == [1.0] * 4
    assert Hardware.from_dict(hardware.to_dict()) == hardware


def test_what_does_not_count_sharing_says_so(tmp_path: object) -> None:
    """Chunks, certificates and wrong factors are refused; placements count nothing of it."""
    with pytest.raises(RlinitError, match="chunks does not count"):
        rlinit.schedule(CHAIN, two(), chunks=2)
    plan = rlinit.schedule(CHAIN, two(), objective="pipeline")
    with pytest.raises(InvalidPlan, match="devices that share are not checked"):
        write_certificate(f"{tmp_path}/proof.json", plan, CHAIN, two())
    assert rlinit.schedule(CHAIN, two((3.0, 4.0)), objective="latency").value == 4.0
    for factors in ((), (0.5,), (2.0, 1.0)):
        with pytest.raises(InvalidHardware, match="sharing 'cpu'"):
            two(factors)


def test_a_bound_rests_on_the_solvers_of_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is trusted for a set of devices that is not the plan's is trusted for the bound, the least of all."""
    graph = rlinit.Graph.build([(name, {"time_s": 1.0, "out_bytes": 1.0}) for name in "abc"], [])
    devices = [Device(name, shares="bus") for name in "xyz"]
    hardware = dataclasses.replace(Hardware.mesh(devices, 1e9), sharing={"bus": (1.0, 1.0, 1.25)})

    def of_two_devices(incumbent: Incumbent[Any, Any]) -> tuple[str, ...]:
        return ("oracle",) if incumbent.values == (2.0,) else ()

    monkeypatch.setattr(Incumbent, "trusted", property(of_two_devices))
    plan = rlinit.schedule(graph, hardware, objective="pipeline")
    assert plan.assignment is not None
    assert set(plan.assignment.values()) == {0, 1, 2}
    assert plan.trusted == ("oracle",)
