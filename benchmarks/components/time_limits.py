"""How well time limits are kept on stage problems: seconds of `schedule` for each size, hardware, objective and limit.

Run as ``python -m benchmarks.components.time_limits``; ``--all`` takes every size up to 50,000 ops and 64 devices.
A limit counts as kept within 5% and 0.3 s. Lowering the graph counts, compilation does not: a small problem goes first.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Literal

import numpy as np

import rlinit
from benchmarks.record import print_table, save
from rlinit.hardware import Device

Objective = Literal["pipeline", "memory"]

LIMITS_S = (0.1, 1.0, 5.0, 15.0)
SIZES, DEVICES = (100, 1_000, 5_000, 20_000, 50_000), (2, 8, 19, 64)
QUICK_LIMITS_S, QUICK_SIZES, QUICK_DEVICES = (0.1, 1.0), (100, 2_000, 20_000), (8, 19)


def wide_graph(num_ops: int, unlike: int, seed: int = 0) -> rlinit.Graph:
    """Return ops that each read two of the fifty before, with times of their own on each kind of device."""
    rng = np.random.default_rng(seed)
    seconds = 1e-3 * (0.05 + rng.random((num_ops, unlike)))
    back = 1 + rng.integers(0, 50, (num_ops, 2))
    ops = (
        (
            f"op{v}",
            {
                "time_s": {f"kind{d}": float(seconds[v, d]) for d in range(unlike)},
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


def measure(num_ops: int, num_devices: int, unlike: int, objective: Objective, limit_s: float) -> dict[str, object]:
    """Return how long one schedule took against its limit, and what it found."""
    graph, hardware = wide_graph(num_ops, unlike), devices(num_devices, unlike)
    began = time.perf_counter()
    plan = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=limit_s)
    seconds = time.perf_counter() - began
    return {
        "ops": num_ops,
        "devices": num_devices,
        "kinds": unlike,
        "objective": objective,
        "limit_s": limit_s,
        "seconds": seconds,
        "kept": seconds <= 1.05 * limit_s + 0.3,
        "status": plan.status,
        "gap": plan.gap,
    }


def main() -> None:
    """Measure the quick subset, or all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every size, hardware and limit: about an hour")
    chosen = parser.parse_args()
    limits, sizes, counts = (LIMITS_S, SIZES, DEVICES) if chosen.all else (QUICK_LIMITS_S, QUICK_SIZES, QUICK_DEVICES)
    objectives: tuple[Objective, ...] = ("pipeline", "memory")
    for objective, kinds in itertools.product(objectives, (1, 3)):
        measure(40, 3, kinds, objective, 5.0)
    rows = []
    for num_ops, count, objective, limit_s in itertools.product(sizes, counts, objectives, limits):
        for unlike in sorted({1, count}) if objective == "pipeline" and num_ops * count <= 100_000 else (1,):
            rows.append(measure(num_ops, count, unlike, objective, limit_s))
            print(*rows[-1].values(), flush=True)
    print_table("time limits", list(rows[0]), (row.values() for row in rows))
    print(f"kept: {sum(bool(row['kept']) for row in rows)} of {len(rows)}")
    save("time_limits", rows)


if __name__ == "__main__":
    main()
