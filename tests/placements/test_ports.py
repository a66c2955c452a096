"""Ops with several output tensors: every rule against a brute force that knows nothing of port ops."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import check
from rlinit.checker import verify
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.plan_fields import placement_from_plan, placement_parts
from rlinit.placements.ports import carriers, port_ops
from rlinit.placements.timeline import makespan, placement_from_priority
from rlinit.plan import Plan, Resident, Transfers
from tests.placement_cases import placement_plan

TWO = Hardware.mesh([Device("p0", "p", float("inf")), Device("q0", "q", float("inf"))], 2.0, latency_s=0.25)


def several_outputs(seed: int, n: int = 4) -> Graph:
    """Return a random graph whose edges read main outputs, shared ports, or tensors of their own."""
    rng = np.random.default_rng(seed)
    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(n):
        row: dict[str, Any] = {"time_s": {"p": float(rng.integers(0, 4)), "q": float(rng.integers(1, 5))}}
        row |= {"out_bytes": float(rng.integers(0, 5)), "outputs": {"x": float(rng.integers(0, 6)), "y": 1.0}}
        if rng.random() < 0.15:
            row["forbidden"] = [str(rng.choice(["p", "q"]))]
        if rng.random() < 0.2:
            row["colocate"] = "together"
        ops.append((f"op{v}", row))
    edges: list[Any] = []
    for u, v in itertools.combinations(range(n), 2):
        if rng.random() < 0.6:
            reads = [(), ("x",), ("y",), (float(rng.integers(0, 6)),)][rng.integers(4)]
            edges.append((f"op{u}", f"op{v}", *reads))
    return Graph.build(ops, edges)


def brute_force(graph: Graph, hardware: Hardware, rule: Transfers) -> float:
    """Return the least makespan over all devices and all joint orders of ops and transfers, from the definitions."""
    best = math.inf
    n, d = graph.num_ops, hardware.num_devices
    kinds = [device.kind for device in hardware.devices]
    bytes_of = graph.tensors.size_bytes.tolist()
    for where in itertools.product(range(d), repeat=n):
        if any(graph.forbidden.get(kinds[i], np.zeros(n, bool))[v] for v, i in enumerate(where)):
            continue
        tied = [where[v] for v in range(n) if graph.colocation[v] >= 0]
        if len(set(tied)) > 1:
            continue
        # Activities: (op,) runs an op, (tensor, target) moves a tensor.
        seconds: dict[tuple[int, ...], float] = {(v,): graph.times[kinds[i], 1][v] for v, i in enumerate(where)}
        after: dict[tuple[int, ...], set[tuple[int, ...]]] = {(v,): set() for v in range(n)}
        lane: dict[tuple[int, ...], Any] = {(v,): i for v, i in enumerate(where)}
        for (u, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
            i, j = where[u], where[v]
            if i == j:
                after[v,].add((u,))
                continue
            move = (row, j)
            seconds[move] = hardware.latency_s[i, j] + bytes_of[row] / hardware.bandwidth[i, j]
            after[move] = {(u,)}
            after[v,].add(move)
            lane[move] = {"parallel": None, "exclusive": (i, j), "blocking": j}[rule]
        best = min(best, _least(seconds, after, lane, best))
    return best


def _least(seconds: Any, after: Any, lane: Any, best: float) -> float:
    def extend(end: dict[Any, float], free: dict[Any, float]) -> None:
        nonlocal best
        if end and max(end.values()) >= best:
            return
        if len(end) == len(seconds):
            best = max(end.values())
            return
        for one in seconds:
            if one not in end and after[one] <= end.keys():
                ready = max((end[other] for other in after[one]), default=0.0)
                start = ready if lane[one] is None else max(ready, free.get(lane[one], 0.0))
                over = start + seconds[one]
                extend({**end, one: over}, free if lane[one] is None else {**free, lane[one]: over})

    extend({}, {})
    return best


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_and_values_enclose_the_optimum(seed: int, transfers: Transfers) -> None:
    """`schedule` finds no less than the brute force, its bound is no more, and a proof is of the optimum."""
    graph = several_outputs(seed)
    optimum = brute_force(graph, TWO, transfers)
    plan = rlinit.schedule(graph, TWO, objective="latency", transfers=transfers, time_limit_s=3)
    verify(plan, graph, TWO)
    if math.isinf(optimum):
        assert plan.status == "infeasible"
        return
    assert plan.value >= optimum * (1 - 1e-9)
    assert plan.bound <= optimum * (1 + 1e-9)
    if plan.status == "optimal":
        assert plan.value == pytest.approx(optimum)
    if transfers == "parallel":
        assert plan.status == "optimal"


@pytest.mark.parametrize("method", ["milp", "cp-sat", "split"])
@pytest.mark.parametrize("seed", [11, 12])
def test_every_exact_method_agrees(seed: int, method: str) -> None:
    """Each program proves the brute force's optimum."""
    if method == "cp-sat":
        pytest.importorskip("ortools")
    graph = several_outputs(seed)
    plan = rlinit.schedule(graph, TWO, objective="latency", method=method, time_limit_s=5)
    optimum = brute_force(graph, TWO, "parallel")
    assert plan.bound <= optimum * (1 + 1e-9)
    assert plan.value >= optimum * (1 - 1e-9)
    if method != "split":
        assert plan.value == pytest.approx(optimum)


SPLIT = Graph.build(
    [("a", {"time_s": {"p": 1.0, "q": 9.0}, "outputs": {"x": 4.0}, "out_bytes": 2.0})]
    + [(name, {"time_s": {"p": 9.0, "q": 1.0}, "out_bytes": 0.0}) for name in "bcde"],
    [("a", "b"), ("a", "c", "x"), ("a", "d", "x"), ("a", "e", 6.0)],
)


def test_a_shared_tensor_is_moved_once() -> None:
    """Exclusive transfers: main output, port and edge's tensor one after the other, the port once for two readers."""
    plan = rlinit.schedule(SPLIT, TWO, objective="latency", transfers="exclusive", time_limit_s=3)
    assert brute_force(SPLIT, TWO, "exclusive") == pytest.approx(plan.value)
    moves = {move.tensor: move.end_s - move.start_s for move in plan.transfers}
    assert moves == pytest.approx({"": 1.25, "x": 2.25, "-> e": 3.25})
    assert len(plan.transfers) == 3
    assert set(plan.assignment or {}) == set("abcde")
    assert {batch.op for batch in plan.batches} == set("abcde")
    assert sum(use.num_batches for use in plan.devices) == 5


def test_the_checker_knows_whose_bytes_a_transfer_takes() -> None:
    """A transfer shortened to the main output's bytes, or named after another tensor, is refused."""
    plan = rlinit.schedule(SPLIT, TWO, objective="latency", transfers="exclusive", time_limit_s=3)
    verify(plan, SPLIT, TWO)
    for change in ({"tensor": ""}, {"tensor": "y"}):
        wrong = tuple(
            dataclasses.replace(move, **change) if move.tensor == "x" else move  # type: ignore[arg-type]
            for move in plan.transfers
        )
        with pytest.raises(InvalidPlan):
            verify(dataclasses.replace(plan, transfers=wrong), SPLIT, TWO)
    short = tuple(
        dataclasses.replace(move, end_s=move.start_s + 1.25) if move.tensor == "-> e" else move
        for move in plan.transfers
    )
    with pytest.raises(InvalidPlan, match="too short"):
        verify(dataclasses.replace(plan, transfers=short), SPLIT, TWO)


def test_plans_are_saved_simulated_and_refined(tmp_path: Any) -> None:
    """A plan with transfers of named tensors reads back, replays to its makespan, and can be handed in again."""
    from rlinit.simulation.memory_profile import memory_profile
    from rlinit.simulation.simulator import simulate

    plan = rlinit.schedule(SPLIT, TWO, objective="latency", transfers="exclusive", time_limit_s=3)
    plan.save(tmp_path / "plan.json")
    back = rlinit.Plan.load(tmp_path / "plan.json")
    assert back == plan
    assert simulate(back, SPLIT, TWO).makespan_s == pytest.approx(plan.value)
    assert memory_profile(back, SPLIT, TWO)["q0"].peak_bytes in (10.0, 12.0)
    problem = lower_placement(SPLIT, TWO, "latency", transfers="exclusive").problem
    placement = placement_from_plan(back, problem, SPLIT, TWO)
    ports = port_ops(SPLIT, shared=True)
    assert (placement.device[SPLIT.num_ops :] == placement.device[ports.producer]).all()
    again = rlinit.schedule(SPLIT, TWO, objective="latency", transfers="exclusive", agent=back, time_limit_s=1)
    assert again.value <= plan.value * (1 + 1e-12)


def test_port_ops_of_tensors_that_may_be_one() -> None:
    """Equal sizes need one port op where transfers do not queue, one each where they do; plain graphs need none."""
    row = {"time_s": 1.0}
    graph = Graph.build([(name, row) for name in "abcd"], [("a", "b", 3), ("a", "c", 3), ("a", "d", 4)])
    assert len(port_ops(graph, shared=False)) == 1
    assert len(port_ops(graph, shared=True)) == 2
    assert port_ops(graph, shared=True).order(graph).tolist() == [0, 4, 5, 1, 2, 3]
    plain = Graph.build([(name, row) for name in "ab"], [("a", "b")])
    assert len(port_ops(plain, shared=True)) == 0


def test_memory_counts_all_tensors_an_op_makes_and_reads() -> None:
    """`tensors`: parameters, all outputs of an op, read or not, and what it reads; an edge counts its own tensor."""
    graph = Graph.build(
        [
            ("a", {"time_s": 1.0, "out_bytes": 2, "outputs": {"x": 5, "unread": 7}, "param_bytes": 1}),
            ("b", {"time_s": 1.0}),
        ],
        [("a", "b", "x")],
    )
    problem = lower_placement(graph, TWO, "latency").problem
    assert (problem.weight_bytes + problem.shard_bytes).tolist() == [15.0, 5.0]
    plan = rlinit.schedule(graph, TWO, objective="latency", resident="tensors", time_limit_s=1)
    assert sum(use.held_bytes for use in plan.devices) == 20.0


@pytest.mark.parametrize("seed", range(3))
def test_pipelines_pay_each_tensor_once_a_stage(seed: int) -> None:
    """`pipeline` with several outputs is the least bottleneck over all assignments, by the definitions."""
    graph = several_outputs(seed + 20, 5)
    graph = dataclasses.replace(graph, colocation=np.full(5, -1, np.int64), groups=(), forbidden={})
    hardware = Hardware.pipeline(2, bandwidth=2.0)
    same = {("*", 1): graph.times["p", 1]}
    graph = dataclasses.replace(graph, times=same)
    plan = rlinit.schedule(graph, hardware, objective="pipeline", time_limit_s=3)
    verify(plan, graph, hardware)
    size, best = graph.tensors.size_bytes, math.inf
    for stage in itertools.product(range(2), repeat=5):
        edges = list(zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True))
        if any(stage[u] > stage[v] for (u, v), _ in edges):
            continue
        cut = {row for (u, v), row in edges if stage[u] != stage[v]}
        io = sum(size[row] for row in cut) / 2.0
        best = min(best, max(io + sum(same["*", 1][v] for v in range(5) if stage[v] == j) for j in range(2)))
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(best)


@pytest.mark.parametrize("seed", range(2))
def test_throughput_moves_every_tensor_of_a_shard(seed: int) -> None:
    """Shards of ops with several outputs: the plan stands before the checker, and bounds stay below it."""
    graph = several_outputs(seed + 40)
    graph = dataclasses.replace(graph, forbidden={})
    times = {(kind, b): graph.times[kind, 1] * (0.5 + 0.5 * b) for kind in "pq" for b in (1, 2)}
    graph = dataclasses.replace(graph, times=times)
    hardware = Hardware.mesh(
        [Device("p0", "p", float("inf"), batch_sizes=(1, 2)), Device("q0", "q", float("inf"), batch_sizes=(1, 2))],
        2.0,
        latency_s=0.25,
    )
    plan = rlinit.schedule(graph, hardware, objective="throughput", inputs=2, time_limit_s=3)
    verify(plan, graph, hardware)
    assert {batch.op for batch in plan.batches} == set(graph.names)
    both = dataclasses.replace(graph, times={(kind, 1): times[kind, 2] for kind in "pq"})
    both = Graph.from_dict(_twice_the_bytes(both.to_dict()))
    assert plan.bound <= brute_force(both, TWO, "parallel") * (1 + 1e-9)


def _twice_the_bytes(data: dict[str, Any]) -> dict[str, Any]:
    """Return a graph whose tensors are those of two inputs at once: one way to run two of them."""
    for row in data["ops"]:
        row["out_bytes"] *= 2
        row["outputs"] = {port: 2 * size for port, size in row["outputs"].items()}
    data["edges"] = [[u, v, *(2 * x if not isinstance(x, str) else x for x in rest)] for u, v, *rest in data["edges"]]
    return data


def test_ops_that_start_when_their_producer_ends() -> None:
    """`carriers` names the producers of port ops, and of no op that takes time, reads two or may be elsewhere."""
    problem = lower_placement(SPLIT, TWO, "latency").problem
    assert carriers(problem).tolist() == [-1] * 5 + [0, 0]


def earliest_times(
    plan: Plan, graph: Graph, hardware: Hardware, folder: Path, monkeypatch: Any
) -> list[tuple[Any, Any]]:
    """Return when each batch and transfer of a plan ends, as written and as early as the order of all allows."""
    times: list[tuple[Any, Any]] = []
    run = check.run

    def recorded(jobs: Any, lanes: Any, waits: Any) -> Any:
        ends = run(jobs, lanes, waits)
        times.extend((written + seconds, end) for (seconds, written, *_), end in zip(jobs, ends, strict=True))
        return ends

    for part, name in ((plan, "plan"), (graph, "graph"), (hardware, "hardware")):
        part.save(folder / name)
    read = [check.read(str(folder / name), f"rlinit-{name}") for name in ("plan", "graph", "hardware")]
    with monkeypatch.context() as patch:
        patch.setattr(check, "run", recorded)
        check.exact_values(read[0], check.Graph(read[1]), check.Hardware(read[2]))
    return times


@pytest.mark.parametrize("resident", ["tensors", "weights", "peak"])
@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_plans_run_as_early_as_their_orders_allow(
    transfers: Transfers, resident: Resident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever port ops stand in a sequence, no batch or transfer waits in vain, and a plan read back is no worse."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        graph = several_outputs(seed, 8)
        shards = 1 + seed % 3
        times = {
            (kind, b): (graph.times[kind, 1] + 0.5) * (0.5 + 0.5 * b) for kind in "pq" for b in range(1, shards + 1)
        }
        graph = dataclasses.replace(graph, times=times, forbidden={})
        lowered = lower_placement(graph, TWO, "throughput", inputs=shards, transfers=transfers, resident=resident)
        problem = lowered.problem
        device = rng.integers(0, 2, (problem.num_ops, problem.num_shards))[problem.group]
        placement = placement_from_priority(problem, device, rng.random(problem.num_ops))
        parts: dict[str, Any] = placement_parts(problem, placement, graph, TWO, lowered.live)
        plan = placement_plan(problem, placement, graph, TWO, method="random")
        plan = dataclasses.replace(plan, resident=resident, **parts)
        assert plan.value == makespan(problem, placement_from_plan(plan, problem, graph, TWO))
        verify(plan, graph, TWO)
        for written, earliest in earliest_times(plan, graph, TWO, tmp_path, monkeypatch):
            assert float(written) == pytest.approx(float(earliest), rel=1e-9, abs=1e-12)
