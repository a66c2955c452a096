"""How well time limits are kept: seconds of `schedule` for sizes, hardware, objectives and limits.

Run as ``python -m benchmarks.components.time_limits``; ``--all`` takes every size up to 50,000 ops and 64 devices,
``--sample N`` N cases of those, ``--objective latency`` one objective. A limit counts as kept within 5% and 0.3 s.
Lowering the graph counts, compilation does not (but in the column of processor time). With ``--processor-time`` limits
are kept, and judged, by the processor time of the process, which other work on the machine does not lengthen; programs
of other packages (SCIP, HiGHS) still look at the wall clock there.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

import rlinit
from benchmarks.record import count_processor_time, print_table, save
from rlinit.budget import Budget
from rlinit.hardware import Device
from rlinit.kernels.interruption import compiling_paused

Objective = Literal["pipeline", "memory", "latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("pipeline", "memory", "latency", "throughput")
INPUTS = 4
"""Inputs of a batch of `throughput`."""

LIMITS_S = (0.1, 1.0, 5.0, 15.0)
SIZES, DEVICES = (100, 1_000, 5_000, 20_000, 50_000), (2, 8, 19, 64)
QUICK_LIMITS_S, QUICK_SIZES, QUICK_DEVICES = (0.1, 1.0), (100, 2_000, 20_000), (8, 19)


def wide_graph(num_ops: int, unlike: int, inputs: int = 1, seed: int = 0) -> rlinit.Graph:
    """Return ops that each read two of the fifty before, with times of their own on each kind of device.

    Parameters
    ----------
    num_ops, unlike
        Ops and kinds of devices.
    inputs
        Largest batch, of which the times are known.
    seed
        Of times and edges.
    """
    rng = np.random.default_rng(seed)
    seconds = 1e-3 * (0.05 + rng.random((num_ops, unlike)))
    back = 1 + rng.integers(0, 50, (num_ops, 2))
    ops = (
        (
            f"op{v}",
            {
                "time_s": {
                    f"kind{d}": {b: float(seconds[v, d]) * (1 + b) / 2 for b in range(1, inputs + 1)}
                    for d in range(unlike)
                },
                "param_bytes": 1e3 * (1 + v % 7),
                "out_bytes": 1e4 * (1 + v % 5),
            },
        )
        for v in range(num_ops)
    )
    edges = sorted({(v - int(b), v) for v in range(num_ops) for b in back[v] if v - b >= 0})
    return rlinit.Graph.build(ops, ((f"op{u}", f"op{v}") for u, v in edges), name=f"wide-{num_ops}")


def devices(num_devices: int, unlike: int) -> rlinit.Hardware:
    """Return a pipeline of devices of `unlike` kinds, joined by equal links."""
    kinds = [Device(f"dev{i}", f"kind{i % unlike}") for i in range(num_devices)]
    return rlinit.Hardware.mesh(kinds, 1e9)


def is_kept(seconds: float, limit_s: float) -> bool:
    """Return whether a limit was kept within 5% and 0.3 s."""
    return seconds <= 1.05 * limit_s + 0.3


def measure(num_ops: int, num_devices: int, unlike: int, objective: Objective, limit_s: float) -> dict[str, object]:
    """Return how long one schedule took against its limit, and what it found."""
    inputs = INPUTS if objective == "throughput" else None
    graph, hardware = wide_graph(num_ops, unlike, inputs or 1), devices(num_devices, unlike)
    clock, began_cpu = Budget(), time.process_time()
    with compiling_paused(clock, None):
        plan = rlinit.schedule(graph, hardware, objective=objective, inputs=inputs, time_limit_s=limit_s)
    seconds, cpu = clock.elapsed_s, time.process_time() - began_cpu
    return {
        "ops": num_ops,
        "devices": num_devices,
        "kinds": unlike,
        "objective": objective,
        "limit_s": limit_s,
        "seconds": seconds,
        "cpu_s": cpu,
        "kept": is_kept(seconds, limit_s),
        "status": plan.status,
        "gap": plan.gap if math.isfinite(plan.gap) else None,
    }


def cases(everything: bool, objectives: tuple[Objective, ...]) -> Iterator[tuple[int, int, int, Objective, float]]:
    """Yield ops, devices, kinds of devices, objective and limit of the quick subset or of all cases.

    Parameters
    ----------
    everything
        All sizes, hardware and limits.
    objectives
        Those to measure.
    """
    limits, sizes, counts = (LIMITS_S, SIZES, DEVICES) if everything else (QUICK_LIMITS_S, QUICK_SIZES, QUICK_DEVICES)
    for num_ops, count, objective, limit_s in itertools.product(sizes, counts, objectives, limits):
        for unlike in sorted({1, count}) if objective != "memory" and num_ops * count <= 100_000 else (1,):
            yield num_ops, count, unlike, objective, limit_s


def main() -> None:
    """Measure the quick subset, all or a sample, write the table and list the misses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every size, hardware and limit: some two hours")
    parser.add_argument("--sample", type=int, help="so many cases of all, drawn with seed 0")
    parser.add_argument("--objective", choices=OBJECTIVES, help="only this objective")
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    chosen = parser.parse_args()
    if chosen.processor_time:
        count_processor_time()
    objectives = (chosen.objective,) if chosen.objective else OBJECTIVES
    drawn = list(cases(chosen.all or chosen.sample is not None, objectives))
    if chosen.sample is not None:
        drawn = random.Random(0).sample(drawn, min(chosen.sample, len(drawn)))
    for objective, kinds in itertools.product(objectives, (1, 3)):
        measure(40, 3, kinds, objective, 5.0)
    rows = []
    for case in drawn:
        rows.append(measure(*case))
        print(*rows[-1].values(), flush=True)
    print_table("time limits", list(rows[0]), (row.values() for row in rows))
    misses = [row for row in rows if not row["kept"]]
    if misses:
        print_table("misses", list(misses[0]), (row.values() for row in misses))
    print(f"kept: {len(rows) - len(misses)} of {len(rows)}")
    save("time_limits", rows, processor_time=chosen.processor_time)


if __name__ == "__main__":
    main()
