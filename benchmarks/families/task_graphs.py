"""Published task graphs under `schedule`: value, bound, best known value, seconds and status of each.

Run as ``python -m benchmarks.families.task_graphs communication``, ``stg`` or ``flexible-job-shop``, with the instances
at ``RLINIT_INSTANCES``. ``--every K`` takes every K-th only, ``--peer`` runs CP-SAT alone with two workers beside, for
as many seconds of each.

=====================  ============================================================================
set                    best known
=====================  ============================================================================
communication          the optimum, of Sinnen's group: delays on edges, 2 to 16 equal processors
stg                    the published optimum or range: no delays, 2 to 16 equal processors
flexible-job-shop      the published bound and value: chains of operations on unlike machines
=====================  ============================================================================
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import rlinit
from benchmarks.peers.cp_sat import solve_cp_sat
from benchmarks.record import count_processor_time, print_table, save, timed
from rlinit.datasets.published import flexible_job_shop, gxl, stg
from rlinit.datasets.published.location import instances_root
from rlinit.placements.lowering import lower_placement


class Instance(NamedTuple):
    """An instance and what is known of its optimum."""

    name: str
    graph: rlinit.Graph
    hardware: rlinit.Hardware
    lower: float
    upper: float


def communication(root: Path) -> Iterator[Instance]:
    """Yield the graphs with delays on edges."""
    for path in sorted((root / "task-graphs" / "communication").glob("*.gxl")):
        optimum = gxl.best_known(path)
        yield Instance(path.stem, *gxl.load(path), optimum, optimum)


def standard(root: Path) -> Iterator[Instance]:
    """Yield the Standard Task Graphs that are there, once for each number of processors."""
    folder = root / "task-graphs" / "stg"
    for name, processors, *known in _table(folder / "best-known.csv"):
        lower, upper = float(known[0]), float(known[-1])
        yield Instance(f"{name} on {processors}", *stg.load(folder / name, int(processors)), lower, upper)


def job_shops(root: Path) -> Iterator[Instance]:
    """Yield the flexible job shops."""
    folder = root / "flexible-job-shop"
    for name, lower, upper in _table(folder / "best-known.csv")[1:]:
        yield Instance(name, *flexible_job_shop.load(folder / f"{name}.txt"), float(lower), float(upper))


def _table(path: Path) -> list[list[str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


SETS = {"communication": communication, "stg": standard, "flexible-job-shop": job_shops}


_WORKERS = 2
"""Of the rival."""


def measure(instance: Instance, time_limit_s: float, peer: bool = False) -> dict[str, object]:
    """Return what `schedule` finds and proves of an instance, and what CP-SAT does in as many seconds of two cores."""
    plan, seconds = timed(
        rlinit.schedule, instance.graph, instance.hardware, objective="latency", time_limit_s=time_limit_s
    )
    if plan.bound > instance.upper * (1 + 1e-6) or plan.value < instance.lower * (1 - 1e-6):
        print(f"{instance.name}: [{plan.bound}, {plan.value}] contradicts [{instance.lower}, {instance.upper}]")
    row: dict[str, object] = {
        "instance": instance.name,
        "ops": instance.graph.num_ops,
        "devices": instance.hardware.num_devices,
        "value": plan.value,
        "bound": plan.bound,
        "known_lower": instance.lower,
        "known_upper": instance.upper,
        "seconds": seconds,
        "status": plan.status,
        "proof": plan.bound_source,
    }
    if peer:
        problem = lower_placement(instance.graph, instance.hardware, "latency").problem
        rival = solve_cp_sat(problem, time_limit_s=np.inf, processor_s=_WORKERS * time_limit_s, workers=_WORKERS)
        row |= {"peer_value": rival.value_s, "peer_bound": rival.bound_s, "peer_seconds": rival.seconds}
    return row


def main() -> None:
    """Measure one set and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--time-limit-s", type=float, default=10.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="run CP-SAT beside, stopped by its processor time")
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    chosen = parser.parse_args()
    if chosen.processor_time:
        count_processor_time()
    root = instances_root()
    if root is None:
        raise SystemExit("the published instances are absent (set RLINIT_INSTANCES)")
    instances = list(SETS[chosen.set](root))[:: chosen.every]
    measure(instances[0], chosen.time_limit_s)  # compiles
    rows = []
    for instance in instances:
        rows.append(measure(instance, chosen.time_limit_s, chosen.peer))
        print(*rows[-1].values(), flush=True)
    print_table(f"{chosen.set}, {chosen.time_limit_s:g} s", list(rows[0]), (row.values() for row in rows))
    reached = sum(float(str(row["value"])) <= float(str(row["known_upper"])) * (1 + 1e-9) for row in rows)
    proven = sum(row["status"] == "optimal" for row in rows)
    seconds = statistics.median(float(str(row["seconds"])) for row in rows)
    print(f"{reached} of {len(rows)} at the best known value, {proven} proven, median {seconds:.3f} s")
    settings = {"time_limit_s": chosen.time_limit_s, "processor_time": chosen.processor_time}
    save(f"task_graphs_{chosen.set}".replace("-", "_"), rows, every=chosen.every, **settings)


if __name__ == "__main__":
    main()
