"""Random placement problems for training: parts of randomly wired networks, and layered graphs on random devices.

Devices other than a CPU, a T4 and an A100 are 2 to 64, of related or unrelated speeds; a transfer takes 0.1 to 10 times
as long as an op, transfers follow any of the three rules, and on some problems memory binds. Training draws from seeds
of its own: none of the networks of seeds below `FIRST_SEED` is ever part of a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from rlinit.agent.latency_selection import MOST_PAIRS
from rlinit.arrays import FloatArray, IntArray
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import PlacementProblem

FIRST_SEED = 1_000_000
"""Least seed of a network that training is made of."""

_MODULES = 10
"""Of a network, as in DIVIML."""
_NETWORKS = 400
"""Networks that problems are parts of, made once in each process; times are drawn anew for every problem."""

_BINDING = 0.25
"""Share of problems on other devices where memory binds."""


@dataclass(frozen=True, slots=True)
class ProblemMix:
    """Shares of kinds of problems; what is left are networks on a CPU, a T4 and an A100.

    Parameters
    ----------
    other_devices
        Networks on other devices.
    layered
        Layered graphs with random costs, on other devices.
    shared_links
        Of all of these, those whose transfers exclude each other or block devices, half of them each.
    """

    other_devices: float = 0.15
    layered: float = 0.1
    shared_links: float = 0.0


def random_problems(rng: np.random.Generator, size: int, count: int, mix: ProblemMix) -> list[PlacementProblem]:
    """Return `count` problems of about `size` ops.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    size
        Ops of each problem, about.
    count
        How many, at least 0.
    mix
        The kinds of problem and the share of each.
    """
    problems: list[PlacementProblem] = []
    while len(problems) < count:
        kind = rng.random()
        if kind < mix.layered:
            problem = layered_problem(rng, size)
        else:
            problem = network_problem(rng, _network(int(rng.integers(_NETWORKS))), size)
            if kind < mix.layered + mix.other_devices:
                problem = _elsewhere(rng, problem)
        if rng.random() < mix.shared_links:
            problem = replace(problem, transfers="exclusive" if rng.random() < 0.5 else "blocking")
        problems.append(problem)
    return problems


@dataclass(frozen=True, slots=True, eq=False)
class _Network:
    """A lowered network and (n,) the module of each op, and whether it is an inner node."""

    problem: PlacementProblem
    module: IntArray
    inner: IntArray


def whole_network(
    wiring: str, seed: int, channels: int, dependence: str, *, modules: int = _MODULES
) -> PlacementProblem:
    """Return a whole network on a CPU, a T4 and an A100, for validation.

    Parameters
    ----------
    wiring
        "er", "ws" or "ba", as for `rwnn`.
    seed
        Of the wiring.
    channels
        Channels between modules, 1 or more.
    dependence
        "strong" or "weak", as for `rwnn`.
    modules
        Number of modules, at least 1.
    """
    graph = rwnn(
        wiring,  # type: ignore[arg-type]
        seed=seed,
        num_modules=modules,
        channels=channels,
        dependence=dependence,  # type: ignore[arg-type]
    )
    return lower_placement(graph, Hardware.preset("cpu-t4-a100"), "latency").problem


def real_problems(names: Sequence[str]) -> list[PlacementProblem]:
    """Return networks for ImageNet on Moirai's four unequal GPUs, for validation; training has nothing like them."""
    hardware = Hardware.preset("moirai-inter")
    return [lower_placement(imagenet.load(name), hardware, "latency").problem for name in names]


@cache
def _network(number: int) -> _Network:
    """Return one of the networks that problems are parts of."""
    rng = np.random.default_rng([FIRST_SEED, number])
    nodes = int(rng.choice([20, 24, 32, 32, 32, 40]))
    channels = int(rng.integers(1, 5))
    wiring: Literal["er", "ws", "ba"] = WIRINGS[int(rng.integers(len(WIRINGS)))]  # type: ignore[assignment]
    graph = rwnn(
        wiring,
        seed=FIRST_SEED + number,
        num_modules=_MODULES,
        nodes_per_module=nodes,
        channels=channels,
        dependence="strong" if rng.random() < 0.5 else "weak",
    )
    return _Network(lower_placement(graph, Hardware.preset("cpu-t4-a100"), "latency").problem, *_modules(graph))


def _modules(graph: Graph) -> tuple[IntArray, IntArray]:
    parts = [name.split(".") for name in graph.names]
    return (
        np.array([int(part[0][1:]) for part in parts], np.int64),
        np.array([part[1][0] == "n" for part in parts], np.int64),
    )


def network_problem(rng: np.random.Generator, network: _Network, size: int) -> PlacementProblem:
    """Return consecutive modules of a network, about `size` ops, with the times of each module's nodes shuffled.

    Each kind of device is shuffled on its own: that draws the nodes' independent factors anew.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    network
        A whole network, with the module of each op.
    size
        Ops wanted; whole modules are taken, at least one.
    """
    whole = network.problem
    each = np.bincount(network.module)
    modules = int(np.clip(round(size / each.mean()), 1, len(each)))
    first = int(rng.integers(len(each) - modules + 1))
    kept = np.flatnonzero((network.module >= first) & (network.module < first + modules))
    time_s = whole.time_s.copy()
    for number in range(first, first + modules):
        nodes = np.flatnonzero((network.module == number) & (network.inner == 1))
        for i in range(whole.num_devices):
            time_s[nodes, i] = whole.time_s[rng.permutation(nodes), i]
    return _part(whole, kept, time_s)


def _part(whole: PlacementProblem, kept: IntArray, time_s: FloatArray) -> PlacementProblem:
    """Return the problem of some ops, in their order."""
    number = np.full(whole.num_ops, -1, np.int64)
    number[kept] = np.arange(len(kept))
    edges = number[whole.edges]
    return replace(
        whole,
        time_s=np.ascontiguousarray(time_s[kept]),
        tensor_bytes=whole.tensor_bytes[kept],
        weight_bytes=whole.weight_bytes[kept],
        shard_bytes=whole.shard_bytes[kept],
        edges=np.ascontiguousarray(edges[(edges >= 0).all(axis=1)]),
        order=number[whole.order][number[whole.order] >= 0],
        group=np.arange(len(kept)),
    )


def _elsewhere(rng: np.random.Generator, problem: PlacementProblem) -> PlacementProblem:
    """Return the problem on other devices, each much like one of its own."""
    d = _num_devices(rng, problem.num_ops)
    source = rng.integers(problem.num_devices, size=d)
    if (source == 0).all():
        source[0] = 1
    return _on_devices(rng, problem, problem.op_time_s[:, source])


def _num_devices(rng: np.random.Generator, num_ops: int) -> int:
    """Return 2 to 64 devices, few as often as many, and not so many that there are too many pairs of op and device."""
    most = max(2.0, min(64.0, num_ops / 3.0, MOST_PAIRS / num_ops))
    return round(float(np.exp(rng.uniform(np.log(2.0), np.log(most)))))


def _on_devices(rng: np.random.Generator, problem: PlacementProblem, op_s: FloatArray) -> PlacementProblem:
    """Return the problem with the seconds `op_s` (n, d) and as random a speed of each device, links and memory."""
    n, d = op_s.shape
    op_s = op_s * np.exp(rng.uniform(0.0, 0.5) * rng.standard_normal(d))
    op_s *= np.exp(rng.uniform(0.0, 0.6) * rng.standard_normal((n, d)))
    apart = ~np.eye(d, dtype=bool)
    ratio = float(np.exp(rng.uniform(np.log(0.1), np.log(10.0))))
    moved_s = ratio * op_s.mean() * np.exp(0.3 * rng.standard_normal((d, d)))
    fixed = float(rng.choice([0.0, 0.0, 0.1, 0.5]))
    weight = problem.weight_bytes + problem.shard_bytes
    capacity = np.full(d, np.inf)
    if weight.any() and rng.random() < _BINDING:
        # Whatever was placed before, the next op fits somewhere.
        capacity = weight.max() + rng.uniform(1.1, 2.5, d) * weight.sum() / d
    return replace(
        problem,
        time_s=np.ascontiguousarray(np.stack([np.zeros((n, d)), op_s], axis=2)),
        capacity_bytes=capacity,
        s_per_byte=np.where(apart, (1.0 - fixed) * moved_s / max(float(problem.tensor_bytes.mean()), 1e-300), 0.0),
        delay_s=np.where(apart, fixed * moved_s, 0.0),
    )


def layered_problem(rng: np.random.Generator, size: int) -> PlacementProblem:
    """Return a random graph of layers with log-normal costs on random devices.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    size
        Ops, at least 2.
    """
    n = max(2, size)
    d = _num_devices(rng, n)
    layers = max(1, round(n / rng.uniform(2.0, 8.0)))
    layer = np.sort(rng.integers(layers, size=n))
    reach = int(rng.integers(1, 4))
    edges = {(0, 0)}
    for v in range(n):
        before = np.flatnonzero((layer < layer[v]) & (layer >= layer[v] - reach))
        for u in rng.choice(before, min(len(before), int(rng.integers(1, 4))), replace=False) if len(before) else ():
            edges.add((int(u), v))
    edges.discard((0, 0))
    work = np.exp(rng.uniform(0.2, 1.0) * rng.standard_normal(n))
    op_s = 1e-3 * work[:, None] * np.exp(rng.uniform(0.0, 0.8) * rng.standard_normal((n, d)))
    bare = PlacementProblem(
        objective="latency",
        transfers="parallel",
        shard_inputs=1,
        time_s=np.stack([np.zeros((n, d)), op_s], axis=2),
        tensor_bytes=np.exp(0.5 * rng.standard_normal(n)),
        weight_bytes=np.exp(rng.standard_normal(n)),
        shard_bytes=np.zeros(n),
        capacity_bytes=np.full(d, np.inf),
        s_per_byte=np.zeros((d, d)),
        delay_s=np.zeros((d, d)),
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2),
        order=np.arange(n),
        group=np.arange(n),
    )
    return _on_devices(rng, bare, op_s)
