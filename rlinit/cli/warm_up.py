"""Kernels compiled ahead, so that the time limit of a first schedule goes into the schedule."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.kernels.compiled import cache_root, package_hash, source_hash
from rlinit.llm import serve
from rlinit.plan import Objective, Transfers
from rlinit.solving.api import bound, schedule

_FLEET = {
    "layers": 2,
    "devices": [{"name": name, "tokens_per_s_by_layers_held": {"1": 2.0, "2": 1.0}} for name in "ab"],
    "links": [{"from": a, "to": b, "tokens_per_s": 9.0} for a, b in (("source", "a"), ("a", "b"), ("b", "sink"))],
}
"""Two machines that serve two layers."""

_Call = Callable[..., object]
"""A call of `schedule` or `bound` but for its time limit, whose kernels are compiled on the way."""


def compile_kernels(
    callback: Callable[[str], None] | None = None, time_limit_s: float = 3.0, jobs: int | None = None
) -> float:
    """Run every phase on small graphs, so that numba finds its kernels on disk from then on; return the seconds taken.

    Kernels are compiled when they are first used on a machine, some minutes of one core in all. Where that was done for
    these sources already, nothing is done again.

    Parameters
    ----------
    callback
        Called with the name of each step when it is done.
    time_limit_s
        Seconds for each call of `schedule` and `bound`.
    jobs
        Processes side by side; None: one for each core, at most one for each step.
    """
    began = time.perf_counter()
    if is_compiled(time_limit_s):
        return 0.0
    steps = list(_steps())
    workers = min(jobs or os.cpu_count() or 1, len(steps))
    # Leaving the pool, by Ctrl-C as well, ends its processes at once; what they had compiled stays on disk.
    with multiprocessing.get_context("spawn").Pool(workers, _ignore_interrupts) as pool:
        for step in pool.imap_unordered(_run_step, [(step, time_limit_s) for step in steps]):
            if callback is not None:
                callback(step)
    _mark(time_limit_s).touch()
    return time.perf_counter() - began


def is_compiled(time_limit_s: float = 3.0) -> bool:
    """Return whether `compile_kernels` has gone through all of its steps, with this limit, for these sources."""
    return _mark(time_limit_s).exists()


def compiled_bytes() -> float:
    """Return the bytes of compiled kernels that were used so far and are of these sources."""
    folders = [folder for folder in cache_root().iterdir() if folder.is_dir()]
    parts = [(folder, *folder.name.rpartition("-")[::2]) for folder in folders]
    current = [folder for folder, module, text in parts if text == source_hash(f"rlinit.{module}")]
    return float(sum(file.stat().st_size for folder in current for file in folder.rglob("*") if file.is_file()))


def _mark(time_limit_s: float) -> Path:
    return cache_root() / f"compiled-{package_hash()}-{time_limit_s:g}"


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_step(job: tuple[str, float]) -> str:
    """Run one step in a process of its own; return its name."""
    step, time_limit_s = job
    for call in _steps()[step]:
        call(time_limit_s=time_limit_s)
    return step


def _steps() -> dict[str, list[_Call]]:
    """Return the calls of every step by its name, the longest steps first."""
    steps = _placement_steps()
    pipeline = Hardware.pipeline(3, bandwidth=1e9)
    for objective in ("memory", "pipeline"):
        methods = ("auto", "warm", "anneal", "fill", "beam", "brkga", "agent")
        calls = [partial(schedule, _layers(), pipeline, objective=objective, method=method) for method in methods]
        steps[f"stages: {objective}"] = [*calls, partial(bound, _layers(), pipeline, objective=objective)]
    steps["stages: unlike devices, activations, chunks, training"] = [
        partial(schedule, _layers(), _devices(1e9), objective="pipeline"),
        partial(schedule, _layers(), pipeline, objective="pipeline", activations=True),
        partial(schedule, _layers(), pipeline, objective="pipeline", chunks=2),
        partial(schedule, _layers(), pipeline, objective="pipeline", training="1f1b", microbatches=4),
    ]
    return steps


def _placement_steps() -> dict[str, list[_Call]]:
    graph, ample, tight = _layers(), _devices(1e9), _devices(3e7)
    rules: tuple[tuple[Hardware, Transfers], ...] = (
        (ample, "parallel"),
        (tight, "parallel"),
        (ample, "exclusive"),
        (ample, "blocking"),
    )
    steps: dict[str, list[_Call]] = {}
    for hardware, transfers in rules:
        name = f"latency: transfers {transfers}" + (", memory binds" if hardware is tight else "")
        steps[name] = [
            partial(schedule, graph, hardware, objective="latency", method=method, transfers=transfers)
            for method in (*PLACEMENT_HEURISTICS, "agent", "sweep", "split")
        ]
    steps["throughput"] = [
        partial(schedule, graph, ample, objective="throughput", inputs=4, method=method)
        for method in (*PLACEMENT_HEURISTICS, "sweep", "split")
    ]
    blocks = _layers(levels=9, waist=4)
    steps["blocks"] = [partial(schedule, blocks, ample, objective="latency", method="split")]
    steps["serving"] = [partial(serve, _FLEET)]
    kinds: tuple[tuple[Objective, int | None], ...] = (("latency", None), ("throughput", 4))
    steps["bounds of placements"] = [
        partial(bound, graph, ample, objective=objective, method=method, inputs=inputs)
        for method in PLACEMENT_BOUNDS
        for objective, inputs in kinds
    ]
    return steps


def _layers(levels: int = 8, waist: int = 0) -> Graph:
    """Return a layered graph in which every op reads two of the level before, with times on three kinds of device.

    Where `waist` is given, every such level is one op, so that the graph falls into modules.
    """
    ops, edges = [], []
    before: list[str] = []
    for level in range(levels):
        names = [f"op{level}.{at}" for at in range(1 if waist and level % waist == 0 else 4)]
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
