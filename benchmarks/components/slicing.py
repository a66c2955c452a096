"""Seconds to slice one order into k stages, from 500 to 50,000 ops.

Run as ``python -m benchmarks.components.slicing``.
"""

from __future__ import annotations

import resource
from functools import partial
from typing import Literal

import rlinit
from benchmarks.record import median_seconds, print_table, save, take_no_options
from rlinit.stages.lowering import lower_stages
from rlinit.stages.slicing import slice_order

OBJECTIVES: tuple[Literal["pipeline", "memory"], ...] = ("pipeline", "memory")
SIZES = ((500, 8), (1_000, 8), (2_000, 64), (10_000, 64), (50_000, 64))


def long_graph(num_ops: int) -> rlinit.Graph:
    """Return a chain with skip connections of several lengths and varied costs."""
    ops = (
        (
            f"n{i}",
            {
                "time_s": 1e-6 * (1 + i * 7919 % 97),
                "param_bytes": i * 31 % 1009,
                "out_bytes": 64 * (1 + i * 104729 % 53),
            },
        )
        for i in range(num_ops)
    )
    edges = ((f"n{i}", f"n{i + d}") for i in range(num_ops) for d in (1, 3, 17) if i + d < num_ops and i % d == 0)
    return rlinit.Graph.build(ops, edges, name=f"chain-{num_ops}")


def main() -> None:
    """Time every size for both objectives and write the medians."""
    take_no_options(__doc__)
    rows = []
    for num_ops, k in SIZES:
        graph = long_graph(num_ops)
        for objective in OBJECTIVES:
            hardware = rlinit.Hardware.pipeline(k, bandwidth=1e8)
            problem = lower_stages(graph, hardware, objective).problem
            seconds = median_seconds(partial(slice_order, problem, problem.order), 3)
            rows.append({"ops": num_ops, "k": k, "objective": objective, "seconds": seconds})
    print_table("optimal slicing of one order", ["ops", "k", "objective", "seconds"], (row.values() for row in rows))
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    save("slicing", rows)


if __name__ == "__main__":
    main()
