"""Certified lower bounds of published flexible job shops: python -m benchmarks.papers.flexible_job_shop certified.

Each plan is certified in rlinit's own format, which a fresh Python checks, and in VIPR's and VeriPB's, which are
written here and checked by nobody. ``--seconds`` limits a schedule, ``--certify-s`` the search for each proof. A row
is closed where a format's bound is the published optimum. Commit first: results of a tree with changes say so.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import rlinit
from benchmarks.components.certificates import checked
from benchmarks.families.task_graphs import Instance, job_shops
from benchmarks.record import print_table, save, timed
from rlinit.datasets.published.location import instances_root


def measure(instance: Instance, seconds: float, certify_s: float) -> dict[str, object]:
    """Return the bounds, bytes and seconds of an instance's certificates; times in seconds."""
    graph, hardware = instance.graph, instance.hardware
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=seconds)
    row: dict[str, object] = {"instance": instance.name, "ops": graph.num_ops, "optimum": instance.upper}
    row |= {"value": plan.value, "bound": plan.bound} | checked(plan, graph, hardware, certify_s)
    with tempfile.TemporaryDirectory() as folder:
        for form, write, name in (("vipr", plan.certify_vipr, "x.vipr"), ("veripb", plan.certify_veripb, "x.pbp")):
            path = Path(folder) / name
            proven, spent = timed(write, path, graph, hardware, time_limit_s=certify_s)
            size = sum(each.stat().st_size for each in {path, path.with_suffix(".opb")} if each.exists())
            row |= {f"{form}_bound": proven, f"{form}_bytes": size, f"{form}_s": spent}
    return row


def main() -> None:
    """Certify the instances, print and record what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("certified",))
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a schedule")
    parser.add_argument("--certify-s", type=float, default=60.0, help="time limit of each search for a proof")
    chosen = parser.parse_args()
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    closed = (one for one in job_shops(root) if one.lower == one.upper)
    rows = [measure(one, chosen.seconds, chosen.certify_s) for one in closed]
    save("flexible_job_shop_certified", rows, seconds=chosen.seconds, certify_s=chosen.certify_s)
    print_table("flexible job shops, certified", list(rows[0]), (row.values() for row in rows))
    for form in ("vipr", "veripb"):
        left = [row["instance"] for row in rows if row[f"{form}_bound"] != row["optimum"]]
        print(
            f"{form}: {len(rows) - len(left)} of {len(rows)} at the optimum; not {', '.join(map(str, left)) or 'one'}"
        )


if __name__ == "__main__":
    main()
