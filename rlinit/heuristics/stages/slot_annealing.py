"""Annealing for devices that run several stages, or any ops, and a first packing by memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.annealing import annealing_state
from rlinit.kernels.stages.slot_annealing import Slots, anneal_slots, balance_slots
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, chunk_value

_HOT, _COLD = 0.05, 1e-5
"""First and last temperature, relative to the 12-norm of the devices' costs."""

_ROUNDS = 8
"""Times that the temperature's fall is interrupted to go on from the best assignment of the last part."""

_BALANCING = 0.15
"""Of the moves of a part, those that only lower the costliest device, where ops go anywhere."""

_PARTNERS = 8
"""Devices or stages at most that each one is exchanged with, drawn anew for every part."""

_CHUNK = 10_000
"""Moves between looks at the budget: 10 to 50 ms."""


def anneal_loose(
    problem: StageProblem, start: StageAssignment, *, seed: int, moves: int, budget: Budget | None = None
) -> StageAssignment:
    """Return the best assignment that annealing of ops on any device leads to; never worse than `start`.

    Parameters
    ----------
    problem, start
        The problem, and any assignment of it.
    seed
        Seed of the moves.
    moves
        Moves to try.
    budget
        When to stop.
    """
    chunked = ChunkedStages(problem, 1)
    best, value = start, evaluate(problem, start)
    begin = ChunkAssignment(start.stage, chunked.interleaved_slots, start.classes)
    for found in _annealed(chunked, begin, seed, moves, budget, monotone=False):
        tried = evaluate(problem, found.stages)
        if tried < value:
            best, value = found.stages, tried
    return best


def anneal_chunks(
    problem: ChunkedStages, start: ChunkAssignment, *, seed: int, moves: int, budget: Budget | None = None
) -> ChunkAssignment:
    """Return the best assignment that annealing of nodes over chunks leads to; never worse than `start`.

    Parameters
    ----------
    problem, start
        The problem, and a monotone assignment of it.
    seed
        Seed of the moves.
    moves
        Moves to try.
    budget
        When to stop.
    """
    best, value = start, chunk_value(problem, start)
    for found in _annealed(problem, start, seed, moves, budget, monotone=True):
        tried = chunk_value(problem, found)
        if tried < value:
            best, value = found, tried
    return best


def _annealed(
    problem: ChunkedStages, start: ChunkAssignment, seed: int, moves: int, budget: Budget | None, *, monotone: bool
) -> Iterator[ChunkAssignment]:
    """Yield the best assignment of each part of a fall of the temperature; unlike devices are exchanged in between."""
    rng = np.random.default_rng(seed)
    part = -(-moves // _ROUNDS)
    ratio = (_COLD / _HOT) ** (1.0 / _ROUNDS)
    current = start
    for i in range(_ROUNDS):
        if budget is not None and budget.expired:
            return
        current = _exchanged(problem, current, rng, budget or Budget())
        stage = _part(problem, current, rng, part, (_HOT * ratio**i, ratio), budget, monotone=monotone)
        current = replace(current, stage=stage)
        yield current


def _part(
    problem: ChunkedStages,
    start: ChunkAssignment,
    rng: np.random.Generator,
    moves: int,
    falls: tuple[float, float],
    budget: Budget | None,
    *,
    monotone: bool,
) -> IntArray:
    """Return the best stages met while the temperature falls from the first of `falls` by the factor of the second."""
    base, free = problem.problem, problem.unrolled
    classes = start.classes
    state = annealing_state(start.stage, start.stages.classes, falls[0], free.cost_arrays, free.tensor_arrays)
    state.now[-1] = -1.0
    slots = Slots(
        start.slot,
        base.cache_bytes[classes],
        base.memory_bytes[classes] * CAPACITY_SLACK,
        base.overflow_s_per_byte[classes],
        np.zeros(problem.num_slots),
        np.zeros(problem.num_slots),
    )
    cooling = falls[1] ** (1.0 / max(moves, 1))
    costs, tensors, order = free.cost_arrays, free.tensor_arrays, free.precedence
    for first in range(0, moves, _CHUNK):
        anneal_slots(rng, min(_CHUNK, moves - first), cooling, monotone, costs, tensors, order, state, slots)
        if budget is not None and budget.expired:
            return np.asarray(state.best)
    if not monotone:
        state.stage[:] = state.best
        state = annealing_state(state.stage, start.stages.classes, falls[0], costs, tensors)
        balance_slots(rng, int(_BALANCING * moves), costs, tensors, state, slots)
    return np.asarray(state.best)


def _exchanged(
    problem: ChunkedStages, start: ChunkAssignment, rng: np.random.Generator, budget: Budget
) -> ChunkAssignment:
    """Return the assignment after exchanging unlike devices, and slots of stages where their order is free.

    Two at a time, in random order, where that helps.
    """
    best, value = start, chunk_value(problem, start)
    free = problem.order == "free" and problem.chunks > 1
    for what, length in (("classes", problem.num_slots), ("slot", problem.num_stages if free else 0)):
        for a in rng.permutation(length).tolist():
            for b in rng.permutation(length)[:_PARTNERS].tolist():
                if budget.expired:
                    return best
                held = getattr(best, what)
                if held[a] != held[b]:
                    exchanged = held.copy()
                    exchanged[[a, b]] = held[[b, a]]
                    tried = replace(best, **{what: exchanged})
                    found = chunk_value(problem, tried)
                    if found < value:
                        best, value = tried, found
    return best


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
