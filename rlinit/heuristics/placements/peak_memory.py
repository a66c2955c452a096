"""How a search keeps within memory when the peak of live tensors counts.

The problem that methods see counts weights alone, which is a relaxation: bounds and proofs hold, and a placement counts
only if its peak fits. Heuristics and local search see a part of the sum of a device's tensors beside its weights, none
at first. Where what they find is overfull, the part becomes what the peak was of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.budget import Budget
from rlinit.heuristics.placements.local_search import earliest_finish_start
from rlinit.heuristics.placements.peak_relief import in_natural_order, relieve
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan


@dataclass(slots=True)
class PeakMemory:
    """The peak of live tensors as a rule of a search.

    Parameters
    ----------
    problem
        The problem, whose own memory counts weights alone.
    live
        Its tensors.
    share
        Part of the sum of tensors that searches count; it only grows.
    """

    problem: PlacementProblem
    live: LiveTensors
    share: float = 0.0

    def value_of(self, problem: PlacementProblem, placement: Placement) -> tuple[float]:
        """Return the makespan, ``inf`` where a device is overfull.

        Parameters
        ----------
        problem, placement
            The problem, and a placement of its shape.
        """
        value = makespan(problem, placement)
        return (value if value < np.inf and not self.live.excess(problem, placement).any() else np.inf,)

    def repaired(self, problem: PlacementProblem, placement: Placement) -> Placement | None:
        """Return an overfull placement in an order that fits, or None; then searches count more of the tensors.

        Parameters
        ----------
        problem, placement
            As for `value_of`.
        """
        if makespan(problem, placement) == np.inf:
            return None
        natural = in_natural_order(problem, placement)
        share = self.live.share_of_sum(problem, natural)
        if share == 0.0:
            return natural
        self.share = max(self.share, min(share, self.live.share_of_sum(problem, placement)))
        return None

    def searched(self, start: Placement | None = None) -> PlacementProblem:
        """Return the problem as searches see it: with as much of the tensors as `start` leaves room for.

        Parameters
        ----------
        start
            Where a search begins; None: nowhere.
        """
        share = self.share
        if start is not None and share > 0.0:
            weights = held_bytes(self.problem, start.device)
            sums = held_bytes(self.live.with_sums(self.problem, 1.0), start.device) - weights
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(sums > 0.0, (self.problem.capacity_bytes - weights) / sums, np.inf)
            share = min(share, max(0.0, float(room.min())))
        return self.live.with_sums(self.problem, share)

    def last_resort(self, seed: int, budget: Budget | None = None) -> Placement | None:
        """Return a placement that fits, from earliest finish by moving ops off overfull devices; None if none is found.

        Parameters
        ----------
        seed
            Seed of everything random.
        budget
            When to stop.
        """
        for share in (1.0, self.share, 0.0):
            start = earliest_finish_start(self.live.with_sums(self.problem, share))
            if start is not None:
                return relieve(self.problem, self.live, start, seed=seed, budget=budget)
        return None
