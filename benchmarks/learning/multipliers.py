"""Bounds by dual ascent against those of the linear program, at equal and at unequal times.

The ascent (`flow`) gets 0.1 s of processor time, begun from learned and from plain multipliers; the linear program with
its rows (`relaxation`) gets 1 s, and 0.1 s. The program watches the clock on the wall, so that it is given as much
longer as this process waited for a processor before; what it took is written beside its bound. Every bound is certified
by weak duality. Judged on families that training has nothing of: cells with branches as Moirai measured them, LU, Gauss
and FFT graphs, DIVIML's networks on its three devices, the zoo on Moirai's four GPUs.
Run as ``python -m benchmarks.learning.multipliers``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.families.generated_placements import measured_network, unrelated_machines
from benchmarks.learning.protocol import JUDGE_SEEDS, Comparison, compare, print_comparisons, processor_time
from benchmarks.record import print_table, save
from rlinit.budget import Budget
from rlinit.datasets.random.placement_problems import real_problems, whole_network
from rlinit.datasets.random.randomly_wired import WIRINGS
from rlinit.exact.placements.bounds.flow import FlowBound, FlowStart
from rlinit.exact.placements.bounds.registry import flow_problem, relaxation_bound
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import PlacementProblem
from rlinit.train.multipliers import PLAIN

Family = Iterator[PlacementProblem]


def cells() -> Family:
    """Yield networks of cells with branches on four unlike devices, 200 to 2,000 ops."""
    for seed in JUDGE_SEEDS:
        graph, hardware = measured_network((200, 490, 1_000, 2_000)[seed % 4], seed=seed)
        yield lower_placement(graph, hardware, "latency").problem


def task_graphs() -> Family:
    """Yield LU, Gauss and FFT graphs of 223 to 334 tasks on eight unrelated machines."""
    for seed in JUDGE_SEEDS:
        shape, ccr = ("lu", "gauss", "fft")[seed % 3], (0.1, 1.0)[seed % 2]
        graph, hardware = unrelated_machines(shape, ccr, seed=seed, machines=8)
        yield lower_placement(graph, hardware, "latency").problem


def networks() -> Family:
    """Yield DIVIML's randomly wired networks of 220 to 1,020 ops, whose seeds training never uses."""
    for seed in JUDGE_SEEDS:
        modules, dependence = (10, 20, 30)[seed % 3], ("weak", "strong")[seed % 2]
        yield whole_network(WIRINGS[seed % 3], seed, 1 + seed % 3, dependence, modules=modules)


def zoo() -> Family:
    """Yield networks for ImageNet on Moirai's four GPUs."""
    yield from real_problems(
        [
            "densenet121",
            "densenet169",
            "densenet201",
            "inceptionv3",
            "inceptionresnetv2",
            "resnet101",
            "resnet152",
            "xception",
        ]
    )


FAMILIES: dict[str, Callable[[], Family]] = {"cells": cells, "task graphs": task_graphs, "DIVIML": networks, "zoo": zoo}


def ascent(problem: PlacementProblem, start: FlowStart, limit_s: float) -> float:
    """Return the bound after so many seconds of processor time, the search for weights and windows included."""
    began = time.process_time()
    first = flow_problem(problem, np.inf, Budget(limit_s))
    assert first is not None
    one = FlowBound(problem, first.window, first.weight, start)
    while time.process_time() - began < limit_s:
        one.run(5, Budget())
    return max(first.bound_s, one.bound_s)


class Share:
    """How many seconds pass on the wall for one of processor time, from what was run last."""

    def __init__(self) -> None:
        self.wall_s = self.busy_s = 1e-3

    def run(self, side: Callable[[float], float], limit_s: float) -> tuple[float, float]:
        """Return a side's bound within so many seconds of processor time, about, and those that it took."""
        began = time.perf_counter()
        bound, took = processor_time(lambda: side(limit_s * max(1.0, self.wall_s / self.busy_s)))
        self.wall_s = 0.5 * self.wall_s + time.perf_counter() - began
        self.busy_s = 0.5 * self.busy_s + took
        return bound, took


def row_of(family: str, problem: PlacementProblem, share: Share) -> dict[str, Any]:
    """Return the bounds of all sides on one problem."""
    sides: dict[str, tuple[Callable[[float], float], float]] = {
        "learned 0.1 s": (lambda _: ascent(problem, FlowStart(), 0.1), 0.1),
        "plain 0.1 s": (lambda _: ascent(problem, PLAIN, 0.1), 0.1),
        "program 0.1 s": (lambda limit_s: relaxation_bound(problem, budget=Budget(limit_s)), 0.1),
        "program 1 s": (lambda limit_s: relaxation_bound(problem, budget=Budget(limit_s)), 1.0),
        "learned 1 s": (lambda _: ascent(problem, FlowStart(), 1.0), 1.0),
    }
    row: dict[str, Any] = {"family": family, "ops": problem.num_ops, "devices": problem.num_devices}
    for name, (side, limit_s) in sides.items():
        row[name], row[f"{name}: took"] = share.run(side, limit_s)
    return row


def comparisons(rows: list[dict[str, Any]]) -> list[Comparison]:
    """Return what is compared; reciprocals of bounds, so that small is good."""
    found = []
    for family in [*FAMILIES, "all"]:
        mine = [row for row in rows if family in (row["family"], "all")]
        for ours, theirs in (
            ("learned 0.1 s", "program 1 s"),
            ("learned 0.1 s", "program 0.1 s"),
            ("learned 0.1 s", "plain 0.1 s"),
            ("learned 1 s", "program 1 s"),
        ):
            sides = [[1.0 / row[name] for row in mine] for name in (ours, theirs)]
            if mine:
                found.append(compare(family, f"1 / bound, {ours} over {theirs}", *sides))
    return found


def main() -> None:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    share = Share()
    for family in chosen.families:
        for problem in FAMILIES[family]():
            if not rows:
                row_of(family, problem, share)  # compiles
            rows.append(row_of(family, problem, share))
            print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    header = [key for key in rows[0] if not key.endswith("took")]
    print_table("bounds in seconds", header, ([row[key] for key in header] for row in rows))
    found = comparisons(rows)
    print_comparisons("the ascent against the linear program", found)
    save("learning_multipliers", rows, families=chosen.families, comparisons=[asdict(one) for one in found])


if __name__ == "__main__":
    main()
