"""Assembly lines of Otto et al. on equal stations: least cycle time and its proof, for several numbers of stations.

The file's tasks are ops without bytes, its cycle time is not used. For 1,000 tasks the least cycle time nearly always
equals the trivial bound, the larger of the rounded-up average and the longest task, which is printed beside.

Run as ``python -m benchmarks.papers.assembly_lines [--tasks 100|1000] [--stations K ...] [--seconds S] [--files N]
[--processor-time]``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import rlinit
from benchmarks.record import count_processor_time, print_table, save, timed
from rlinit.datasets.published import assembly_line
from rlinit.datasets.published.location import instances_root

STATIONS = (5, 10, 20, 40, 60)


def measure(tasks: int, stations: Sequence[int], seconds: float, files: int) -> list[dict[str, Any]]:
    """Return a row for each file and number of stations."""
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    paths = sorted((root / "assembly-line" / f"otto-{tasks}").glob("*.alb"), key=lambda path: int(path.stem))
    rows = []
    for path in paths[:files]:
        graph = assembly_line.load(path)
        time = graph.times["*", 1]
        for k in stations:
            plan, took = timed(rlinit.schedule, graph, rlinit.Hardware.pipeline(k), time_limit_s=seconds)
            trivial = max(math.ceil(time.sum() / k), float(time.max()))
            row = {"file": path.stem, "k": k, "value": plan.value, "bound": plan.bound, "trivial": trivial}
            row |= {"source": plan.bound_source, "gap": plan.gap, "status": plan.status, "seconds": took}
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, choices=(100, 1000), default=100)
    parser.add_argument("--stations", type=int, nargs="+", default=STATIONS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--files", type=int, default=13)
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    rows = measure(arguments.tasks, arguments.stations, arguments.seconds, arguments.files)
    settings = {"seconds": arguments.seconds, "processor_time": arguments.processor_time}
    save(f"assembly_lines_{arguments.tasks}", rows, **settings, files=arguments.files)
    columns = ["file", "k", "value", "bound", "trivial", "source", "gap", "status", "seconds"]
    print_table(f"{arguments.tasks} tasks, {arguments.seconds:g} s", columns, [[r[c] for c in columns] for r in rows])
    proven = sum(row["status"] == "optimal" for row in rows)
    print(f"proven optimal: {proven} of {len(rows)}; largest gap {max(row['gap'] for row in rows):.2%}")


if __name__ == "__main__":
    main()
