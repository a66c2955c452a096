"""Random placement problems and brute force over them: the ground truth the solvers are held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from rlinit.arrays import IntArray
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.kernels.placements.timeline import no_transfers, run_batches
from rlinit.placements.plan_fields import placement_parts
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import MODES, makespan, obstacle, shard_masks, timeline_arrays
from rlinit.plan import Plan, Transfers

__all__ = [
    "all_devices",
    "brute_force_placement",
    "placement_plan",
    "problems_of",
    "random_placement",
    "random_placement_problem",
    "sequences",
]


def placement_plan(
    problem: PlacementProblem,
    placement: Placement,
    graph: Graph,
    hardware: Hardware,
    *,
    method: str,
    resident: Literal["tensors", "weights"] = "tensors",
) -> Plan:
    """Return a feasible placement as a plan without a bound, a history or settings.

    Parameters
    ----------
    problem
        What `graph` and `hardware` become, with `resident` held in memory.
    method
        What found the placement.
    """
    parts: dict[str, Any] = placement_parts(problem, placement, graph, hardware)
    return Plan(
        objective=problem.objective,
        status="feasible",
        values=(makespan(problem, placement),),
        bounds=None,
        bound_source="",
        method=method,
        stages=(),
        history=(),
        phase_s={},
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=hardware.name,
        hardware_fingerprint=hardware.fingerprint(),
        inputs=problem.num_shards * problem.shard_inputs,
        shard_inputs=problem.shard_inputs,
        transfer_rule=problem.transfers,
        resident=resident,
        **parts,
    )


def random_placement_problem(
    seed: int,
    num_ops: int = 6,
    num_devices: int = 3,
    *,
    shards: int = 1,
    transfers: Transfers = "parallel",
    density: float = 0.35,
    scale: float = 1.0,
    transfer: float = 0.5,
    zero_fraction: float = 0.15,
    forbidden_fraction: float = 0.1,
    memory_fraction: float = np.inf,
    group_fraction: float = 0.0,
    missing_links: float = 0.0,
    integer: bool = False,
    identical: bool = False,
) -> PlacementProblem:
    """Return a random problem.

    Parameters
    ----------
    scale
        Multiplies every second.
    transfer
        Seconds a transfer costs, relative to an op.
    zero_fraction, forbidden_fraction
        Of the ops (times and sizes) and of the (op, device) pairs.
    memory_fraction
        Capacity of each device as a part of what all ops need; inf: no limit.
    group_fraction
        Of the ops that share the group of another.
    missing_links
        Fraction of the links that are missing.
    integer
        Small integers times `scale`, so that ties are common.
    identical
        All devices are alike.
    """
    rng = np.random.default_rng(seed)
    n, d, s = num_ops, num_devices, shards

    def draw(*shape: int) -> np.ndarray:
        values = rng.integers(1, 6, shape).astype(float) if integer else rng.random(shape) + 0.05
        return np.where(rng.random(shape) < zero_fraction, 0.0, values)

    base = draw(n, 1) * (np.ones(d) if identical else 1.0 + rng.integers(0, 4, d))
    if not identical and not integer:
        base = base * (0.5 + rng.random((n, d)))
    batch = np.concatenate([[0.0], (0.5 + 0.5 * np.arange(1, s + 1)) if s > 1 else [1.0]])
    time_s = base[:, :, None] * batch * scale
    for v, i in np.argwhere(rng.random((n, d)) < forbidden_fraction):
        if np.isfinite(time_s[v, :, 1]).sum() > 1:
            time_s[v, i, 1:] = np.inf
    tensor_bytes = draw(n)
    rate = np.full((d, d), transfer) * (1.0 if identical else 0.5 + rng.random((d, d)))
    delay = np.zeros((d, d)) if identical or rng.random() < 0.5 else 0.1 * rng.random((d, d)) * scale
    delay[rng.random((d, d)) < missing_links] = np.inf
    np.fill_diagonal(rate, 0.0)
    np.fill_diagonal(delay, 0.0)
    edges = np.array([(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < density], np.int64)
    weight, shard = draw(n), draw(n) / s
    group = np.arange(n, dtype=np.int64)
    for v in np.flatnonzero(rng.random(n) < group_fraction):
        group[v] = group[int(rng.integers(0, v + 1))]
    return PlacementProblem(
        objective="latency" if s == 1 else "throughput",
        transfers=transfers,
        shard_inputs=1,
        time_s=time_s,
        tensor_bytes=tensor_bytes,
        weight_bytes=weight,
        shard_bytes=shard,
        capacity_bytes=np.full(
            d, (weight + s * shard).sum() * memory_fraction if np.isfinite(memory_fraction) else np.inf
        ),
        s_per_byte=rate * scale,
        delay_s=delay,
        edges=edges.reshape(-1, 2),
        order=np.arange(n, dtype=np.int64),
        group=group,
    )


def problems_of(*group_fractions: float) -> st.SearchStrategy[PlacementProblem]:
    """Return a strategy of random problems of up to 14 ops, with one of these shares of the ops in groups."""
    return st.builds(
        random_placement_problem,
        st.integers(0, 10**6),
        st.integers(1, 14),
        st.integers(1, 4),
        transfers=st.sampled_from(["parallel", "exclusive", "blocking"]),
        scale=st.sampled_from([1e-9, 1.0, 1e12]),
        memory_fraction=st.sampled_from([np.inf, 0.7]),
        group_fraction=st.sampled_from(group_fractions),
        missing_links=st.sampled_from([0.0, 0.15]),
        integer=st.booleans(),
        zero_fraction=st.sampled_from([0.0, 0.3, 1.0]),
    )


def all_devices(problem: PlacementProblem) -> Iterator[IntArray]:
    """Yield every (n, s) assignment of shards to devices, without those that differ by renaming shards 0..s-1 only."""
    n, s = problem.num_ops, problem.num_shards
    for flat in itertools.product(range(problem.num_devices), repeat=n * s):
        device = np.array(flat, np.int64).reshape(n, s)
        columns = [tuple(device[:, c]) for c in range(s)]
        if columns == sorted(columns):
            yield device


def sequences(problem: PlacementProblem, device: IntArray) -> Iterator[IntArray]:
    """Yield every sequence of the batches of `device` that respects their dependencies."""
    d = problem.num_devices
    batches = sorted({int(v * d + device[v, c]) for v in range(problem.num_ops) for c in range(problem.num_shards)})
    before: dict[int, set[int]] = {batch: set() for batch in batches}
    for u, v in problem.edges.tolist():
        for c in range(problem.num_shards):
            before[int(v * d + device[v, c])].add(int(u * d + device[u, c]))

    def extend(done: list[int]) -> Iterator[IntArray]:
        if len(done) == len(batches):
            yield np.array(done, np.int64)
            return
        for batch in batches:
            if batch not in done and before[batch] <= set(done):
                yield from extend([*done, batch])

    yield from extend([])


def brute_force_placement(problem: PlacementProblem) -> float:
    """Return the best makespan over every placement and sequence; ``inf`` if nothing is feasible.

    Exact for ``parallel`` transfers. For the other ways it is the best that first come, first served reaches.
    """
    best = float("inf")
    arrays, mode = timeline_arrays(problem), MODES[problem.transfers]
    start = np.empty((problem.num_ops, problem.num_devices))
    moved = no_transfers(mode, problem.num_ops, problem.num_shards, problem.num_devices)
    for device in all_devices(problem):
        if obstacle(problem, Placement(device, np.zeros(0, np.int64))):
            continue
        # What `makespan` computes, without looking at the devices again for every sequence.
        masks = shard_masks(device, problem.num_devices)
        for sequence in sequences(problem, device):
            value = run_batches(arrays, mode, sequence, masks, start, moved)
            best = value if value < best else best
    return float(best)


def random_placement(problem: PlacementProblem, rng: np.random.Generator) -> Placement:
    """Return a random placement of a problem without limits on memory or batch sizes."""
    from rlinit.placements.timeline import placement_from_priority

    n, s = problem.num_ops, problem.num_shards
    device = np.zeros((n, s), np.int64)
    for v in range(n):
        able = np.flatnonzero(np.isfinite(problem.time_s[v, :, 1:]).all(axis=1))
        device[v] = rng.choice(able, s)
    return placement_from_priority(problem, device[problem.group], rng.random(n))
