"""What a learned part could gain at most: searches and bounds that are told what the best network could say.

Run as ``python -m benchmarks.learning.oracles QUESTION [--count N]``; seconds are of the processor.

========  ============================================================================================================
question  what is known in advance
========  ============================================================================================================
widths    the best of five widths of windows for local search, in hindsight, against the best of five seeds
starts    which of eight drawn placements local search ends best from, by half of its runs, judged by the other half
rows      the rows between ops that bind in the linear program at its end
spectral  the multipliers with which the spectral bound ends
filling   how far up the line an op is in the best known plan, more or less exactly; N wide graphs, REGAL's and lines
========  ============================================================================================================
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

import rlinit
from benchmarks.learning.families import FAMILIES
from benchmarks.learning.protocol import Comparison, compare, print_comparisons
from benchmarks.record import count_processor_time
from rlinit.agent.latency_selection import choose_for_latency
from rlinit.agent.placements.features import observe
from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.datasets.published import assembly_line
from rlinit.datasets.published.location import instances_root
from rlinit.datasets.random import regal
from rlinit.exact.placements.bounds import registry
from rlinit.exact.placements.bounds.lp_relaxation import CutPool
from rlinit.exact.stages.bounds import spectral
from rlinit.heuristics.placements.local_search import search as local_search
from rlinit.heuristics.placements.local_search.search import earliest_finish_start, sweep_placements
from rlinit.heuristics.stages import anneal
from rlinit.heuristics.stages.filling.search import Filler, FillSettings, bisect_from, sliced
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, placement_of
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageProblem

_WORK = 1_500_000
"""Ops that local search places."""

_WIDTHS = (8, 16, 32, 64, 128)
_STARTS, _RUNS = 8, 4
_LONG_S, _SHORT_S = 6.0, (0.1, 1.0)
"""Seconds after which rows and multipliers are final, and after which bounds are compared."""

_MOST_ROUNDS = 60
_MOST_ROWS_OPS, _MOST_SPECTRAL_OPS = 420, 400
_SPREADS, _LOADS = (0.0, 0.05, 0.1, 0.2), (300, 3_000)
"""Deviations of places that are told, and loads of a filling for each op."""

_KNOWN_S = 2.0
"""Seconds that filling and annealing each search the plan that is told."""


def random_problem(
    rng: np.random.Generator, work: FloatArray, kinds: IntArray, reach: int, degree: int, penalty: float
) -> StageProblem:
    """Return a problem whose ops each read up to `degree` of the `reach` before."""
    c, n = work.shape
    readers: dict[int, list[int]] = {}
    for v in range(1, n):
        low = max(0, v - reach)
        for u in (low + rng.permutation(v - low)[: rng.integers(1, degree + 1)]).tolist():
            readers.setdefault(u, []).append(v)
    src = sorted(readers)
    size = rng.uniform(0.2, 1.8, len(src))
    move = np.repeat((size * penalty)[None], c, axis=0)
    return StageProblem(
        objective="pipeline",
        work_s=np.ascontiguousarray(work),
        param_bytes=np.zeros(n),
        tensor_src=np.array(src, np.int64),
        tensor_indptr=np.cumsum([0, *(len(readers[u]) for u in src)]).astype(np.int64),
        tensor_dst=np.array([v for u in src for v in readers[u]], np.int64),
        tensor_bytes=size,
        in_s=move,
        out_s=move.copy(),
        stage_class=kinds,
        memory_bytes=np.full(c, np.inf),
        cache_bytes=np.full(c, np.inf),
        overflow_s_per_byte=np.zeros(c),
        order=np.arange(n, dtype=np.int64),
    )


def _placements(count: int) -> Iterator[PlacementProblem]:
    for name, cases in FAMILIES["latency"].items():
        for case in islice(cases(), count if name != "language models" else 0):
            yield lower_placement(case.graph, case.hardware, "latency", **case.options).problem


def widths(count: int) -> list[Comparison]:
    """Return widths, and the best of them, over widths as they are drawn."""

    def reached(problem: PlacementProblem, span: tuple[int, int], seed: int) -> float:
        start = earliest_finish_start(problem)
        assert start is not None
        search = local_search._Windows(problem, start, partial(makespan, problem))
        rng = np.random.default_rng(seed)
        with patch.object(local_search, "_WIDTHS", span):
            while search.work < _WORK:
                search.step(rng, 1 << 30, None)
        return search.value

    found = [
        (
            [reached(problem, local_search._WIDTHS, seed) for seed in range(5)],
            [reached(problem, (width, width), 0) for width in _WIDTHS],
        )
        for problem in _placements(count)
    ]
    median = [float(np.median(seeds)) for seeds, _ in found]
    rows = [compare("width", str(w), [each[at] for _, each in found], median) for at, w in enumerate(_WIDTHS)]
    rows.append(compare("best of five", "seeds", [min(seeds) for seeds, _ in found], median))
    rows.append(compare("best of five", "widths", [min(each) for _, each in found], median))
    return [*rows, compare("widths / seeds", "", [min(e) for _, e in found], [min(s) for s, _ in found])]


def starts(count: int) -> list[Comparison]:
    """Return starts chosen by some runs of the search, and by their makespans, over the mean start."""
    rows = []
    for per_op in (20, 200):
        by_search, by_value = [], []
        for problem in _placements(count):
            agent = choose_for_latency(problem, "auto").agent
            assert agent is not None
            seen = observe(problem)
            drawn = play(seen.arrays, agent.logits(seen), 1.0, _STARTS, np.random.default_rng(1))
            if not np.isfinite(drawn.value).all():
                continue
            times = [np.repeat(start[:, None], problem.num_devices, axis=1) for start in drawn.start]
            placed = [placement_of(problem, d[:, None], t) for d, t in zip(drawn.device, times, strict=True)]
            ends = np.empty((_STARTS, _RUNS))
            for at, run in np.ndindex(ends.shape):
                moves = per_op * problem.num_ops
                ended = sweep_placements(problem, seed=run, evaluations=moves, start=placed[at])
                assert ended is not None
                ends[at, run] = np.log(makespan(problem, ended))
            chosen, held = ends[:, : _RUNS // 2].mean(axis=1).argmin(), ends[:, _RUNS // 2 :]
            by_search.append(float(np.exp(held[chosen].mean() - held.mean())))
            first = int(np.argmin([makespan(problem, one) for one in placed]))
            by_value.append(float(np.exp(ends[first].mean() - ends.mean())))
        rows.append(compare(f"{per_op} moves an op", "chosen by the search", by_search, [1.0] * len(by_search)))
        rows.append(compare(f"{per_op} moves an op", "chosen by makespan", by_value, [1.0] * len(by_value)))
    return rows


def rows(count: int) -> list[Comparison]:
    """Return bounds of the linear program with its last rows from the start over those without, reciprocals."""
    told: dict[float, list[float]] = {seconds: [] for seconds in _SHORT_S}
    plain: dict[float, list[float]] = {seconds: [] for seconds in _SHORT_S}
    for problem in _placements(count):
        found = sweep_placements(problem, seed=0, budget=Budget(0.5))
        if found is None or problem.num_ops > _MOST_ROWS_OPS:
            continue
        value = makespan(problem, found)
        last = CutPool()
        _program_bound(problem, value, last, _LONG_S)
        for seconds in _SHORT_S:
            pool = CutPool()
            for row in last.rows:
                pool.add(*row)
            told[seconds].append(1.0 / _program_bound(problem, value, pool, seconds))
            plain[seconds].append(1.0 / _program_bound(problem, value, CutPool(), seconds))
    return [compare("rows known", f"after {seconds:g} s", told[seconds], plain[seconds]) for seconds in _SHORT_S]


def _program_bound(problem: PlacementProblem, upper: float, pool: CutPool, seconds: float) -> float:
    """Return the bound of the linear program after some seconds; its rows are left in the pool."""
    joined = registry.JoinedBound(problem, upper, Budget(), with_chain=False)
    joined._pool = pool
    with patch.object(registry, "PASSES", _MOST_ROUNDS):
        joined._relax(Budget(seconds))
    return joined.bound_s


def spectral_start(count: int) -> list[Comparison]:
    """Return spectral bounds from their last multipliers over those from the usual ones, reciprocals."""
    told, plain = [], []
    for cases in FAMILIES["stages"].values():
        for case in islice(cases(), count):
            problem = lower_stages(case.graph, case.hardware, "pipeline").problem
            best = anneal(problem, seed=0, evaluations=100_000)
            if best is None or problem.num_nodes > _MOST_SPECTRAL_OPS:
                continue
            value = best[1][0]
            kept: list[Any] = []
            ascend = spectral._SpectralDual.ascend

            def noting(dual: Any, *given: Any, to: list[Any] = kept, ascend: Any = ascend) -> Any:
                to.append(ascend(dual, *given))
                return to[-1]

            with patch.object(spectral._SpectralDual, "ascend", noting):
                spectral.spectral_bound(problem, upper=value, budget=Budget(_LONG_S))
            if not kept:
                continue
            plain.append(1.0 / spectral.spectral_bound(problem, upper=value, budget=Budget(_SHORT_S[0])))
            with patch.object(spectral._SpectralDual, "start", lambda _, last=kept[-1][0]: last):
                told.append(1.0 / spectral.spectral_bound(problem, upper=value, budget=Budget(_SHORT_S[0])))
    return [compare("multipliers known", f"after {_SHORT_S[0]:g} s", told, plain)]


def _equal_stages(count: int) -> Iterator[tuple[str, StageProblem]]:
    """Yield pipelines of equal devices, tensors of the first ones free."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        work, kinds = 0.05 + rng.random((1, (100, 200, 300)[seed % 3])), np.zeros((8, 16)[seed % 2], np.int64)
        yield "wide graphs", random_problem(rng, work, kinds, 50, 2, (0.0, 0.02)[seed % 2])
    for seed in range(count):
        line = rlinit.Hardware.pipeline((8, 16)[seed % 2], bandwidth=1.0)
        yield "REGAL", lower_stages(regal.generate(0, index=seed), line, "pipeline").problem
    root = instances_root()
    for path in sorted((root / "assembly-line" / "otto-100").glob("*.alb"))[:count] if root else ():
        line = rlinit.Hardware.pipeline(20, bandwidth=1.0)
        yield "lines of 100 tasks", lower_stages(assembly_line.load(path), line, "pipeline").problem


def filling(count: int) -> list[Comparison]:
    """Return what filling reaches with places of the best known plan among half of its priorities, over without."""
    drawn = FillSettings.draw

    def reached(problem: StageProblem, seed: int, loads: int, place: FloatArray | None) -> float:
        def draw(settings: FillSettings, rng: np.random.Generator, *given: Any) -> Any:
            price, rules = drawn(settings, rng, *given)
            if place is not None and rng.random() < 0.5:
                told, share = (1.0 - place, place), rng.choice((0.5, 1.0))
                mixed = [(1 - share) * own.priority + share * early for own, early in zip(rules, told, strict=True)]
                return price, tuple(own._replace(priority=new) for own, new in zip(rules, mixed, strict=True))
            return price, rules

        with patch.object(FillSettings, "draw", draw):
            start = sliced(problem, 0, None)
            found = bisect_from(Filler, problem, start, seed=seed, loads=loads * problem.num_nodes)
        assert found is not None
        return found[1][0]

    rows: dict[tuple[int, float | None], list[float]] = {}
    families, known = [], []
    for at, (family, problem) in enumerate(_equal_stages(count)):
        filled = bisect_from(Filler, problem, None, seed=9, loads=10**12, budget=Budget(_KNOWN_S))
        best = min((f for f in (filled, anneal(problem, seed=9, budget=Budget(_KNOWN_S))) if f), key=lambda f: f[1])
        families.append(family)
        known.append(best[1][0])
        used = np.unique(best[0].stage)
        place = (np.searchsorted(used, best[0].stage) + 0.5) / len(used)
        for loads, spread in product(_LOADS, (None, *_SPREADS)):
            noise = np.random.default_rng(at).standard_normal(problem.num_nodes)
            told = None if spread is None else np.clip(place + spread * noise, 0.0, 1.0)
            values = [reached(problem, seed, loads, told) for seed in range(2)]
            rows.setdefault((loads, spread), []).append(float(np.exp(np.log(values).mean())))
    found = []
    for (loads, spread), ours in rows.items():
        theirs = known if spread is None else rows[loads, None]
        measure = f"{loads} loads, " + ("untold / best known" if spread is None else f"places +-{spread:g} / untold")
        for family in (*dict.fromkeys(families), "all"):
            mine = [i for i, name in enumerate(families) if family in (name, "all")]
            found.append(compare(family, measure, [ours[i] for i in mine], [theirs[i] for i in mine]))
    return found


QUESTIONS: dict[str, Callable[[int], list[Comparison]]] = {
    "widths": widths,
    "starts": starts,
    "rows": rows,
    "spectral": spectral_start,
    "filling": filling,
}


def main() -> None:
    """Ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--count", type=int, default=3, help="problems of each family")
    chosen = parser.parse_args()
    count_processor_time()
    with threadpool_limits(1, "blas"):
        print_comparisons(chosen.question, QUESTIONS[chosen.question](chosen.count))


if __name__ == "__main__":
    main()
