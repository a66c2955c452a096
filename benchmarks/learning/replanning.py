"""Plans for what changed since the last plan: from that plan, from nothing, and by the learned agent alone.

A plan is made in a second; then costs move by a tenth (each op's own seconds on each device, drawn between 0.9 and 1.1
times what they were), the last device goes, or one in twenty ops is new. Sides solve what changed with the same seed,
in turns within one run; limits count seconds of the processor. Run as ``python -m benchmarks.learning.replanning
latency|stages``.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice, product
from typing import Any

import numpy as np

import rlinit
from benchmarks.learning.families import FAMILIES, Case
from benchmarks.learning.protocol import compare, print_comparisons
from benchmarks.record import save
from rlinit.costs.roofline import with_times

LIMITS_S = (0.01, 0.05, 0.2)
NEW_OPS = 0.05
FAMILY_NAMES = {
    "latency": ("cells, four unlike devices", "LU, Gauss, FFT, layered", "ImageNet", "DIVIML's networks"),
    "stages": ("networks in pipelines", "wired networks in pipelines"),
}


def moved_costs(case: Case, rng: np.random.Generator) -> tuple[Case, Case]:
    """Return a problem, and the same where each op's seconds have moved."""
    graph = with_times(case.graph, case.hardware)
    times = {key: column * rng.uniform(0.9, 1.1, len(column)) for key, column in graph.times.items()}
    return case, dataclasses.replace(case, graph=dataclasses.replace(graph, times=times))


def lost_device(case: Case, rng: np.random.Generator) -> tuple[Case, Case]:
    """Return a problem, and the same without the last device."""
    return case, dataclasses.replace(case, hardware=case.hardware.part(range(case.hardware.num_devices - 1)))


def new_ops(case: Case, rng: np.random.Generator) -> tuple[Case, Case]:
    """Return a problem without some ops, their readers reading what they read, and the whole one."""
    whole = case.graph.to_dict()
    drawn = rng.random(case.graph.num_ops) < NEW_OPS
    gone = {name for name, out in zip(case.graph.names, drawn, strict=True) if out}
    reads: dict[str, set[str]] = {row["name"]: set() for row in whole["ops"]}
    for v in case.graph.order.tolist():
        name = case.graph.names[v]
        for u in case.graph.edges[case.graph.edges[:, 1] == v, 0].tolist():
            before = case.graph.names[u]
            reads[name] |= reads[before] if before in gone else {before}
    ops = [(row["name"], {key: row[key] for key in row if key != "name"}) for row in whole["ops"]]
    kept = [(name, row) for name, row in ops if name not in gone]
    edges = sorted((u, v) for v, sources in reads.items() if v not in gone for u in sources)
    return dataclasses.replace(case, graph=rlinit.Graph.build(kept, edges, name=case.graph.name)), case


CHANGES: dict[str, Callable[[Case, np.random.Generator], tuple[Case, Case]]] = {
    "costs within a tenth": moved_costs,
    "a device less": lost_device,
    "one op in twenty new": new_ops,
}


def solve(case: Case, objective: str, seconds: float, **how: Any) -> rlinit.Plan:
    """Return a plan of a problem."""
    settings: dict[str, Any] = {"objective": objective, "time_limit_s": seconds} | dict(case.options) | how
    return rlinit.schedule(case.graph, case.hardware, **settings)


def measured(case: Case, objective: str, change: str, seed: int) -> dict[str, Any]:
    """Return the value of each side at each limit, None where it has no schedule by then."""
    before, after = CHANGES[change](case, np.random.default_rng(seed))
    old = solve(before, objective, 1.0)
    sides: dict[str, dict[str, Any]] = {"old plan": {"agent": old}, "from nothing": {}, "agent": {"method": "agent"}}
    row: dict[str, Any] = {"change": change, "graph": case.graph.name, "ops": case.graph.num_ops}
    for limit in LIMITS_S:
        for name, how in sides.items():
            value = solve(after, objective, limit, **how).value
            row[f"{name}, {limit:g} s"] = value if value < np.inf else None
    return row


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=FAMILY_NAMES)
    parser.add_argument("--count", type=int, default=4, help="problems of each family")
    chosen = parser.parse_args()
    time.monotonic = time.perf_counter = time.process_time
    objective = "latency" if chosen.kind == "latency" else "pipeline"
    rows: list[dict[str, Any]] = []
    for family in FAMILY_NAMES[chosen.kind]:
        cases = (case for case in FAMILIES[chosen.kind][family]() if case.options.get("objective") != "memory")
        for seed, case in enumerate(islice(cases, chosen.count)):
            for change in CHANGES:
                if not rows:
                    measured(case, objective, change, seed)  # compiles
                row = measured(case, objective, change, seed)
                print(family, row, flush=True)
                rows.append({"family": family} | row)
    found = []
    for change, rival, limit in product(CHANGES, ("from nothing", "agent"), LIMITS_S):
        sides = [f"{side}, {limit:g} s" for side in ("old plan", rival)]
        both = [[row[side] for side in sides] for row in rows if row["change"] == change]
        if pairs := [pair for pair in both if None not in pair]:
            found.append(compare(change, f"value, old plan / {rival}, {limit:g} s", *zip(*pairs, strict=True)))
    print_comparisons("re-planning", found)
    save(f"replanning_{chosen.kind}", rows, count=chosen.count, clock="processor", comparisons=list(map(asdict, found)))


if __name__ == "__main__":
    main()
