"""Large-neighbourhood search for placements: annealing in windows of the sequence, forth and back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.window_passes import (
    BatchPasses,
    OpPasses,
    Passes,
    PricedPasses,
    anneal_under_contention,
)
from rlinit.kernels.placements.list_scheduling import earliest_finish, upward_rank
from rlinit.placements.arrays import kernel_arrays, mean_transfer_s
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_of

__all__ = ["earliest_finish_start", "memory_binds", "sweep_placements"]

_MOVES = (800, 20_000)
"""Fewest and most moves in a window; they grow while passes find nothing better."""

_WIDTHS = (8, 64)
"""Narrowest and widest window, in ops; drawn anew, log-uniformly, for each pass."""

_STALLED = 6
"""Passes without improvement after which the moves in a window grow."""

_FIRST_RATE = 200_000.0
"""Evaluations a second that are counted on before the first pass; later, those of the pass before."""

_PASS_SHARE = 0.2
"""Part of the time left that a pass may take, so that the last ones end."""

_NOTABLE = 1e-4
"""Part of the makespan by which a pass has to be better to count as progress."""

_TIMELINE_COST = 30
"""Moves in windows that take about the time of one whole timeline."""

_PRICED_TURNS = 2
"""Where memory binds, every so many passes one prices memory instead of keeping within it."""

_FAR = 1.1
"""A repaired schedule this much worse than the best is not worth beginning from."""

_SPLITS = 2_000
"""Ways to split the shards of an op over devices that are looked at for a start."""


def earliest_finish_start(problem: PlacementProblem) -> Placement | None:
    """Return a placement by earliest finish in the order of upward ranks; None where that fits nowhere.

    Ops stay whole where some device takes all shards in one batch; else every op is split in the way that ends first.
    """
    n, s = problem.num_ops, problem.num_shards
    device, end = np.empty(n, np.int64), np.zeros(n)
    whole = kernel_arrays(problem)._replace(capacity=problem.capacity_bytes, tensor=s * problem.tensor_bytes)
    fits = earliest_finish(whole, _by_upward_rank(problem), device, end)
    if fits:
        together = np.repeat(device[:, None], s, axis=1)
        seconds = problem.op_time_s[np.arange(n), device]
        found = placement_of(problem, together, np.repeat((end - seconds)[:, None], problem.num_devices, axis=1))
        if makespan(problem, found) < np.inf:
            return found
    return _split_start(problem)


def _by_upward_rank(problem: PlacementProblem) -> IntArray:
    """Return (n,) ops by descending upward rank over the mean times of whole ops.

    The natural order, where zero times tie ranks across an edge so that this is not topological.
    """
    seconds = problem.op_time_s
    able = np.isfinite(seconds)
    mean = np.where(able, seconds, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    rank = upward_rank(problem.order, mean, mean_transfer_s(problem), problem.succ_indptr, problem.succ)
    place = np.empty(problem.num_ops, np.int64)
    place[problem.order] = np.arange(problem.num_ops)
    sequence = np.lexsort((place, -rank))
    place[sequence] = np.arange(problem.num_ops)
    forward = place[problem.edges[:, 0]] < place[problem.edges[:, 1]]
    return sequence if forward.all() else problem.order


def _split_start(problem: PlacementProblem) -> Placement | None:
    """Split every op over the devices in the way whose slowest batch is fastest, shards in the devices' order."""
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    counts = np.array(list(itertools.islice(_compositions(s, d), _SPLITS)), np.int64)
    slowest = np.full((n, len(counts)), -np.inf)
    for i in range(d):
        slowest = np.maximum(slowest, problem.time_s[:, i, counts[:, i]])
    together = np.full(slowest.shape, -np.inf)
    np.maximum.at(together, problem.group, slowest)
    choice = together[problem.group].argmin(axis=1)
    device = np.stack([np.repeat(np.arange(d), counts[c]) for c in choice])
    found = placement_of(problem, device, np.zeros((n, d)))
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
    on_better
        Called with every improvement.
    """
    found = start if start is not None else earliest_finish_start(problem)
    if found is None or problem.num_devices == 1:
        return found
    timed = budget is not None and budget.remaining_s < np.inf
    left = evaluations or (2**62 if timed else max(200_000, 2_000 * problem.num_ops))
    search = _Search(problem, found, np.random.default_rng(seed))
    while left > 0 and not (budget is not None and budget.expired):
        limit = left
        if timed and budget is not None:
            limit = min(limit, int(search.rate * _PASS_SHARE * budget.remaining_s))
        made, better = search.step(limit, budget)
        left -= made
        if better and on_better is not None:
            on_better(search.found)
    return search.found


class _Search:
    """Pass after pass: windows of other widths, forwards and back, and by turns what the problem asks for."""

    def __init__(self, problem: PlacementProblem, start: Placement, rng: np.random.Generator) -> None:
        self.found, self.value = start, makespan(problem, start)
        self.rate = _FIRST_RATE
        self._problem, self._rng = problem, rng
        whole = problem.num_shards == 1
        self._passes: Passes = OpPasses(problem, start) if whole else BatchPasses(problem, start)
        self._priced = PricedPasses(problem, start) if whole and memory_binds(problem) else None
        self._contended = whole and problem.transfers != "parallel"
        self._turn, self._moves, self._stalled = 0, _MOVES[0], 0

    def step(self, limit: int, budget: Budget | None) -> tuple[int, bool]:
        """Make a pass of at most about `limit` moves; return the moves made, and whether the best is better now."""
        width = int(np.exp(self._rng.uniform(*np.log(_WIDTHS))))
        windows = max(1, 2 * self._problem.num_ops // width)
        each = max(1, min(self._moves, limit // windows))
        began = time.perf_counter()
        tried = self._tried(width, windows, each, budget)
        self.rate = each * windows / max(time.perf_counter() - began, 1e-6)
        self._turn += 1
        return each * windows, self._keep(tried)

    def _tried(self, width: int, windows: int, each: int, budget: Budget | None) -> Placement:
        """Return what this turn's pass leads to."""
        forwards = self._turn % 2 == 0
        if self._priced is not None and self._turn % _PRICED_TURNS == 0:
            tried = self._priced.run(self._rng, forwards, width, each, budget)
            near = makespan(self._problem, tried) < _FAR * self.value
            self._passes = OpPasses(self._problem, tried if near else self.found)
            return tried
        if self._contended and self._turn % 2 == 1:
            timelines = max(1, each * windows // _TIMELINE_COST)
            return anneal_under_contention(self._problem, self.found, self._rng, timelines, budget)
        return self._passes.run(self._rng, forwards, width, each, budget)

    def _keep(self, tried: Placement) -> bool:
        """Keep what was tried if it is better; give windows more moves where nothing has been for long."""
        current = makespan(self._problem, tried)
        better = current < self.value
        self._stalled = 0 if current < self.value * (1.0 - _NOTABLE) else self._stalled + 1
        if better:
            self.found, self.value = tried, current
        if self._stalled >= _STALLED:
            self._moves, self._stalled = (self._moves * 2 if self._moves * 2 <= _MOVES[1] else _MOVES[0]), 0
        return better


def memory_binds(problem: PlacementProblem) -> bool:
    """Return whether some device is too small for all shards of all ops."""
    total = float((problem.weight_bytes + problem.num_shards * problem.shard_bytes).sum())
    return bool((problem.capacity_bytes < total).any())
