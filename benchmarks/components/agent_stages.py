"""The stage agent: alone, against heuristics at equal time, as a start for windows and proofs, on larger graphs.

Everything runs on one thread. Synthetic graphs are of seeds that training and validation never use, and the ImageNet
graphs are never trained on. Optima are proven by dynamic programming over ideals. Orders drawn at random and by the
agent are sliced by the same compiled kernel.

Run as ``python -m benchmarks.components.agent_stages [--parts imagenet synthetic gamma proof sizes table1]
[--checkpoint NAME]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import rlinit
from benchmarks.papers.inc_ilp_table_1 import STAGES, cpu_timed, report_table_1, run_table_1
from benchmarks.record import geometric_mean, print_table, save, save_figure, timed
from rlinit.agent.selection import find_checkpoint, load_stage_agent
from rlinit.agent.stages.decoding import OrderProposer, Proposal, decode_stages
from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.datasets.zoo import imagenet
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.heuristics.stages.slicing.orders import brkga, natural
from rlinit.kernels.stages.rollouts import sample_orders
from rlinit.stages.batch import StageBatch
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageProblem, Value

PARTS = ("imagenet", "synthetic", "gamma", "proof", "sizes", "table1")
PROOF_STARTS = {4: ("stages", "natural", "anneal", "brkga"), 6: ("stages", "natural", "anneal")}
"""Stages and starts of the proof part; BRKGA alone takes longer there than everything else together."""
GAMMAS = (0, 1, 2, 4, 8, 12)
PAPER_RL_GAPS = {4: 1.88, 5: 1.12, 6: 4.50}
"""Mean peak-memory gap of Inc-ILP's agent alone, in percent."""
TEST_SEED = (1 << 62) + 1_000_000
IDEAL_CAP = 100_000

TESTS = {
    "like networks, pipeline": ProblemParams(
        memory_share=0.0, cache_share=0.0, least_power=1.0, wide_share=0.0, shuffled_share=0.0
    ),
    "wide, pipeline": ProblemParams(memory_share=0.0, cache_share=0.0, wide_share=1.0, shuffled_share=0.0),
    "wide, memory": ProblemParams(memory_share=1.0, wide_share=1.0, shuffled_share=0.0),
}


class EvenOrders:
    """Orders drawn evenly among the ready ops at every step: random-T with the agent's own evaluator."""

    def propose(self, problem: StageProblem, width: int, seed: int) -> Proposal:
        """Return drawn orders."""
        n = problem.num_nodes
        orders: IntArray = np.empty((width, n), np.int64)
        sample_orders(np.zeros(n), *StageBatch.of_problem(problem).precedence, width, seed, orders)
        return Proposal(orders, np.zeros(n))


def seconds_of(call: Callable[[], object], runs: int = 5) -> float:
    """Return the least seconds of some runs after one that is not counted: what it costs on an idle machine."""
    call()
    return min(timed(call)[1] for _ in range(runs))


def value_of(found: Any) -> Value:
    """Return the value of a decoded schedule or of a heuristic's result."""
    assert found is not None
    value: Value = found.value if hasattr(found, "value") else found[1]
    return value


def run_imagenet(agent: OrderProposer) -> list[dict[str, Any]]:
    """Return the peak-memory gaps of the greedy agent, of 16 and 64 orders, and of the natural order; milliseconds."""
    rows = []
    for name in imagenet.TABLE_II:
        for k in STAGES:
            problem = lower_stages(imagenet.load(name), rlinit.Hardware.edge_tpus(k), "memory").problem
            exact = solve_ideals(problem, 2_000_000)
            assert exact is not None
            assert exact.value is not None
            row: dict[str, Any] = {"graph": name, "n": problem.num_nodes, "k": k, "optimum": exact.value}
            for label, width in (("greedy", 1), ("s16", 16), ("s64", 64)):
                value = value_of(decode_stages(agent, problem, width))
                row[label] = {
                    "value": value,
                    "gap": 100.0 * (value[0] / exact.value[0] - 1.0),
                    "all_levels": value == exact.value,
                    "ms": 1e3 * seconds_of(partial(decode_stages, agent, problem, width)),
                }
            row["natural_gap"] = 100.0 * (value_of(natural(problem))[0] / exact.value[0] - 1.0)
            rows.append(row)
    return rows


def run_synthetic(agent: OrderProposer, count: int) -> list[dict[str, Any]]:
    """Return mean gaps to the optimum on 30-op graphs: greedy, 64 orders, and others at the time of 64 orders."""
    rows = []
    for i, (name, params) in enumerate(TESTS.items()):
        # Many small batches, so that wide graphs of all kinds are there.
        problems = [p for j in range(count // 4) for p in _problems(params, TEST_SEED + 10_000 * i + j, 30, 4)]
        measured = [entry for problem in problems if (entry := compare(agent, problem)) is not None]
        for label in measured[0]:
            gaps = [entry[label][0] for entry in measured]
            rows.append(
                {
                    "test": name,
                    "graphs": len(gaps),
                    "method": label,
                    "mean_gap": statistics.fmean(gaps),
                    "worst_gap": max(gaps),
                    "optimal": statistics.fmean(gap < 1e-7 for gap in gaps),
                    "ms": 1e3 * statistics.median(entry[label][1] for entry in measured),
                }
            )
    return rows


def compare(agent: OrderProposer, problem: StageProblem) -> dict[str, tuple[float, float]] | None:
    """Return each method's (gap to the optimum in percent, seconds); None where the optimum is out of reach."""
    exact = solve_ideals(problem, IDEAL_CAP)
    if exact is None or exact.value is None:
        return None
    optimum, found = exact.value[0], {}

    def note(label: str, call: Callable[[], Any]) -> float:
        result, seconds = timed(call)
        found[label] = (100.0 * (value_of(result)[0] / optimum - 1.0), seconds)
        return seconds

    note("natural", lambda: natural(problem))
    note("agent, greedy", lambda: decode_stages(agent, problem))
    limit_s = note("agent, 64 orders", lambda: decode_stages(agent, problem, 64))
    note("random-64, same kernel", lambda: decode_stages(EvenOrders(), problem, 64))
    note("random-T, equal time", lambda: draw_until(problem, limit_s))
    note("BRKGA, equal time", lambda: brkga(problem, seed=0, evaluations=400, budget=Budget(limit_s)))
    note("BRKGA, 400 orders", lambda: brkga(problem, seed=0, evaluations=400))
    return found


def _problems(params: ProblemParams, seed: int, num_nodes: int, count: int) -> list[StageProblem]:
    batch = draw_problems(params, seed, num_nodes, count)
    return [batch.problem(g) for g in range(count)]


def draw_until(problem: StageProblem, seconds: float) -> Any:
    """Return the best of evenly drawn orders, sixteen at a time until the time is over."""
    end = time.perf_counter() + seconds
    best, seed = None, 0
    while best is None or time.perf_counter() < end:
        found = decode_stages(EvenOrders(), problem, 16, seed=seed)
        seed += 1
        if best is None or (found is not None and found.value < best.value):
            best = found
    return best


def run_gamma(agent: OrderProposer, k: int, limit_s: float, names: list[str]) -> list[dict[str, Any]]:
    """Return, for each start and gamma, how many graphs window + SCIP takes to the optimal peak, and the seconds."""
    rows = []
    for name in names:
        graph, hardware = imagenet.load(name), rlinit.Hardware.edge_tpus(k)
        optimum = rlinit.schedule(graph, hardware, objective="memory").values
        assert optimum is not None
        _, equal_s = timed(rlinit.schedule, graph, hardware, objective="memory", method="agent")
        for label in ("agent", "natural", "random", "brkga"):
            limit = equal_s if label in ("random", "brkga") else None
            start = rlinit.schedule(graph, hardware, objective="memory", method=label, time_limit_s=limit)
            for gamma in GAMMAS:
                plan, seconds = timed(
                    rlinit.schedule,
                    graph,
                    hardware,
                    objective="memory",
                    agent=start,
                    method="warm",
                    window=gamma,
                    time_limit_s=limit_s,
                )
                assert plan.values is not None
                row: dict[str, Any] = {"graph": name, "k": k, "start": label, "gamma": gamma, "seconds": seconds}
                row["gap"] = 100.0 * (plan.values[0] / optimum[0] - 1.0)
                row["optimal_peak"] = plan.values[0] <= optimum[0] * (1.0 + 1e-9)
                row["optimal"] = plan.values == optimum
                rows.append(row)
        print(f"gamma: {name} done", flush=True)
    return rows


def run_proof(limit_s: float, count: int) -> list[dict[str, Any]]:
    """Return what a start buys: seconds until the optimal schedule is found, and until SCIP has proven it."""
    rows = []
    for name in imagenet.TABLE_II[:count]:
        for k, starts in PROOF_STARTS.items():
            graph, hardware = imagenet.load(name), rlinit.Hardware.edge_tpus(k)
            optimum = rlinit.schedule(graph, hardware, objective="memory", method="ideals").values
            for start in starts:
                plan, seconds, cpu_s = cpu_timed(
                    partial(
                        rlinit.schedule,
                        graph,
                        hardware,
                        objective="memory",
                        agent=start,
                        method="warm",
                        window=None,
                        time_limit_s=limit_s,
                    )
                )
                found = [entry.time_s for entry in plan.history if entry.values == optimum]
                rows.append(
                    {
                        "problem": f"{name} k={k}, memory",
                        "start": start,
                        "status": plan.status,
                        "seconds": seconds,
                        "cpu_s": cpu_s,
                        "found_s": found[0] if found else None,
                        "value": plan.value,
                    }
                )
        print(f"proof: {name} done", flush=True)
    return rows


def run_sizes(agent: OrderProposer) -> list[dict[str, Any]]:
    """Return greedy values over the natural order's on synthetic graphs of 30 to 10,000 ops, and seconds."""
    rows = []
    for num_nodes, count in ((30, 60), (100, 40), (300, 16), (1000, 6), (3000, 3), (10_000, 1)):
        for wide in (0.0, 1.0):
            params = dataclasses.replace(TESTS["wide, pipeline"], wide_share=wide, least_stages=4, most_stages=8)
            ratios, spent, drawn = [], [], []
            for problem in (p for j in range(count) for p in _problems(params, TEST_SEED + 77 + j, num_nodes, 1)):
                reference = value_of(natural(problem))[0]
                found, seconds = timed(decode_stages, agent, problem)
                even = decode_stages(EvenOrders(), problem, 1)
                ratios.append(value_of(found)[0] / reference)
                drawn.append(value_of(even)[0] / reference)
                spent.append(seconds)
            rows.append(
                {
                    "ops": num_nodes,
                    "graphs": count,
                    "kind": "wide" if wide else "like networks",
                    "agent_over_natural": geometric_mean(ratios),
                    "random_over_natural": geometric_mean(drawn),
                    "ms": 1e3 * statistics.median(spent),
                }
            )
    return rows


def main() -> None:
    """Run the parts asked for, print tables, write data and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--checkpoint", default="stages")
    parser.add_argument("--graphs", type=int, default=200, help="synthetic graphs of each kind")
    parser.add_argument("--limit-s", type=float, default=20.0, help="seconds of one window or proof")
    parser.add_argument("--names", nargs="*", default=list(imagenet.TABLE_II), help="graphs of the gamma sweep")
    parser.add_argument("--proofs", type=int, default=10, help="graphs of the proof part")
    arguments = parser.parse_args()
    path = find_checkpoint(arguments.checkpoint)
    if path is None:
        parser.error(f"no checkpoint {arguments.checkpoint!r}")
    agent = load_stage_agent(path)
    agent.propose(lower_stages(imagenet.load("Xception"), rlinit.Hardware.edge_tpus(4), "memory").problem, 1, 0)
    calls: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "imagenet": lambda: run_imagenet(agent),
        "synthetic": lambda: run_synthetic(agent, arguments.graphs),
        "gamma": lambda: run_gamma(agent, 6, arguments.limit_s, arguments.names),
        "proof": lambda: run_proof(arguments.limit_s, arguments.proofs),
        "sizes": lambda: run_sizes(agent),
        "table1": lambda: run_table_1(agent),
    }
    results = {part: calls[part]() for part in arguments.parts}
    report(results)
    for part, rows in results.items():
        save(f"agent_stages_{part}", rows, checkpoint=arguments.checkpoint, limit_s=arguments.limit_s)


def report(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the tables and draw the picture of the gamma sweep."""
    if "imagenet" in results:
        report_imagenet(results["imagenet"])
    if "synthetic" in results:
        print_table(
            "30-op graphs: gap to the optimum, %",
            ["test", "graphs", "method", "mean", "worst", "share optimal", "ms"],
            (row.values() for row in results["synthetic"]),
        )
    if "gamma" in results:
        report_gamma(results["gamma"])
    if "proof" in results:
        print_table(
            "time to the proven optimum of the full program on SCIP, by start",
            ["problem", "start", "status", "s", "CPU s", "optimum found, s", "peak bytes"],
            (row.values() for row in results["proof"]),
        )
    if "sizes" in results:
        print_table(
            "trained on 30 to 100 ops; bottleneck over the natural order's (geometric mean)",
            ["ops", "graphs", "kind", "agent, greedy", "one random order", "ms"],
            (row.values() for row in results["sizes"]),
        )
    if "table1" in results:
        report_table_1(results["table1"])


def report_imagenet(rows: list[dict[str, Any]]) -> None:
    """Print the quality of the agent alone."""
    print_table(
        "the agent alone on ImageNet graphs, memory: peak over the optimum, %",
        ["graph", "ops", "k", "greedy", "ms", "16 orders", "ms", "64 orders", "ms", "natural order"],
        (
            [r["graph"], r["n"], r["k"], *(r[s][x] for s in ("greedy", "s16", "s64") for x in ("gap", "ms"))]
            + [r["natural_gap"]]
            for r in rows
        ),
    )
    for k in STAGES:
        mine = [r for r in rows if r["k"] == k]
        means = {s: statistics.fmean(r[s]["gap"] for r in mine) for s in ("greedy", "s16", "s64")}
        nat = statistics.fmean(r["natural_gap"] for r in mine)
        print(
            f"k={k}: mean gap greedy {means['greedy']:.3f}%, 16 orders {means['s16']:.3f}%, 64 {means['s64']:.3f}%, "
            f"natural {nat:.3f}% (the paper's agent: {PAPER_RL_GAPS[k]}%)"
        )
    print(f"greedy: mean {statistics.fmean(r['greedy']['ms'] for r in rows):.2f} ms a graph")


def report_gamma(rows: list[dict[str, Any]]) -> None:
    """Print and draw the share of graphs at the optimal peak, and seconds, against gamma for every start."""
    import matplotlib.pyplot as plt

    starts = list(dict.fromkeys(r["start"] for r in rows))
    table, figure = [], plt.figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for start in starts:
        shares, seconds = [], []
        for gamma in GAMMAS:
            mine = [r for r in rows if r["start"] == start and r["gamma"] == gamma]
            shares.append(100.0 * statistics.fmean(r["optimal_peak"] for r in mine))
            seconds.append(statistics.fmean(r["seconds"] for r in mine))
            gap = statistics.fmean(r["gap"] for r in mine)
            table.append([start, gamma, shares[-1], gap, seconds[-1]])
        left.plot(GAMMAS, shares, "o-", label=start)
        right.semilogy(GAMMAS, seconds, "o-", label=start)
    left.set(xlabel="gamma", ylabel="% of graphs at the optimal peak", title="window + SCIP, ten graphs, k = 6")
    right.set(xlabel="gamma", ylabel="seconds, mean")
    left.legend()
    save_figure("agent_stages_gamma", figure)
    print_table("gamma sweep", ["start", "gamma", "% at the optimal peak", "mean gap %", "s"], table)


if __name__ == "__main__":
    main()
