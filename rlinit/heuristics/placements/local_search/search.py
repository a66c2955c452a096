"""Large-neighbourhood search for placements: annealing in windows of the sequence, forth and back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from rlinit.arrays import NOTABLE, IntArray
from rlinit.budget import TRY_SHARE, UNLIMITED, Budget, WorkShares
from rlinit.heuristics.placements.list_scheduling.heuristics import whole_ops
from rlinit.heuristics.placements.local_search.window_passes import (
    WindowPasses,
    anneal_under_contention,
    search_critical_paths,
)
from rlinit.kernels.orders import kahn
from rlinit.kernels.placements.list_scheduling import upward_rank
from rlinit.placements.arrays import mean_transfer_s
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_of

_MOVES = (800, 20_000)
"""Fewest and most moves in a window; they grow while passes find nothing better."""

_WIDTHS = (8, 64)
"""Narrowest and widest window, in ops; drawn anew, log-uniformly, for each pass."""

_STALLED = 6
"""Passes without improvement after which the moves in a window grow."""

_FIRST_RATE = 200_000.0
"""Evaluations a second that are counted on before the first pass; later, those of the pass before."""

_STEPS = (250, 4_000)
"""Fewest and most steps of a search along critical paths, or timelines under contention; doubled while it finds nothing
better."""

_LEAST_SHARE = 0.08
"""Of all work, what each way to search gets at least."""

_TIMELINE_COST = 30
"""Moves in windows that take about the time of one whole timeline."""

_SPLITS = 2_000
"""Ways to split the shards of an op over devices that are looked at for a start."""


def earliest_finish_start(problem: PlacementProblem) -> Placement | None:
    """Return a placement by earliest finish in the order of upward ranks; None where that fits nowhere.

    Ops stay whole where some device takes all shards in one batch; else every op is split in the way that ends first.

    Parameters
    ----------
    problem
        The problem.
    """
    found = whole_ops(problem, _by_upward_rank(problem))
    return found if found is not None else _split_start(problem)


def _by_upward_rank(problem: PlacementProblem) -> IntArray:
    """Return (n,) ops in a topological order by descending upward rank over the mean times of whole ops."""
    seconds = problem.op_time_s
    able = np.isfinite(seconds)
    mean = np.where(able, seconds, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    rank = upward_rank(problem.order, mean, mean_transfer_s(problem), problem.succ_indptr, problem.succ)
    return kahn(rank, problem.succ_indptr, problem.succ, problem.pred_indptr)


def _split_start(problem: PlacementProblem) -> Placement | None:
    """Split every op over the devices in the way whose slowest batch is fastest, shards in the devices' order."""
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    counts = np.array(list(itertools.islice(_compositions(s, d), _SPLITS)), np.int64)
    slowest = np.full((n, len(counts)), -np.inf)
    for i in range(d):
        slowest = np.maximum(slowest, problem.time_s[:, i, counts[:, i]])
    choice = problem.over_groups(slowest, np.maximum).argmin(axis=1)
    devices_of = np.stack([np.repeat(np.arange(d), count) for count in counts])
    found = placement_of(problem, devices_of[choice], np.zeros((n, d)))
    return found if makespan(problem, found) < np.inf else None


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write `total` as a sum of `parts` integers >= 0, the evenest not first."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def sweep_placements(
    problem: PlacementProblem,
    *,
    seed: int,
    evaluations: int | None = None,
    budget: Budget | None = None,
    start: Placement | None = None,
    fits: Callable[[Placement], bool] | None = None,
    on_better: Callable[[Placement], object] | None = None,
) -> Placement | None:
    """Improve a placement by annealing in windows of its sequence, one after another; never worse than the start.

    What lies before and after a window enters as heads and tails, so a move costs no more than its window. Windows get
    more moves while nothing better is found. Plans as if transfers ran in parallel; where they do not, every pass's
    result is evaluated under the true rules and the best is kept.

    Parameters
    ----------
    seed
        Seed of everything random.
    evaluations
        Most moves in all; None: 2,000 an op, at least 200,000, or until the budget ends if it has a time limit.
    budget
        When to stop.
    start
        Where to begin; None: earliest finish by upward rank.
    fits
        Whether a schedule may count, where the problem's memory says it only about.
    on_better
        Called with every improvement.
    """
    found = start if start is not None else earliest_finish_start(problem)
    if found is None or problem.num_devices == 1:
        return found
    timed = budget is not None and budget.remaining_s < np.inf
    left = evaluations or (UNLIMITED if timed else max(200_000, 2_000 * problem.num_ops))
    search = _Search(problem, found, np.random.default_rng(seed), fits)
    while left > 0 and not (budget is not None and budget.expired):
        limit = left
        if timed and budget is not None:
            limit = min(limit, int(search.rate * TRY_SHARE * budget.remaining_s))
        made, better = search.step(limit, budget)
        left -= made
        if better and on_better is not None:
            on_better(search.found)
    return search.found


class _Windows:
    """Annealing in windows of one schedule, pass after pass: other widths, forwards and back.

    Parameters
    ----------
    problem
        The problem.
    start
        A feasible placement.
    value_of
        Seconds of a placement, ``inf`` where it may not count.
    """

    def __init__(self, problem: PlacementProblem, start: Placement, value_of: Callable[[Placement], float]) -> None:
        self.found, self.value = start, value_of(start)
        self._value_of = value_of
        self.work = 0
        self._problem = problem
        self._passes = self._passes_from(start)
        self._turn, self._moves, self._waited = 0, _MOVES[0], 0

    def restart(self, found: Placement, value: float) -> None:
        """Go on from another schedule."""
        self.found, self.value, self._passes = found, value, self._passes_from(found)

    def _passes_from(self, start: Placement) -> WindowPasses:
        return WindowPasses(self._problem, start)

    def step(self, rng: np.random.Generator, limit: int, budget: Budget | None) -> int:
        """Make a pass of at most about `limit` moves; return the moves made."""
        width = int(np.exp(rng.uniform(*np.log(_WIDTHS))))
        windows = max(1, 2 * self._problem.num_ops // width)
        each = max(1, min(self._moves, limit // windows))
        tried = self._passes.run(rng, self._turn % 2 == 0, width, each, budget)
        self._turn += 1
        self.work += each * windows * min(width, self._problem.num_ops)
        self._keep(tried)
        return each * windows

    def _keep(self, tried: Placement) -> None:
        """Keep what was tried if it is better; give windows more moves where nothing has been for long."""
        current = self._value_of(tried)
        if current == np.inf and self.value < np.inf:
            self._passes = self._passes_from(self.found)
        self._waited = 0 if current < self.value * (1.0 - NOTABLE) else self._waited + 1
        if current < self.value:
            self.found, self.value = tried, current
        if self._waited >= _STALLED:
            self._moves, self._waited = (self._moves * 2 if self._moves * 2 <= _MOVES[1] else _MOVES[0]), 0


class _Search:
    """Ways to search by turns: windows of the best, critical paths, and timelines where transfers exclude others."""

    def __init__(
        self,
        problem: PlacementProblem,
        start: Placement,
        rng: np.random.Generator,
        fits: Callable[[Placement], bool] | None,
    ) -> None:
        self._problem, self._rng, self._fits = problem, rng, fits
        self._best = _Windows(problem, start, self._value_of)
        self._steps = self._timelines = _STEPS[0]
        self._ways: list[Callable[[int, Budget | None], tuple[int, int]]] = [self._windows]
        if problem.num_shards == 1:
            self._ways.append(self._critical_paths)
        if problem.transfers != "parallel":
            self._ways.append(self._under_contention)
        self._shares = WorkShares(len(self._ways), _LEAST_SHARE)
        self.rate = _FIRST_RATE

    def _value_of(self, tried: Placement) -> float:
        value = makespan(self._problem, tried)
        return value if self._fits is None or value == np.inf or self._fits(tried) else np.inf

    @property
    def found(self) -> Placement:
        """The best so far."""
        return self._best.found

    def step(self, limit: int, budget: Budget | None) -> tuple[int, bool]:
        """Search in one way, with at most about `limit` moves; return the moves, and whether the best is better."""
        before = self._best.value
        way = self._shares.choose()
        began = time.perf_counter()
        made, work = self._ways[way](limit, budget)
        self.rate = made / max(time.perf_counter() - began, 1e-6)
        better = self._best.value < before
        self._shares.reward(way, 1.0 - self._best.value / before if better else 0.0, max(work, 1))
        return made, better

    def _windows(self, limit: int, budget: Budget | None) -> tuple[int, int]:
        before = self._best.work
        made = self._best.step(self._rng, limit, budget)
        return made, self._best.work - before

    def _critical_paths(self, _limit: int, budget: Budget | None) -> tuple[int, int]:
        tried, work = search_critical_paths(self._problem, self.found, self._rng, self._steps, budget)
        self._steps = self._offer(tried, self._steps)
        return max(1, int(work / np.sqrt(np.prod(_WIDTHS)))), work  # in windows of mean width

    def _under_contention(self, limit: int, budget: Budget | None) -> tuple[int, int]:
        timelines = max(1, min(self._timelines, limit // _TIMELINE_COST))
        tried = anneal_under_contention(self._problem, self.found, self._rng, timelines, budget)
        self._timelines = self._offer(tried, self._timelines)
        return timelines * _TIMELINE_COST, timelines * self._problem.num_ops

    def _offer(self, tried: Placement, steps: int) -> int:
        """Go on from what some steps led to if it is better than the best; return the steps of the next try."""
        before, value = self._best.value, self._value_of(tried)
        if value < before:
            self._best.restart(tried, value)
        return _STEPS[0] if value < before * (1.0 - NOTABLE) else min(2 * steps, _STEPS[1])


def memory_binds(problem: PlacementProblem) -> bool:
    """Return whether some device is too small for all shards of all ops."""
    total = float((problem.weight_bytes + problem.num_shards * problem.shard_bytes).sum())
    return bool((problem.capacity_bytes < total).any())
