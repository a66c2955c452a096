"""Large-neighbourhood search for placements: annealing in windows of the sequence, swept back and forth."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.common import device_memory, slices
from rlinit.kernels.placements.annealing import cooling_factor
from rlinit.kernels.placements.batch_annealing import sweep_batches
from rlinit.kernels.placements.contention_annealing import anneal_timeline, new_timeline_search
from rlinit.kernels.placements.list_scheduling import earliest_finish
from rlinit.kernels.placements.window_annealing import sweep
from rlinit.placements.arrays import kernel_arrays
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import (
    MODES,
    held_bytes,
    makespan,
    placement_of,
    respects_dependencies,
    shard_masks,
    timeline,
    timeline_arrays,
)

__all__ = ["earliest_finish_start", "memory_binds", "sweep_placements", "upward_ranks"]

_HOT, _COLD = 0.3, 0.02
"""First and last temperature in a window, relative to the median time of an op."""

_MOVES = (800, 20_000)
"""Fewest and most moves in a window; they grow while sweeps find nothing better."""

_WIDTHS = (8, 64)
"""Narrowest and widest window, in ops; drawn anew, log-uniformly, for each sweep."""

_STALLED = 6
"""Sweeps without improvement after which the moves in a window grow."""

_FIRST_RATE = 200_000.0
"""Evaluations a second that are counted on before the first sweep; later, those of the sweep before."""

_SWEEP_SHARE = 0.2
"""Part of the time left that a sweep may take."""

_TIMELINE_COST = 30
"""Moves in windows that take about the time of one whole timeline."""

_SLICE_OPS = 50_000
"""Ops placed between two looks at the clock: about 5 ms of timelines with exclusive transfers, 10 ms with blocking."""

_FIRST_PRICE = 0.1
"""First price of an overfull device's memory, relative to the makespan over the bytes of all ops."""

_PRICED_TURNS = 2
"""Where memory binds, every so many sweeps one prices memory instead of keeping within it."""

_FAR = 1.1
"""A repaired schedule this much worse than the best is not worth beginning from."""

_SPLITS = 2_000
"""Ways to split the shards of an op over devices that are looked at for a start."""


def upward_ranks(problem: PlacementProblem) -> FloatArray:
    """Return (n,) upward ranks in seconds: the mean time of an op and the longest path of means below it.

    References
    ----------
    Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous computing, IEEE
    TPDS 13(3), 2002, eq. 8.
    """
    seconds = problem.op_time_s
    runs = np.isfinite(seconds)
    mean = np.where(runs, seconds, 0.0).sum(axis=1) / np.maximum(runs.sum(axis=1), 1)
    between = ~np.eye(problem.num_devices, dtype=bool) & np.isfinite(problem.delay_s)
    rate, delay = (float(m[between].mean()) if between.any() else 0.0 for m in (problem.s_per_byte, problem.delay_s))
    moved = delay + rate * problem.num_shards * problem.tensor_bytes
    rank = np.zeros(problem.num_ops)
    for v in problem.order[::-1].tolist():
        below = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        rank[v] = mean[v] + (moved[v] + rank[below].max() if len(below) else 0.0)
    return rank


def earliest_finish_start(problem: PlacementProblem) -> Placement | None:
    """Return a placement by earliest finish in the order of upward ranks; None where that fits nowhere.

    Ops stay whole where some device takes all shards in one batch; else every op is split in the way that ends first.
    """
    n, s = problem.num_ops, problem.num_shards
    rank = upward_ranks(problem)
    place = np.empty(n, np.int64)
    place[problem.order] = np.arange(n)
    sequence = np.lexsort((place, -rank)).astype(np.int64)
    device, end = np.empty(n, np.int64), np.zeros(n)
    whole = kernel_arrays(problem)._replace(capacity=problem.capacity_bytes, tensor=s * problem.tensor_bytes)
    fits = earliest_finish(whole, _respecting(problem, sequence), device, end)
    if fits:
        together = np.repeat(device[:, None], s, axis=1)
        seconds = problem.op_time_s[np.arange(n), device]
        found = placement_of(problem, together, np.repeat((end - seconds)[:, None], problem.num_devices, axis=1))
        if makespan(problem, found) < np.inf:
            return found
    return _split_start(problem)


def _respecting(problem: PlacementProblem, sequence: IntArray) -> IntArray:
    """Return the sequence if it is topological (zero times may tie ranks across an edge), else the natural order."""
    place = np.empty(problem.num_ops, np.int64)
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
    """Improve a placement by annealing in windows of its sequence, swept along it; never worse than the start.

    What lies before and after a window enters as heads and tails, so a move costs no more than its window. Windows get
    more moves while nothing better is found. Plans as if transfers ran in parallel; where they do not, every sweep's
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
    rng = np.random.default_rng(seed)
    search = _Ops(problem, found) if problem.num_shards == 1 else _Batches(problem, found)
    value, moves, stalled, forwards = makespan(problem, found), _MOVES[0], 0, True
    rate = _FIRST_RATE
    priced = _Priced(problem, found) if problem.num_shards == 1 and memory_binds(problem) else None
    queued = problem.transfers != "parallel" and problem.num_shards == 1
    turn = 0
    while left > 0 and not (budget is not None and budget.expired):
        width = int(np.exp(rng.uniform(*np.log(_WIDTHS))))
        windows = max(1, 2 * problem.num_ops // width)
        each = max(1, min(moves, left // windows))
        if timed and budget is not None:
            # A sweep cannot be interrupted, so it gets a part of what is left.
            each = max(1, min(each, int(rate * _SWEEP_SHARE * budget.remaining_s / windows)))
        began = time.perf_counter()
        if priced is not None and turn % _PRICED_TURNS == 0:
            tried = priced.sweep(rng, forwards, width, each)
            again = tried if makespan(problem, tried) < _FAR * value else found
            search = _Ops(problem, again)
        elif queued and turn % 2 == 1:
            tried = _annealed(problem, found, rng, max(1, each * windows // _TIMELINE_COST), budget)
        else:
            tried = search.sweep(rng, forwards, width, each)
        turn += 1
        rate = each * windows / max(time.perf_counter() - began, 1e-6)
        left -= each * windows
        forwards = not forwards
        current = makespan(problem, tried)
        stalled += 1
        if current < value:
            if current < value * (1.0 - 1e-4):
                stalled = 0
            found, value = tried, current
            if on_better is not None:
                on_better(found)
        if stalled >= _STALLED:
            moves, stalled = (moves * 2 if moves * 2 <= _MOVES[1] else _MOVES[0]), 0
    return found


class _Ops:
    """The search's state where every op is whole."""

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        self.problem = problem
        n, d = problem.num_ops, problem.num_devices
        self.seconds = problem.op_time_s
        self.device = start.device[:, 0].copy()
        self.sequence = start.sequence // d
        self.movable = np.bincount(problem.group, minlength=n)[problem.group] == 1
        self.need = problem.weight_bytes + problem.shard_bytes
        self.held = held_bytes(problem, start.device)
        self.capacity = problem.capacity_bytes
        self.price = np.zeros(d)
        self.end, self.tail = np.zeros(n), np.zeros(n)
        self.scale = _typical(self.seconds[np.arange(n), self.device])

    def sweep(self, rng: np.random.Generator, forwards: bool, width: int, moves: int) -> Placement:
        problem = self.problem
        sweep(
            rng,
            forwards,
            width,
            max(1, width // 2),
            moves,
            _HOT * self.scale,
            _COLD * self.scale,
            self.sequence,
            self.device,
            self.movable,
            self.seconds,
            problem.tensor_bytes,
            self.need,
            self.held,
            self.capacity,
            self.price,
            problem.s_per_byte,
            problem.delay_s,
            problem.pred_indptr,
            problem.pred,
            problem.succ_indptr,
            problem.succ,
            self.end,
            self.tail,
        )
        n = problem.num_ops
        place = np.empty(n, np.int64)
        place[self.sequence] = np.arange(n)
        # By start, so that windows are windows in time too; ties keep their order, which is topological.
        start = self.end - self.seconds[np.arange(n), self.device]
        by_start = np.lexsort((place, self.end, start))
        found = Placement(self.device[:, None].copy(), by_start * problem.num_devices + self.device[by_start])
        if respects_dependencies(problem, found.device, found.sequence):
            self.sequence = by_start
            return found
        # Rounding put an op of no length before one it waits for.
        return Placement(found.device, self.sequence * problem.num_devices + self.device[self.sequence])


class _Priced(_Ops):
    """The search's state where memory is priced, not limited, so that ops can change places on full devices.

    A price rises while its device is overfull and falls while it has room, as in a Lagrangian relaxation.
    """

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        super().__init__(problem, start)
        self.capacity = np.full(problem.num_devices, np.inf)
        makespan_s = timeline(problem, start).makespan_s
        self.step = _FIRST_PRICE * makespan_s / max(float(self.need.sum()), 1e-300)

    def sweep(self, rng: np.random.Generator, forwards: bool, width: int, moves: int) -> Placement:
        """Sweep under the current prices, move them, and return the schedule with overfull devices relieved."""
        raw = super().sweep(rng, forwards, width, moves)
        limit = self.problem.capacity_bytes
        full = self.held > limit
        self.price = np.where(full, np.maximum(self.price * 1.3, self.step), self.price * 0.8)
        return _relieved(self.problem, raw, self.need) if full.any() else raw


def _annealed(
    problem: PlacementProblem, start: Placement, rng: np.random.Generator, moves: int, budget: Budget | None
) -> Placement:
    """Anneal under the true rules of transfers that exclude each other; never worse than the start."""
    n, d = problem.num_ops, problem.num_devices
    scale = _typical(problem.op_time_s[np.arange(n), start.device[:, 0]])
    hot, cold, mode = 0.5 * _HOT * scale, _COLD * scale, MODES[problem.transfers]
    arrays, memory = timeline_arrays(problem), device_memory(problem)
    search = new_timeline_search(arrays, mode, start.sequence, held_bytes(problem, start.device), hot)
    cooling = cooling_factor(hot, cold, moves)
    for part in slices(moves, max(1, _SLICE_OPS // n), budget):
        anneal_timeline(rng, arrays, memory, mode, search, part, cooling)
    device = np.empty((n, 1), np.int64)
    device[search.best_sequence // d, 0] = search.best_sequence % d
    return Placement(device, search.best_sequence)


def memory_binds(problem: PlacementProblem) -> bool:
    """Return whether some device is too small for all shards of all ops."""
    total = float((problem.weight_bytes + problem.num_shards * problem.shard_bytes).sum())
    return bool((problem.capacity_bytes < total).any())


def _relieved(problem: PlacementProblem, placement: Placement, need: FloatArray) -> Placement:
    """Move ops off overfull devices, those first that lose least time for the room they make."""
    device = placement.device[:, 0].copy()
    seconds = problem.op_time_s
    alone = np.bincount(problem.group, minlength=problem.num_ops)[problem.group] == 1
    room = problem.capacity_bytes - held_bytes(problem, placement.device)
    for _ in range(problem.num_ops):
        worst = int(room.argmin())
        if room[worst] >= 0:
            break
        members = np.flatnonzero((device == worst) & alone & (need > 0))
        fits = (need[members, None] <= room[None, :]) & np.isfinite(seconds[members])
        if not fits.any():
            break
        lost = np.maximum(seconds[members] - seconds[members, worst][:, None], 0.0)
        gained = np.minimum(need[members], -room[worst])
        rank = np.where(fits, (lost + 1e-3 * seconds[members, worst].mean()) / gained[:, None], np.inf)
        at, target = np.unravel_index(int(rank.argmin()), rank.shape)
        device[members[at]] = target
        room[worst] += need[members[at]]
        room[target] -= need[members[at]]
    ops = placement.sequence // problem.num_devices
    return Placement(device[:, None], ops * problem.num_devices + device[ops])


class _Batches:
    """The search's state where ops may be split."""

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        self.problem = problem
        n, d = problem.num_ops, problem.num_devices
        self.mask = shard_masks(start.device, d)
        self.sequence = self._with_empty(start.sequence)
        self.movable = np.bincount(problem.group, minlength=n)[problem.group] == 1
        self.held = held_bytes(problem, start.device)
        self.end, self.tail = np.zeros((n, d)), np.zeros((n, d))
        ran = timeline(problem, start)
        self.scale = _typical((ran.end_s - ran.start_s)[~np.isnan(ran.start_s)])

    def _with_empty(self, sequence: IntArray) -> IntArray:
        """Return all batches in the order of `sequence`; empty ones after the first of their op."""
        n, d = self.mask.shape
        place = np.full(n * d, n * d, np.int64)
        place[sequence] = np.arange(len(sequence))
        first = np.where(self.mask != 0, place.reshape(n, d), n * d).min(axis=1)
        place = np.where(self.mask != 0, place.reshape(n, d), first[:, None])
        return np.lexsort((np.arange(n * d), (self.mask == 0).ravel(), place.ravel()))

    def sweep(self, rng: np.random.Generator, forwards: bool, width: int, moves: int) -> Placement:
        problem = self.problem
        n, d = self.mask.shape
        sweep_batches(
            rng,
            width * d,
            max(1, width * d // 2),
            moves,
            _HOT * self.scale,
            _COLD * self.scale,
            self.sequence,
            self.mask,
            self.movable,
            problem.time_s,
            problem.tensor_bytes,
            problem.weight_bytes,
            problem.shard_bytes,
            self.held,
            problem.capacity_bytes,
            problem.s_per_byte,
            problem.delay_s,
            problem.pred_indptr,
            problem.pred,
            problem.succ_indptr,
            problem.succ,
            self.end,
            self.tail,
        )
        filled = self.sequence[self.mask.ravel()[self.sequence] != 0]
        device = np.zeros((n, problem.num_shards), np.int64)
        for shard in range(problem.num_shards):
            device[:, shard] = ((self.mask >> shard) & 1).argmax(axis=1)
        place = np.empty(n * d, np.int64)
        place[filled] = np.arange(len(filled))
        sizes = (device[:, :, None] == np.arange(d)).sum(axis=1)
        start = self.end - np.take_along_axis(problem.time_s, sizes[:, :, None], axis=2)[:, :, 0]
        by_start = filled[np.lexsort((place[filled], self.end.ravel()[filled], start.ravel()[filled]))]
        if respects_dependencies(problem, device, by_start):  # Rounding may put a batch of no length too early.
            filled = by_start
        self.sequence = self._with_empty(filled)
        return Placement(device, filled)


def _typical(seconds: FloatArray) -> float:
    """Return the median of the positive times, which scales the temperatures."""
    positive = seconds[seconds > 0]
    return float(np.median(positive)) if len(positive) else 0.0
