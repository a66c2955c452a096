"""What walks of units over places cost at least, proven by branch and bound over their counts.

For multipliers y of the rows least <= A v <= limit of a program with low <= v <= high, weak duality says

    cost . v  >=  sum_i y_i (least_i if y_i > 0 else limit_i)  +  sum_j min (cost - A^T y)_j v_j

for every v that satisfies them, the minima over low_j <= v_j <= high_j, and so for the counts of every walk that fits.
SoPlex proposes y; the right-hand side is computed here, and what rounding may have added to it is taken off, so that it
holds whatever the solver's tolerances. With costs of 0 and a right-hand side above 0, nothing satisfies the rows.

A node is split by the first of these that SoPlex's point leaves open: where a unit is that is alone of its kind;
whether a buffer or a station is used; how many units of a slot are on a set of stations; whether a slot is on a
station, how many units of a slot are on a place, and cuts.

References
----------
Neumaier, Shcherbina: Safe bounds in linear and mixed-integer linear programming, Mathematical Programming 99, 2004.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import NEARLY, ROUNDING, SAFETY, FloatArray, IntArray
from rlinit.llm.search.contiguous import Places
from rlinit.llm.search.counts import Counts, Row

MOST_WORK = 2e7
"""Columns times pivots of all linear programs, some three seconds."""

_LEAST_PIVOTS = 10
"""Pivots that as much time goes by in as around a linear program."""

_EPSILON = np.finfo(np.float64).eps
"""Twice the relative error of one rounding: k of them in a row, k < 10^6, are off by less than k times this."""


@dataclass(frozen=True, slots=True)
class ProvenWalk:
    """The place of each unit, none where no walk was found, and what was proven that no walk is below.

    Parameters
    ----------
    places
        (n,) place of each unit.
    bound
        inf where nothing fits.
    closed
        Whether the search came to its end, so that the walk is best, or none fits.
    work
        What it took, in the unit of `MOST_WORK`.
    """

    places: tuple[int, ...]
    bound: float
    closed: bool
    work: float


def prove_walk(problem: Places, walks: Sequence[Sequence[int]] = (), work: float = MOST_WORK) -> ProvenWalk:
    """Return the best walk found, and what none is below: the best one's cost, unless the work ends before.

    Parameters
    ----------
    problem
        Units, places and memories.
    walks
        Walks to begin with, where some are known; better ones may be found.
    work
        Columns times pivots of all linear programs, after which the search ends.
    """
    search = _Search(problem, work)
    for walk in walks:
        search.offer(np.asarray(walk, np.int64))
    return search.solve()


@dataclass(slots=True)
class _Node:
    """What columns are between, and what no walk among these costs less than, in the unit of the program."""

    bound: float
    low: FloatArray
    high: FloatArray


class _Search:
    """Branch and bound, best bound first; one child of each node at once."""

    def __init__(self, problem: Places, work: float) -> None:
        self.problem, self.counts, self.work = problem, Counts(problem), work
        self.relaxation = _Relaxation(self.counts)
        self.best, self.nodes = np.inf, 0
        self.best_walk: IntArray | None = None

    def offer(self, walk: IntArray) -> None:
        """Keep a walk that fits and costs less than the best so far."""
        cost = self.problem.cost(walk)
        if cost < self.best and self.problem.fits(walk):
            self.best, self.best_walk = cost, walk.copy()

    def solve(self) -> ProvenWalk:
        """Search until nothing is left open, or the work is done."""
        counts = self.counts
        waiting = [(0.0, 0, _Node(0.0, np.zeros(counts.num_columns), counts.high.copy()))]
        done = np.inf
        while waiting:
            node: _Node | None = heapq.heappop(waiting)[2]
            while node is not None:
                children = []
                if node.bound < self._target() and self.relaxation.work < self.work:
                    self.nodes += 1
                    children = self._expand(node)
                if not children or node.bound >= self._target():
                    done, node = min(done, node.bound), None
                    continue
                heapq.heappush(waiting, (node.bound, -self.nodes, children[1]))
                node = children[0]
        if self.best_walk is None:
            return ProvenWalk((), done * counts.scale, done == np.inf, self.relaxation.work)
        proven = min(done * counts.scale, self.best)
        return ProvenWalk(tuple(self.best_walk.tolist()), proven, done >= self._target(), self.relaxation.work)

    def _target(self) -> float:
        """Return the bound from which on a node holds nothing better than what is known."""
        return self.best * (1.0 - SAFETY) / self.counts.scale

    def _expand(self, node: _Node) -> list[_Node]:
        """Raise a node's bound, with rows that its points violate; return two nodes that hold its walks."""
        point, last = None, -np.inf
        while self.relaxation.work < self.work:
            bound, point = self.relaxation.solve(node.low, node.high)
            node.bound = max(node.bound, bound)
            if node.bound >= self._target():
                return []
            if point is None:
                break
            rows = [*self.counts.facets(point), *self.counts.connections(point)]
            if not rows or (self.nodes > 1 and bound < last + SAFETY * abs(last)):
                break
            last = bound
            self.relaxation.add(rows)
        return self._split(node, point)

    def _split(self, node: _Node, point: FloatArray | None) -> list[_Node]:
        """Return the nodes on both sides of a column; none where the walks of a node are settled."""
        open_ = node.high > node.low
        if not open_.any():
            return self._settle(node)
        if point is not None:
            apart = np.where(open_, np.abs(point - np.rint(point)), 0.0)
            for group in self.counts.branched:
                if apart[group].max(initial=0.0) > NEARLY:
                    column = int(group[np.argmax(apart[group])])
                    return self._children(node, column, float(point[column]))
            walk = self.counts.walk(point)
            if walk is not None:
                self.offer(walk)
                if node.bound >= self._target():
                    return []
        column = next(int(group[open_[group]][0]) for group in self.counts.branched if open_[group].any())
        middle = (node.low[column] + node.high[column]) / 2 if point is None else float(np.rint(point[column])) - 0.5
        return self._children(node, column, middle)

    def _settle(self, node: _Node) -> list[_Node]:
        """Set the bound of a node all of whose columns are: all its walks cost and take the same."""
        walk = self.counts.walk(node.low)
        if walk is not None:
            self.offer(walk)
        if walk is not None and self.problem.fits(walk):
            node.bound = max(node.bound, self.problem.cost(walk) / self.counts.scale * (1 - ROUNDING))
        else:
            node.bound = np.inf
        return []

    def _children(self, node: _Node, column: int, value: float) -> list[_Node]:
        """Return a node with a column above a value, and one with it below, the nearer one first."""
        whole = min(max(np.floor(value), node.low[column]), node.high[column] - 1)
        low, high = node.low.copy(), node.high.copy()
        high[column], low[column] = whole, whole + 1
        below, above = _Node(node.bound, node.low, high), _Node(node.bound, low, node.high)
        return [above, below] if value - whole > 0.5 or self.counts.high[column] == 1.0 else [below, above]


class _Relaxation:
    """The linear program of a node; whatever SoPlex says of it, the bounds hold."""

    def __init__(self, counts: Counts) -> None:
        # Here and not above: the command line starts without it.
        from pyscipopt import LP

        self.cost, self.low, self.high = counts.cost, np.zeros(counts.num_columns), counts.high.copy()
        self.work, self._lp = 0.0, LP()
        columns: list[list[tuple[int, float]]] = [[] for _ in range(counts.num_columns)]
        self._lp.addCols(columns, self.cost.tolist(), self.low.tolist(), self.high.tolist())
        self._matrix, self._least, self._limit = np.zeros((0, counts.num_columns)), np.zeros(0), np.zeros(0)
        self.add(counts.rows)

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows that every walk satisfies."""
        fresh, most = np.zeros((len(rows), len(self.cost))), self._lp.infinity()
        for at, row in enumerate(rows):
            fresh[at, list(row.terms)] = list(row.terms.values())
        self._matrix = np.vstack([self._matrix, fresh])
        self._sizes = np.abs(self._matrix)
        self._least = np.concatenate([self._least, [row.least for row in rows]])
        self._limit = np.concatenate([self._limit, [row.limit for row in rows]])
        self._lp.addRows(
            [list(row.terms.items()) for row in rows],
            [max(row.least, -most) for row in rows], [min(row.limit, most) for row in rows],
        )  # fmt: skip

    def solve(self, low: FloatArray, high: FloatArray) -> tuple[float, FloatArray | None]:
        """Return a proven bound, and a point, None where there is none.

        Parameters
        ----------
        low, high
            Of columns.
        """
        for column in np.flatnonzero((low != self.low) | (high != self.high)).tolist():
            self._lp.chgBound(column, low[column], high[column])
        self.low, self.high = low.copy(), high.copy()
        self._lp.solve()
        self.work += len(self.cost) * (_LEAST_PIVOTS + self._lp.getNIterations())
        if self._lp.isOptimal():
            return self._proven(np.array(self._lp.getDual()), self.cost), np.array(self._lp.getPrimal())
        ray = self._lp.getDualRay()
        if ray is not None and self._proven(np.array(ray), 0.0 * self.cost) > 0.0:
            return np.inf, None
        return -np.inf, None

    def _proven(self, multipliers: FloatArray, cost: FloatArray) -> float:
        """Return what weak duality proves with any multipliers, less rounding."""
        side = np.where(multipliers > 0, self._least, self._limit)
        y = np.where(np.isfinite(side), multipliers, 0.0)
        constants = y * np.where(np.isfinite(side), side, 0.0)
        reduced = cost - y @ self._matrix
        terms = np.abs(cost) + np.abs(y) @ self._sizes
        steps = len(y) + len(cost) + 10  # that any number goes through
        rounding = _EPSILON * steps * (np.abs(constants).sum() + float(terms @ self.high))
        return float(constants.sum() + np.minimum(reduced * self.low, reduced * self.high).sum() - rounding)
