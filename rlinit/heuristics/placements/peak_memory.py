"""How a search keeps within memory when the peak of live tensors counts.

The problem that methods see counts weights alone, which is a relaxation: bounds and proofs hold, and a placement counts
only if its peak fits. Heuristics and local search see a part of the sum of a device's tensors beside its weights, none
at first. Where what they find is overfull, the part becomes what the peak was of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling import whole_ops
from rlinit.heuristics.placements.local_search import earliest_finish_start
from rlinit.heuristics.placements.peak_relief import in_natural_order, relieve
from rlinit.kernels.placements.list_scheduling import depth_first
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan

_FACTORS = (1.0, 1.3, 1.7)
"""How many times the tensors of a sequence count, tried in turn until what devices do ahead fits, too."""


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

    def fitting_start(self, budget: Budget) -> Placement | None:
        """Return a placement by earliest finish that counts live tensors on the way; None if none is found.

        Ops are taken in the graph's natural order and depth first. Where devices, each as early as it can, make or send
        more ahead than they do in sequence, tensors count for more than they are.

        Parameters
        ----------
        budget
            When to stop.

        References
        ----------
        Herrmann, Marchal, Robert: Memory-aware list scheduling for hybrid platforms. IPDPSW 2014, MemHEFT.
        """
        problem, storages = self.problem, self.live.storages(self.problem.num_shards)
        orders = (problem.order, depth_first(storages, problem.succ_indptr, problem.succ, problem.pred_indptr))
        for factor in _FACTORS:
            found = [whole_ops(problem, order, storages, factor) for order in orders]
            fitting = [(self.value_of(problem, one), one) for one in found if one is not None]
            value, best = min(fitting, key=lambda pair: pair[0], default=((np.inf,), None))
            if value[0] < np.inf:
                return best
            if not fitting or budget.expired:
                return None
        return None

    def last_resort(self, seed: int, budget: Budget) -> Placement | None:
        """Return a placement that fits, where need be by moving ops off overfull devices; None if none is found.

        Parameters
        ----------
        seed
            Seed of everything random.
        budget
            When to stop.
        """
        fitting = self.fitting_start(budget)
        if fitting is not None:
            return fitting
        for share in (1.0, self.share, 0.0):
            start = earliest_finish_start(self.live.with_sums(self.problem, share))
            if start is not None:
                return relieve(self.problem, self.live, start, seed=seed, budget=budget)
        return None
