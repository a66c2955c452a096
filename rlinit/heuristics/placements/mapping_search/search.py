"""Searches over the mapping string: simulated annealing and the biased (1 + 1) evolutionary algorithm.

The string has one gene for each op (or group of colocated ops), in breadth-first topological order; with several shards
a gene is a split, how many shards each device runs. The fitness is the makespan in that order, with transfers in
parallel; placements beyond the memory are worse than all others, by the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import WORK_A_LOOK, FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.placements.list_scheduling.common import breadth_first, placed_in_order, slices
from rlinit.heuristics.placements.list_scheduling.heuristics import best_device, minimum_execution_time
from rlinit.heuristics.placements.mapping_search.kernel import SearchArrays, new_mapping, search_mapping
from rlinit.kernels.placements.annealing import HOT, cooling_factor
from rlinit.kernels.placements.list_scheduling import DURATION, list_schedule
from rlinit.placements.arrays import kernel_arrays, mean_work_s
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, shard_masks

_WORK = 50_000_000
"""Op placements of a search where nobody says how many evaluations: some seconds."""

_MOST = 200_000
"""Most changes of such a search."""

_COLD = 1e-3
"""Last temperature, relative to the first."""


def anneal(
    problem: PlacementProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Anneal single-gene changes of the mapping string, from the best single device or, if better, from MET's mapping.

    `evaluations` are changes; 50 million op placements by default, at most 200,000 changes.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    DIVIML, section V: SA and the fitness function.
    """
    string = _String.of(problem)
    start = string.best_of([best_device(problem), minimum_execution_time(problem)])
    hot = HOT * float(mean_work_s(problem).mean()) if problem.num_ops else 0.0
    return string.searched(start, seed, evaluations, budget, hot, several=False)


def evolve(
    problem: PlacementProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Run the (1 + 1) EA from each op's fastest device (biased), whether or not that fits the memory.

    Each of the m genes is redrawn with probability 1/m, at least one; a mutant that is no worse replaces its parent.
    `evaluations` are mutants; 50 million op placements by default, at most 200,000 mutants.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    DIVIML, section V: biased (1 + 1) EA; Droste, Jansen, Wegener: On the analysis of the (1 + 1) evolutionary
    algorithm. Theoretical Computer Science 276, 2002.
    """
    string = _String.of(problem)
    return string.searched(string.fastest(), seed, evaluations, budget, 0.0, several=True)


@dataclass(frozen=True, slots=True, eq=False)
class _String:
    """The mapping string of a problem: `order` (n,), the `leader` (m,) op of each gene, and what the kernels take."""

    problem: PlacementProblem
    order: IntArray
    leader: IntArray
    arrays: SearchArrays

    @classmethod
    def of(cls, problem: PlacementProblem) -> _String:
        """Return the string: ops are numbered by the breadth-first order, genes by their first op."""
        n = problem.num_ops
        order = breadth_first(problem)
        place = inverse_of(order)
        leader = problem.group[order]
        _, first, inverse = np.unique(leader, return_index=True, return_inverse=True)
        gene = np.argsort(np.argsort(first))[inverse]
        leader = leader[np.sort(first)]
        edges = np.stack([place[problem.edges[:, 0]], place[problem.edges[:, 1]]], axis=1)
        edges = edges[np.lexsort((edges[:, 0], edges[:, 1]))]
        whole = kernel_arrays(problem)
        allowed = np.ascontiguousarray(whole.allowed[leader])
        arrays = SearchArrays(
            np.ascontiguousarray(problem.time_s[order]),
            problem.tensor_bytes[order],
            problem.s_per_byte,
            _finite_delay(problem),
            np.concatenate([[0], np.cumsum(np.bincount(edges[:, 1], minlength=n))]).astype(np.int64),
            np.ascontiguousarray(edges[:, 0]),
            np.concatenate([[0], np.cumsum(np.bincount(gene, minlength=len(leader)))]).astype(np.int64),
            np.argsort(gene, kind="stable"),
            allowed,
            whole.held_weight[leader],
            whole.held_shard[leader],
            problem.capacity_bytes * ((1.0 + CAPACITY_SLACK) / 2),  # Room for the rounding of running sums.
            np.flatnonzero(allowed[:, :, 1:].any(axis=2).sum(axis=1) > 1),
        )
        return cls(problem, order, leader, arrays)

    def searched(
        self,
        start: IntArray | None,
        seed: int,
        evaluations: int | None,
        budget: Budget | None,
        hot: float,
        several: bool,
    ) -> Placement | None:
        """Return the best placement that a search from a mapping finds, or None; see `search_mapping`."""
        if start is None or len(self.arrays.movable) == 0:
            return self.placement(start)
        n = self.problem.num_ops
        moves = evaluations or max(1, min(_MOST, _WORK // n))
        rng, state, temperature = np.random.default_rng(seed), new_mapping(self.arrays, start), hot
        cooling = cooling_factor(hot, hot * _COLD, moves)
        for part in slices(moves, max(1, WORK_A_LOOK // n), budget):
            temperature = search_mapping(rng, self.arrays, state, part, temperature, cooling, several)
        return self.placement(state.best)

    def fastest(self) -> IntArray | None:
        """Return (m, d) counts where each op takes the least time, whatever memory and links; None if there is none."""
        whole = kernel_arrays(self.problem)
        free = whole._replace(capacity=np.full(self.problem.num_devices, np.inf), delay=np.zeros_like(whole.delay))
        shape = (self.problem.num_ops, self.problem.num_devices)
        mask = np.zeros(shape, np.int64)
        if not list_schedule(free, self.order, DURATION, mask, np.empty(shape), np.empty(shape)):
            return None
        return self.counts(mask)

    def best_of(self, placements: list[Placement | None]) -> IntArray | None:
        """Return the counts of the best of some placements; those of `fastest` if there is none."""
        there = [placement for placement in placements if placement is not None]
        if not there:
            return self.fastest()
        best = min(there, key=lambda placement: makespan(self.problem, placement))
        return self.counts(shard_masks(best.device, self.problem.num_devices))

    def counts(self, mask: IntArray) -> IntArray:
        """Return (m, d) shards of each gene on each device, from the (n, d) masks of the ops."""
        bits = (mask[self.leader][:, :, None] >> np.arange(self.problem.num_shards)) & 1
        return np.ascontiguousarray(bits.sum(axis=2))

    def placement(self, count: IntArray | None) -> Placement | None:
        """Return the placement of a mapping, in the breadth-first order; None if it is not feasible."""
        if count is None:
            return None
        low = np.cumsum(count, axis=1) - count
        of_leader = np.zeros((self.problem.num_ops, self.problem.num_devices), np.int64)
        of_leader[self.leader] = ((np.int64(1) << count) - 1) << low
        return placed_in_order(self.problem, of_leader[self.problem.group], self.order)


def _finite_delay(problem: PlacementProblem) -> FloatArray:
    """Return the delays, those of missing links longer than any makespan without them."""
    missing = ~np.isfinite(problem.delay_s)
    if not missing.any():
        return problem.delay_s
    work = np.where(np.isfinite(problem.time_s), problem.time_s, 0.0).max(axis=2, initial=0.0).sum()
    volume = problem.num_shards * problem.tensor_bytes.sum()
    known = np.where(missing, 0.0, problem.delay_s).max(initial=0.0)
    long = work + volume * problem.s_per_byte.max(initial=0.0) + known * problem.num_ops
    return np.where(missing, 2.0 * long + 1.0, problem.delay_s)
