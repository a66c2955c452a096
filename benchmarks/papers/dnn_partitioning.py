"""The dnn-partitioning inference instances (Tarnawski et al., NeurIPS 2020): value, proof and seconds.

Reads the published files (``RLINIT_INSTANCES``). The peer is the authors' exact dynamic program over ideals; its
seconds are measured in the same run where ``RLINIT_PEER_DP`` names the compiled program, else the figures of an
earlier run on two cores are printed and marked as such.

Run as ``python -m benchmarks.papers.dnn_partitioning``.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import rlinit
from benchmarks.record import median_seconds, print_table, save, timed
from rlinit.datasets.published import dnn_partitioning, location

KNOWN = {
    "layer-bert24_inference": (17.7899, 0.01),
    "layer-gnmt_inference": (32.9107, 22.9),
    "layer-resnet50_inference": (33.7747, 0.35),
    "op-bert_l-3_inference": (27.9186, 2.3),
    "op-bert_l-6_inference": (29.5795, 6.4),
    "layer-inceptionv3_inference": (None, None),
}
"""Contiguous optimum in ms, and the seconds of the authors' program in an earlier run (it fails on inceptionv3)."""


def run(path: Path) -> dict[str, Any]:
    """Return what was measured on one instance."""
    graph, hardware = dnn_partitioning.load(path)
    plan = rlinit.schedule(graph, hardware)
    warm = median_seconds(lambda: rlinit.schedule(graph, hardware))
    optimum, peer_s = KNOWN[path.stem]
    return {
        "instance": path.stem,
        "ops": graph.num_ops,
        "value_ms": 1e3 * plan.value,
        "bound_ms": 1e3 * plan.bound,
        "status": plan.status,
        "source": plan.bound_source,
        "seconds": warm,
        "known_optimum_ms": optimum,
        "peer_seconds": peer_seconds(path) or peer_s,
        "peer_measured": bool(os.environ.get("RLINIT_PEER_DP")),
    }


def peer_seconds(path: Path) -> float | None:
    """Return the median seconds of the authors' program on an instance, if it is there."""
    program = os.environ.get("RLINIT_PEER_DP")
    if not program or KNOWN[path.stem][1] is None:
        return None

    def call() -> None:
        with path.open() as file:
            subprocess.run([program], stdin=file, check=True, capture_output=True)

    return timed(call)[1] if (KNOWN[path.stem][1] or 0) > 5 else median_seconds(call, 3)


def main() -> None:
    """Run all instances, print both sides, write the data."""
    root = location.instances_root()
    if root is None:
        raise SystemExit("published instances are absent: set RLINIT_INSTANCES")
    rows = [run(root / "dnn-partitioning" / "throughput" / f"{name}.json") for name in KNOWN]
    print_table(
        "dnn-partitioning, contiguous splits (ms; seconds warm)",
        [
            "instance",
            "ops",
            "value",
            "known optimum",
            "bound",
            "status",
            "proof",
            "ours s",
            "authors s",
            "measured now",
        ],
        (
            [r["instance"], r["ops"], f"{r['value_ms']:.4f}", r["known_optimum_ms"] or "-", f"{r['bound_ms']:.4f}"]
            + [r["status"], r["source"], r["seconds"], r["peer_seconds"] or "fails", r["peer_measured"]]
            for r in rows
        ),
    )
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    save("dnn_partitioning", rows)


if __name__ == "__main__":
    main()
