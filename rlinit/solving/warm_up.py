"""Kernels compiled ahead, so that the time limit of a first schedule goes into the schedule."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.plan import Transfers
from rlinit.solving.api import bound, schedule

__all__ = ["compile_kernels"]


def compile_kernels(told: Callable[[str], None] | None = None, time_limit_s: float = 3.0) -> float:
    """Run every phase on small graphs, so that numba finds its kernels on disk from then on; return the seconds taken.

    Kernels are compiled when they are first used on a machine, about a minute in all, which a short time limit does not
    allow for.

    Parameters
    ----------
    told
        Called with the name of each step when it begins.
    time_limit_s
        Seconds for each call of `schedule` and `bound`; what is being compiled when they end is compiled to the end.
    """
    tell = told or (lambda _step: None)
    began = time.perf_counter()
    pipeline = Hardware.pipeline(3, bandwidth=1e9)
    for objective in ("memory", "pipeline"):
        tell(f"stages: {objective}")
        for method in ("auto", "warm", "anneal", "brkga", "agent"):
            schedule(_layers(), pipeline, objective=objective, method=method, time_limit_s=10 * time_limit_s)
        bound(_layers(), pipeline, objective, time_limit_s=10 * time_limit_s)
    _compile_placements(tell, time_limit_s)
    return time.perf_counter() - began


def _compile_placements(tell: Callable[[str], None], time_limit_s: float) -> None:
    graph, ample, tight = _layers(), _devices(1e9), _devices(3e7)
    rules: tuple[tuple[Hardware, Transfers], ...] = (
        (ample, "parallel"),
        (tight, "parallel"),
        (ample, "exclusive"),
        (ample, "blocking"),
    )
    for hardware, transfers in rules:
        tell(f"latency: transfers {transfers}" + (", memory binds" if hardware is tight else ""))
        for method in (*PLACEMENT_HEURISTICS, "agent", "sweep", "split"):
            schedule(
                graph, hardware, objective="latency", method=method, transfers=transfers, time_limit_s=time_limit_s
            )
    tell("throughput")
    for method in (*PLACEMENT_HEURISTICS, "sweep", "split"):
        schedule(graph, ample, objective="throughput", inputs=4, method=method, time_limit_s=time_limit_s)
    tell("modules, windows and branch and bound")
    modules = _layers(levels=9, waist=4)
    for method in ("split", "warm"):
        schedule(modules, ample, objective="latency", method=method, time_limit_s=time_limit_s)
    schedule(modules, ample, objective="throughput", inputs=2, method="warm", time_limit_s=time_limit_s)
    schedule(_layers(levels=3), ample, objective="latency", method="branch-and-bound", time_limit_s=time_limit_s)
    tell("bounds of placements")
    for method in PLACEMENT_BOUNDS:
        bound(graph, ample, "latency", method=method, time_limit_s=time_limit_s)
        bound(graph, ample, "throughput", method=method, inputs=4, time_limit_s=time_limit_s)


def _layers(levels: int = 8, width: int = 4, waist: int = 0) -> Graph:
    """Return a layered graph in which every op reads two of the level before, with times on three kinds of device.

    Where `waist` is given, every such level is one op, so that the graph falls into modules.
    """
    ops, edges = [], []
    before: list[str] = []
    for level in range(levels):
        names = [f"op{level}.{at}" for at in range(1 if waist and level % waist == 0 else width)]
        for at, name in enumerate(names):
            seconds = 1e-3 * (1 + (5 * level + 3 * at) % 7)
            speeds = {"slow": 4.0, "middle": 2.0, "fast": 1.0, "stage": 1.0}
            time_s = {kind: {b: (1 + b) * seconds * slow for b in range(1, 5)} for kind, slow in speeds.items()}
            ops.append((name, {"time_s": time_s, "param_bytes": 1e6, "out_bytes": 1e5 * (1 + at)}))
            edges += [(before[i], name) for i in sorted({at % len(before), (at + 1) % len(before)})] if before else []
        before = names
    return Graph.build(ops, edges)


def _devices(memory_bytes: float) -> Hardware:
    devices = [Device(kind, kind, memory_bytes) for kind in ("slow", "middle", "fast")]
    return Hardware.mesh(devices, 1e9)
