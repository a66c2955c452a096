"""Passes of window annealing over a placement: what they change, and how the result becomes a placement again."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlinit.arrays import WORK_A_LOOK, FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import device_memory, slices
from rlinit.heuristics.placements.local_search.batch_annealing import (
    anneal_batch_windows,
    begin_batch_pass,
    end_batch_pass,
    new_batch_sequence,
)
from rlinit.heuristics.placements.local_search.contention_annealing import anneal_timeline, new_timeline_search
from rlinit.heuristics.placements.local_search.critical_path_search import new_critical_search, tabu_steps, work_of
from rlinit.heuristics.placements.local_search.window_annealing import (
    anneal_windows,
    begin_pass,
    end_pass,
    new_op_sequence,
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


class Passes(Protocol):
    """A search's state between passes."""

    def run(self, rng: np.random.Generator, forwards: bool, width: int, moves: int, budget: Budget | None) -> Placement:
        """Anneal window after window along the sequence; return the placement after that.

        Parameters
        ----------
        rng
            Source of randomness.
        forwards
            From the first op to the last, or back.
        width
            Ops of a window; the next begins half of them further on.
        moves
            Moves in each window.
        budget
            When to stop in the middle.
        """


class OpPasses:
    """Passes where every op is whole; memory is a limit.

    Parameters
    ----------
    problem
        The problem; one shard.
    start
        A feasible placement.
    """

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        self.problem = problem
        n, d = problem.num_ops, problem.num_devices
        self._seconds = problem.op_time_s
        self._memory = device_memory(problem)
        self._arrays = timeline_arrays(problem)
        device = start.device[:, 0]
        self._state = new_op_sequence(start.sequence // d, device, held_bytes(problem, start.device))
        self._scale = _typical(self._seconds[np.arange(n), device])

    def run(self, rng: np.random.Generator, forwards: bool, width: int, moves: int, budget: Budget | None) -> Placement:
        """Anneal window after window; see `Passes.run`. The makespan is never more than before."""
        state = self._state
        plan = PassPlan(forwards, width, max(1, width // 2), moves, HOT * self._scale, _COLD * self._scale)
        begin_pass(self._arrays, state, plan)
        windows, goes_on = max(1, WORK_A_LOOK // (width * moves)), True
        while goes_on and not (budget is not None and budget.expired):
            goes_on = anneal_windows(rng, self._arrays, self._memory, state, plan, windows)
        end_pass(self._arrays, state)
        # By start, so that windows are windows in time too.
        found = _by_start(self.problem, state.device, state.sequence, state.end)
        state.sequence[:] = found.sequence // self.problem.num_devices
        return found


class BatchPasses:
    """Passes where ops may be split over devices.

    Parameters
    ----------
    problem
        The problem.
    start
        A feasible placement.
    """

    def __init__(self, problem: PlacementProblem, start: Placement) -> None:
        self.problem = problem
        self._memory = device_memory(problem)
        self._arrays = timeline_arrays(problem)
        mask = shard_masks(start.device, problem.num_devices)
        sequence = _with_empty(mask, start.sequence)
        self._state = new_batch_sequence(sequence, mask, held_bytes(problem, start.device))
        ran = timeline(problem, start)
        self._scale = _typical((ran.end_s - ran.start_s)[~np.isnan(ran.start_s)])

    def run(self, rng: np.random.Generator, forwards: bool, width: int, moves: int, budget: Budget | None) -> Placement:
        """Anneal window after window, always forwards; see `Passes.run`. The makespan is never more than before."""
        d, state = self.problem.num_devices, self._state
        plan = PassPlan(True, width * d, max(1, width * d // 2), moves, HOT * self._scale, _COLD * self._scale)
        begin_batch_pass(self._arrays, state)
        part, goes_on = max(1, WORK_A_LOOK // (width * d)), True
        while goes_on and not (budget is not None and budget.expired):
            goes_on = anneal_batch_windows(rng, self._arrays, self._memory, state, plan, part)
        end_batch_pass(self._arrays, state, plan.width)
        return self._placement()

    def _placement(self) -> Placement:
        """Return what the state stands for, and sort its batches by start."""
        problem, state = self.problem, self._state
        n, d = problem.num_ops, problem.num_devices
        filled = state.sequence[state.mask.ravel()[state.sequence] != 0]
        device = _devices(state.mask, problem.num_shards)
        place = np.empty(n * d, np.int64)
        place[filled] = np.arange(len(filled))
        sizes = (device[:, :, None] == np.arange(d)).sum(axis=1)
        start = state.end - np.take_along_axis(problem.time_s, sizes[:, :, None], axis=2)[:, :, 0]
        by_start = filled[np.lexsort((place[filled], state.end.ravel()[filled], start.ravel()[filled]))]
        if respects_dependencies(problem, device, by_start):  # Rounding may put a batch of no length too early.
            filled = by_start
        state.sequence[:] = _with_empty(state.mask, filled)
        return Placement(device, filled)


def _by_start(problem: PlacementProblem, device: IntArray, sequence: IntArray, end: FloatArray) -> Placement:
    """Return whole ops in the order of their starts; ties keep their order, which is topological."""
    n, d = problem.num_ops, problem.num_devices
    place = inverse_of(sequence)
    start = end - problem.op_time_s[np.arange(n), device]
    by_start = np.lexsort((place, end, start))
    found = Placement(device[:, None].copy(), by_start * d + device[by_start])
    if respects_dependencies(problem, found.device, found.sequence):
        return found
    # Rounding put an op of no length before one it waits for.
    return Placement(found.device, sequence * d + device[sequence])


def _devices(mask: IntArray, num_shards: int) -> IntArray:
    """Return (n, s) the device of each shard."""
    device = np.zeros((len(mask), num_shards), np.int64)
    for shard in range(num_shards):
        device[:, shard] = ((mask >> shard) & 1).argmax(axis=1)
    return device


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
    for part in slices(steps, max(1, WORK_A_LOOK // (n + _SAMPLE * d)), budget):
        tabu_steps(rng, arrays, memory, search, part, _SAMPLE, _TENURE)
    best = new_critical_search(arrays, search.best_sequence, search.best_device, search.held)
    return _by_start(problem, best.device, best.sequence, best.end), work_of(search)


def _typical(seconds: FloatArray) -> float:
    """Return the median of the positive times, which scales the temperatures."""
    positive = seconds[seconds > 0]
    return float(np.median(positive)) if len(positive) else 0.0
