"""A lower bound that knows memory and order together: a chain of segments, with multipliers on the devices' memory.

For multipliers mu >= 0 every placement that fits has ``C >= C + mu . (held - capacity)``, and what lies between two ops
of a chain runs between them (:mod:`rlinit.exact.placements.bounds.chain`). Hence

``C >= sum over segments of cost(arc, mu) + sum over other ops of min_i mu_i held(v) - mu . capacity``

for the arcs of a placement, those with its devices of the chain's ops. Each mu gives a shortest path; but as a
placement has one path for all multipliers, the bound is the least over paths of the largest over multipliers, which A*
finds on labels that are vectors, one sum for each mu. The path it returns decides what is done next: more multipliers,
the best for this very path, by a linear program over columns; and where they are known, an arc of it is halved on a
device of one of its ops. So the bound goes up to the least length of a choice of devices that fits the memory.

References
----------
Held and Karp (1970) for multipliers that are raised until the relaxed solution respects them; Handler and Zang, "A dual
algorithm for the constrained shortest path problem" (Networks, 1980).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.optimize import linprog

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.chains import best_chain
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.placements.bounds.lagrangian_segments import Arc, Column, LagrangianSegment
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem

_ROUNDING = 1e-12
"""Share of a sum of some thousand terms, all at least 0, that rounding may take."""
_SEGMENT_NODES = 200_000
_PROGRAM_NODES = 4_000  # What a linear program counts for, by its time.
_LABELS = 20_000
_COMPARED = 200
_ROUNDS, _PATH_ROUNDS = 30, 12
_CLOSE, _GAIN = 1e-3, 1e-4
_CHAINS = ((66, 0.2), (30, 0.05), (14, 0.02))  # Most ops between neighbours, and what a further op must gain.
_MOST_OPS = 3_000
_EASY_NODES = 20_000
"""Ops placed within which an arc without multipliers has to be solved; else shorter segments are tried."""
_STEADY = 0.7  # How far multipliers move towards those of the linear program.
_LARGEST_MULTIPLIER, _HIGHEST_MULTIPLIER = 16.0, 1e6  # At first, and where only that shows that something does not fit.
_WHOLE = 1e-6
_SOLVED = 1.0 - 1e-9
_TINY = 1e-9  # Ops that hold nothing are halved after all others.

Path = list[int]
"""The index of an arc for each segment."""


class LagrangianChain:
    """The bound, made better step by step; :attr:`bound_s` is a lower bound at all times.

    Parameters
    ----------
    problem, window
        A problem of one shard, and what is left of its batches.
    chain
        Ops, each reachable from the one before it.
    upper
        Bounds are not raised beyond this.
    """

    def __init__(self, problem: PlacementProblem, window: ShardWindows, chain: Sequence[int], upper: float) -> None:
        reach = reachability(problem.order, problem.succ_indptr, problem.succ)
        need = problem.weight_bytes + problem.shard_bytes
        unit = max(float(need.sum()), 1e-300)
        held = need / unit
        self.problem = problem
        # Nothing holds twice what there is, so that this is no limit.
        self.capacity = np.minimum(problem.capacity_bytes, 2.0 * unit) / unit * CAPACITY_SLACK
        self.upper = upper
        self.num_devices = problem.num_devices
        ends = [-1, *chain, -1]
        self.segments = [LagrangianSegment(problem, window, reach, a, b, held) for a, b in itertools.pairwise(ends)]
        inside = np.zeros(problem.num_ops, np.bool_)
        for segment in self.segments:
            inside[segment.ops[segment.ops >= 0]] = True
        self.beside = np.flatnonzero(~inside)
        self._beside_held = held[self.beside]
        self._beside_able = np.isfinite(window.least_s[self.beside])
        self._beside_columns: list[FloatArray] = []
        self.arcs: list[list[Arc]] = [segment.arcs() for segment in self.segments]
        self.multipliers: list[FloatArray] = []
        self.base = np.zeros(0)
        # (arcs, multipliers) costs of the arcs of each segment, and whether they are more than what a parent's cost
        # proves.
        self._cost: list[FloatArray] = [np.zeros((len(arcs), 0)) for arcs in self.arcs]
        self._known: list[NDArray[np.bool_]] = [np.zeros((len(arcs), 0), np.bool_) for arcs in self.arcs]
        # Where each op costs nothing somewhere, the least of the other times stands for what ops cost.
        able = window.least_s[np.isfinite(window.least_s) & (window.least_s > 0)]
        self._scale = float(window.least_s.min(axis=1).sum()) or (float(able.min()) if len(able) else 1.0)
        self.nodes = 0
        self.bound_s = 0.0
        self.exhausted = False

    def run(self, nodes: int, budget: Budget) -> float:
        """Place at most about `nodes` more ops and return the bound.

        Parameters
        ----------
        nodes
            Ops placed in all segments' searches together.
        budget
            Ends the search between two segments.
        """
        last = self.nodes + nodes
        if not self.multipliers:
            self._root(last, budget)
        while not self._ended(last, budget):
            path = self._least_path()
            if path is None:
                break
            self._refine(path, last, budget)
        return self.bound_s

    def is_easy(self, budget: Budget) -> bool:
        """Return whether every arc is solved within few nodes while memory is free; the choices found are kept."""
        free = np.zeros(self.num_devices)
        for segment, arcs in zip(self.segments, self.arcs, strict=True):
            for arc in arcs:
                bound, nodes = segment.cost(arc, free, _EASY_NODES)
                self.nodes += nodes
                if nodes >= _EASY_NODES or bound < arc.least(free) * _SOLVED or budget.expired:
                    return False
        return True

    def _ended(self, last: int, budget: Budget) -> bool:
        return self.exhausted or self.bound_s >= self.upper or self.nodes >= last or budget.expired

    def _raise(self, bound: float) -> None:
        self.bound_s = max(self.bound_s, min(self.upper, bound))

    def _root(self, last: int, budget: Budget) -> None:
        """Find the best multipliers for all paths together by cutting planes."""
        multiplier, best, ceiling = np.zeros(self.num_devices), -np.inf, np.inf
        best_multiplier = multiplier
        for _ in range(_ROUNDS):
            value = self._add_multiplier(multiplier)
            if value > best:
                best, best_multiplier = value, multiplier
            self._raise(value)
            if self._ended(last, budget):
                return
            proposal = self._master([list(range(len(arcs))) for arcs in self.arcs])
            if proposal is None:
                return
            ceiling, multiplier, _ = proposal
            if ceiling <= best + _CLOSE * abs(best):
                return
            multiplier = _STEADY * multiplier + (1.0 - _STEADY) * best_multiplier

    def _add_multiplier(self, multiplier: FloatArray) -> float:
        """Compute the costs of all arcs under new multipliers, drop the arcs that are hopeless, return the bound."""
        self.base = np.append(self.base, self._offset(multiplier))
        self.multipliers.append(multiplier)
        for k, arcs in enumerate(self.arcs):
            cost = np.array([self._solve(k, arc, multiplier) for arc in arcs])
            self._cost[k] = np.column_stack([self._cost[k], cost])
            self._known[k] = np.column_stack([self._known[k], np.ones(len(arcs), np.bool_)])
        return self._drop(len(self.multipliers) - 1)

    def _solve(self, k: int, arc: Arc, multiplier: FloatArray) -> float:
        bound, nodes = self.segments[k].cost(arc, multiplier, _SEGMENT_NODES)
        self.nodes += nodes
        return bound * (1.0 - _ROUNDING)

    def _offset(self, multiplier: FloatArray) -> float:
        """Return what the bound under new multipliers is beside the costs of arcs; note what the ops beside hold then.

        Costs are sums of terms that are at least 0, each rounded down in proportion; only the capacity is taken off.
        """
        each = np.where(self._beside_able, self._beside_held[:, None] * multiplier, np.inf)
        choice = each.argmin(axis=1)
        held = np.bincount(choice, weights=self._beside_held, minlength=self.num_devices).astype(np.float64)
        self._beside_columns.append(held)
        return float(each.min(axis=1).sum()) * (1.0 - _ROUNDING) - float(multiplier @ self.capacity) * (1.0 + _ROUNDING)

    def _drop(self, y: int) -> float:
        """Drop the arcs through which every path is above the upper value by multipliers y; return the least path."""
        costs = [cost[:, y] for cost in self._cost]
        forward, backward = self._sums(costs)
        for k, arcs in enumerate(self.arcs):
            source, target = _ends(arcs)
            through = forward[k][source] + costs[k] + backward[k + 1][target] + self.base[y]
            keep = through < self.upper
            self.arcs[k] = [arc for arc, wanted in zip(arcs, keep.tolist(), strict=True) if wanted]
            self._cost[k], self._known[k] = self._cost[k][keep], self._known[k][keep]
        return float(forward[-1].min()) + float(self.base[y])

    def _sums(self, costs: list[FloatArray]) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return (d,) least sums of costs up to and from each op of the chain."""
        start = np.where(np.arange(self.num_devices) == 0, 0.0, np.inf)
        forward, backward = [start], [start]
        for k, arcs in enumerate(self.arcs):
            source, target = _ends(arcs)
            after = np.full(self.num_devices, np.inf)
            np.minimum.at(after, target, forward[-1][source] + costs[k])
            forward.append(after)
        for k in reversed(range(len(self.arcs))):
            source, target = _ends(self.arcs[k])
            before = np.full(self.num_devices, np.inf)
            np.minimum.at(before, source, costs[k] + backward[-1][target])
            backward.append(before)
        backward.reverse()
        return forward, backward

    def behind(self) -> list[FloatArray]:
        """Return (multipliers, d) least costs from each op of the chain, by its device, to the end."""
        rest = [self._sums([cost[:, y] for cost in self._cost])[1] for y in range(len(self.multipliers))]
        return [np.array([sums[k] for sums in rest]) for k in range(len(self.segments) + 1)]

    def _least_path(self) -> Path | None:
        """Return the path whose largest bound over the multipliers is least, which is the bound; None if none is left.

        Best first, on labels that are sums of costs by every multiplier; of the labels at one op and device those that
        another one is nowhere above are dropped. After too many labels the bound holds but no path is known.
        """
        behind = self.behind()
        ends = [_ends(arcs) for arcs in self.arcs]
        leaving = [[np.flatnonzero(source == i) for i in range(self.num_devices)] for source, _ in ends]
        seen: dict[tuple[int, int], list[FloatArray]] = {}
        labels: list[tuple[FloatArray, Path]] = [(self.base, [])]
        first = float((self.base + behind[0][:, 0]).max())
        heap = [(first, 0, 0, 0)]
        while heap:
            bound, minus_k, number, device = heapq.heappop(heap)
            self._raise(bound)
            if bound >= self.upper:
                return None
            sums, path = labels[number]
            k = -minus_k
            if k == len(self.segments):
                return path
            others = seen.setdefault((k, device), [])
            if others and bool((np.array(others[-_COMPARED:]) <= sums).all(axis=1).any()):
                continue
            others.append(sums)
            if len(labels) > _LABELS:
                self.exhausted = True
                return None
            out = leaving[k][device]
            target = ends[k][1][out]
            further = sums + self._cost[k][out]
            least = np.maximum(bound, (further + behind[k + 1][:, target].T).max(axis=1))
            for arc, to, value, row in zip(out.tolist(), target.tolist(), least.tolist(), further, strict=True):
                if value < self.upper:
                    heapq.heappush(heap, (value, -(k + 1), len(labels), to))
                    labels.append((row, [*path, arc]))
        self._raise(self.upper)
        return None

    def _refine(self, path: Path, last: int, budget: Budget) -> None:
        """Make the bound of a path better: by its costs, by better multipliers, or by halving one of its arcs."""
        sums = self.base + np.sum([self._cost[k][a] for k, a in enumerate(path)], axis=0)
        y = int(np.argmax(sums))
        before = float(sums[y])
        if self._look_up(path, y) > before + _GAIN * abs(before):
            return
        best, best_multiplier, weights = self._multiplier_path(path, y, last, budget)
        if best > max(before, 0.0) + _GAIN * abs(before):
            self._raise_for(best_multiplier)
            return
        if weights is None or not self._halve(path, y, weights):
            self.exhausted = True

    def _look_up(self, path: Path, y: int) -> float:
        """Compute the costs of a path's arcs by multipliers y where a parent's stood in for them; return the sum."""
        total = float(self.base[y])
        for k, a in enumerate(path):
            if not self._known[k][a, y]:
                self._cost[k][a, y] = max(self._cost[k][a, y], self._solve(k, self.arcs[k][a], self.multipliers[y]))
                self._known[k][a, y] = True
            total += float(self._cost[k][a, y])
        return total

    def _raise_for(self, multiplier: FloatArray) -> None:
        self._raise(self._add_multiplier(multiplier))

    def _multiplier_path(
        self, path: Path, y: int, last: int, budget: Budget
    ) -> tuple[float, FloatArray, list[FloatArray] | None]:
        """Return the best bound of one path, its multipliers, and how much of each column the linear program takes."""
        best = -np.inf
        multiplier = best_multiplier = self.multipliers[y]
        weights, largest = None, _LARGEST_MULTIPLIER
        chosen = [[a] for a in path]
        for _ in range(_PATH_ROUNDS):
            value = self._offset(multiplier) + sum(
                self._solve(k, self.arcs[k][a], multiplier) for k, a in enumerate(path)
            )
            if value > best:
                best, best_multiplier = value, multiplier
            proposal = self._master(chosen, largest)
            if proposal is None:
                break
            ceiling, multiplier, weights = proposal
            if multiplier.max() >= largest * self._scale * _SOLVED and largest < _HIGHEST_MULTIPLIER:
                largest *= _LARGEST_MULTIPLIER
            elif best >= self.upper or ceiling <= best + 0.5 * _GAIN * abs(best) or self._ended(last, budget):
                break
            multiplier = _STEADY * multiplier + (1.0 - _STEADY) * best_multiplier
        return best, best_multiplier, weights

    def _master(
        self, chosen: list[list[int]], largest: float = _LARGEST_MULTIPLIER
    ) -> tuple[float, FloatArray, list[FloatArray]] | None:
        """Return the best bound that the columns of the chosen arcs allow, its multipliers, and weights of the columns.

        Maximises ``p[end] - p[start] + r - mu . capacity`` over mu and potentials p of (op of the chain, device) with
        ``p[b, j] - p[a, i] <= length + mu . held`` for every column, and ``r <= mu . held`` for what is beside.
        """
        self.nodes += _PROGRAM_NODES
        d, segments = self.num_devices, len(self.segments)
        size = (segments + 1) * d + 1 + d
        mu = size - d
        rows: list[tuple[int, int, Column]] = [
            (k * d + self.arcs[k][a].source, (k + 1) * d + self.arcs[k][a].target, column)
            for k, choice in enumerate(chosen)
            for a in choice
            for column in self.arcs[k][a].columns
        ]
        if not rows:
            return None
        beside = np.array(self._beside_columns)
        number = np.arange(len(rows))
        heads = scipy.sparse.csr_matrix(
            (
                np.concatenate([-np.ones(len(rows)), np.ones(len(rows))]),
                (np.concatenate([number, number]), [r[0] for r in rows] + [r[1] for r in rows]),
            ),
            shape=(len(rows), mu - 1),
        )
        held = np.array([row[2].held for row in rows])
        blocks: list[list[Any]] = [
            [heads, scipy.sparse.csr_matrix((len(rows), 1)), scipy.sparse.csr_matrix(-held)],
            [None, scipy.sparse.csr_matrix(np.ones((len(beside), 1))), scipy.sparse.csr_matrix(-beside)],
        ]
        lengths = np.array([row[2].length_s for row in rows]) / self._scale
        gain = np.zeros(size)
        gain[0], gain[segments * d], gain[mu - 1], gain[mu:] = -1.0, 1.0, 1.0, -self.capacity
        box = [(0.0, 0.0)] + [(-1e6, 1e6)] * (mu - 1) + [(0.0, largest)] * d
        limit = np.append(lengths, np.zeros(len(beside)))
        matrix: Any = scipy.sparse.bmat(blocks, format="csr")
        result = linprog(-gain, matrix, limit, bounds=box, method="highs")
        if result.x is None or result.status != 0:
            return None
        weight = -np.asarray(result.ineqlin.marginals, np.float64)
        split = np.cumsum([sum(len(self.arcs[k][a].columns) for a in choice) for k, choice in enumerate(chosen)])
        multiplier = np.maximum(np.asarray(result.x[mu:], np.float64), 0.0) * self._scale
        return float(gain @ result.x) * self._scale, multiplier, np.split(weight[: len(rows)], split[:-1])

    def _halve(self, path: Path, y: int, weights: list[FloatArray]) -> bool:
        """Halve the arc of a path whose columns disagree most on what an op holds; return whether any do."""
        best, where = 0.0, (-1, -1, -1)
        for k, (a, weight) in enumerate(zip(path, weights, strict=True)):
            columns = self.arcs[k][a].columns[: len(weight)]
            if np.count_nonzero(weight > _WHOLE) < 2:
                continue
            devices = np.array([column.device for column in columns])
            share = np.stack([(weight[:, None] * (devices == i)).sum(axis=0) for i in range(self.num_devices)], axis=1)
            score = np.minimum(share, 1.0 - share) * (self.segments[k].held[:, None] + _TINY)
            op, device = divmod(int(np.argmax(score)), self.num_devices)
            if share[op, device] > _WHOLE and score[op, device] > best:
                best, where = float(score[op, device]), (k, op, device)
        k, op, device = where
        if k < 0:
            return False
        parent = path[k]
        arcs = self.arcs[k][parent].halves(op, device)
        self._replace(k, parent, arcs)
        for number in range(len(arcs)):
            at = len(self.arcs[k]) - 1 - number
            self._cost[k][at, y] = max(self._cost[k][at, y], self._solve(k, self.arcs[k][at], self.multipliers[y]))
            self._known[k][at, y] = True
        return True

    def _replace(self, k: int, parent: int, arcs: list[Arc]) -> None:
        """Put arcs in the place of one of segment k; its costs hold for them."""
        keep = np.arange(len(self.arcs[k])) != parent
        inherited = np.repeat(self._cost[k][parent][None, :], len(arcs), axis=0)
        self.arcs[k] = [arc for arc, wanted in zip(self.arcs[k], keep.tolist(), strict=True) if wanted] + arcs
        self._cost[k] = np.concatenate([self._cost[k][keep], inherited])
        self._known[k] = np.concatenate([self._known[k][keep], np.zeros(inherited.shape, np.bool_)])


def lagrangian_chain(
    problem: PlacementProblem, window: ShardWindows, upper: float, budget: Budget
) -> LagrangianChain | None:
    """Return the chain with the longest segments that are solved with little work; None where none is known.

    Only for problems of one shard, more than one device and at most 3,000 ops.

    Parameters
    ----------
    problem, window, upper
        As for :class:`LagrangianChain`.
    budget
        Where it ends there is no chain.
    """
    if problem.num_shards > 1 or problem.num_devices == 1 or not 0 < problem.num_ops <= _MOST_OPS:
        return None
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    least = window.least_s.min(axis=1)
    tried: list[list[int]] = []
    for most, gain in _CHAINS:
        ops = best_chain(problem, reach, least, most, gain, budget)
        if ops in tried or not (ops or problem.num_ops <= most):
            continue
        tried.append(ops)
        if budget.expired:
            return None
        chain = LagrangianChain(problem, window, ops, upper)
        if chain.is_easy(budget):
            return chain
    return None


def _ends(arcs: list[Arc]) -> tuple[IntArray, IntArray]:
    """Return the devices of the first and last ops of arcs."""
    return np.array([arc.source for arc in arcs], np.int64), np.array([arc.target for arc in arcs], np.int64)
