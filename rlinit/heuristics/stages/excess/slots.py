"""Annealing for devices that run several stages, or any ops, and a first packing by memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.stages.excess.annealing import SlotAnnealing, effort_of
from rlinit.heuristics.stages.filling.threshold_search import ThresholdSearch
from rlinit.stages.problem import StageAssignment, StageProblem, average_work, whole_cost
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, chunk_value


def anneal_chunks(
    problem: ChunkedStages,
    start: ChunkAssignment,
    *,
    seed: int,
    moves: int,
    lower: float = 0.0,
    budget: Budget | None = None,
    monotone: bool = True,
    on_solution: Callable[[ChunkAssignment], object] | None = None,
) -> ChunkAssignment:
    """Return the best assignment that annealing of nodes over chunks leads to; never worse than `start`.

    Parameters
    ----------
    problem, start
        The problem, and an assignment of it, monotone where stages are.
    seed
        Seed of the moves.
    moves
        Moves to try.
    lower
        A bottleneck that none is below.
    budget
        When to stop.
    monotone
        Whether stages are in the order of the data; else a device holds any ops.
    on_solution
        Called with each better assignment.
    """
    clock, (loads, effort) = budget or Budget(), effort_of(moves)
    attempt = SlotAnnealing(problem, seed, clock, monotone=monotone, effort_loads=effort)
    floor = max(lower, average_work(problem.problem))
    search = ThresholdSearch(partial(chunk_value, problem), attempt, floor, clock, on_solution=on_solution)
    search.offer(start)
    search.run(problem.chunks * whole_cost(problem.problem), loads)
    return start if search.best is None else search.best


def packed(problem: StageProblem) -> StageAssignment | None:
    """Return an assignment of ops to any devices, largest parameters first, each where the load stays least; or None.

    Transfers are not looked at. None where an op finds no device with room.

    Parameters
    ----------
    problem
        The problem.
    """
    classes = problem.stage_class
    load, held = np.zeros(problem.num_stages), np.zeros(problem.num_stages)
    room: FloatArray = problem.memory_bytes[classes] * CAPACITY_SLACK
    stage = np.empty(problem.num_nodes, np.int64)
    size = problem.param_bytes / max(float(problem.param_bytes.max(initial=0.0)), 1e-300)
    work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0).max(axis=0)
    for v in np.lexsort((-work, -size)).tolist():
        after = load + problem.work_s[classes, v]
        after[held + problem.param_bytes[v] > room] = np.inf
        j = int(np.argmin(after))
        if after[j] == np.inf:
            return None
        stage[v] = j
        load[j] = after[j]
        held[j] += problem.param_bytes[v]
    return StageAssignment(stage, classes)
