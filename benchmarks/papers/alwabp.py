"""Assembly lines with unlike workers (ALWABP): values and bounds against the best known ones.

Run as ``python -m benchmarks.papers.alwabp [--families NAME ...] [--numbers N ...] [--seconds S] [--processor-time]``.

References
----------
Borba, Ritt: A heuristic and a branch-and-bound algorithm for the assembly line worker assignment and balancing problem,
Computers & Operations Research 45, 2014 (best known values).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import rlinit
from benchmarks.record import count_processor_time, print_table, save, timed
from rlinit.datasets.published import alwabp
from rlinit.datasets.published.location import instances_root

FAMILIES = ("heskia", "roszieg", "tonge", "wee-mag")


def measure(families: list[str], numbers: list[str] | None, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each instance."""
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    folder = root / "assembly-line" / "alwabp"
    rows = []
    for (family, number), (lower, upper) in alwabp.best_known(folder).items():
        if family not in families or (numbers is not None and number not in numbers):
            continue
        graph, hardware = alwabp.load(folder / family / number)
        plan, took = timed(rlinit.schedule, graph, hardware, time_limit_s=seconds)
        row = {"instance": f"{family} {number}", "workers": hardware.num_devices, "value": plan.value}
        row |= {"bound": plan.bound, "known lower": lower, "known": upper, "above": plan.value / upper - 1}
        row |= {"source": plan.bound_source, "status": plan.status, "seconds": took}
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--numbers", nargs="+")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    rows = measure(arguments.families, arguments.numbers, arguments.seconds)
    settings = {"seconds": arguments.seconds, "processor_time": arguments.processor_time}
    save(f"alwabp_{arguments.seconds:g}_s", rows, **settings, families=arguments.families, numbers=arguments.numbers)
    columns = ["instance", "workers", "value", "bound", "known lower", "known", "above", "source", "status", "seconds"]
    print_table(f"{arguments.seconds:g} s each", columns, [[row[c] for c in columns] for row in rows])
    reached = sum(row["value"] <= row["known"] for row in rows)
    proven = sum(row["status"] == "optimal" for row in rows)
    mean = statistics.fmean(row["above"] for row in rows)
    print(f"of {len(rows)}: {reached} at the best known value, {proven} proven optimal, {mean:.2%} above on average")


if __name__ == "__main__":
    main()
