"""Random training pipelines and brute force over them, from the definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import networkx as nx
import numpy as np

from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.stages.training.schedule import held_microbatches

__all__ = ["CHUNKS", "brute_force", "random_graph", "random_hardware", "random_layers", "random_workload", "value_of"]


def random_graph(seed: int, n: int, *, scale: float = 1.0, zeros: float = 0.2) -> Graph:
    """Return a model of n ops in two numbered layers, most edges within them; some ops are in none."""
    rng = np.random.default_rng(seed)

    def draw() -> float:
        return 0.0 if rng.random() < zeros else float(rng.integers(1, 9)) * scale

    layer = np.sort(rng.integers(0, 2, n))
    ops = []
    for v in range(n):
        row: dict[str, object] = {"time_s": draw(), "param_bytes": draw(), "out_bytes": draw()}
        if rng.random() < 0.9:
            row["module"] = f"layers.{layer[v]}.part"
        if rng.random() < 0.3:
            row["backward_time_s"] = draw()
        if rng.random() < 0.1:
            row["colocate"] = "pair"
        ops.append((f"op{v}", row))
    edges = [
        (f"op{u}", f"op{v}")
        for u in range(n)
        for v in range(u + 1, n)
        if rng.random() < (0.7 if layer[u] == layer[v] else 0.15)
    ]
    return Graph.build(ops, edges, name=f"random{seed}")


def random_layers(seed: int, count: int, *, scale: float = 1.0) -> Graph:
    """Return a chain of layers of two ops, where the first op's output is large and read in its layer alone."""
    rng = np.random.default_rng(seed)
    ops = []
    for i in range(count):
        for part, largest in (("inner", 12), ("outer", 3)):
            costs = rng.integers(0, 5, 2) * scale
            row = {"time_s": costs[0], "param_bytes": costs[1], "out_bytes": rng.integers(1, largest) * scale}
            ops.append((f"{part}{i}", {**row, "module": f"layers.{i}.x"}))
    names = [name for name, _ in ops]
    return Graph.build(ops, list(itertools.pairwise(names)), name=f"layers{seed}")


def random_workload(seed: int, n: int, *, scale: float = 1.0) -> Graph:
    """Return n forward ops and backward ops for most of them, gradients flowing back, with readers of their own."""
    rng = np.random.default_rng(seed)
    ops: list[tuple[str, dict[str, object]]] = []
    edges = []
    has = rng.random(n) < 0.85

    def draw() -> float:
        return 0.0 if rng.random() < 0.2 else float(rng.integers(1, 9)) * scale

    for v in range(n):
        ops.append((f"f{v}", {"time_s": draw(), "param_bytes": draw(), "out_bytes": draw()}))
    for v in range(n):
        if has[v]:
            costs = {"time_s": draw(), "param_bytes": draw(), "out_bytes": draw()}
            ops.append((f"b{v}", {**costs, "backward_of": f"f{v}"}))
    along = rng.random() < 0.3
    for u in range(n):
        for v in range(u + 1, n):
            if rng.random() < 0.4:
                edges.append((f"f{u}", f"f{v}"))
                if has[u] and has[v]:
                    edges.append((f"b{u}", f"b{v}") if along else (f"b{v}", f"b{u}"))
                if has[v] and rng.random() < 0.2:
                    edges.append((f"f{u}", f"b{v}"))
            elif has[u] and has[v] and not along and rng.random() < 0.1:
                edges.append((f"b{v}", f"b{u}"))
    if not any(has):
        ops.append(("b0", {"time_s": 1.0, "param_bytes": 0.0, "out_bytes": 0.0, "backward_of": "f0"}))
    return Graph.build(ops, edges, name=f"workload{seed}")


def random_hardware(seed: int, k: int, room: float, *, alike: bool, scale: float = 1.0) -> Hardware:
    """Return k devices with memories around `room`."""
    rng = np.random.default_rng(seed)
    devices = []
    for i in range(k):
        memory = room if alike else room * float(rng.integers(1, 4)) / 2.0
        cache = np.inf if rng.random() < 0.7 or alike else 5.0 * scale
        devices.append(
            Device(
                f"d{i}",
                "any",
                memory_bytes=memory,
                cache_bytes=cache,
                io_bandwidth=2.0 if alike else float(rng.integers(1, 4)),
            )
        )
    return Hardware.mesh(devices, 1.0)


class _Definition:
    """A graph in plain Python, as the module docstring of `rlinit.stages.training.problem` has it."""

    def __init__(self, graph: Graph, blocks: dict[str, list[int]]) -> None:
        self.graph, self.blocks = graph, blocks
        names = list(graph.names)
        self.partner = [names.index(graph.extras.get(v, {}).get("backward_of", name)) for v, name in enumerate(names)]
        self.forward = [v for v in range(len(names)) if self.partner[v] == v]
        self.workload = len(self.forward) < len(names)
        self.edges = [(u, v) for u, v in graph.edges.tolist()]
        self.ahead = {(u, v) for u, v in self.edges if self.partner[u] == u and self.partner[v] == v}
        back = {
            (self.partner[v], self.partner[u]) for u, v in self.edges if self.partner[u] != u and self.partner[v] != v
        }
        self.rules = self.ahead | {(u, v) for u, v in back if (v, u) not in self.ahead}
        self.reads = {u: [v for a, v in self.edges if a == u] for u in range(len(names))}
        self.size = graph.out_bytes.tolist()
        order: list[int] = []
        while len(order) < len(self.forward):
            order.append(
                next(v for v in self.forward if v not in order and all(u in order for u, w in self.rules if w == v))
            )
        self.width = {}
        for v in self.forward:
            alive = 0.0
            for t in self.forward:
                last = max((order.index(w) for w in self.reads[t] if w in order), default=len(order))
                if order.index(t) <= order.index(v) <= last:
                    alive += self.size[t]
            self.width[v] = alive
        paths = nx.DiGraph(self.rules)
        paths.add_nodes_from(self.forward)
        after = {v: nx.descendants(paths, v) for v in self.forward}
        self.separate = {
            b
            for b, inside in blocks.items()
            if not any(after[u] & {*inside} for u in set[int]().union(*(after[v] for v in inside)) - {*inside})
        }
        """Blocks that no path leaves and enters again."""

    def saved(self, block: str) -> float:
        inside = set(self.blocks[block])
        total = 0.0
        for t in inside:
            readers = [v for v in self.reads[t] if self.partner[v] == v]
            if readers and inside.issuperset(readers):
                total += self.size[t]
        return total


def value_of(
    d: _Definition, stage: dict[int, int], devices: list[Device], schedule: str, m: int, factor: float, recompute: str
) -> float:
    """Return the bottleneck of an assignment with the best choice of blocks; inf where it does not fit.

    With more stages than devices, stage j is on device j mod k.
    """
    k, num_stages = len(devices), max(len(devices), max(stage.values()) + 1)
    held = held_microbatches("interleaved", k, m, CHUNKS) if schedule == "interleaved" else []
    bottleneck = 0.0
    for s, device in enumerate(devices):
        parts = []
        for j in range(s, num_stages, k):
            if j in stage.values():
                after = len({other for other in stage.values() if other >= j})
                flying = min(m, held[j] if held else {"gpipe": m, "1f1b": after, "zero-bubble": k}[schedule])
                drops = min(m, after) if schedule == "zero-bubble" else flying
                flying += min(m, k - after) if schedule == "zero-bubble" else 0
                parts.append(_part(d, stage, j, device, (flying, drops), m, factor))
        param = sum(_params(d.graph, [v for v in stage if stage[v] == j]) for j in range(s, num_stages, k))
        time = sum(part[0] for part in parts)
        if param > device.cache_bytes and device.io_bandwidth is not None:
            time += 2 * (param - device.cache_bytes) / device.io_bandwidth
        best = np.inf
        for chosen in itertools.product(*(_choices(part[3], recompute) for part in parts)):
            memory = 0.0
            for (_, drops, fixed, _), blocks in zip(parts, chosen, strict=True):
                saved = [d.saved(b) for b in blocks]
                memory += fixed - drops * sum(saved) + max(saved, default=0.0)
            if memory <= device.memory_bytes * (1 + 1e-12):
                again = sum(d.graph.times["*", 1][v] for blocks in chosen for b in blocks for v in d.blocks[b])
                best = min(best, again)
        bottleneck = max(bottleneck, time + best)
    return bottleneck


CHUNKS = 2
"""Stages of each device where they are interleaved."""


def _choices(whole: list[str], recompute: str) -> list[tuple[str, ...]]:
    if recompute == "none":
        return [()]
    if recompute == "all":
        return [tuple(whole)]
    return [c for r in range(len(whole) + 1) for c in itertools.combinations(whole, r)]


def _part(
    d: _Definition, stage: dict[int, int], j: int, device: Device, held: tuple[int, int], m: int, factor: float
) -> tuple[float, int, float, list[str]]:
    """Return a stage's seconds, micro-batches that recomputing drops, bytes without it, and blocks that may be so.

    The seconds are without overflow.
    """
    graph, (flying, drops) = d.graph, held
    ops = [v for v in range(graph.num_ops) if stage[v] == j]
    ahead = [v for v in ops if d.partner[v] == v]
    time = 0.0
    for v in ops:
        own = graph.times["*", 1][v]
        given = graph.extras.get(v, {}).get("backward_time_s")
        time += own if d.workload else own + (2 * own if given is None else given)
    ways = 1 if d.workload else 2
    for t in range(graph.num_ops):
        readers = {stage[v] for v in d.reads[t]} - {stage[t]}
        if j in readers or (stage[t] == j and readers):
            time += ways * d.size[t] / device.io_bandwidth

    def crossing(at: int) -> float:
        return math.fsum(
            d.size[t]
            for t in d.forward
            if stage[t] < at and any(stage[v] >= at for v in d.reads[t] if d.partner[v] == v)
        )

    fixed = (
        factor * _params(graph, ops)
        + flying * sum(d.size[v] for v in ahead)
        + (m + 1) * crossing(j)
        + m * crossing(j + 1)
        + max(d.width[v] for v in ahead)
    )
    whole = [b for b in d.blocks if b in d.separate and set(d.blocks[b]) <= set(ops) and d.saved(b) > 0]
    return time, drops, fixed, whole


def _params(graph: Graph, ops: list[int]) -> float:
    held = sum(graph.param_bytes[v] for v in ops)
    again = (one.size_bytes * max(0, len([v for v in ops if v in one.readers]) - 1) for one in graph.shared)
    return float(held - sum(again))


def _assignments(d: _Definition, k: int) -> Iterator[dict[int, int]]:
    groups = [int(g) for g in d.graph.colocation]
    for choice in itertools.product(range(k), repeat=len(d.forward)):
        at = dict(zip(d.forward, choice, strict=True))
        if any(at[u] > at[v] for u, v in d.rules):
            continue
        if any(groups[u] >= 0 and groups[u] == groups[v] and at[u] != at[v] for u in d.forward for v in d.forward):
            continue
        yield {v: at[d.partner[v]] for v in range(d.graph.num_ops)}


def brute_force(
    graph: Graph, hardware: Hardware, blocks: dict[str, list[int]], schedule: str, m: int, factor: float, recompute: str
) -> float:
    """Return the least bottleneck over all assignments, orders of devices and choices of blocks; inf if none fits."""
    d, k = _Definition(graph, blocks), hardware.num_devices
    num_stages = k * CHUNKS if schedule == "interleaved" else k
    alike = len({(x.memory_bytes, x.cache_bytes, x.io_bandwidth) for x in hardware.devices}) == 1
    orders = [tuple(range(k))] if alike else list(itertools.permutations(range(k)))
    best = np.inf
    for stage in _assignments(d, num_stages):
        for order in orders:
            devices = [hardware.devices[i] for i in order]
            best = min(best, value_of(d, stage, devices, schedule, m, factor, recompute))
    return best
