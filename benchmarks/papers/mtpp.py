"""MTPP: Tables 1 to 3 and Figure 4 on graphs of the REGAL recipe and on the ImageNet zoo, k = 2 .. 64.

Every bound is divided by the best schedule found by anything here. The paper's figures are for Gurobi with up to an
hour a graph; ours are for one core and the given seconds.

Run as ``python -m benchmarks.papers.mtpp [--dataset regal|zoo] [--graphs N] [--time-limit-s S]``, with
``--processor-time`` and one job on the processor's clock.
"""

from __future__ import annotations

import argparse
from typing import Any

import rlinit
from benchmarks.record import count_processor_time, geometric_mean, print_table, save, save_figure, timed
from rlinit.datasets.random import regal
from rlinit.datasets.zoo import imagenet

STAGES = (2, 4, 8, 16, 32, 64)
PAPER = {
    "simple": (0.9579, 0.8795, 0.7911, 0.5821, 0.4087, 0.3336),
    "three-superblock": (0.9794, 0.8818, 0.7918, 0.5824, 0.4090, 0.3338),
    "guess": (0.9804, 0.8826, 0.7918, 0.5824, 0.4090, 0.3338),
    "exact": (0.9804, 0.9579, 0.9407, 0.8929, 0.5910, 0.3810),
}
PAPER_ORDERS = {
    "random": (1.201, 1.512, 1.916, 2.179, 2.258, 2.282),
    "brkga": (1.199, 1.509, 1.910, 2.175, 2.255, 2.272),
}
BOUND_NAMES = (
    "simple",
    "anchored-cut",
    "spectral",
    "lp-root",
    "three-superblock",
    "guess",
)
HEURISTICS = ("natural", "random", "brkga", "anneal")


def hardware_for(dataset: str, k: int) -> rlinit.Hardware:
    """Return k stages: unit bandwidth for the REGAL recipe (its costs are unitless), Edge TPUs for the zoo."""
    return rlinit.Hardware.pipeline(k, bandwidth=1.0) if dataset == "regal" else rlinit.Hardware.edge_tpus(k)


def load(dataset: str, index: int) -> rlinit.Graph:
    """Return one graph of a data set."""
    return regal.generate(index) if dataset == "regal" else imagenet.load(imagenet.NAMES[index])


def run(dataset: str, index: int, k: int, limit_s: float, bounds: tuple[str, ...]) -> dict[str, Any]:
    """Return everything measured on one (graph, k)."""
    graph = load(dataset, index)
    hardware = hardware_for(dataset, k)
    plan, seconds = timed(lambda: rlinit.schedule(graph, hardware, time_limit_s=limit_s))
    row: dict[str, Any] = {"graph": graph.name, "n": graph.num_ops, "k": k, "value": plan.value, "bound": plan.bound}
    row |= {"seconds": seconds, "status": plan.status, "source": plan.bound_source, "found_by": plan.method}
    row["bounds"] = {}
    for name in bounds:
        proven = rlinit.bound(graph, hardware, method=name, time_limit_s=limit_s)
        row["bounds"][name] = {"bound": proven.value, "seconds": proven.seconds}
    row["heuristics"] = {}
    for name in HEURISTICS if bounds else ():
        found, spent = timed(rlinit.schedule, graph, hardware, method=name, time_limit_s=limit_s)
        row["heuristics"][name] = {"value": found.value, "seconds": spent}
    row["best"] = min([plan.value, *(h["value"] for h in row["heuristics"].values())])
    return row


def main() -> None:
    """Run one data set, print both sides, write data and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=("regal", "zoo"), default="regal")
    parser.add_argument("--graphs", type=int, default=10)
    parser.add_argument("--stages", type=int, nargs="*", default=list(STAGES))
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    parser.add_argument("--only-schedule", action="store_true", help="leave out the single bounds and heuristics")
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    count = min(arguments.graphs, len(imagenet.NAMES)) if arguments.dataset == "zoo" else arguments.graphs
    bounds = () if arguments.only_schedule else BOUND_NAMES
    tasks = [(arguments.dataset, i, k, arguments.time_limit_s, bounds) for k in arguments.stages for i in range(count)]
    rows = []
    for task in tasks:
        rows.append(run(*task))
        print(rows[-1], flush=True)
    report(rows, arguments.stages, f"{arguments.dataset}: bound over best value, geometric means of {count} graphs")
    save(
        f"mtpp_{arguments.dataset}{'_bounds' if bounds else ''}",
        rows,
        graphs=count,
        time_limit_s=arguments.time_limit_s,
        processor_time=arguments.processor_time,
    )
    if bounds:
        figure_four(rows, arguments.stages, arguments.dataset)


def report(rows: list[dict[str, Any]], stages: list[int], title: str) -> None:
    """Print Tables 1 and 3 (bounds), Table 2 (orders) and how many were proven optimal."""
    by_k = {k: [row for row in rows if row["k"] == k] for k in stages}
    table = [
        [name, *(geometric_mean(r["bounds"][name]["bound"] / r["best"] for r in by_k[k]) for k in stages)]
        for name in (BOUND_NAMES if rows[0]["bounds"] else ())
    ]
    table.append(["schedule()", *(geometric_mean(r["bound"] / r["best"] for r in by_k[k]) for k in stages)])
    table.append(
        ["  proven optimal", *(f"{sum(r['status'] == 'optimal' for r in by_k[k])}/{len(by_k[k])}" for k in stages)]
    )
    for name, values in PAPER.items():
        table.append([f"paper (REGAL): {name}", *(dict(zip(STAGES, values, strict=True)).get(k, "") for k in stages)])
    print_table(title, ["bound", *(f"k={k}" for k in stages)], table)
    if not rows[0]["heuristics"]:
        return
    orders = [
        [
            name,
            *(
                geometric_mean(r["heuristics"][name]["value"] / r["bounds"]["simple"]["bound"] for r in by_k[k])
                for k in stages
            ),
        ]
        for name in HEURISTICS
    ]
    orders.append(
        ["schedule()", *(geometric_mean(r["value"] / r["bounds"]["simple"]["bound"] for r in by_k[k]) for k in stages)]
    )
    for name, values in PAPER_ORDERS.items():
        orders.append(
            [f"paper (production): {name}", *(dict(zip(STAGES, values, strict=True)).get(k, "") for k in stages)]
        )
    print_table("value over the simple bound (Table 2)", ["order", *(f"k={k}" for k in stages)], orders)


def figure_four(rows: list[dict[str, Any]], stages: list[int], dataset: str) -> None:
    """Draw the seconds of heuristics and bounds against graph size."""
    import matplotlib.pyplot as plt

    shown = [k for k in stages if k in (2, 16, 64)] or stages[:3]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4.5 * len(shown), 4), layout="constrained", sharey=True, squeeze=False
    )
    for axis, k in zip(axes[0], shown, strict=True):
        mine = [row for row in rows if row["k"] == k]
        for name in ("natural", "brkga", "anneal"):
            axis.semilogy(
                [r["n"] for r in mine], [r["heuristics"][name]["seconds"] for r in mine], "^", label=name, ms=4
            )
        for name in BOUND_NAMES[1:]:
            axis.semilogy(
                [r["n"] for r in mine], [max(r["bounds"][name]["seconds"], 1e-5) for r in mine], "o", label=name, ms=4
            )
        axis.semilogy([r["n"] for r in mine], [r["seconds"] for r in mine], "kx", label="schedule()")
        axis.set(xlabel="ops", title=f"k = {k}")
    axes[0][0].set_ylabel("seconds")
    axes[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(f"mtpp_{dataset}_figure_4", figure)


if __name__ == "__main__":
    main()
