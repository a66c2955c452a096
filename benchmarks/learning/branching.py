"""How much the order of branching matters: what is explored to a proof, by several orders over that set by hand.

A learned order could gain no more than the best of them in hindsight. SCIP branches on the program of stages (its own
rule; here ops by a given order instead). Only problems on which all orders end with a proof count.
Run as ``python -m benchmarks.learning.branching [--count N]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.components.time_limits import devices, wide_graph
from benchmarks.learning.protocol import Comparison, compare, print_comparisons
from benchmarks.record import count_processor_time, save
from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.exact.stages.milp import pipeline as pipeline_milp
from rlinit.heuristics.stages import anneal
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageProblem

_SEEDS = range(3)
_MOST_S = 20.0
"""Seconds after which a problem does not count."""

_BELOW = 1e-6
"""Share of the optimum by which a trial that is to be refuted lies below it."""

Work = dict[str, float]
"""What is explored to a proof by order, at least 1; the first order is that of the library."""


def programs(count: int) -> Iterator[tuple[str, Work]]:
    """Yield nodes of SCIP on the program of stages, 14 to 16 ops in three stages, given an optimum or close to it."""
    build = pipeline_milp._build

    def nodes(problem: StageProblem, start: Any, rank: IntArray | None) -> float:
        def ranked(*given: Any) -> Any:
            model = build(*given)
            if model is not None and rank is not None:
                for (v, _), handle in model.nodes.y.items():
                    model.linear.priority[handle] = 1 + int(rank[v])
            return model

        with patch.object(pipeline_milp, "_build", ranked):
            found = pipeline_milp.solve_pipeline_milp(problem, budget=Budget(_MOST_S), start=start)
        return float(max(found.work, 1)) if found.status == "optimal" else np.inf

    for seed in range(count):
        problem = lower_stages(wide_graph(14 + seed % 3, 1, seed=seed), devices(3, 1), "pipeline").problem
        known = anneal(problem, seed=0, evaluations=200_000)
        n, size = problem.num_nodes, problem.work_s[0].argsort().argsort()
        place = np.empty(n, np.int64)
        place[problem.order] = np.arange(n)
        assert known is not None
        row = {"by hand": nodes(problem, known[0], None), "largest first": nodes(problem, known[0], size)}
        row |= {"smallest first": nodes(problem, known[0], n - 1 - size)}
        row |= {"first to last": nodes(problem, known[0], n - 1 - place)}
        row |= {"inmost first": nodes(problem, known[0], np.minimum(place, n - 1 - place))}
        for other in _SEEDS:
            rank = np.random.default_rng(other).permutation(n)
            row[f"at random {other}"] = nodes(problem, known[0], rank)
        yield "stages, SCIP", row


def judge(rows: list[tuple[str, Work]]) -> list[Comparison]:
    """Return each order over that by hand, orders at random by their mean and by the best, and the best of all."""
    found = []
    for family in dict.fromkeys(name for name, _ in rows):
        ended = [work for name, work in rows if name == family and max(work.values()) < np.inf]
        if not ended:
            continue
        by_hand = [work["by hand"] for work in ended]
        sides = {name: [work[name] for work in ended] for name in ended[0] if name[-1] not in "012"}
        drawn = [[work[f"at random {seed}"] for seed in _SEEDS] for work in ended if "at random 0" in work]
        if drawn:
            sides["at random"] = [float(np.exp(np.log(each).mean())) for each in drawn]
            sides["best of those at random"] = [min(each) for each in drawn]
        sides["best in hindsight"] = [min(v for k, v in work.items()) for work in ended]
        found += [compare(family, f"{name} / by hand", ours, by_hand) for name, ours in sides.items()][1:]
    return found


def main() -> None:
    """Ask, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=16, help="problems of each search")
    count = parser.parse_args().count
    count_processor_time()
    rows: list[tuple[str, Work]] = []
    searches: tuple[Callable[[int], Iterator[tuple[str, Work]]], ...] = (programs,)
    for search in searches:
        for row in search(count):
            print(*row, flush=True)
            rows.append(row)
    found = judge(rows)
    print_comparisons("explored to a proof", found)
    save("learning_branching", [asdict(one) for one in found], count=count)


if __name__ == "__main__":
    main()
