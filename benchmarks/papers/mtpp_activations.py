"""What counting activations in the overflow of stages changes: networks of the zoo on Edge TPUs (8 MB of fast memory).

Both plans are priced with activations: the one that ignored them, and the one that counted them.
Run as ``python -m benchmarks.papers.mtpp_activations``.
"""

from __future__ import annotations

from typing import Any

import rlinit
from benchmarks.record import print_table, save, save_figure, take_no_options, timed
from rlinit.datasets.zoo import imagenet
from rlinit.stages.activation_problem import activation_value, with_activations
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment

NETWORKS = (
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "DenseNet121",
    "DenseNet201",
    "Xception",
    "MobileNetV2",
    "EfficientNetB3",
)
STAGES = (4, 8)
SECONDS = 30.0


def measure(name: str, k: int) -> dict[str, Any]:
    """Return both plans' figures for one network."""
    import numpy as np

    graph, hardware = imagenet.load(name), rlinit.Hardware.edge_tpus(k)
    plain, plain_s = timed(lambda: rlinit.schedule(graph, hardware, time_limit_s=SECONDS))
    plan, seconds = timed(lambda: rlinit.schedule(graph, hardware, activations=True, time_limit_s=SECONDS))
    lowered = lower_stages(graph, hardware, "pipeline")
    priced = with_activations(lowered.problem, lowered.node_of_op, graph)
    stage = np.zeros(lowered.problem.num_nodes, np.int64)
    for op, node in zip(graph.names, lowered.node_of_op.tolist(), strict=True):
        stage[node] = (plain.assignment or {})[op]
    (ignored,) = activation_value(priced, StageAssignment(stage, np.zeros(k, np.int64)))
    return {
        "network": name,
        "stages": k,
        "without_s": plain.value,
        "ignored_s": ignored,
        "counted_s": plan.value,
        "bound_s": plan.bound,
        "gap": plan.gap,
        "status": plan.status,
        "seconds": seconds,
        "seconds_without": plain_s,
        "largest_peak_bytes": max(use.activation_bytes for use in plan.stages),
    }


def main() -> None:
    """Measure every network, print, write and draw."""
    take_no_options(__doc__)
    rows = []
    for k in STAGES:
        for name in NETWORKS:
            rows.append(measure(name, k))
            print(rows[-1], flush=True)
    header = ["network", "stages", "without_s", "ignored_s", "counted_s", "bound_s", "status", "seconds"]
    print_table("bottlenecks with activations", header, ([row[key] for key in header] for row in rows))
    save("activations", rows, time_limit_s=SECONDS)
    draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw both plans and the bound of each network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['network']}\n{row['stages']} stages" for row in rows]
    for shift, key, label in ((-0.2, "ignored_s", "planned without"), (0.2, "counted_s", "planned with activations")):
        axes.bar([at + shift for at in range(len(rows))], [1e3 * row[key] for row in rows], 0.4, label=label)
    axes.scatter(
        range(len(rows)), [1e3 * row["bound_s"] for row in rows], marker="_", s=200, color="black", label="bound"
    )
    axes.set_xticks(range(len(rows)), labels, rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("bottleneck with activations (ms)")
    axes.set_yscale("log")
    axes.legend()
    save_figure("activations", figure)


if __name__ == "__main__":
    main()
