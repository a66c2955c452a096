"""Annealing of one assignment until no stage exceeds a threshold."""

from __future__ import annotations

import numpy as np

from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.stages.excess.kernel import anneal_excess, excess_state
from rlinit.heuristics.stages.filling.search import FillSettings
from rlinit.kernels.stages.arrays import TensorArrays
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageAssignment, StageProblem
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, from_contiguous

_FREE, _CHARGED = (0.02, 0.2, 1e-3), (0.003, 0.05, 3e-4)
"""First temperatures, drawn between the two, and the last one, relative to the trial: where tensors cost nothing, and
where they cost something."""

_EFFORT_LOADS, _MOVES_PER_LOAD = 5_000, 40
"""Loads of a beam in whose time an attempt of effort 1 ends, and moves in the time of a load."""

_ATTEMPTS = 20
"""Bottlenecks that even a short run tries."""

_MOVES_A_NODE, _MOST_MOVES = 16_000, 12_000_000
"""Moves without a time limit: for each node, and at most in all."""


def default_moves(num_nodes: int) -> int:
    """Return how many moves annealing makes where no time limit ends it."""
    return min(_MOST_MOVES, _MOVES_A_NODE * num_nodes)


def effort_of(moves: int) -> tuple[int, int]:
    """Return the loads in whose time so many moves are made, and those of an attempt of effort 1."""
    loads = max(1, moves // _MOVES_PER_LOAD)
    return loads, min(_EFFORT_LOADS, max(1, loads // _ATTEMPTS))


def counted_tensors(problem: StageProblem) -> TensorArrays:
    """Return the tensors of a problem, none where they cost nothing: what is not counted takes no time.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    """
    if problem.has_transfers:
        return problem.tensor_arrays
    none, rows = np.zeros(0, np.int64), np.zeros(problem.num_nodes + 1, np.int64)
    return TensorArrays(rows, none, rows, none, none, rows[:1], none)


class SlotAnnealing:
    """Anneals what devices cost beyond a threshold; one call is one attempt of a `ThresholdSearch`.

    Parameters
    ----------
    problem
        A pipeline whose devices run one stage or several.
    seed
        Of everything random.
    budget
        When to stop.
    monotone
        Whether stages are in the order of the data; else a device holds any ops.
    effort_loads
        Time of an attempt of effort 1, in loads.
    """

    def __init__(
        self,
        problem: ChunkedStages,
        seed: int,
        budget: Budget,
        *,
        monotone: bool = True,
        effort_loads: int = _EFFORT_LOADS,
    ) -> None:
        self.problem, self.budget, self.monotone = problem, budget, monotone
        self.rng = np.random.default_rng(seed)
        self.last: ChunkAssignment | None = None
        self.tensors = counted_tensors(problem.problem)
        self.effort_moves = effort_loads * _MOVES_PER_LOAD

    def __call__(
        self, threshold: float, effort: int, best: ChunkAssignment | None
    ) -> tuple[ChunkAssignment | None, int]:
        """Return where devices exceed the threshold least, and the time that moves took in loads.

        None without a start, and beyond the threshold where tensors cost nothing: steps that small end lines higher.

        Moves begin at the best assignment known, or, half the time, at what the attempt before came to.
        """
        if best is None or threshold <= 0.0:
            return None, 0
        base, tensors, rules = self.problem.problem, self.tensors, (self.monotone, self.problem.is_bound)
        costs, order, charged = base.cost_arrays, base.precedence, base.has_transfers
        costs = costs._replace(memory=costs.memory * CAPACITY_SLACK)
        start = best if self.last is None or self.rng.random() < 0.5 else self.last
        mildest, hottest, cold = _CHARGED if charged else _FREE
        hot = mildest * (hottest / mildest) ** self.rng.random()
        state = excess_state(start.stage, start.slot, start.classes, threshold, hot * threshold, costs, tensors)
        moves = effort * self.effort_moves
        cooling = (cold / hot) ** (1.0 / moves)
        met, tried = False, 0

        def call(first: int, last: int) -> None:
            nonlocal met, tried
            if not met:
                met = anneal_excess(self.rng, last - first, cooling, threshold, *rules, costs, tensors, order, state)
                tried = last

        run_in_chunks(call, moves, self.budget)
        self.last = ChunkAssignment(state.best, state.best_slot, state.best_classes)
        return (self.last if met or charged else None), tried // _MOVES_PER_LOAD


class ExcessAnnealing:
    """Annealing of a pipeline with one stage a device; for the parameters see `SlotAnnealing`."""

    def __init__(
        self,
        settings: FillSettings,
        seed: int,
        budget: Budget,
        effort_loads: int = _EFFORT_LOADS,
    ) -> None:
        self.problem = ChunkedStages(settings.problem, 1)
        self.slots = SlotAnnealing(self.problem, seed, budget, effort_loads=effort_loads)

    def __call__(
        self, threshold: float, effort: int, best: StageAssignment | None
    ) -> tuple[StageAssignment | None, int]:
        """Return what `SlotAnnealing` finds, as stages."""
        found, work = self.slots(threshold, effort, None if best is None else from_contiguous(self.problem, best))
        return (None if found is None else found.stages), work
