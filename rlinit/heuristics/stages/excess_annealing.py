"""Annealing of one assignment until no stage exceeds a threshold."""

from __future__ import annotations

import numpy as np

from rlinit.budget import Budget
from rlinit.heuristics.stages.excess_kernel import anneal_excess, excess_state
from rlinit.heuristics.stages.filling import FillSettings
from rlinit.stages.problem import StageAssignment

_HOTTEST, _MILDEST, _COLD = 0.2, 0.02, 1e-3
"""First temperatures, drawn between the two, and the last one, relative to the trial."""

EFFORT_LOADS, _MOVES_PER_LOAD = 5_000, 40
"""Loads of a beam in whose time an attempt of effort 1 ends, and moves in the time of a load."""

_CHUNK = 500_000
"""Moves between looks at the budget: some 25 ms."""


class ExcessAnnealing:
    """Anneals what stages cost beyond a threshold; one call is one attempt of a `ThresholdSearch`.

    Parameters
    ----------
    settings
        What is known of the problem: a pipeline whose tensors cost nothing.
    seed
        Of everything random.
    budget
        When to stop.
    """

    def __init__(self, settings: FillSettings, seed: int, budget: Budget) -> None:
        self.problem = settings.problem
        self.budget = budget
        self.rng = np.random.default_rng(seed)
        self.last: StageAssignment | None = None

    def __call__(
        self, threshold: float, effort: int, best: StageAssignment | None
    ) -> tuple[StageAssignment | None, int]:
        """Return an assignment within the threshold, None where moves lead to none, and the time they took in loads.

        Moves begin at the best assignment known, or, half the time, at what the attempt before came to.
        """
        if best is None or threshold <= 0.0:
            return None, 0
        costs, order = self.problem.cost_arrays, self.problem.precedence
        start = best if self.last is None or self.rng.random() < 0.5 else self.last
        hot = _MILDEST * (_HOTTEST / _MILDEST) ** self.rng.random()
        state = excess_state(start.stage, start.classes, threshold, hot * threshold, costs)
        moves = effort * EFFORT_LOADS * _MOVES_PER_LOAD
        cooling = (_COLD / hot) ** (1.0 / moves)
        met, tried = False, 0
        while not met and tried < moves and not self.budget.expired:
            met = anneal_excess(self.rng, min(moves - tried, _CHUNK), cooling, threshold, costs, order, state)
            tried += _CHUNK
        self.last = StageAssignment(np.asarray(state.best), np.asarray(state.best_classes))
        return (self.last if met else None), min(moves, tried) // _MOVES_PER_LOAD
