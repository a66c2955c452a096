"""Random graphs, hardware and placements as plans, for the executors and exporters."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlinit.checker.stages import stage_uses
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import placement_from_priority
from rlinit.plan import Plan, Transfers
from tests.placement_cases import placement_plan

__all__ = ["random_case", "random_graph", "random_hardware", "random_plan", "stage_plan"]


def random_graph(
    seed: int, num_ops: int = 8, *, density: float = 0.3, scale: float = 1.0, zeros: float = 0.15
) -> Graph:
    """Return a random graph with times for every device at every batch size up to 4."""
    rng = np.random.default_rng(seed)

    def draw() -> float:
        return 0.0 if rng.random() < zeros else float(rng.random() + 0.05)

    ops = []
    for v in range(num_ops):
        base = draw() * scale
        times = {f"d{i}": {c: base * (1 + i) * (0.5 + 0.5 * c) for c in range(1, 5)} for i in range(4)}
        ops.append((f"op{v}", {"time_s": times, "param_bytes": draw(), "out_bytes": draw()}))
    edges = [(f"op{u}", f"op{v}") for u in range(num_ops) for v in range(u + 1, num_ops) if rng.random() < density]
    return Graph.build(ops, edges, name=f"random-{seed}")


def random_hardware(seed: int, num_devices: int = 3, *, scale: float = 1.0, free: bool = False) -> Hardware:
    """Return devices d0, d1, ... with random links (`free`: transfers cost nothing)."""
    rng = np.random.default_rng(seed)
    devices = tuple(Device(f"d{i}", batch_sizes=(1, 2, 3, 4)) for i in range(num_devices))
    rate = np.full((num_devices, num_devices), np.inf) if free else (0.5 + rng.random((num_devices,) * 2)) / scale
    delay = np.zeros((num_devices, num_devices)) if rng.random() < 0.5 else 0.1 * scale * rng.random((num_devices,) * 2)
    return Hardware(devices, rate, np.zeros_like(delay) if free else delay, "random")


def random_plan(
    graph: Graph, hardware: Hardware, seed: int, *, inputs: int = 1, transfers: Transfers = "parallel"
) -> Plan:
    """Return a random placement of a graph, shard by shard where there are several inputs."""
    rng = np.random.default_rng(seed)
    objective: Literal["latency", "throughput"] = "latency" if inputs == 1 else "throughput"
    problem = lower_placement(
        graph,
        hardware,
        objective,
        inputs=inputs,
        transfers=transfers,
    ).problem
    device = rng.integers(0, hardware.num_devices, (graph.num_ops, problem.num_shards))
    whole = rng.random(graph.num_ops) < 0.5
    device[whole] = device[whole, :1]
    placement = placement_from_priority(problem, device[problem.group], rng.random(graph.num_ops))
    return placement_plan(problem, placement, graph, hardware, method="random")


def random_case(
    seed: int, *, inputs: int = 1, transfers: Transfers = "parallel", scale: float = 1.0, num_devices: int = 3
) -> tuple[Plan, Graph, Hardware]:
    """Return a random plan with what it is for."""
    graph = random_graph(seed, scale=scale)
    hardware = random_hardware(seed, num_devices, scale=scale)
    return random_plan(graph, hardware, seed, inputs=inputs, transfers=transfers), graph, hardware


def stage_plan(graph: Graph, hardware: Hardware, stages: list[int], *, objective: str = "pipeline") -> Plan:
    """Return the plan that puts the op of each place in `graph.names` on the stage given there."""
    assignment: dict[str, int | str] = dict(zip(graph.names, stages, strict=True))
    devices = [device.name for device in hardware.devices]
    uses = stage_uses(assignment, graph, hardware, devices, objective)  # type: ignore[arg-type]
    return Plan(
        objective=objective,  # type: ignore[arg-type]
        status="feasible",
        values=(max(use.time_s for use in uses),),
        bounds=(0.0,),
        bound_source="",
        method="given",
        assignment=assignment,
        stages=uses,
        history=(),
        phase_s={},
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=hardware.name,
        hardware_fingerprint=hardware.fingerprint(),
    )
