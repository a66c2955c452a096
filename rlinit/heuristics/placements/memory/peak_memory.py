"""How a search keeps within memory when the peak of live tensors counts.

The problem that methods see counts weights alone, which is a relaxation: bounds and proofs hold, and a placement counts
only if its peak fits. Heuristics see a part of the sum of a device's tensors beside its weights: the least of a few
parts at which what they find fits. Local search sees the peaks of the placement that it begins from, and for each op
that changes device a part of its tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.contiguous.search import segments_of
from rlinit.heuristics.placements.list_scheduling.heuristics import whole_ops
from rlinit.heuristics.placements.local_search.search import earliest_finish_start
from rlinit.heuristics.placements.memory.peak_relief import best_of_all, has_few_schedules, in_natural_order, relieve
from rlinit.kernels.placements.list_scheduling import StorageArrays, depth_first
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.shards import on_groups, on_members
from rlinit.placements.timeline import held_bytes, makespan

SHARES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0)
"""Parts of the sum of a device's tensors that heuristics count; with all of it, whatever they find fits."""

_FACTORS = (1.0, 1.1, 1.3, 1.7)
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
    level
        Where in `SHARES` a heuristic last found what fits; its part of the sum of tensors is what the next ones count.
    binds
        Whether anything was overfull so far.
    slow
        Whether the last heuristic with which anything was overfull took too long to count more.
    started
        Whether `fitting_start` was called.
    """

    problem: PlacementProblem
    live: LiveTensors
    level: int = 0
    binds: bool = False
    slow: bool = False
    started: bool = False

    def value_of(self, problem: PlacementProblem, placement: Placement) -> tuple[float]:
        """Return the makespan, ``inf`` where a device is overfull.

        Parameters
        ----------
        problem, placement
            The problem, and a placement of its shape.
        """
        value = makespan(problem, placement)
        return (value if value < np.inf and self.fits(placement) else np.inf,)

    def fits(self, placement: Placement) -> bool:
        """Return whether no device is overfull.

        Parameters
        ----------
        placement
            A placement with a finite makespan.
        """
        over = bool(self.live.excess(self.problem, placement).any())
        self.binds = self.binds or over
        return not over

    def repaired(self, problem: PlacementProblem, placement: Placement) -> Placement | None:
        """Return an overfull placement in an order that fits, or None.

        Parameters
        ----------
        problem, placement
            As for `value_of`.
        """
        if makespan(problem, placement) == np.inf:
            return None
        natural = in_natural_order(problem, placement)
        return natural if self.fits(natural) else None

    def counted(self, level: int) -> PlacementProblem:
        """Return the problem with a part of `SHARES` of the sum of tensors beside weights."""
        return self.live.with_sums(self.problem, SHARES[level])

    def around(self, start: Placement) -> PlacementProblem:
        """Return the problem for a local search: what `start` holds counts as it is, what moves a part of its tensors.

        The part is that of all peaks of `start` in all of its sums. It is an estimate: what is found may be overfull.
        Where nothing was overfull so far, weights alone count.

        Parameters
        ----------
        start
            A placement that fits.
        """
        if not self.binds:
            return self.problem
        peaks = self.live.peak_bytes(self.problem, start)
        sums = held_bytes(self.live.with_sums(self.problem, 1.0), start.device) - held_bytes(self.problem, start.device)
        share = min(1.0, float(peaks.sum() / sums.sum())) if sums.any() else 0.0
        counted = self.live.with_sums(self.problem, share)
        left = np.maximum(self.problem.capacity_bytes - (peaks - share * sums), held_bytes(counted, start.device))
        return dataclasses.replace(counted, capacity_bytes=left)

    def fitting_start(self, budget: Budget) -> Placement | None:
        """Return the best placement by list scheduling and of segments that count live tensors; None if none fits.

        Ops are taken in the graph's natural order and depth first, whole or shared out over groups of devices. Where
        devices, each as early as it can, make or send more ahead than they do in sequence, tensors count for more than
        they are.

        Parameters
        ----------
        budget
            When to stop; one way is tried in any case.

        References
        ----------
        Herrmann, Marchal, Robert: Memory-aware list scheduling for hybrid platforms. IPDPSW 2014, MemHEFT.
        """
        self.started = True
        best: Placement | None = None
        value = np.inf
        shards, storages = self.problem.num_shards, self.live.storages()
        depth = depth_first(storages, self.problem.succ_indptr, self.problem.succ, self.problem.pred_indptr)
        for parts in range(1, min(shards, self.problem.num_devices) + 1):
            if shards % parts or (parts > 1 and budget.expired):
                continue
            held = storages._replace(size=shards // parts * storages.size)
            for reached, found in self._on_parts(parts, held, (self.problem.order, depth), budget):
                if reached < value:
                    value, best = reached, found
                if budget.expired and best is not None:
                    return best
        return best

    def _on_parts(
        self, parts: int, storages: StorageArrays, orders: tuple[IntArray, IntArray], budget: Budget
    ) -> Iterator[tuple[float, Placement]]:
        """Yield placements of `fitting_start` that share out each op over groups of devices, and what they take."""
        problem, members = on_groups(self.problem, parts) if parts > 1 else (self.problem, None)
        for cut, order in product((False, True), orders):
            for factor in _FACTORS:
                counted = storages._replace(size=factor * storages.size)
                ways = segments_of(problem, order, counted, budget) if cut else [whole_ops(problem, order, counted)]
                found = [
                    one if members is None else on_members(self.problem, members, one)
                    for one in ways
                    if one is not None
                ]
                reached = [(self.value_of(self.problem, one)[0], one) for one in found]
                yield from reached
                if budget.expired or not found or min(value for value, _ in reached) < np.inf:
                    break

    def last_resort(self, seed: int, budget: Budget) -> Placement | None:
        """Return a placement that fits, where need be by moving ops off overfull devices; None if none is found.

        Parameters
        ----------
        seed
            Seed of everything random.
        budget
            When to stop.
        """
        fitting = None if self.started else self.fitting_start(budget)
        if fitting is None and has_few_schedules(self.problem):
            fitting = best_of_all(self.problem, self.live, np.inf, budget=budget)
        if fitting is not None:
            return fitting
        for share in (1.0, SHARES[self.level], 0.0):
            start = earliest_finish_start(self.live.with_sums(self.problem, share))
            if start is not None:
                return relieve(self.problem, self.live, start, seed=seed, budget=budget)
        return None
