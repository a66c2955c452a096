"""Passes of window annealing over a placement: what they change, and how the result becomes a placement again."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import WORK_A_LOOK, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import device_memory, slices
from rlinit.heuristics.placements.local_search.contention_annealing import anneal_timeline, new_timeline_search
from rlinit.heuristics.placements.local_search.critical_path_search import new_critical_search, tabu_steps, work_of
from rlinit.heuristics.placements.local_search.window_annealing import (
    anneal_windows,
    begin_pass,
    end_pass,
    new_batch_sequence,
)
from rlinit.kernels.placements.annealing import HOT, PassPlan, cooling_factor
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import (
    MODES,
    held_bytes,
    respects_dependencies,
    shard_masks,
    timeline,
    timeline_arrays,
)

_COLD = 0.02
"""Last temperature in a window, relative to the median time of an op."""

_SAMPLE = 16
"""Critical ops looked at in a step of tabu search."""

_TENURE = 10
"""Steps for which an op that moved stays where it is, at least."""


class WindowPasses:
    """Passes of window annealing from one schedule on; memory is a limit.

    Parameters
    ----------
    problem
        The problem; transfers are taken as parallel.
    start
        A feasible placement.
    """

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        self.problem = problem
        self._memory, self._arrays = device_memory(problem), timeline_arrays(problem)
        mask, held = shard_masks(start.device, problem.num_devices), held_bytes(problem, start.device)
        self._state = new_batch_sequence(start.sequence, mask, held, problem.num_shards)
        ran = timeline(problem, start)
        self._split = problem.num_shards if problem.num_shards > 1 else None
        self._scale = _typical((ran.end_s - ran.start_s)[~np.isnan(ran.start_s)])

    def run(self, rng: np.random.Generator, forwards: bool, width: int, moves: int, budget: Budget | None) -> Placement:
        """Anneal window after window; return what came of it, whose makespan is never more than before.

        Parameters
        ----------
        rng
            Source of randomness.
        forwards
            From the first position to the last, or back.
        width
            Ops of a window; the next begins half of them further on.
        moves
            Moves in each window.
        budget
            When to stop in the middle.
        """
        state = self._state
        width *= -(-state.num_batches // self.problem.num_ops)  # in batches
        plan = PassPlan(forwards, width, max(1, width // 2), moves, HOT * self._scale, _COLD * self._scale)
        begin_pass(self._arrays, state, plan)
        windows, goes_on = max(1, WORK_A_LOOK // (width * moves)), True
        while goes_on and not (budget is not None and budget.expired):
            goes_on = anneal_windows(rng, self._arrays, self._memory, state, plan, windows, self._split)
        end_pass(self._arrays, state)
        sequence, d = state.sequence[: state.num_batches], self.problem.num_devices
        device, end = _devices(state.mask, self.problem.num_shards), state.end[sequence // d, sequence % d]
        found = _by_start(self.problem, device, sequence, end)
        sequence[:] = found.sequence  # so that windows are windows in time, too
        return found


def _devices(mask: IntArray, num_shards: int) -> IntArray:
    """Return (n, s) the device of each shard."""
    device = np.zeros((len(mask), num_shards), np.int64)
    for shard in range(num_shards):
        device[:, shard] = ((mask >> shard) & 1).argmax(axis=1)
    return device


def _by_start(problem: PlacementProblem, device: IntArray, sequence: IntArray, end: FloatArray) -> Placement:
    """Return batches, in a topological order with the seconds at which they end, in the order of their starts."""
    d = problem.num_devices
    op, on = np.divmod(sequence, d)
    count = (device[:, :, None] == np.arange(d)).sum(axis=1)[op, on]
    order = np.lexsort((np.arange(len(sequence)), end, end - problem.time_s[op, on, count]))
    if respects_dependencies(problem, device, sequence[order]):
        return Placement(device, sequence[order])
    return Placement(device, sequence.copy())  # Rounding put a batch of no length before one it waits for.


def _with_empty(mask: IntArray, sequence: IntArray) -> IntArray:
    """Return all batches in the order of `sequence`; empty ones after the first of their op."""
    n, d = mask.shape
    place = np.full(n * d, n * d, np.int64)
    place[sequence] = np.arange(len(sequence))
    first = np.where(mask != 0, place.reshape(n, d), n * d).min(axis=1)
    place = np.where(mask != 0, place.reshape(n, d), first[:, None])
    return np.lexsort((np.arange(n * d), (mask == 0).ravel(), place.ravel()))


def anneal_under_contention(
    problem: PlacementProblem, start: Placement, rng: np.random.Generator, moves: int, budget: Budget | None
) -> Placement:
    """Anneal under the true rules of transfers that exclude each other; never worse than the start.

    Parameters
    ----------
    problem
        The problem.
    start
        A feasible placement.
    rng
        Source of randomness.
    moves
        Timelines to run.
    budget
        When to stop.
    """
    ran = timeline(problem, start)
    scale = _typical((ran.end_s - ran.start_s)[~np.isnan(ran.start_s)])
    hot, cold, mode = 0.5 * HOT * scale, _COLD * scale, MODES[problem.transfers]
    arrays, memory = timeline_arrays(problem), device_memory(problem)
    mask = shard_masks(start.device, problem.num_devices)
    held = held_bytes(problem, start.device)
    search = new_timeline_search(arrays, mode, _with_empty(mask, start.sequence), mask, held, hot)
    cooling = cooling_factor(hot, cold, moves)
    for part in slices(moves, max(1, WORK_A_LOOK // problem.num_ops), budget):
        anneal_timeline(rng, arrays, memory, mode, search, part, cooling)
    filled = search.best_sequence[search.best_mask.ravel()[search.best_sequence] != 0]
    return Placement(_devices(search.best_mask, problem.num_shards), filled)


def search_critical_paths(
    problem: PlacementProblem, start: Placement, rng: np.random.Generator, steps: int, budget: Budget | None
) -> tuple[Placement, int]:
    """Search from a schedule by moves of critical ops, as if transfers ran in parallel; return the best and the work.

    Parameters
    ----------
    problem
        The problem; one shard.
    start
        A feasible placement.
    rng
        Source of randomness.
    steps
        Moves to make.
    budget
        When to stop.
    """
    n, d = problem.num_ops, problem.num_devices
    arrays, memory = timeline_arrays(problem), device_memory(problem)
    search = new_critical_search(arrays, start.sequence // d, start.device[:, 0], held_bytes(problem, start.device))
    together = int(np.bincount(problem.group).max())
    for part in slices(steps, max(1, WORK_A_LOOK // (n + _SAMPLE * d * together)), budget):
        tabu_steps(rng, arrays, memory, search, part, _SAMPLE, _TENURE)
    best = new_critical_search(arrays, search.best_sequence, search.best_device, search.held)
    batches = best.sequence * d + best.device[best.sequence]
    return _by_start(problem, best.device[:, None].copy(), batches, best.end[best.sequence]), work_of(search)


def _typical(seconds: FloatArray) -> float:
    """Return the median of the positive times, which scales the temperatures."""
    positive = seconds[seconds > 0]
    return float(np.median(positive)) if len(positive) else 0.0
