"""Certificates of optimal plans: what ``tools/check.py`` says of them, and how long writing and checking take.

Each plan, graph, hardware and certificate is written to files, and a fresh Python without packages checks them.

Run as ``python -m benchmarks.components.certificates SET ... [--every N] [--seconds S] [--certify-s S]``. The sets are
``imagenet`` (ten graphs, k = 4, 5, 6, `memory`), ``zoo`` (20 networks, k = 2 to 64, `pipeline`), ``dnn-partitioning``,
``assembly-lines`` (100 tasks), ``communication`` (task graphs with delays, `latency`) and ``flexible-job-shop``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import rlinit
from benchmarks.families.task_graphs import communication, job_shops
from benchmarks.papers.assembly_lines import STATIONS
from benchmarks.record import print_table, save, timed
from rlinit.certificates import check, write_certificate
from rlinit.datasets import imagenet
from rlinit.datasets.published import assembly_line, dnn_partitioning
from rlinit.datasets.published.location import instances_root
from rlinit.plan import Objective, Plan

SETS = ("imagenet", "zoo", "dnn-partitioning", "assembly-lines", "communication", "flexible-job-shop")

Problem = tuple[str, rlinit.Graph, rlinit.Hardware, Objective]


def problems(name: str) -> Iterator[Problem]:
    """Yield the problems of a set."""
    if name == "imagenet":
        for model in imagenet.TABLE_II:
            for k in (4, 5, 6):
                yield f"{model} k={k}", imagenet.load(model), rlinit.Hardware.edge_tpus(k), "memory"
        return
    if name == "zoo":
        for model in imagenet.NAMES:
            for k in (2, 4, 8, 16, 32, 64):
                yield f"{model} k={k}", imagenet.load(model), rlinit.Hardware.edge_tpus(k), "pipeline"
        return
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    if name == "dnn-partitioning":
        for path in sorted((root / "dnn-partitioning" / "throughput").glob("*.json")):
            yield path.stem, *dnn_partitioning.load(path), "pipeline"
        return
    if name in ("communication", "flexible-job-shop"):
        instances = communication(root) if name == "communication" else job_shops(root)
        yield from ((one.name, one.graph, one.hardware, "latency") for one in instances)
        return
    for path in sorted((root / "assembly-line" / "otto-100").glob("*.alb")):
        for k in STATIONS:
            yield f"{path.stem} k={k}", assembly_line.load(path), rlinit.Hardware.pipeline(k), "pipeline"


def run(problem: Problem, seconds: float, certify_s: float) -> dict[str, Any]:
    """Return what is said of one problem's plan and certificate, each looked for in so many seconds."""
    name, graph, hardware, objective = problem
    plan, solving = timed(lambda: rlinit.schedule(graph, hardware, objective=objective, time_limit_s=seconds))
    row: dict[str, Any] = {"problem": name, "status": plan.status, "source": plan.bound_source, "solving_s": solving}
    return row | checked(plan, graph, hardware.with_stages(plan.num_stages) if plan.num_stages else hardware, certify_s)


def checked(plan: Plan, graph: rlinit.Graph, hardware: rlinit.Hardware, certify_s: float) -> dict[str, Any]:
    """Return what a fresh Python says of a plan and a proof, looked for in so many seconds, and what both take."""
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{what}.json" for what in ("plan", "graph", "hardware", "certificate")]
        plan.save(paths[0])
        graph.save(paths[1])
        hardware.save(paths[2])
        _, row["writing_s"] = timed(partial(write_certificate, paths[3], plan, graph, hardware, certify_s))
        row["bytes"] = paths[3].stat().st_size
        command = [sys.executable, "-I", "-S", check.__file__, *map(str, paths)]
        told, row["checking_s"] = timed(partial(subprocess.run, command, capture_output=True, text=True))
    return row | {"verdict": told.stdout.strip()}


def main() -> None:
    """Certify the plans of the sets named, print and record what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", choices=SETS)
    parser.add_argument("--every", type=int, default=1, help="take every so many problems of a set")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a schedule")
    parser.add_argument("--certify-s", type=float, default=60.0, help="time limit of the search for proofs")
    arguments = parser.parse_args()
    for name in arguments.sets:
        rows = []
        for problem in list(problems(name))[:: arguments.every]:
            rows.append(run(problem, arguments.seconds, arguments.certify_s))
            print(rows[-1], flush=True)
        save(
            f"certificates_{name.replace('-', '_')}",
            rows,
            every=arguments.every,
            seconds=arguments.seconds,
            certify_s=arguments.certify_s,
        )
        columns = ["problem", "status", "source", "writing_s", "checking_s", "verdict"]
        print_table(name, columns, [[row[column] for column in columns] for row in rows])
        exact = sum(row["verdict"].startswith("VERIFIED (exact)") for row in rows)
        proven = sum(row["status"] == "optimal" for row in rows)
        spent = [row["checking_s"] for row in rows]
        print(f"{exact} of {len(rows)} verified exactly ({proven} optimal); checking takes "
              f"{statistics.median(spent):.2f} s at the median, {max(spent):.1f} s at most")  # fmt: skip


if __name__ == "__main__":
    main()
