"""Placement problems with and without block structure, and their optimum by enumeration."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import Transfers

__all__ = ["any_placement_problem", "brute_force", "chain_of_blocks", "make_problem"]


def make_problem(
    time_s: FloatArray,
    edges: list[tuple[int, int]],
    *,
    tensor_bytes: FloatArray | None = None,
    s_per_byte: FloatArray | None = None,
    delay_s: FloatArray | None = None,
    weight_bytes: FloatArray | None = None,
    shard_bytes: FloatArray | None = None,
    capacity_bytes: FloatArray | None = None,
    group: IntArray | None = None,
    transfers: Transfers = "parallel",
) -> PlacementProblem:
    """Return a problem whose edges all lead to larger ops; (n, d) times are those of one shard."""
    times = time_s if time_s.ndim == 3 else np.stack([np.zeros_like(time_s), time_s], axis=2)
    n, d, layers = times.shape
    objective: Literal["latency", "throughput"] = "latency" if layers == 2 else "throughput"
    pairs = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
    zeros = np.zeros((d, d))
    return PlacementProblem(
        objective=objective,
        transfers=transfers,
        shard_inputs=1,
        time_s=np.ascontiguousarray(times),
        tensor_bytes=np.ones(n) if tensor_bytes is None else tensor_bytes,
        weight_bytes=np.zeros(n) if weight_bytes is None else weight_bytes,
        shard_bytes=np.zeros(n) if shard_bytes is None else shard_bytes,
        capacity_bytes=np.full(d, np.inf) if capacity_bytes is None else capacity_bytes,
        s_per_byte=zeros if s_per_byte is None else s_per_byte,
        delay_s=zeros if delay_s is None else delay_s,
        edges=pairs,
        order=np.arange(n),
        group=np.arange(n) if group is None else group,
    )


def _costs(rng: np.random.Generator, n: int, d: int, shards: int, scale: float) -> tuple[FloatArray, ...]:
    """Return random times, tensor sizes, seconds a byte and delays, sometimes with zeros, ties and missing parts."""
    style = rng.integers(4)
    per_op: FloatArray = rng.integers(0, 4, (n, d)).astype(np.float64) if style == 0 else rng.uniform(0.1, 1.0, (n, d))
    if style == 1:
        per_op = per_op * 10.0 ** rng.integers(-6, 7, (n, 1))
    if style == 2:
        per_op = np.repeat(per_op[:, :1], d, axis=1)
    counts = np.arange(shards + 1)
    overhead = rng.uniform(0, 1, (n, d, 1)) * (counts > 0)
    times = (per_op[:, :, None] * counts + overhead * per_op[:, :, None]) * scale
    if rng.random() < 0.3:
        times[rng.random((n, d)) < 0.1, 1:] = np.inf
    if shards > 1 and rng.random() < 0.5:
        times[:, rng.integers(d), rng.integers(1, shards + 1)] = np.inf
    bytes_ = rng.choice([0.0, 1.0, 2.0, 5.0], n)
    rate = rng.uniform(0, 0.5, (d, d)) * scale * rng.choice([0.0, 1.0, 5.0])
    delay = rng.uniform(0, 0.2, (d, d)) * scale * rng.choice([0.0, 1.0])
    np.fill_diagonal(rate, 0.0)
    np.fill_diagonal(delay, 0.0)
    if d > 1 and rng.random() < 0.15:
        delay[0, 1] = np.inf
    return times, bytes_, rate, delay


def any_placement_problem(
    seed: int, max_ops: int = 7, *, shards: int = 1, chain: bool = False, memory: bool = False, groups: bool = True
) -> PlacementProblem:
    """Return a small problem of any magnitude; with `chain` a random DAG that falls into blocks."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, max_ops + 1)), int(rng.integers(1, 4))
    scale = float(rng.choice([1e-9, 1.0, 1e12]))
    times, bytes_, rate, delay = _costs(rng, n, d, shards, scale)
    density = rng.choice([0.1, 0.3, 0.6])
    edges = [(v, w) for v, w in itertools.combinations(range(n), 2) if rng.random() < density]
    if chain:
        edges = _with_separators(rng, n, edges)
    group = np.arange(n)
    if groups and n > 2 and rng.random() < 0.25:
        a, b = sorted(rng.choice(n, 2, replace=False).tolist())
        group[b] = a
    weight = rng.integers(0, 4, n).astype(np.float64)
    capacity = np.full(d, np.inf)
    if memory:
        capacity = np.round(weight.sum() * rng.uniform(0.3, 1.0, d))
    return make_problem(
        times,
        edges,
        tensor_bytes=bytes_,
        s_per_byte=rate,
        delay_s=delay,
        weight_bytes=weight,
        capacity_bytes=capacity,
        group=group,
    )


def _with_separators(rng: np.random.Generator, n: int, edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Make about a third of the ops separators: no edge jumps over them, and all ops before lead to them."""
    for v in np.flatnonzero(rng.random(n) < 0.35).tolist():
        edges = [(a, b) for a, b in edges if not a < v < b]
        for u in range(v):
            if not any(a == u for a, b in edges if b <= v):
                edges.append((u, v))
        for w in range(v + 1, n):
            if not any(b == w for a, b in edges if a >= v):
                edges.append((v, w))
    return edges


def chain_of_blocks(
    seed: int,
    *,
    num_blocks: int,
    block_ops: int,
    num_devices: int,
    channels: int = 1,
    probability: float = 0.2,
    same: bool = False,
) -> PlacementProblem:
    """Return stacked random graphs (RWNN, ER(0.2)); with one channel each has one input op and one output op."""
    rng = np.random.default_rng(seed)
    n = num_blocks * block_ops
    edges: list[tuple[int, int]] = []
    speed = np.array([7.1, 1.26, 1.0, 2.0, 1.5, 3.0])[:num_devices]
    parts = []
    shape_seed = int(rng.integers(1 << 30))
    for m in range(num_blocks):
        own = np.random.default_rng(shape_seed) if same else rng
        base = m * block_ops
        inside = {(v, w) for v, w in itertools.combinations(range(block_ops), 2) if own.random() < probability}
        if channels == 1:
            has_pred, has_succ = {w for _, w in inside}, {v for v, _ in inside}
            inside |= {(0, w) for w in range(1, block_ops) if w not in has_pred}
            inside |= {(v, block_ops - 1) for v in range(block_ops - 1) if v not in has_succ}
        edges += [(base + v, base + w) for v, w in inside]
        if m > 0:
            edges += [(base - 1 - c, base + c) for c in range(channels)]
        parts.append(own.uniform(0.5, 1.5, (block_ops, 1)) * speed * own.uniform(0.9, 1.1, (block_ops, num_devices)))
    rate = np.full((num_devices, num_devices), 0.3)
    np.fill_diagonal(rate, 0.0)
    return make_problem(np.concatenate(parts), edges, s_per_byte=rate, tensor_bytes=np.ones(n))


def brute_force(problem: PlacementProblem) -> float:
    """Return the optimum of a latency problem with parallel transfers by trying every list schedule."""
    n, d = problem.num_ops, problem.num_devices
    preds = [problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]].tolist() for v in range(n)]
    need = problem.weight_bytes + problem.shard_bytes
    best = [np.inf]

    def place(placed: dict[int, tuple[int, float]], free: list[float], last_start: float, latest: float) -> None:
        if latest >= best[0]:
            return
        if len(placed) == n:
            best[0] = latest
            return
        for v in range(n):
            if v in placed or any(u not in placed for u in preds[v]):
                continue
            for j in range(d):
                if any(placed[u][0] != j for u in placed if problem.group[u] == problem.group[v]):
                    continue
                if sum(need[u] for u in placed if placed[u][0] == j) + need[v] > problem.capacity_bytes[j]:
                    continue
                arrivals = [placed[u][1] + problem.transfer_s(u, placed[u][0], j) for u in preds[v]]
                start = max([free[j], *arrivals])
                end = start + problem.time_s[v, j, 1]
                # Some optimal schedule lists its ops by their starts.
                if start < last_start or not end < np.inf:
                    continue
                place(
                    {**placed, v: (j, end)}, [end if i == j else f for i, f in enumerate(free)], start, max(latest, end)
                )

    place({}, [0.0] * d, 0.0, 0.0)
    return best[0]
