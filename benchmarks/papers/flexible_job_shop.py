"""Certified lower bounds of published flexible job shops: python -m benchmarks.papers.flexible_job_shop certified.

Each plan is certified in rlinit's own format, which a fresh Python checks, and in VIPR's and VeriPB's, which share one
tree and one bound. ``--seconds`` limits a schedule, ``--certify-s`` the search for each of the two proofs. Commit
first: results of a tree with changes say so.
"""

from __future__ import annotations

import argparse

import rlinit
from benchmarks.components.certificates import checked
from benchmarks.families.task_graphs import Instance, job_shops
from benchmarks.record import print_table, save, timed
from rlinit.certificates.derivations import text_of
from rlinit.certificates.proof import prove
from rlinit.certificates.veripb import veripb_texts
from rlinit.certificates.vipr import vipr_lines
from rlinit.datasets.published.location import instances_root


def measure(instance: Instance, seconds: float, certify_s: float) -> dict[str, object]:
    """Return the bounds, bytes and seconds of an instance's certificates; times in seconds."""
    graph, hardware = instance.graph, instance.hardware
    plan = rlinit.schedule(graph, hardware, objective="latency", time_limit_s=seconds)
    row: dict[str, object] = {"instance": instance.name, "ops": graph.num_ops, "optimum": instance.upper}
    row |= {"value": plan.value, "bound": plan.bound} | checked(plan, graph, hardware, certify_s)
    proven, row["tree_s"] = timed(prove, plan, graph, hardware, certify_s)
    texts = {"vipr": text_of(vipr_lines(proven.proof, proven.about, proven.solution))}
    texts["veripb"] = "".join(veripb_texts(proven))
    row |= {"tree_bound": float(proven.value)} | {f"{form}_bytes": len(text) for form, text in texts.items()}
    return row


def main() -> None:
    """Certify the instances, print and record what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("certified",))
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of a schedule")
    parser.add_argument("--certify-s", type=float, default=60.0, help="time limit of each search for a proof")
    chosen = parser.parse_args()
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    closed = (one for one in job_shops(root) if one.lower == one.upper)
    rows = []
    for one in closed:
        rows.append(measure(one, chosen.seconds, chosen.certify_s))
        print(rows[-1], flush=True)
    save("flexible_job_shop_certified", rows, seconds=chosen.seconds, certify_s=chosen.certify_s)
    columns = ["instance", "ops", "optimum", "bound", "verdict", "checking_s", "tree_bound", "tree_s", "vipr_bytes"]
    print_table("flexible job shops, certified", columns, ([row[column] for column in columns] for row in rows))
    exact = sum(str(row["verdict"]).startswith("VERIFIED (exact)") and row["bound"] == row["optimum"] for row in rows)
    tree = sum(row["tree_bound"] == row["optimum"] for row in rows)
    print(f"of {len(rows)} optima {exact} are proven in the own format, {tree} in VIPR's and VeriPB's")


if __name__ == "__main__":
    main()
