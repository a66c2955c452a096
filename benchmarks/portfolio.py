"""The problems that mechanisms are judged on: the families that learned parts are judged on, and graphs of their own.

The families here are drawn for this purpose, and no other benchmark has them; their sizes let a second or ten decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, product
from typing import Any

import numpy as np

import rlinit
from benchmarks.families.placements import tight
from benchmarks.learning.families import FAMILIES, OTHER_RULES, Case, assembly_lines
from benchmarks.learning.protocol import primal_dual_integral
from rlinit.datasets.published import assembly_line
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.zoo import imagenet, llm

__all__ = ["LEAST_GAP", "LEAST_INTEGRAL", "PORTFOLIO", "Case", "Earned", "Reached", "Side", "judge", "solve"]

LEAST_INTEGRAL, LEAST_GAP = 1e-2, 1e-4
"""What is below counts as this: a problem that is closed within a hundredth of the time says nothing."""

Earned = dict[str, dict[str, float]]
"""By mechanism: what it took and gained."""

Reached = dict[str, float]
"""The integral, the gap and whether it was proven."""

Side = Callable[[], AbstractContextManager[object]]
"""Leaves a mechanism out while the body runs."""

Wires = list[tuple[int, int]]


def _wavefront(size: int) -> tuple[int, Wires]:
    """Return the tasks of a stencil over a square: each reads its upper and its left neighbour."""
    wires = [(v - 1, v) for v in range(size * size) if v % size] + [(v - size, v) for v in range(size, size * size)]
    return size * size, wires


def _cholesky(size: int) -> tuple[int, Wires]:
    """Return the tasks of a blocked Cholesky factorisation: (k, i, j) updates block (i, j) in step k."""
    number = {
        key: at
        for at, key in enumerate((k, i, j) for k in range(size) for i in range(k, size) for j in range(k, i + 1))
    }
    wires = []
    for (k, i, j), v in number.items():
        if k:
            wires.append((number[k - 1, i, j], v))
        if i > k:
            wires += [(number[k, i, k], v)] if j > k else [(number[k, k, k], v)]
        if k < j < i:
            wires.append((number[k, j, k], v))
    return len(number), wires


def _map_reduce(rounds: int, width: int) -> tuple[int, Wires]:
    """Return rounds of `width` tasks, of which each round's are joined two by two down to one."""
    wires: Wires = []
    root, size = None, 0
    for _ in range(rounds):
        level = list(range(size, size + width))
        wires += [] if root is None else [(root, v) for v in level]
        size += width
        while len(level) > 1:
            joined = list(range(size, size + (len(level) + 1) // 2))
            wires += [(v, joined[at // 2]) for at, v in enumerate(level)]
            size, level = size + len(joined), joined
        root = level[0]
    return size, wires


def _series_parallel(num_ops: int, rng: np.random.Generator) -> tuple[int, Wires]:
    """Return a chain in which single ops were replaced by two branches, again and again."""
    wires: set[tuple[int, int]] = {(0, 1)}
    for v in range(2, num_ops):
        u, w = sorted(wires)[int(rng.integers(len(wires)))]
        if rng.random() < 0.5:
            wires.remove((u, w))
        wires |= {(u, v), (v, w)}
    place = {v: at for at, v in enumerate(_sorted(num_ops, wires))}
    return num_ops, sorted((place[u], place[w]) for u, w in wires)


def _sorted(num_ops: int, wires: set[tuple[int, int]]) -> list[int]:
    waits = [0] * num_ops
    for _, w in wires:
        waits[w] += 1
    order = [v for v in range(num_ops) if not waits[v]]
    for u in order:
        for w in sorted(w for start, w in wires if start == u):
            waits[w] -= 1
            order += [w] if not waits[w] else []
    return order


def _drawn(
    shape: tuple[int, Wires], rng: np.random.Generator, kinds: int, bytes_each: float, name: str
) -> rlinit.Graph:
    """Return a graph of a shape whose times have a heavy tail and differ by kind of device."""
    num_ops, wires = shape
    seconds = 1e-3 * (0.05 + rng.pareto(2.0, num_ops))[:, None] * rng.uniform(0.5, 1.5, (num_ops, kinds))
    ops = [
        (
            f"op{v}",
            {
                "time_s": {f"kind{i}": float(seconds[v, i]) for i in range(kinds)},
                "param_bytes": float(rng.integers(1, 1_000)) * 1e3,
                "out_bytes": bytes_each * float(rng.uniform(0.1, 1.9)),
            },
        )
        for v in range(num_ops)
    ]
    return rlinit.Graph.build(ops, [(f"op{u}", f"op{v}") for u, v in wires], name=name)


def _devices(count: int, kinds: int, bandwidth: float = 1e9, memory: float = math.inf) -> rlinit.Hardware:
    devices = [rlinit.Device(f"dev{i}", f"kind{i % kinds}", memory_bytes=memory) for i in range(count)]
    return rlinit.Hardware.mesh(devices, bandwidth)


def _shapes(seed: int) -> Iterator[tuple[str, tuple[int, Wires]]]:
    rng = np.random.default_rng([30, seed])
    yield "wavefront", _wavefront(12)
    yield "cholesky", _cholesky(9)
    yield "map-reduce", _map_reduce(4, 24)
    yield "series-parallel", _series_parallel(250, rng)


def _task_graphs() -> Iterator[Case]:
    """Yield shapes of numerical programs on a few devices, equal and unlike, with cheap and with dear transfers."""
    for seed, (bandwidth, kinds) in enumerate(product((1e10, 3e8), (1, 3))):
        for name, shape in _shapes(seed):
            graph = _drawn(shape, np.random.default_rng([31, seed]), kinds, 1e6, f"{name} {kinds} {bandwidth:g}")
            yield Case(graph, _devices(6, kinds, bandwidth), {"transfers": ("parallel", "exclusive")[seed % 2]})


def _colocated() -> Iterator[Case]:
    """Yield the same shapes on four unlike devices, with groups of three ops, far apart, that share a device."""
    for seed in range(4):
        for name, shape in _shapes(20 + seed):
            rng = np.random.default_rng([35, seed])
            graph = _drawn(shape, rng, 4, 1e6, f"{name} in groups {seed}")
            colocation, count = np.full(graph.num_ops, -1), graph.num_ops // 12
            colocation[rng.permutation(graph.num_ops)[: 3 * count]] = np.repeat(np.arange(count), 3)
            grouped = replace(graph, colocation=colocation, groups=tuple(f"group{i}" for i in range(count)))
            yield Case(grouped, _devices(4, 4, (1e9, 3e8)[seed % 2]))


def _drawn_pipelines() -> Iterator[Case]:
    """Yield the same shapes as pipelines: tensors that cost something and nothing, equal and unlike devices."""
    for seed, (kinds, each) in enumerate(product((1, 6), (0.0, 1e6))):
        for name, shape in _shapes(seed):
            graph = _drawn(shape, np.random.default_rng([32, seed]), kinds, each, f"{name} {kinds} {each:g}")
            yield Case(graph, _devices(6 + 2 * (kinds == 1), kinds))


def _few_alike() -> Iterator[Case]:
    """Yield networks on three and four Edge TPUs, and drawn shapes on as many devices alike."""
    for name, k in product(("inceptionv3", "inceptionresnetv2", "efficientnetb5", "xception"), (3, 4)):
        yield Case(imagenet.load(name), rlinit.Hardware.edge_tpus(k))
    for seed, k in enumerate((3, 4)):
        for name, shape in _shapes(10 + seed):
            graph = _drawn(shape, np.random.default_rng([34, seed]), 1, 1e6, f"{name} {k}")
            yield Case(graph, _devices(k, 1, 1e9))


def _many_kinds() -> Iterator[Case]:
    """Yield networks of branches on seven and eight unlike GPUs, where sets of ops multiply with sets of devices."""
    for kinds in (
        "t4+l4+l40s+a100-80g+h100+rtx3090+rtx4090+a100-40g",
        "t4+l4+l40s+v100+h100+rtx3090+rtx4090+h200",
        "t4+l4+a100-80g+h100+rtx3090+rtx4090+l40s",
    ):
        yield Case(imagenet.load("inceptionv3"), rlinit.Hardware.preset(kinds))
        yield Case(rwnn("ws", seed=40, channels=2), rlinit.Hardware.preset(kinds))


def _sparse() -> Iterator[Case]:
    """Yield pipelines of 30 to 60 ops that read one or two others, of any before, on two and three devices."""
    for seed in range(16):
        rng = np.random.default_rng([33, seed])
        num_ops, k = int(rng.integers(30, 61)), 2 + seed % 2
        pairs = combinations(range(num_ops), 2)
        wires = [pair for pair in pairs if rng.random() < 3.0 / num_ops]
        kinds = k if seed % 4 < 2 else 1
        graph = _drawn((num_ops, wires), rng, kinds, 1e6, f"sparse {num_ops} {seed}")
        yield Case(graph, _devices(k, kinds, 3e8))


def _balanced_lines() -> Iterator[Case]:
    """Yield assembly lines of 100 tasks with equal stations."""
    root = instances_root()
    files = sorted((root / "assembly-line" / "otto-100").glob("*.alb")) if root else []
    for at, path in enumerate(files[::2]):
        yield Case(assembly_line.load(path), rlinit.Hardware.pipeline((10, 20, 30)[at % 3]))


def _bound_memory() -> Iterator[Case]:
    """Yield networks in pipelines whose devices hold little more than an even share of the parameters."""
    for name, k in product(("inceptionv3", "densenet169", "efficientnetb4", "xception"), (4, 8)):
        graph = imagenet.load(name)
        memory = max(1.15 * float(graph.param_bytes.sum()) / k, 1.05 * float(graph.param_bytes.max()))
        yield Case(graph, rlinit.Hardware.pipeline(k, bandwidth=1e9, memory=memory, flops_per_s=1e12))


def _activations() -> Iterator[Case]:
    for k, name in product((4, 6), ("inceptionv3", "resnet50", "xception", "efficientnetb2")):
        yield Case(imagenet.load(name), rlinit.Hardware.edge_tpus(k), {"activations": True})


def _loose() -> Iterator[Case]:
    """Yield pipelines whose devices run two chunks, or any ops: of networks, and of small sparse graphs."""
    rules: tuple[dict[str, Any], ...] = ({"chunks": 2}, {"chunks": 2, "chunk_order": "free"}, {"contiguous": False})
    for name, options in product(("resnet50", "inceptionv3", "densenet121"), rules):
        yield Case(imagenet.load(name), rlinit.Hardware.edge_tpus(4), options)
    for case, options in product(islice(_sparse(), 3), (rules[0], rules[2])):
        yield Case(case.graph, case.hardware, options)


def _several_devices() -> Iterator[Case]:
    """Yield pipelines and training of networks whose stages may have several devices, alike and of two kinds."""
    groups: dict[str, Any] = {"replicas": "auto", "tensor_parallel": "auto", "microbatches": 64}
    training: dict[str, Any] = {"training": "1f1b", "recompute": "auto"}
    for name, machine in product(("inceptionv3", "densenet121", "resnet50"), ("8xt4", "2xa100-80g+2xl4")):
        for options in (groups, groups | training):
            yield Case(imagenet.load(name, dtype="fp32"), rlinit.Hardware.preset(machine), options)
    yield Case(llm.build("gpt3-330m"), rlinit.Hardware.preset("8x8xa100-80g"), groups | training)


def _shared_devices() -> Iterator[Case]:
    """Yield networks on a processor of its own and two pairs of devices on a bus, alike and unlike."""
    for name, kinds in product(("inceptionv3", "efficientnetb2", "xception"), (("t4", "t4"), ("t4", "l4"))):
        own = rlinit.Hardware.preset("+".join((*kinds, *kinds)))
        devices = tuple(replace(device, shares=f"bus{i // 2}") for i, device in enumerate(own.devices))
        sharing = {"bus0": (1.0, 1.6), "bus1": (1.0, 1.6)}
        yield Case(imagenet.load(name), replace(own, devices=devices, sharing=sharing))


def _throughput() -> Iterator[Case]:
    """Yield several inputs on a processor and two GPUs."""
    for seed, inputs in product(range(3), (4, 16)):
        sizes = tuple(sorted({1, inputs // 4, inputs // 2, inputs}))
        wired = rwnn("er", seed=20 + seed, channels=1 + seed, dependence="weak", batch_sizes=sizes)
        yield Case(wired, rlinit.Hardware.preset("cpu-t4-a100"), {"objective": "throughput", "inputs": inputs})


def _tight() -> Iterator[Case]:
    for at, (graph, hardware) in enumerate(tight(0)):
        if at % 5 == 0:
            yield Case(graph, hardware)


def _training() -> Iterator[Case]:
    schedules: tuple[dict[str, Any], ...] = (
        {"training": "gpipe"},
        {"training": "1f1b", "recompute": "auto"},
        {"training": "zero-bubble"},
        {"training": "interleaved", "chunks": 2},
    )
    for name, options in product(("resnet50", "inceptionv3", "efficientnetb0"), schedules):
        graph = imagenet.load(name, dtype="fp32")
        yield Case(graph, rlinit.Hardware.preset("4xt4"), {"microbatches": 8, **options})
    for seed, options in enumerate(schedules[:3]):
        graph = _drawn(_map_reduce(3, 12), np.random.default_rng([33, seed]), 1, 1e5, f"map-reduce {seed}")
        yield Case(graph, _devices(4, 1, memory=2e9), {"microbatches": 8, **options})
    yield from (
        Case(llm.build("gpt3-330m"), rlinit.Hardware.preset("4xa100-40g"), {"microbatches": 8, **o})
        for o in schedules[:3]
    )


Family = Callable[[], Iterator[Case]]

PORTFOLIO: Mapping[str, Mapping[str, Family]] = {
    "stages": {
        **FAMILIES["stages"],
        "drawn shapes in pipelines": _drawn_pipelines,
        "small sparse graphs": _sparse,
        "few devices alike": _few_alike,
        "many devices unlike": _many_kinds,
        "assembly lines, equal stations": _balanced_lines,
        "assembly lines of 28 tasks": partial(assembly_lines, range(4, 80, 24), "heskia"),
        "parameters that hardly fit": _bound_memory,
        "activations": _activations,
        "chunks and any ops": _loose,
    },
    "placements": {
        **FAMILIES["latency"],
        **{name: OTHER_RULES[name] for name in ("cells, shared links", "LU, Gauss, FFT, layered, shared links")},
        "numerical programs": _task_graphs,
        "tight memory": _tight,
        "several inputs": _throughput,
        "ops that share a device": _colocated,
    },
    "training": {"training": _training},
    "groups": {"stages of several devices": _several_devices, "devices that share": _shared_devices},
}
"""By kind of problem and by name; each yields the same problems in the same order every time."""


def solve(case: Case, problem: str, seconds: float) -> Reached:
    """Return the integral, the gap and whether it was proven of one problem; failures count as no plan."""
    options: dict[str, Any] = {"objective": "latency" if problem == "placements" else "pipeline"} | dict(case.options)
    plan = rlinit.schedule(case.graph, case.hardware, time_limit_s=seconds, **options)
    history = [
        (one.time_s, one.values[0] if one.values else None, one.bounds[0] if one.bounds else None)
        for one in plan.history
    ]
    gap = plan.gap if plan.status in ("optimal", "feasible") else float(plan.status == "no_solution")
    return {
        "integral": max(LEAST_INTEGRAL, primal_dual_integral(history, seconds)),
        "gap": max(LEAST_GAP, min(1.0, gap)),
        "proven": float(plan.status in ("optimal", "infeasible")),
    }


def judge(
    solved: Callable[[], Reached],
    noting: Callable[[Earned], AbstractContextManager[object]],
    sides: Callable[[Sequence[str]], Mapping[str, Side]],
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what mechanisms earn on a problem, and what is reached with all of them and without each.

    Parameters
    ----------
    solved
        Solves the problem.
    noting
        Makes mechanisms note what they earn while the body runs.
    sides
        Gives the mechanisms to leave out by name, from the names of those that ran.
    only
        Of these; empty: all.
    """
    earned: Earned = {}
    with noting(earned):
        solved()  # compiles, and tells what runs
    without: dict[str, Reached] = {}
    for name, side in sides(list(earned)).items():
        if not only or name in only:
            with side():
                without[name] = solved()
    earned.clear()
    with noting(earned):
        whole = solved()  # last, when everything is compiled
    return {"earned": earned, "whole": whole, "without": without}
