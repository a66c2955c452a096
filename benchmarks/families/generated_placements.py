"""Random task graphs and devices by their descriptions in the literature, for placements; equal seeds, equal graphs.

References
----------
Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous computing, IEEE TPDS
13, 2002, section 5: layered graphs, Gaussian elimination, fast Fourier transform, CCR and heterogeneity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlinit
from rlinit.arrays import FloatArray

__all__ = ["SHAPES", "SMALL_SHAPES", "measured_network", "unrelated_machines"]

_RATES = ("fast", "middling", "slow", "fast, other")
_SPEED = (1.0, 0.42, 0.09, 1.2)
"""Of the work of the first, what the other devices do in a second, about as in Moirai's instances."""

Wires = list[tuple[int, int]]


def lu(size: int) -> tuple[int, Wires]:
    """Return tasks and edges of blocked LU decomposition of `size` x `size` blocks without pivoting."""
    number: dict[tuple[int, int, int], int] = {}
    for k in range(size):
        for i in range(k, size):
            for j in range(k, size):
                number[k, i, j] = len(number)
    edges = []
    for (k, i, j), v in number.items():
        if k > 0:
            edges.append((number[k - 1, i, j], v))
        if i > k and j > k:
            edges += [(number[k, i, k], v), (number[k, k, j], v)]
        elif i > k or j > k:
            edges.append((number[k, k, k], v))
    return len(number), edges


def gauss(size: int) -> tuple[int, Wires]:
    """Return tasks and edges of Gaussian elimination of a `size` x `size` matrix (figure 8 of the reference)."""
    number: dict[tuple[int, int], int] = {}
    for k in range(size - 1):
        for j in range(k, size):
            number[k, j] = len(number)
    edges = []
    for (k, j), v in number.items():
        if j > k:
            edges.append((number[k, k], v))
        if k > 0:
            edges.append((number[k - 1, j if j > k else k], v))
    return len(number), edges


def fft(points: int) -> tuple[int, Wires]:
    """Return tasks and edges of the fast Fourier transform of some points, a power of two (figure 10)."""
    edges = [((v - 1) // 2, v) for v in range(1, 2 * points - 1)]
    before, step = list(range(points - 1, 2 * points - 1)), 1
    size = 2 * points - 1
    while step < points:
        now = list(range(size, size + points))
        for at in range(points):
            edges += [(before[at], now[at]), (before[at ^ step], now[at])]
        size, before, step = size + points, now, 2 * step
    return size, edges


def layered(num_tasks: int, rng: np.random.Generator) -> tuple[int, Wires]:
    """Return tasks and edges of a random graph of about sqrt(n) layers, each task with one to five producers."""
    depth = round(num_tasks**0.5)
    layer = np.sort(np.concatenate([np.arange(depth), rng.integers(depth, size=num_tasks - depth)]))
    edges = set()
    for v in np.flatnonzero(layer > 0).tolist():
        near = np.flatnonzero(layer == layer[v] - 1)
        far = np.flatnonzero(layer < layer[v])
        edges.add((int(rng.choice(near)), v))
        edges |= {(int(u), v) for u in rng.choice(far, size=int(rng.integers(5)))}
    return num_tasks, sorted(edges)


SHAPES: dict[str, Callable[[np.random.Generator], tuple[int, Wires]]] = {
    "lu": lambda _: lu(9),
    "gauss": lambda _: gauss(25),
    "fft": lambda _: fft(32),
    "layered": lambda rng: layered(334, rng),
}
"""Graphs of 223 to 334 tasks."""

SMALL_SHAPES: dict[str, Callable[[np.random.Generator], tuple[int, Wires]]] = {
    "small lu": lambda _: lu(6),
    "small gauss": lambda _: gauss(14),
    "small fft": lambda _: fft(16),
    "small layered": lambda rng: layered(int(rng.integers(20, 61)), rng),
}
"""Graphs of 20 to 104 tasks."""


def unrelated_machines(
    shape: str, ccr: float, *, seed: int, machines: int = 64, own_tensors: bool = False
) -> tuple[rlinit.Graph, rlinit.Hardware]:
    """Return a graph on unrelated machines: the time of each task on each is its mean times U(0.5, 1.5).

    Parameters
    ----------
    shape
        One of `SHAPES` or `SMALL_SHAPES`.
    ccr
        Mean time of a transfer over the mean time of a task.
    seed
        Of the graph and its costs.
    machines
        How many there are, linked pairwise, one byte a second.
    own_tensors
        Whether every edge has a tensor of its own, or all consumers of a task read the same one.
    """
    rng = np.random.default_rng([seed, [*sorted(SHAPES), *sorted(SMALL_SHAPES)].index(shape)])
    num_tasks, edges = (SHAPES | SMALL_SHAPES)[shape](rng)
    mean = rng.uniform(0.0, 2.0, num_tasks)
    seconds = mean[:, None] * rng.uniform(0.5, 1.5, (num_tasks, machines))
    tensor = ccr * rng.uniform(0.0, 2.0, len(edges) if own_tensors else num_tasks)
    names = [f"t{v}" for v in range(num_tasks)]
    ops = []
    for v, name in enumerate(names):
        times = {f"m{i}": float(seconds[v, i]) for i in range(machines)}
        ops.append((name, {"time_s": times, "param_bytes": 0.0} | ({} if own_tensors else {"out_bytes": tensor[v]})))
    wires: list[Any] = [(names[u], names[v]) for u, v in edges]
    if own_tensors:
        wires = [(*wire, float(size)) for wire, size in zip(wires, tensor, strict=True)]
    graph = rlinit.Graph.build(ops, wires, name=f"{shape}-{ccr:g}-{seed}{'-own' if own_tensors else ''}")
    devices = [rlinit.Device(f"m{i}", f"m{i}") for i in range(machines)]
    return graph, rlinit.Hardware.mesh(devices, 1.0, name=f"{machines} unrelated")


def measured_network(num_ops: int, *, seed: int) -> tuple[rlinit.Graph, rlinit.Hardware]:
    """Return a network of cells with branches on four unlike devices, times and transfers as in Moirai's instances.

    A cell has two to six branches of one to eight ops, joined at its end; every third reads the cell before the last
    as well, as cells of NASNet do.

    Parameters
    ----------
    num_ops
        At least so many ops, and at most one cell more.
    seed
        Of the graph and its costs.
    """
    rng = np.random.default_rng([seed, num_ops])
    edges: Wires = []
    joins = [0]
    count = 1
    while count < num_ops:
        first, ends = joins[-1], []
        for branch in range(int(rng.integers(2, 7))):
            u = joins[-2] if branch == 0 and len(joins) > 1 and len(joins) % 3 == 0 else first
            for _ in range(int(rng.integers(1, 9))):
                edges.append((u, count))
                u, count = count, count + 1
            ends.append(u)
        edges += [(u, count) for u in ends]
        joins.append(count)
        count += 1
    seconds = _measured_times(rng, count)
    tensor = rng.lognormal(np.log(1e5), 1.0, count)
    ops = [
        (f"o{v}", {"time_s": dict(zip(_RATES, seconds[v].tolist(), strict=True)), "out_bytes": float(tensor[v])})
        for v in range(count)
    ]
    graph = rlinit.Graph.build(ops, [(f"o{u}", f"o{v}") for u, v in edges], name=f"cells-{count}-{seed}")
    bandwidth = np.full((4, 4), 12e9)
    bandwidth[2], bandwidth[:, 2] = 5e9, 5e9
    np.fill_diagonal(bandwidth, np.inf)
    devices = tuple(rlinit.Device(name, name) for name in _RATES)
    return graph, rlinit.Hardware(devices, bandwidth, np.zeros((4, 4)), "four unlike devices")


def _measured_times(rng: np.random.Generator, count: int) -> FloatArray:
    """Return (count, 4) seconds: two in five ops compute, the others are soon done; each device has its own luck."""
    work = np.where(rng.random(count) < 0.4, rng.lognormal(np.log(6e-5), 0.8, count), 4e-6)
    luck: FloatArray = rng.lognormal(0.0, 0.4, (count, 4))
    return np.asarray(work[:, None] / np.array(_SPEED) * luck, np.float64)
