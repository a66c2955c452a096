"""The dnn-partitioning inference instances (Tarnawski et al., NeurIPS 2020): value, proof and seconds.

Contiguous splits are solved to the end; splits in which a device holds any ops have ``--loose-seconds`` each, and are
shown with their bound and the contiguous value beside them.

Reads the published files (``RLINIT_INSTANCES``). The peer is the authors' exact dynamic program over ideals; its
seconds are measured in the same run where ``RLINIT_PEER_DP`` names the compiled program, else the figures of an
earlier run on two cores are printed and marked as such.

Run as ``python -m benchmarks.papers.dnn_partitioning [--loose-only] [--loose-seconds 30]``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import rlinit
from benchmarks.record import median_seconds, print_table, save, timed
from rlinit.datasets.published import dnn_partitioning, location
from rlinit.graph import Graph
from rlinit.hardware import Hardware

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


def run_loose(path: Path, seconds: float) -> dict[str, Any]:
    """Return what was found and proven within some seconds where a device may hold any ops."""
    graph, hardware = _colocated(path) if "training" in path.stem else dnn_partitioning.load(path)
    plan = rlinit.schedule(graph, hardware, contiguous=False, time_limit_s=seconds)
    return {
        "instance": path.stem,
        "ops": graph.num_ops,
        "devices": hardware.num_devices,
        "contiguous_ms": 1e3 * (plan.baselines["contiguous"] or 0.0),
        "contiguous_proof": plan.baseline_notes["contiguous"],
        "value_ms": 1e3 * plan.value,
        "bound_ms": 1e3 * plan.bound,
        "gap": plan.gap,
        "status": plan.status,
        "source": plan.bound_source,
        "found_by": plan.method,
        "seconds": sum(plan.phase_s.values()),
        "limit_s": seconds,
    }


def _colocated(path: Path) -> tuple[Graph, Hardware]:
    """Read a training workload as plain ops, of which those of one colour, forward or backward, share a device."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for node in data["nodes"]:
        node["isBackwardNode"] = 0
    for edge in data["edges"]:
        edge.pop("size", None)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.name
        plain.write_text(json.dumps(data), encoding="utf-8")
        return dnn_partitioning.load(plain)


def loose(root: Path, seconds: float) -> None:
    """Run all instances with devices that hold any ops, print them, write the data."""
    files = [root / "dnn-partitioning" / "throughput" / f"{name}.json" for name in KNOWN]
    files += sorted((root / "dnn-partitioning" / "training").glob("*.json"))
    rows = [run_loose(path, seconds) for path in files]
    print_table(
        f"dnn-partitioning, any ops on any device (ms; {seconds:g} s each)",
        ["instance", "ops", "devices", "contiguous", "value", "bound", "gap", "status", "proof", "s"],
        (
            [r["instance"], r["ops"], r["devices"], f"{r['contiguous_ms']:.4f}", f"{r['value_ms']:.4f}"]
            + [f"{r['bound_ms']:.4f}", f"{r['gap']:.2%}", r["status"], r["source"], r["seconds"]]
            for r in rows
        ),
    )
    save("dnn_partitioning_loose", rows)


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
    parser = argparse.ArgumentParser(description="dnn-partitioning")
    parser.add_argument("--loose-only", action="store_true")
    parser.add_argument("--loose-seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    root = location.instances_root()
    if root is None:
        raise SystemExit("published instances are absent: set RLINIT_INSTANCES")
    loose(root, chosen.loose_seconds)
    if chosen.loose_only:
        return
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
