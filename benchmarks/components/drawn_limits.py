"""How well time limits are kept on problems that are drawn: shapes, groups, exclusions, options nobody chose.

Run as ``python -m benchmarks.components.drawn_limits``; ``--first N --cases M`` takes other numbers, of which each
draws one problem. A limit counts as kept within 5% and 0.3 s; lowering, checking and writing the plan count, compiling
does not. With ``--processor-time`` limits are kept, and judged, by the processor time of the process; programs of other
packages (SCIP, HiGHS) still look at the wall clock there.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import rlinit
from benchmarks.components.time_limits import is_kept
from benchmarks.record import count_processor_time, print_table, save
from rlinit.budget import Budget
from rlinit.errors import RlinitError
from rlinit.kernels.interruption import compiling_paused

Edges = set[tuple[int, int]]

SIZES, SHARES = (10, 100, 1_000, 5_000, 20_000, 50_000), (0.1, 0.1, 0.2, 0.25, 0.2, 0.15)
DEVICES, LIMITS_S = (2, 4, 8, 19, 64), (0.1, 0.3, 1.0, 3.0)
MOST_TIMES = 200_000
"""Ops times kinds of devices beyond which there are two kinds."""

MOST_BATCHED = 5_000
"""Ops of a `throughput` problem."""

INPUTS = 4

OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "latency": tuple({"transfers": rule} for rule in ("parallel", "exclusive", "blocking")),
    "throughput": tuple({"inputs": INPUTS, "transfers": rule} for rule in ("parallel", "exclusive", "blocking")),
    "memory": ({},),
    "pipeline": (
        {},
        {},
        {},
        {"activations": True},
        {"chunks": 2},
        {"chunks": 2, "chunk_order": "free"},
        {"contiguous": False},
        {"training": "1f1b", "recompute": "none"},
        {"training": "gpipe", "recompute": "auto"},
        {"training": "zero-bubble", "recompute": "auto"},
    ),
}


def chain(n: int, _rng: np.random.Generator) -> Edges:
    """Return one op after the other."""
    return {(v - 1, v) for v in range(1, n)}


def wide(n: int, rng: np.random.Generator) -> Edges:
    """Return ops that read two of the fifty before."""
    return {(v - int(b), v) for v in range(1, n) for b in 1 + rng.integers(0, 50, 2) if v >= b}


def cells(n: int, _rng: np.random.Generator) -> Edges:
    """Return cells of five branches of two ops, all of which the next cell reads."""
    branches = {(v - v % 12, v) for v in range(n) if v % 12 > 0} | {(v - 5, v) for v in range(n) if v % 12 > 5}
    return branches | {(u, v) for v in range(12, n, 12) for u in range(v - 6, v)}


def forest(n: int, rng: np.random.Generator) -> Edges:
    """Return ops that read any one op before them, or none."""
    return {(int(rng.integers(0, v)), v) for v in range(1, n) if rng.random() < 0.9}


def independent(_n: int, _rng: np.random.Generator) -> Edges:
    """Return no edges."""
    return set()


def skips(n: int, rng: np.random.Generator) -> Edges:
    """Return a chain with edges of any length."""
    return chain(n, rng) | {(int(rng.integers(0, v)), v) for v in range(7, n, 7)}


SHAPES = (chain, wide, cells, forest, independent, skips)


def draw(number: int) -> tuple[rlinit.Graph, rlinit.Hardware, float, dict[str, Any]]:
    """Return graph, hardware, limit in seconds and options of a problem, drawn from its number alone."""
    rng = np.random.default_rng([31, number])
    objective = str(rng.choice(["pipeline", "latency", "throughput", "memory"], p=[0.5, 0.25, 0.125, 0.125]))
    n, d = int(rng.choice(SIZES, p=SHARES)), int(rng.choice(DEVICES))
    if objective == "throughput":
        n = min(n, MOST_BATCHED)
    kinds = int(rng.choice([1, 2, d]))
    kinds = kinds if n * kinds <= MOST_TIMES else 2
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    heavy, groups, ports, excluded, tight = rng.random(5) < (0.5, 0.4, 0.2, 0.2, 0.3)
    seconds = 1e-3 * (rng.pareto(1.2, (n, kinds)) + 0.01 if heavy else 0.05 + rng.random((n, kinds)))
    every, size = (4, 2) if rng.random() < 0.5 else (10, 5)
    ops = []
    for v in range(n):
        batches = {1: 1.0, INPUTS: (1 + INPUTS) / 2} if objective == "throughput" else {1: 1.0}
        times = {f"kind{i}": {b: float(seconds[v, i]) * factor for b, factor in batches.items()} for i in range(kinds)}
        row: dict[str, Any] = {"time_s": times, "param_bytes": 1e3 * (1 + v % 7), "out_bytes": 1e4 * (1 + v % 5)}
        if groups and v % every < size:
            row["colocate"] = v // every
        if ports and v % 3 == 0:
            row["outputs"] = {"p": 1e3, "q": 2e4}
        if excluded and v % 5 == 0:
            row["forbidden"] = [f"dev{int(rng.integers(d))}"]
        ops.append((f"op{v}", row))
    edges = [(f"op{u}", f"op{v}") for u, v in sorted(shape(n, rng))]
    room = sum(row["param_bytes"] for _, row in ops) * 2.5 / d if tight else math.inf
    devices = [rlinit.Device(f"dev{i}", f"kind{i % kinds}", memory_bytes=room) for i in range(d)]
    options = dict(OPTIONS[objective][int(rng.integers(len(OPTIONS[objective])))])
    if "training" in options:
        options["microbatches"] = 4 * d
    graph = rlinit.Graph.build(ops, edges, name=f"{shape.__name__}-{n}")
    limit_s = float(rng.choice(LIMITS_S))
    return graph, rlinit.Hardware.mesh(devices, 1e9), limit_s, {"objective": objective} | options


def measure(number: int) -> dict[str, Any]:
    """Return how long a drawn problem took against its limit, and what came of it."""
    graph, hardware, limit_s, options = draw(number)
    row = {"case": number, "graph": graph.name, "devices": hardware.num_devices, "limit_s": limit_s}
    row["options"] = " ".join(str(value) for value in options.values())
    clock = Budget()
    try:
        with compiling_paused(clock, None):
            plan = rlinit.schedule(graph, hardware, time_limit_s=limit_s, **options)
        row |= {"status": plan.status, "gap": plan.gap if math.isfinite(plan.gap) else None}
    except RlinitError as problem:
        row |= {"status": f"refused: {problem}", "gap": None}
    seconds = clock.elapsed_s
    return row | {"seconds": seconds, "kept": is_kept(seconds, limit_s)}


def main() -> None:
    """Measure drawn problems, write the table and list the misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    chosen = parser.parse_args()
    if chosen.processor_time:
        count_processor_time()
    rlinit.schedule(rlinit.Graph.build([("a", {"time_s": 1.0})], []), rlinit.Hardware.pipeline(1))
    rows = []
    for number in range(chosen.first, chosen.first + chosen.cases):
        rows.append(measure(number))
        print(*rows[-1].values(), flush=True)
    misses = [row for row in rows if not row["kept"]]
    if misses:
        print_table("misses", list(misses[0]), (row.values() for row in misses))
    print(f"kept: {len(rows) - len(misses)} of {len(rows)}")
    save("drawn_limits", rows, first=chosen.first, processor_time=chosen.processor_time)


if __name__ == "__main__":
    main()
