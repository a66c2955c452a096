"""DIVIML: Tables I, III and IV, Figures 3 to 7, and the thesis's memory study, on a CPU, a T4 and an A100.

Op times of the paper are not published: randomly wired networks are those of `rlinit.datasets.random.randomly_wired`,
mainstream networks the zoo's graphs under the roofline model. The paper's figures are printed beside ours and are not
like for like; all methods of one row run here, on the same graph, with the same seconds where they take any.

Run as ``python -m benchmarks.papers.diviml --part table1|table3|table4|small|zoo|memory [--seeds N] [--seconds S]
[--peer-seconds S] [--processor-time]``. Tables I and IV take hours for ten seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import rlinit
from benchmarks.record import count_processor_time, geometric_mean, print_table, save, save_figure, timed
from rlinit.budget import Budget
from rlinit.cli.warm_up import compile_kernels
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.placements.lowering import lower_placement

GPUS = rlinit.Hardware.preset("cpu-t4-a100")
ROWS: tuple[tuple[int, Literal["strong", "weak"]], ...] = (
    (1, "strong"),
    (2, "strong"),
    (3, "strong"),
    (4, "strong"),
    (2, "weak"),
    (3, "weak"),
    (4, "weak"),
)
HEURISTICS = ("best-device", "met", "greedy", "heft", "ea", "sa")
PAPER_TABLE_1 = {  # best device, MET, greedy, HEFT, EA, SA, MILP, MILP-SPLIT, bound: milliseconds
    (1, "strong"): (211.7, 209.9, 104.4, 99.9, 97.5, 98.9, 80.1, 80.1, 80.1),
    (2, "strong"): (234.9, 219.3, 111.8, 109.3, 103.8, 106.2, 78.9, 79.1, 73.7),
    (3, "strong"): (236.5, 235.4, 114.2, 108.5, 104.7, 106.1, 79.9, 80.3, 68.1),
    (4, "strong"): (250.5, 249.1, 116.3, 111.3, 107.6, 109.5, 79.1, 79.4, 61.3),
    (2, "weak"): (225.2, 223.8, 103.7, 101.7, 97.3, 98.1, 74.3, 77.6, 73.3),
    (3, "weak"): (229.9, 229.3, 107.4, 104.3, 100.9, 103.1, 76.6, 78.7, 71.8),
    (4, "weak"): (242.9, 240.7, 106.8, 104.4, 102.0, 103.6, 71.6, 77.0, 62.1),
}
PAPER_TABLE_4 = {  # best device, MET, greedy, HEFT, EA, SA, MILP, MILP-SPLIT, bound: inputs a second
    (1, "strong"): (54, 56, 74, 75, 84, 87, 114, 135, 164),
    (2, "strong"): (48, 50, 67, 66, 75, 78, 95, 119, 180),
    (3, "strong"): (49, 51, 68, 70, 78, 81, 116, 129, 196),
    (4, "strong"): (47, 48, 65, 67, 76, 79, 73, 126, 209),
    (2, "weak"): (51, 53, 76, 75, 86, 87, 89, 137, 182),
    (3, "weak"): (49, 52, 73, 73, 82, 85, 72, 137, 181),
    (4, "weak"): (47, 50, 72, 74, 82, 84, 65, 138, 207),
}
PAPER_TABLE_3: dict[tuple[int, Literal["strong", "weak"]], int] = {  # MILP's seconds over MILP-SPLIT's
    (5, "strong"): 37,
    (10, "strong"): 48,
    (20, "strong"): 141,
    (5, "weak"): 53,
    (10, "weak"): 54,
    (20, "weak"): 395,
}


def quarters(inputs: int) -> tuple[int, ...]:
    """Return the batch sizes of the paper: L/4, L/2, 3L/4 and L."""
    return tuple(inputs * part // 4 for part in (1, 2, 3, 4))


def place(graph: rlinit.Graph, seconds: float, inputs: int = 1, **more: Any) -> rlinit.Plan:
    """Return a plan for `latency`, or for `throughput` of several inputs."""
    more = {"resident": "tensors"} | more
    if inputs == 1:
        return rlinit.schedule(graph, GPUS, objective="latency", time_limit_s=seconds, **more)
    return rlinit.schedule(graph, GPUS, objective="throughput", inputs=inputs, time_limit_s=seconds, **more)


def peers(graph: rlinit.Graph, inputs: int, seconds: float, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run rival solvers on a graph, each in a process of its own (CP-SAT and HiGHS do not load in one)."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "graph.json")
        graph.save(path)
        for peer in names:
            found[peer] = _peer(peer, path, inputs, seconds)
    return found


def _peer(peer: str, path: str, inputs: int, seconds: float) -> dict[str, Any]:
    code = (
        "import json, sys, rlinit; from rlinit.placements.lowering import lower_placement; "
        f"from benchmarks.peers.{peer} import solve_{peer} as solve; "
        "from benchmarks.papers.diviml import GPUS, quarters; "
        f"inputs = {inputs}; graph = rlinit.load_graph({path!r}); "
        "p = lower_placement(graph, GPUS, 'latency' if inputs == 1 else 'throughput', inputs=inputs).problem; "
        f"r = solve(p, time_limit_s={seconds}); "
        "print(json.dumps({'value': r.value_s, 'bound': r.bound_s, 'seconds': r.seconds, 'status': r.status}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = ended.stdout.strip().splitlines()
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {"value": float("inf"), "bound": 0.0}
    return result


def table(arguments: argparse.Namespace, inputs: int) -> None:
    """Tables I (one input) and IV (several): every method on every kind of network."""
    compile_kernels()
    name = f"diviml_table_{1 if inputs == 1 else 4}" + ("" if inputs in (1, 16) else f"_{inputs}")
    settings = {"seconds": arguments.seconds, "long_seconds": 6 * arguments.seconds, "inputs": inputs}
    rows: list[dict[str, Any]] = []
    sizes = (1,) if inputs == 1 else quarters(inputs)
    wanted = [(*ROWS[at], seed) for seed in range(arguments.seeds) for at in arguments.rows]
    for channels, dependence, seed in wanted:
        graph = rwnn("er", seed=seed, channels=channels, dependence=dependence, batch_sizes=sizes)
        row: dict[str, Any] = {"channels": channels, "dependence": dependence, "seed": seed}
        for method in HEURISTICS:
            row[method] = place(graph, arguments.seconds, inputs, method=method).value
        plan = place(graph, arguments.seconds, inputs)
        row |= {"rlinit": plan.value, "bound": plan.bound}
        if seed < arguments.long_seeds:
            long = place(graph, 6 * arguments.seconds, inputs)
            row |= {"rlinit long": long.value, "bound": max(plan.bound, long.bound), "bound_source": long.bound_source}
            row["gap"] = 1 - row["bound"] / min(plan.value, long.value)
        if arguments.peer_seconds > 0 and seed < arguments.peer_seeds:
            row["peer_seconds"] = arguments.peer_seconds
            row |= peers(graph, inputs, arguments.peer_seconds, arguments.peers)
        rows.append(row)
        print({key: value for key, value in row.items() if not isinstance(value, dict)}, flush=True)
        save(name, rows, seeds=tuple(range(arguments.seeds)), **settings)
    show_table(rows, inputs, arguments.seconds)
    draw_table(name, rows, inputs)


def show_table(rows: list[dict[str, Any]], inputs: int, seconds: float) -> None:
    """Print a table of milliseconds or inputs a second, with the paper's row below each of ours.

    Each cell is over the seeds that have it: long runs and rivals may have been given fewer.
    """

    def shown(seconds_of_all: float) -> float:
        """Return milliseconds for one input, inputs a second for several."""
        return 1e3 * seconds_of_all if inputs == 1 else inputs / seconds_of_all

    columns = [*HEURISTICS, "rlinit", "rlinit long", "bound"]
    rivals = [peer for peer in ("cp_sat", "highs") if any(peer in row for row in rows)]
    table_rows: list[list[object]] = []
    for channels, dependence in ROWS:
        mine = [r for r in rows if (r["channels"], r["dependence"]) == (channels, dependence)]
        if not mine:
            continue
        cells = [_mean_of(shown(r[c]) for r in mine if c in r) for c in columns]
        cells.append(_mean_of((r["gap"] for r in mine if "gap" in r), arithmetic=True))
        cells += [_mean_of(shown(r[p]["value"]) for r in mine if p in r) for p in rivals]
        table_rows.append([f"{channels} {dependence}", len(mine), *cells])
        paper = (PAPER_TABLE_1 if inputs == 1 else PAPER_TABLE_4)[channels, dependence]
        gap = abs(1 - paper[8] / paper[7])
        table_rows.append(["  paper", "", *paper[:6], paper[7], paper[6], paper[8], gap, *("" for _ in rivals)])
    unit = "milliseconds" if inputs == 1 else "inputs a second"
    print_table(
        f"{unit}; rlinit {seconds:g} s and {6 * seconds:g} s (paper: MILP-SPLIT, MILP)",
        ["network", "seeds", *columns, "gap", *rivals],
        table_rows,
    )
    for name in HEURISTICS:
        ratio = geometric_mean(r[name] / r["rlinit"] for r in rows)
        print(f"{name} takes {ratio:.3f} times as long as rlinit in {seconds:g} s (geometric mean)")
    for peer in rivals:
        ratios = [r[peer]["value"] / r["rlinit"] for r in rows if peer in r]
        print(f"{peer} takes {min(ratios):.3f} to {max(ratios):.3f} times as long on {len(ratios)} graphs")


def _mean_of(values: Iterable[float], *, arithmetic: bool = False) -> object:
    """Return the mean of finite values, or a dash where there are none."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "-"
    return float(np.mean(finite)) if arithmetic else geometric_mean(finite)


def draw_table(name: str, rows: list[dict[str, Any]], inputs: int) -> None:
    """Draw each method's makespan over the proven bound."""
    from matplotlib.figure import Figure

    columns = [*HEURISTICS, "rlinit", "rlinit long"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    shown = [key for key in ROWS if any((r["channels"], r["dependence"]) == key for r in rows)]
    for at, column in enumerate(columns):
        heights = [
            geometric_mean(
                r[column] / r["bound"] for r in rows if (r["channels"], r["dependence"]) == key and column in r
            )
            for key in shown
        ]
        axes.bar(np.arange(len(shown)) + (at - 3.5) * 0.11, heights, 0.11, label=column)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_yticks([1, 1.1, 1.2, 1.3, 1.5, 2, 3], ["1", "1.1", "1.2", "1.3", "1.5", "2", "3"], minor=False)
    axes.minorticks_off()
    axes.set_ylim(bottom=0.95)
    axes.set_xticks(range(len(shown)), [f"{c} {d}" for c, d in shown])
    axes.set_ylabel("makespan / proven bound")
    axes.set_title("ten modules of 32 nodes" + ("" if inputs == 1 else f", {inputs} inputs"))
    figure.legend(fontsize=8, ncols=len(columns), loc="outside lower center")
    save_figure(name, figure)


class _Until:
    """Cancels a budget when a schedule is as good as a goal, and remembers when that was."""

    def __init__(self, goal: float, budget: Budget) -> None:
        self.goal, self.budget = goal, budget
        self.reached_s: float | None = None

    def __call__(self, _placement: object, value: float) -> None:
        if self.reached_s is None and value <= self.goal * (1 + 1e-6):
            self.reached_s = self.budget.elapsed_s
            self.budget.cancel()


def table_3(arguments: argparse.Namespace) -> None:
    """Table III: seconds of the split and of the full program to the same value, modules of 10 nodes.

    The split's are the median of three runs, beside the seconds of processor they took: on a machine with other work
    the clock of both sides runs on while neither is running, and the load is recorded. The full program gets at least
    the seconds that the paper's factor stands for.
    """
    from rlinit.exact.placements.milp.solve import solve_placement_milp
    from rlinit.exact.placements.split.solve import solve_split

    rows: list[dict[str, Any]] = []
    for num_modules, dependence in PAPER_TABLE_3:
        channels = 1 if dependence == "strong" else 2
        graph = rwnn(
            "er", seed=0, num_modules=num_modules, nodes_per_module=10, channels=channels, dependence=dependence
        )
        problem = lower_placement(graph, GPUS, "latency").problem
        solve_split(problem, budget=Budget(60), channels=channels)
        split_seconds, cpu_s = [], time.process_time()
        for _ in range(3):
            split, seconds = timed(solve_split, problem, budget=Budget(60), channels=channels)
            split_seconds.append(seconds)
        cpu_s = (time.process_time() - cpu_s) / 3
        split_s = float(np.median(split_seconds))
        assert split.value is not None
        limit_s = max(arguments.peer_seconds, 1.05 * PAPER_TABLE_3[num_modules, dependence] * split_s)
        watch = _Until(split.value, Budget(limit_s))
        full, milp_s = timed(solve_placement_milp, problem, budget=watch.budget, on_solution=watch)
        rows.append(
            {
                "modules": num_modules,
                "channels": channels,
                "dependence": dependence,
                "split_s": split_s,
                "split_cpu_s": cpu_s,
                "split_value": split.value,
                "split_bound": split.bound,
                "split_exact": split.exact,
                "milp_s": watch.reached_s or milp_s,
                "milp_reached": watch.reached_s is not None,
                "milp_value": full.value,
                "load": os.getloadavg()[0],
                "paper_factor": PAPER_TABLE_3[num_modules, dependence],
            }
        )
        print(rows[-1], flush=True)
    save("diviml_table_3", rows, milp_seconds=arguments.peer_seconds)
    print_table(
        "seconds to the split's value (> : not reached), and the best value of the MILP over the split's",
        ["modules", "channels", "split s", "split CPU s", "exact", "MILP s", "MILP / split", "factor", "paper", "load"],
        [
            [
                r["modules"],
                f"{r['channels']} {r['dependence']}",
                r["split_s"],
                r["split_cpu_s"],
                r["split_exact"],
                ("" if r["milp_reached"] else ">") + f"{r['milp_s']:.1f}",
                r["milp_value"] / r["split_value"] if r["milp_value"] is not None else None,
                ("" if r["milp_reached"] else ">") + f"{r['milp_s'] / r['split_s']:.0f}",
                r["paper_factor"],
                r["load"],
            ]
            for r in rows
        ],
    )


def small(arguments: argparse.Namespace) -> None:
    """Ten modules of 10 nodes, one channel: seconds to the proven optimum, beside CP-SAT's result."""
    rows: list[dict[str, Any]] = []
    compile_kernels()
    for kind in ("er", "ws", "ba"):
        for seed in range(arguments.seeds):
            graph = rwnn(kind, seed=seed, nodes_per_module=10)
            plan, seconds = timed(place, graph, arguments.seconds)
            row: dict[str, Any] = {"kind": kind, "seed": seed, "seconds": seconds, "status": plan.status}
            row |= {"value": plan.value, "gap": plan.gap}
            if arguments.peer_seconds > 0:
                row |= peers(graph, 1, arguments.peer_seconds, arguments.peers)
            rows.append(row)
            print(row, flush=True)
    save(
        "diviml_small",
        rows,
        seeds=tuple(range(arguments.seeds)),
        seconds=arguments.seconds,
        peer_seconds=arguments.peer_seconds,
    )
    proven = sum(row["status"] == "optimal" for row in rows)
    print(f"{proven} of {len(rows)} proven optimal, {max(row['seconds'] for row in rows):.1f} s at most")


def zoo(arguments: argparse.Namespace) -> None:
    """Figures 3 and 5: mainstream networks, latency and throughput of 128 inputs."""
    rows: list[dict[str, Any]] = []
    for name in ("vgg16", "resnet50", "mobilenet", "densenet121", "inceptionv3", "inceptionresnetv2", "nasnetmobile"):
        if name not in {n.lower() for n in imagenet.NAMES}:
            continue
        graph = imagenet.load(name)
        for inputs in (1, 128):
            row: dict[str, Any] = {"network": name, "ops": graph.num_ops, "inputs": inputs}
            row |= {h: place(graph, arguments.seconds, inputs, method=h).value for h in HEURISTICS}
            plan = place(graph, arguments.seconds, inputs)
            row |= {"rlinit": plan.value, "bound": plan.bound, "gap": plan.gap, "status": plan.status}
            rows.append(row)
            print(row, flush=True)
    save("diviml_zoo", rows, seconds=arguments.seconds)
    print_table(
        f"milliseconds, {arguments.seconds:g} s each",
        ["network", "inputs", *HEURISTICS, "rlinit", "bound", "gap"],
        [[r["network"], r["inputs"], *(1e3 * r[c] for c in (*HEURISTICS, "rlinit", "bound")), r["gap"]] for r in rows],
    )


def memory(arguments: argparse.Namespace) -> None:
    """Table 5.1 and Figure 5.3 of the thesis: Inception v3, 128 inputs, an A100 limited in batch size or memory."""
    import dataclasses

    graph = imagenet.load("inceptionv3")
    cpu, t4, a100 = GPUS.devices

    def limited(**change: Any) -> rlinit.Hardware:
        sizes = quarters(128)
        devices = [dataclasses.replace(d, batch_sizes=sizes) for d in (cpu, t4)]
        return rlinit.Hardware.mesh([*devices, dataclasses.replace(a100, **{"batch_sizes": sizes, **change})], 31.5e9)

    def solve(hardware: rlinit.Hardware, method: str = "auto") -> rlinit.Plan:
        limits: dict[str, Any] = {"resident": "tensors", "time_limit_s": arguments.seconds}
        return rlinit.schedule(graph, hardware, objective="throughput", inputs=128, method=method, **limits)

    half = limited(batch_sizes=(32, 64))
    rows: list[dict[str, Any]] = []
    for what, plan in (
        ("whole model, best split of each op (bMET)", solve(half, "met")),
        ("batched HEFT", solve(half, "heft")),
        ("data and model parallel (rlinit)", solve(half)),
    ):
        rows.append({"what": what, "makespan_s": plan.value, "inputs_per_s": plan.inputs_per_s, "gap": plan.gap})
    whole = solve(limited(), "best-device").devices[2].held_bytes
    for part in (1.0, 0.8, 0.6, 0.4, 0.2):
        plan = solve(limited(memory_bytes=part * whole))
        rows.append({"memory": part, "makespan_s": plan.value, "inputs_per_s": plan.inputs_per_s, "gap": plan.gap})
    save("diviml_memory", rows, seconds=arguments.seconds)
    table_rows = [
        [r.get("what", f"A100 memory {r.get('memory')}"), 1e3 * r["makespan_s"], r["inputs_per_s"], r["gap"]]
        for r in rows
    ]
    print_table("Inception v3, 128 inputs", ["case", "ms", "inputs a second", "gap"], table_rows)


def main() -> None:
    """Run one part from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("table1", "table3", "table4", "small", "zoo", "memory"), default="table1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--long-seeds", type=int, default=1_000, help="tables I and IV: seeds with six-fold time, too")
    parser.add_argument("--peer-seeds", type=int, default=1_000, help="tables I and IV: seeds that rivals get")
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peer-seconds", type=float, default=60.0)
    parser.add_argument("--peers", nargs="*", default=["cp_sat"], choices=["cp_sat", "highs"])
    parser.add_argument("--rows", type=int, nargs="*", default=list(range(len(ROWS))))
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    if arguments.part in ("table1", "table4"):
        table(arguments, 1 if arguments.part == "table1" else arguments.inputs)
    else:
        {"table3": table_3, "small": small, "zoo": zoo, "memory": memory}[arguments.part](arguments)


if __name__ == "__main__":
    main()
