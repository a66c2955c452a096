"""Inc-ILP: Table I, Table II, Figures 7 and 8 on the ten ImageNet graphs, k = 4, 5, 6, objective `memory`.

The peer is the cold full ILP on SCIP, all three levels, in the same process on the same core. The paper's own
figures (over CPLEX) are printed beside ours.

Run as ``python -m benchmarks.papers.inc_ilp [--cold-limit-s S] [--graphs NAME ...]``.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from typing import Any

import rlinit
from benchmarks.record import geometric_mean, print_table, save, save_figure, timed
from rlinit.datasets.zoo import imagenet

STAGES = (4, 5, 6)
GAMMAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
PAPER_SPEEDUP = {4: 54, 5: 128, 6: 115}


def run_auto(graph: rlinit.Graph, hardware: rlinit.Hardware) -> tuple[rlinit.Plan, float]:
    """Return the default plan and the median seconds of five runs in a warm process."""
    plan, _ = timed(lambda: rlinit.schedule(graph, hardware, objective="memory"))
    runs = [timed(lambda: rlinit.schedule(graph, hardware, objective="memory"))[1] for _ in range(5)]
    return plan, statistics.median(runs)


def run_cold(graph: rlinit.Graph, hardware: rlinit.Hardware, limit_s: float) -> tuple[rlinit.Plan, float]:
    """Return the cold full ILP's plan and seconds."""
    return timed(rlinit.schedule, graph, hardware, objective="memory", method="milp", time_limit_s=limit_s)


def run_windows(graph: rlinit.Graph, hardware: rlinit.Hardware, optimum: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return value, optimality and seconds of coarse start + one window + SCIP for every gamma (ideals off)."""
    rows = []
    for gamma in GAMMAS:
        plan, seconds = timed(
            rlinit.schedule, graph, hardware, objective="memory", method="warm", agent="natural", window=gamma
        )
        assert plan.values is not None
        rows.append({"gamma": gamma, "values": plan.values, "optimal": plan.values == optimum, "seconds": seconds})
    return rows


METHODS: dict[str, dict[str, Any]] = {
    "exact: cold full ILP on SCIP": {"method": "milp"},
    "heuristic: BRKGA over orders": {"method": "brkga"},
    "coarse only: sliced natural order": {"method": "natural"},
    "coarse + window (gamma 10) on SCIP": {"method": "warm", "agent": "natural", "window": 10},
    "schedule(), proof included": {},
}


def table_one() -> list[dict[str, Any]]:
    """Return seconds, peak memory and repeatability of each kind of method on ResNet152, k = 4 (Table I)."""
    graph, hardware = imagenet.load("ResNet152"), rlinit.Hardware.edge_tpus(4)
    rows: list[dict[str, Any]] = []
    for name, arguments in METHODS.items():
        plan, _ = timed(rlinit.schedule, graph, hardware, objective="memory", **arguments)
        again, seconds = timed(rlinit.schedule, graph, hardware, objective="memory", **arguments)
        row: dict[str, Any] = {"method": name, "seconds": seconds, "peak_mb": plan.value / 1e6, "status": plan.status}
        rows.append(row | {"deterministic": plan.assignment == again.assignment})
    fastest = min(row["seconds"] for row in rows)
    return [row | {"relative": row["seconds"] / fastest} for row in rows]


def table_two() -> list[dict[str, Any]]:
    """Return |V|, deg(V) and depth of the ten graphs (Table II)."""
    rows = []
    for name in imagenet.TABLE_II:
        graph = imagenet.load(name)
        degree = max(len(graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]) for v in range(graph.num_ops))
        rows.append({"graph": name, "V": graph.num_ops, "deg": degree, "depth": graph.depth - 1})
    return rows


def main() -> None:
    """Run everything, print both sides, write data and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cold-limit-s", type=float, default=600.0)
    parser.add_argument("--graphs", nargs="*", default=list(imagenet.TABLE_II))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.graphs:
        graph = imagenet.load(name)
        for k in STAGES:
            hardware = rlinit.Hardware.edge_tpus(k)
            plan, seconds = run_auto(graph, hardware)
            assert plan.values is not None
            cold, cold_s = run_cold(graph, hardware, arguments.cold_limit_s)
            rows.append(
                {
                    "graph": name,
                    "k": k,
                    "status": plan.status,
                    "values": plan.values,
                    "proof": plan.bound_source,
                    "seconds": seconds,
                    "cold_status": cold.status,
                    "cold_values": cold.values,
                    "cold_seconds": cold_s,
                    "speedup": cold_s / seconds,
                    "windows": run_windows(graph, hardware, plan.values),
                }
            )
            print(f"{name} k={k}: {plan.status} {seconds:.4f} s; cold ILP {cold.status} {cold_s:.2f} s", flush=True)
    first = table_one()
    print_table(
        "Inc-ILP Table I, ResNet152, k = 4 (the paper: exact 268x, heuristic 66x, RL only 1x, RL + ILP 5.5x)",
        ["method", "seconds", "peak MB", "status", "deterministic", "relative"],
        (row.values() for row in first),
    )
    report(rows)
    save(
        "inc_ilp",
        {"runs": rows, "table_1": first, "table_2": table_two()},
        cold_limit_s=arguments.cold_limit_s,
        gammas=GAMMAS,
    )


def report(rows: list[dict[str, Any]]) -> None:
    """Print the tables and draw the figures."""
    print_table("Inc-ILP Table II", ["graph", "|V|", "deg(V)", "depth"], (r.values() for r in table_two()))
    header = ["graph", "k", "status", "proof", "ours s", "cold ILP s", "cold status", "speed-up", "gamma to optimum"]
    print_table(
        "memory: ours against the cold full ILP on SCIP",
        header,
        (
            [r["graph"], r["k"], r["status"], r["proof"], r["seconds"], r["cold_seconds"], r["cold_status"]]
            + [r["speedup"], converges_at(r)]
            for r in rows
        ),
    )
    seconds = [r["seconds"] for r in rows]
    optimal = sum(r["status"] == "optimal" for r in rows)
    print(f"optimal on all three levels: {optimal} of {len(rows)}")
    print(f"seconds: median {statistics.median(seconds):.4f}, worst {max(seconds):.4f}")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    for k in STAGES:
        mean = geometric_mean(r["speedup"] for r in rows if r["k"] == k)
        print(f"k={k}: geometric-mean speed-up {mean:.0f}x (the paper, over CPLEX: {PAPER_SPEEDUP[k]}x)")
    print(f"all: geometric-mean speed-up {geometric_mean(r['speedup'] for r in rows):.0f}x")
    figure_seven(rows)
    figure_eight(rows)


def converges_at(row: dict[str, Any]) -> str:
    """Return the smallest gamma from which every wider window is optimal."""
    good = [w["gamma"] for w in row["windows"]]
    for window in reversed(row["windows"]):
        if not window["optimal"]:
            return str(next((g for g in good if g > window["gamma"]), f"> {good[-1]}"))
    return str(good[0])


def figure_seven(rows: list[dict[str, Any]]) -> None:
    """Draw the mean speed-up of window + SCIP over the cold ILP and the share of optima, against gamma."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for k in STAGES:
        mine = [r for r in rows if r["k"] == k]
        speed = [
            geometric_mean(r["cold_seconds"] / r["windows"][i]["seconds"] for r in mine) for i in range(len(GAMMAS))
        ]
        share = [statistics.fmean(r["windows"][i]["optimal"] for r in mine) for i in range(len(GAMMAS))]
        axes[0].semilogy(GAMMAS, speed, "o-", label=f"k = {k}")
        axes[1].plot(GAMMAS, [100 * s for s in share], "o-", label=f"k = {k}")
        axes[0].axhline(PAPER_SPEEDUP[k], linestyle=":", color="grey")
    axes[0].set(
        xlabel="gamma", ylabel="speed-up over the cold ILP", title="window + SCIP (dotted: the paper at gamma 10)"
    )
    axes[1].set(xlabel="gamma", ylabel="% optimal on all three levels", title="share of the ten graphs at the optimum")
    for axis in axes:
        axis.legend()
    save_figure("inc_ilp_figure_7", figure)


def figure_eight(rows: list[dict[str, Any]]) -> None:
    """Draw the peak-memory gap to the optimum of each graph against gamma."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(STAGES), figsize=(13, 4), layout="constrained", sharey=True)
    for axis, k in zip(axes, STAGES, strict=True):
        for row in (r for r in rows if r["k"] == k):
            gaps = [100 * (w["values"][0] / row["values"][0] - 1) for w in row["windows"]]
            axis.plot(GAMMAS, gaps, ".-", label=row["graph"])
        axis.set(xlabel="gamma", title=f"k = {k}")
    axes[0].set_ylabel("peak memory over the optimum, %")
    axes[-1].legend(fontsize=7)
    save_figure("inc_ilp_figure_8", figure)


if __name__ == "__main__":
    main()
