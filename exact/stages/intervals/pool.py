"""Ideals that a search has come by, combined: the best chain of stages between any of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray, WordArray
from rlinit.budget import Budget
from rlinit.exact.stages.ideals.bottleneck_search import ROUNDING, BottleneckSearch, StageCosts
from rlinit.exact.stages.ideals.passes import Crossings
from rlinit.exact.stages.ideals.table import segment_sums
from rlinit.exact.stages.intervals.cover import set_sums
from rlinit.exact.stages.intervals.crossings import crossings
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageAssignment, StageProblem
from rlinit.stages.states import MOST_STEPS, StageStates, num_counted

_MOST_IDEALS, _MOST_LABELS, _MOST_BITS = 6_000, 200_000, 30_000_000
"""Ideals that a pool keeps, fewer where these times the sets of devices used, or times nodes, are more."""

_LEAST_IDEALS = 100
"""New ideals before the pool is searched again; where it has more, a sixth of them."""


class _Out(Exception):
    """The budget ended."""


@njit(cache=True, nogil=True)
def _first_open(bits: WordArray) -> IntArray:
    """Return (p,) the first word of each set that is not full."""
    first = np.zeros(len(bits), np.int64)
    for i in range(len(bits)):
        while first[i] < bits.shape[1] and bits[i, first[i]] == ~np.uint64(0):
            first[i] += 1
    return first


@dataclass(frozen=True, slots=True, eq=False)
class PooledTable:
    """The p ideals of a pool, sorted by weight, then by size.

    Parameters
    ----------
    weight
        (p,) whole number; an ideal within another weighs no more and comes earlier.
    crossings
        Members of each ideal, as bits, and the tensors that leave it.
    """

    weight: IntArray
    crossings: Crossings

    @staticmethod
    def build(bits: WordArray, problem: StageProblem, weight: IntArray, budget: Budget) -> PooledTable:
        """Sort ideals by the sums of a whole node weight, and look up their tensors.

        Parameters
        ----------
        bits
            (p, words) members.
        problem
            The problem whose ideals they are.
        weight
            (n,) whole numbers, none below 0, whose sum a float holds exactly.
        budget
            When to stop.

        Raises
        ------
        _Out
            The budget ended.
        """
        total = set_sums(bits, weight.astype(np.float64))
        order = np.lexsort((set_sums(bits, np.ones(problem.num_nodes)), total))
        bits = np.ascontiguousarray(bits[order])
        found = crossings(bits, bits, problem.tensor_arrays, np.ones(problem.num_tensors), budget)
        if found is None:
            raise _Out
        cross = found.tensor.astype(np.int32)
        ends = problem.tensor_src, problem.tensor_indptr, problem.tensor_dst
        table = Crossings(bits, _first_open(bits), found.indptr, cross, *ends)
        return PooledTable(total[order].astype(np.int64), table)

    @property
    def num_ideals(self) -> int:
        """Number of ideals p."""
        return len(self.weight)

    def sums(self, weight: FloatArray) -> FloatArray:
        """Return (p,) the sum of a node weight, (n,), over each ideal."""
        return np.asarray(set_sums(self.crossings.bits, weight))

    def crossing_sums(self, weight: FloatArray) -> FloatArray:
        """Return (p,) the sum of a tensor weight, (m,), over the tensors that leave each ideal."""
        return np.asarray(segment_sums(self.crossings.cross_indptr, self.crossings.cross, weight))

    def stages(self, chain: list[int], num_nodes: int) -> IntArray:
        """Return (n,) the stage of each node.

        Parameters
        ----------
        chain
            Ideals: what the first 1, 2, ... stages hold.
        num_nodes
            Number of nodes n.
        """
        rows = self.crossings.bits[chain].view(np.uint8)
        outside = np.unpackbits(rows, axis=1, count=num_nodes, bitorder="little") == 0
        return np.asarray(outside.sum(axis=0), np.int64)


class IdealPool:
    """What stages of many assignments end with, and the best assignment that can be put together from it.

    Where assignments exceed a trial in different places, their good parts go together. Those left longest untouched
    make room for new ones.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    """

    def __init__(self, problem: StageProblem) -> None:
        n, k = problem.num_nodes, problem.num_stages
        num_states = num_counted(problem.class_count, min(k, n))
        steps = num_states * problem.num_classes
        most = min(_MOST_IDEALS, _MOST_LABELS // num_states, _MOST_BITS // max(1, n)) if steps <= MOST_STEPS else 0
        self.problem = problem
        self._most = most if most > _LEAST_IDEALS else 0
        self._states = StageStates.counted(problem.class_count, min(k, n)) if self._most else None
        self._rows: dict[bytes, None] = {}
        self._fresh = 0

    def add(self, stage: IntArray) -> None:
        """Add what the first 1, 2, ... stages of a monotone assignment hold.

        Parameters
        ----------
        stage
            (n,) stage of each node.
        """
        if self._states is None:
            return
        inside = stage[None, :] <= np.arange(self.problem.num_stages - 1)[:, None]
        for row in np.packbits(inside, axis=1, bitorder="little"):
            key = row.tobytes()
            self._fresh += key not in self._rows
            self._rows.pop(key, None)
            self._rows[key] = None
        while len(self._rows) > self._most:
            del self._rows[next(iter(self._rows))]

    def better(self, value: float, budget: Budget) -> StageAssignment | None:
        """Return the best assignment of pooled ideals if it is below `value`, where enough of them are new.

        Parameters
        ----------
        value
            Seconds.
        budget
            When to stop; then None.
        """
        if self._states is None or self._fresh < max(_LEAST_IDEALS, len(self._rows) / 6):
            return None
        self._fresh = 0
        problem, costs = self.problem, StageCosts.seconds(self.problem)

        def tabulate(weight: IntArray) -> PooledTable:
            return PooledTable.build(self._bits(), problem, weight, budget)

        try:
            search = BottleneckSearch(problem, tabulate, self._states, costs, budget)
        except _Out:
            return None
        found = search.run(value, value * (1 - 2 * ROUNDING), None)
        if found.value is None:
            return None
        stage = search.table.stages(found.chain, problem.num_nodes)
        return StageAssignment(stage, problem.completed_classes(found.classes))

    def _bits(self) -> WordArray:
        """Return (p, words) the ideals, with the empty one and that of all nodes."""
        n = self.problem.num_nodes
        table = np.zeros((len(self._rows) + 2, 8 * ((n + 63) // 64)), np.uint8)
        used = (n + 7) // 8
        table[1:-1, :used] = np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, used)
        table[-1, :used] = np.packbits(np.ones(n, np.bool_), bitorder="little")
        return table.view(np.uint64)
