"""Peaks of activation memory, and pipelines whose overflow counts them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.checker.stages import stage_uses
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.stages.activations.slicing import slice_with_peaks
from rlinit.plan import Plan
from rlinit.stages.activation_peak import Tensors, least_peak, order_peak, tensors_of
from rlinit.stages.activation_problem import with_activations
from rlinit.stages.lowering import lower_stages
from tests.draws import draws

SEEDS = st.integers(0, 100_000)
SCALES = st.sampled_from([1e-9, 1.0, 1e12])


def random_graph(seed: int, num_ops: int = 7, *, scale: float = 1.0, groups: bool = False) -> Graph:
    """Return a random graph with small integer sizes times a scale, some of them 0, and perhaps two colocated ops."""
    rng = np.random.default_rng(seed)
    ops = [
        (
            f"op{v}",
            {"time_s": float(rng.integers(0, 4)), "out_bytes": scale * float(rng.integers(0, 6))}
            | {"param_bytes": scale * float(rng.integers(0, 4))},
        )
        for v in range(num_ops)
    ]
    if groups and num_ops > 1:
        for v in rng.choice(num_ops, 2, replace=False).tolist():
            ops[v][1]["colocate"] = "together"
    edges = [(f"op{u}", f"op{v}") for u in range(num_ops) for v in range(u + 1, num_ops) if rng.random() < 0.35]
    return Graph.build(ops, edges, name=f"random-{seed}")


def random_hardware(seed: int, k: int, scale: float = 1.0) -> Hardware:
    """Return k devices of one or two kinds with small caches and slow links."""
    rng = np.random.default_rng(seed)
    caches = [scale * float(rng.integers(0, 12)) for _ in range(2)]
    devices = [Device(f"d{i}", cache_bytes=caches[i % 2 if seed % 2 else 0]) for i in range(k)]
    return Hardware.mesh(devices, bandwidth=scale * float(rng.integers(1, 4)))


def orders_of(tensors: Tensors, ops: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield every topological order of some ops."""
    inside = set(ops)
    for order in itertools.permutations(ops):
        place = {v: at for at, v in enumerate(order)}
        if all(place[u] < place[v] for v in ops for u in tensors.reads[v] if u in inside):
            yield order


@given(seed=SEEDS, ends=st.tuples(st.integers(0, 7), st.integers(0, 7)), scale=SCALES)
@settings(max_examples=draws(80), deadline=None)
def test_least_peaks_are_those_of_brute_force(seed: int, ends: tuple[int, int], scale: float) -> None:
    """The least peak of a slice is that of its best order; with hardly any search, value and bound enclose it."""
    graph = random_graph(seed, scale=scale)
    tensors = tensors_of(graph)
    ops = graph.order.tolist()[min(ends) : max(ends)]
    if not ops:
        return
    best = min(order_peak(tensors, order) for order in orders_of(tensors, ops))
    found = least_peak(tensors, ops)
    assert sorted(found.order) == sorted(ops)
    assert found.peak_bytes == order_peak(tensors, found.order)
    assert found.peak_bytes == pytest.approx(best, rel=1e-12)
    assert found.bound_bytes == found.peak_bytes
    quick = least_peak(tensors, ops, cap=1)
    assert quick.bound_bytes <= best * (1 + 1e-12)
    assert quick.peak_bytes >= best * (1 - 1e-12)


def test_a_wide_set_is_bounded() -> None:
    """Where the search is cut short, the bound stays below the peak of the order that is returned."""
    rng = np.random.default_rng(0)
    ops = [(f"op{v}", {"out_bytes": float(rng.integers(1, 100))}) for v in range(120)]
    edges = [(f"op{u}", f"op{v}") for u in range(120) for v in range(u + 1, 120) if rng.random() < 0.03]
    tensors = tensors_of(Graph.build(ops, edges))
    found = least_peak(tensors, range(120), cap=200)
    assert 0 < found.bound_bytes <= found.peak_bytes == order_peak(tensors, found.order)


def brute_force(graph: Graph, hardware: Hardware) -> float:
    """Return the least bottleneck over all assignments, device orders, and orders of ops, from the definitions."""
    tensors, k = tensors_of(graph), hardware.num_devices
    best = float("inf")
    names = [device.name for device in hardware.devices]
    groups = [v for v in range(graph.num_ops) if graph.colocation[v] >= 0]
    peaks: dict[tuple[int, ...], tuple[str, ...]] = {(): ()}
    for stages in itertools.product(range(k), repeat=graph.num_ops):
        if any(stages[u] > stages[v] for u, v in graph.edges.tolist()) or len({stages[v] for v in groups}) > 1:
            continue
        orders = []
        for j in range(k):
            members = tuple(v for v in range(graph.num_ops) if stages[v] == j)
            if members not in peaks:
                order = min(orders_of(tensors, list(members)), key=lambda one: order_peak(tensors, one))
                peaks[members] = tuple(graph.names[v] for v in order)
            orders.append(peaks[members])
        assignment: dict[str, int | str] = dict(zip(graph.names, stages, strict=True))
        for devices in itertools.permutations(names):
            uses = stage_uses(assignment, graph, hardware, list(devices), "pipeline", orders=orders)
            best = min(best, max(use.time_s for use in uses))
    return best


@pytest.mark.filterwarnings("ignore:.*ops go to one stage")
@given(seed=SEEDS, k=st.integers(1, 3), scale=SCALES, groups=st.booleans())
@settings(max_examples=draws(25), deadline=None)
def test_plans_are_those_of_brute_force(seed: int, k: int, scale: float, groups: bool) -> None:
    """On small graphs the plan is proven optimal and has the value of brute force, which every bound is below."""
    graph, hardware = random_graph(seed, 5, scale=scale, groups=groups), random_hardware(seed, k, scale)
    true = brute_force(graph, hardware)
    plan = rlinit.schedule(graph, hardware, activations=True)
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(true, rel=1e-9, abs=0)
    assert rlinit.bound(graph, hardware, "pipeline").value <= true * (1 + 1e-9)
    for entry in plan.history:
        assert entry.bounds is None or entry.bounds[0] <= true * (1 + 1e-9)
        assert entry.values is None or entry.values[0] >= true * (1 - 1e-9)


@given(seed=SEEDS, k=st.integers(1, 4), method=st.sampled_from(["natural", "anneal", "auto", "warm"]))
@settings(max_examples=10, deadline=None)
def test_larger_plans_are_checked(seed: int, k: int, method: str) -> None:
    """Whatever the method, the checker agrees, and no plan is cheaper than a bound that ignores activations."""
    graph, hardware = random_graph(seed, 14), random_hardware(seed, k)
    plan = rlinit.schedule(graph, hardware, activations=True, method=method)
    rlinit.verify(plan, graph, hardware)
    without = rlinit.schedule(graph, hardware)
    assert plan.value >= without.bound * (1 - 1e-9)
    assert len(plan.stage_orders) == k


def test_activations_move_the_cut() -> None:
    """A stage whose parameters fit alone overflows with its activations, and the plan avoids that."""
    sizes = [8.0, 8.0, 1.0, 1.0]
    ops = [(f"op{v}", {"time_s": 1.0, "param_bytes": 4.0, "out_bytes": size}) for v, size in enumerate(sizes)]
    graph = Graph.build(ops, [(f"op{v}", f"op{v + 1}") for v in range(3)])
    hardware = Hardware.pipeline(2, bandwidth=1.0, cache=22.0)
    plain = rlinit.schedule(graph, hardware)
    plan = rlinit.schedule(graph, hardware, activations=True)
    assert all(use.activation_bytes == 0.0 for use in plain.stages)
    assert [use.activation_bytes for use in plan.stages] == [16.0, 2.0]
    assert plan.status == "optimal"
    assert plan.value == max(use.time_s for use in plan.stages)


def test_claims_about_orders_are_checked(tmp_path: Path) -> None:
    """Orders that miss ops, run backwards or are given for other objectives are refused; plans survive a file."""
    graph, hardware = random_graph(3, 8), random_hardware(3, 2)
    plan = rlinit.schedule(graph, hardware, activations=True)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    stage = next(j for j, order in enumerate(plan.stage_orders) if len(order) > 1)
    orders = list(plan.stage_orders)

    def changed(order: tuple[str, ...]) -> Plan:
        return dataclasses.replace(plan, stage_orders=(*orders[:stage], order, *orders[stage + 1 :]))

    with pytest.raises(InvalidPlan, match="every op of each stage once"):
        rlinit.verify(changed(orders[stage][1:]), graph, hardware)
    with pytest.raises(InvalidPlan, match="which it reads"):
        rlinit.verify(changed(orders[stage][::-1]), graph, hardware)
    uses = [dataclasses.replace(use, activation_bytes=use.activation_bytes + 1.0) for use in plan.stages]
    with pytest.raises(InvalidPlan, match="activation_bytes"):
        rlinit.verify(dataclasses.replace(plan, stages=tuple(uses)), graph, hardware)
    with pytest.raises(InvalidPlan, match=r"activation_bytes|overflow_s|off_cache_bytes"):
        rlinit.verify(dataclasses.replace(plan, stage_orders=()), graph, hardware)
    with pytest.raises(RlinitError, match="activations is for pipeline"):
        rlinit.schedule(graph, hardware, objective="memory", activations=True)


def test_thousands_of_ops_keep_the_natural_order() -> None:
    """A set that is too large to search has its natural order, the peak of that, and a bound below it."""
    ops = [(f"op{v}", {"out_bytes": float(1 + v % 7)}) for v in range(2_500)]
    edges = [(f"op{v}", f"op{v + 1}") for v in range(2_499)] + [(f"op{v}", f"op{v + 9}") for v in range(0, 2_400, 5)]
    tensors = tensors_of(Graph.build(ops, edges))
    found = least_peak(tensors, range(2_500))
    assert found.order == tuple(range(2_500))
    assert 0 < found.bound_bytes <= found.peak_bytes == order_peak(tensors, found.order)


def test_many_ready_ops_end_the_search_early() -> None:
    """Hundreds of ops that may all run next do not make each of many states as dear as hundreds."""
    tensors = tensors_of(Graph.build([(f"op{v}", {"out_bytes": float(1 + v)}) for v in range(400)], []))
    found = least_peak(tensors, range(400))
    assert sorted(found.order) == list(range(400))
    assert found.peak_bytes == sum(range(1, 401))
    assert found.bound_bytes == pytest.approx(found.peak_bytes)


@pytest.mark.parametrize("cache", [50.0, np.inf])
def test_a_value_to_beat_loses_no_slices(cache: float) -> None:
    """Slices under the best bottleneck are found again where longer ones are left out, whatever the caches hold."""
    for seed in range(20):
        graph = random_graph(seed, 12)
        lowered = lower_stages(graph, Hardware.pipeline(3, bandwidth=10.0, cache=cache), "pipeline")
        problem = with_activations(lowered.problem, lowered.node_of_op, graph)
        order = problem.ops_of(problem.problem.order)
        best = slice_with_peaks(problem, np.array(order), np.inf)
        assert best is not None
        value = max(problem.cost(best.stage == j, c) for j, c in enumerate(best.classes.tolist()))
        again = slice_with_peaks(problem, np.array(order), value)
        assert again is not None
        assert (again.stage == best.stage).all(), seed
