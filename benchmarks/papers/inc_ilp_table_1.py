"""Inc-ILP's Table I for every graph: the agent alone, agent and exact, heuristics alone, heuristics and exact, exact.

A part of `benchmarks.components.agent_stages`. No run has a time limit, so all should repeat themselves; whether they
do is tried: every method runs twice. SCIP alone, which takes longer than all else together, runs on the fewest stages
only, and a second time only where the first took less than `_AGAIN_S`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import rlinit
from benchmarks.record import geometric_mean, print_table
from rlinit.agent.stages.decoding import OrderProposer, decode_stages
from rlinit.datasets.zoo import imagenet
from rlinit.plan import Plan
from rlinit.stages.lowering import lower_stages

__all__ = ["STAGES", "cpu_timed", "report_table_1", "run_table_1"]

STAGES = (4, 5, 6)

_SCIP = "exact: SCIP, cold"

_AGAIN_S = 2.0

_METHODS: dict[str, tuple[str, str]] = {
    "agent, 16 orders": ("agent", "stages"),
    "agent + windows on SCIP": ("warm", "stages"),
    "natural order": ("natural", "auto"),
    "natural order + windows on SCIP": ("warm", "natural"),
    "annealing": ("anneal", "auto"),
    "exact: ideals": ("ideals", "auto"),
    _SCIP: ("milp", "auto"),
}
"""(method, agent) of `rlinit.schedule`."""


def cpu_timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a call's result, its wall-clock seconds and its CPU seconds, which other programs do not lengthen."""
    started, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - started, time.process_time() - cpu


def run_table_1(agent: OrderProposer) -> list[dict[str, Any]]:
    """Return value, seconds, and whether a second run gives the same schedule, of each method on each graph and k."""
    rows: list[dict[str, Any]] = []
    for name in imagenet.TABLE_II:
        for k in STAGES:
            rows += _compare(agent, name, k)
        print(f"table 1: {name} done", flush=True)
    return rows


def _compare(agent: OrderProposer, name: str, k: int) -> list[dict[str, Any]]:
    """Return the rows of one graph on k stages."""
    graph, hardware = imagenet.load(name), rlinit.Hardware.edge_tpus(k)
    optimum = rlinit.schedule(graph, hardware, objective="memory", method="ideals")
    if optimum.values is None or optimum.status != "optimal":
        raise SystemExit(f"{name}, k = {k}: the ideals prove no optimum, which all else is compared with")

    def greedy() -> Any:
        found = decode_stages(agent, lower_stages(graph, hardware, "memory").problem)
        if found is None:
            raise SystemExit(f"{name}, k = {k}: the agent's order cannot be sliced")
        return found

    def planned(method: str, start: str) -> Plan:
        return rlinit.schedule(graph, hardware, objective="memory", method=method, agent=start)

    calls: dict[str, Callable[[], Any]] = {"agent, greedy": greedy}
    for label, (method, start) in _METHODS.items():
        if label == _SCIP and k > STAGES[0]:
            continue
        calls[label] = lambda m=method, s=start: planned(m, s)  # type: ignore[misc]
    rows = []
    for label, call in calls.items():
        found, wall_s, cpu_s = cpu_timed(call)
        row: dict[str, Any] = {"graph": name, "n": len(graph.names), "k": k, "method": label, "same": None}
        if label != _SCIP or cpu_s < _AGAIN_S:
            again, wall_again_s, cpu_again_s = cpu_timed(call)
            row["same"] = _choices(again) == _choices(found)
            wall_s, cpu_s = min(wall_s, wall_again_s), min(cpu_s, cpu_again_s)
        values = found.value if label == "agent, greedy" else found.values
        row |= {
            "status": getattr(found, "status", "feasible"),
            "peak_bytes": values[0],
            "gap": 100.0 * (values[0] / optimum.values[0] - 1.0),
            "optimal_peak": values[0] <= optimum.values[0] * (1.0 + 1e-9),
            "all_levels": tuple(values) == optimum.values,
            "seconds": wall_s,
            "cpu_s": cpu_s,
        }
        rows.append(row)
    return rows


def _choices(found: Any) -> Any:
    """Return which stage each op has, of a plan or of a decoded schedule."""
    return found.assignment if isinstance(found, Plan) else found.assignment.stage.tolist()


def report_table_1(rows: list[dict[str, Any]]) -> None:
    """Print one line a method, and the paper's example ResNet152 on four stages."""
    for title, chosen in (
        ("Table I on ten ImageNet graphs, k = 4, 5, 6", rows),
        ("Table I on ResNet152, k = 4", [r for r in rows if r["graph"] == "ResNet152" and r["k"] == STAGES[0]]),
    ):
        table = []
        for method in dict.fromkeys(r["method"] for r in chosen):
            mine = [r for r in chosen if r["method"] == method]
            again = [r["same"] for r in mine if r["same"] is not None]
            table.append(
                [
                    method,
                    geometric_mean(r["cpu_s"] for r in mine),
                    max(r["cpu_s"] for r in mine),
                    statistics.fmean(r["gap"] for r in mine),
                    f"{sum(r['optimal_peak'] for r in mine)}/{len(mine)}",
                    f"{sum(r['status'] == 'optimal' for r in mine)}/{len(mine)}",
                    f"{sum(again)}/{len(again)}",
                ]
            )
        header = ["method", "CPU s, geometric mean", "longest", "mean gap %", "optimal peaks", "proven", "same again"]
        print_table(title, header, table)
