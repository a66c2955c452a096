"""Moirai: its published instances, and Table V and Figure 10 on op graphs of the same sizes built from shapes.

Published instances (GoogLeNet, YOLOv5x on four unequal devices) run as they are, with exclusive transfers as in the
paper's program, and with each memory cut to 40% of what the best single device would need. The language models of
Table V are those of `rlinit.datasets.zoo.llm` on the paper's two testbeds, weights alone held (their tensors together
are larger than any device); seconds are of a whole process-warm call with certificate. The paper's seconds are for
another machine and include Gurobi.

Run as ``python -m benchmarks.papers.moirai --part instances|models [--seconds S] [--models NAME ...]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
from typing import Any

import rlinit
from benchmarks.record import geometric_mean, print_table, save, timed
from rlinit.datasets.published import moirai
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.zoo import llm
from rlinit.plan import Transfers

PAPER_S = {  # m-SCT, GETF, Moirai: seconds on the original graph (Table V)
    "swin-1.8b": (17.63, 120, 129),
    "swin-6.6b": (64.32, 744, 797),
    "swin-13b": (148.25, 1185, 1352),
    "gpt3-330m": (15.92, 75, 83),
    "gpt3-1.3b": (39.82, 519, 541),
    "gpt3-2.7b": (54.17, 649, 689),
    "gpt3-13b": (125.53, 942, 990),
    "alphafold2-87m": (20.18, 107, 114),
    "alphafold2-930m": (56.62, 663, 772),
    "alphafold2-2.4b": (226.34, 1350, 1435),
    "alphafold2-3.2b": (507.65, 2145, 2305),
}
METHODS = ("best-device", "m-sct", "getf", "m-etf", "heft")


def tightened(graph: rlinit.Graph, hardware: rlinit.Hardware, part: float) -> rlinit.Hardware:
    """Return the hardware with each memory cut to a part of what the best single device would need."""
    alone = rlinit.schedule(graph, hardware, objective="latency", method="best-device", resident="tensors")
    need = max(use.held_bytes for use in alone.devices)
    devices = tuple(dataclasses.replace(device, memory_bytes=part * need) for device in hardware.devices)
    return rlinit.Hardware(devices, hardware.bandwidth, hardware.latency_s, f"{hardware.name}-{part:.0%}")


def instances(seconds: float) -> None:
    """Run the published instances in every form."""
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    rows: list[dict[str, Any]] = []
    rule: dict[str, Any] = {"objective": "latency", "resident": "tensors", "time_limit_s": seconds}
    for name in ("GoogLeNet", "yolov5x"):
        graph, hardware = moirai.load(root / "moirai" / f"{name}.xls")
        cases: tuple[tuple[str, rlinit.Hardware, Transfers], ...] = (
            ("as published", hardware, "parallel"),
            ("exclusive transfers", hardware, "exclusive"),
            ("memory 40%", tightened(graph, hardware, 0.4), "parallel"),
        )
        for case, devices, transfers in cases:
            row: dict[str, Any] = {"instance": name, "case": case}
            for method in METHODS:
                plan = rlinit.schedule(graph, devices, method=method, transfers=transfers, **rule)
                row[method] = plan.value
            plan, took = timed(rlinit.schedule, graph, devices, transfers=transfers, **rule)
            row |= {"rlinit": plan.value, "bound": plan.bound, "gap": plan.gap, "status": plan.status, "seconds": took}
            rows.append(row)
            print(row, flush=True)
    save("moirai_instances", rows, seconds=seconds)
    columns = [*METHODS, "rlinit", "bound"]
    print_table(
        f"milliseconds, {seconds:g} s at most",
        ["instance", "case", *columns, "gap", "status", "seconds"],
        [[r["instance"], r["case"], *(1e3 * r[c] for c in columns), r["gap"], r["status"], r["seconds"]] for r in rows],
    )


def models(names: list[str], seconds: float) -> None:
    """Table V and Figure 10: seconds and latency of m-SCT, GETF and rlinit, original and coarsened."""
    rows: list[dict[str, Any]] = []
    for name in names:
        graph = llm.build(name)
        for testbed in ("moirai-inter", "moirai-intra"):
            hardware = rlinit.Hardware.preset(testbed)
            row: dict[str, Any] = {"model": name, "ops": graph.num_ops, "testbed": testbed}
            calls: dict[str, dict[str, Any]] = {m: {"method": m} for m in ("m-sct", "getf")}
            calls |= {"rlinit": {}, "rlinit coarsened": {"coarsen": True}}
            for label, arguments in calls.items():
                plan, took = timed(
                    rlinit.schedule,
                    graph,
                    hardware,
                    objective="latency",
                    resident="weights",
                    time_limit_s=seconds,
                    **arguments,
                )
                row[label] = {"value": plan.value, "bound": plan.bound, "gap": plan.gap, "seconds": took}
                row[label] |= {"status": plan.status}
            row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            rows.append(row)
            print(row, flush=True)
    save("moirai_models", rows, seconds=seconds)
    labels = ("m-sct", "getf", "rlinit", "rlinit coarsened")
    print_table(
        f"latency in milliseconds (seconds to find it), at most {seconds:g} s each",
        ["model", "ops", "testbed", *labels, "gap", "paper's seconds: m-SCT, GETF, Moirai"],
        [
            [
                r["model"],
                r["ops"],
                r["testbed"],
                *(f"{1e3 * r[label]['value']:.4g} ({r[label]['seconds']:.1f})" for label in labels),
                f"{min(r['rlinit']['gap'], r['rlinit coarsened']['gap']):.1%}",
                PAPER_S.get(r["model"], ""),
            ]
            for r in rows
        ],
    )
    for label in ("m-sct", "getf"):
        found = [r for r in rows if r[label]["value"] < float("inf") and r["rlinit"]["value"] < float("inf")]
        ratio = geometric_mean(r[label]["value"] / r["rlinit"]["value"] for r in found)
        print(f"{label} takes {ratio:.3f} times as long as rlinit (geometric mean of {len(found)})")


def main() -> None:
    """Run one part from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("instances", "models"), default="instances")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--models", nargs="*", default=["gpt3-330m", "swin-1.8b", "alphafold2-87m", "alphafold2-3.2b"])
    arguments = parser.parse_args()
    if arguments.part == "instances":
        instances(arguments.seconds)
    else:
        models(arguments.models, arguments.seconds)


if __name__ == "__main__":
    main()
