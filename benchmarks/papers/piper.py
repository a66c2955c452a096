"""Stages of several devices: BERT of 32 layers on A100s, against the values of Piper's own program.

Run as ``python -m benchmarks.papers.piper``. Seconds are those of the processor for a whole `rlinit.schedule`, the
second call of two; those of writing a certificate, and of a fresh Python that checks it without packages, by the wall,
follow.

References
----------
Tarnawski, Narayanan, Phanishayee: Piper, NeurIPS 2021. Values and seconds of the authors' program
(github.com/msr-fiddle/piper, one core of another day) are given beside.
"""

from __future__ import annotations

import time
from typing import Any

import rlinit
from benchmarks.components.certificates import checked
from benchmarks.record import print_table, save, take_no_options
from rlinit.datasets import piper
from rlinit.datasets.published.location import instances_root

AUTHORS = {
    (8, 2): (None, 0.0),
    (8, 4): (None, 0.0),
    (8, 8): (0.165856, 0.04),
    (32, 2): (0.0665495, 0.13),
    (32, 4): (0.0513689, 0.17),
    (32, 8): (0.0415155, 0.19),
    (128, 2): (0.0151464, 0.50),
    (128, 4): (0.0117231, 0.48),
    (128, 8): (0.0101209, 0.49),
    (512, 8): (0.00256113, 2.9),
    (2048, 8): (None, None),
}
"""Devices and GiB of each -> seconds a micro-batch (None: infeasible, or not run), and seconds of the program."""


def main() -> None:
    """Measure, print and store."""
    take_no_options(__doc__ or "")
    root = instances_root()
    if root is None:
        raise SystemExit("no published instances here: set RLINIT_INSTANCES to their folder")
    rows: list[dict[str, Any]] = []
    for (devices, gib), (known, took) in AUTHORS.items():
        graph, hardware = piper.load(
            root / "piper" / "bert32a100.json",
            devices=devices, memory_bytes=gib * 2.0**30, bandwidth=25 * 2.0**30, microbatches=1920,
        )  # fmt: skip
        options: dict[str, Any] = {"replicas": "auto", "tensor_parallel": "auto"}
        rlinit.schedule(graph, hardware, **options)
        began = time.process_time()
        plan = rlinit.schedule(graph, hardware, **options)
        seconds = time.process_time() - began
        row = {"devices": devices, "GiB": gib, "status": plan.status, "value": plan.values and plan.value}
        row |= {"bound": plan.bounds and plan.bound, "authors": known, "seconds": seconds, "authors' seconds": took}
        row |= {"megatron": plan.baselines.get("Megatron's rule")}
        proof = checked(plan, graph, hardware, 60.0)
        row |= {key: proof[key] for key in ("writing_s", "checking_s")}
        rows.append(row | {"verdict": proof["verdict"].partition(" pipeline")[0]})
    columns = list(rows[0])
    print_table("BERT of 32 layers", columns, [[row[c] for c in columns] for row in rows])
    save("piper", rows)


if __name__ == "__main__":
    main()
