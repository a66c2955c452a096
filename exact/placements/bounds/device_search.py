"""Branch and bound over devices (order stays relaxed): a lower bound that gets better with the nodes it is given."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import ShardWindows, latest_end, possible_batches, shard_windows
from rlinit.exact.placements.bounds.lp_relaxation import CutPool, PlacementLP
from rlinit.placements.problem import PlacementProblem

_Node = tuple[float, int, NDArray[np.bool_], FloatArray, FloatArray]

_ROOT_ROUNDS = 8
_FRACTIONAL = 1e-6
_FRACTIONAL_COUNT = 1e-3
_STEP = 1.05

_LEAST_STEP = 1e-3
"""Part of the upper bound by which a ceiling rises at least: from a bound of 0, steps of 5% would never arrive."""


class DeviceSearch:
    """Best-first search of a `latency` problem that can be continued; :attr:`bound_s` is a lower bound at all times.

    A node forbids devices. It is dropped once its bound reaches the ceiling, which is what windows are tightened
    against; when nothing is left below the ceiling, that is the bound, and the search goes on with a higher one.

    Parameters
    ----------
    problem
        A problem of one shard.
    upper
        Bounds are not raised beyond this.
    allowed
        (n, d, 2) batches to choose from; None: all that are possible.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        *,
        upper: float = np.inf,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.problem = problem
        self.upper = upper
        self.allowed = possible_batches(problem) if allowed is None else allowed
        self.reach = reachability(problem.order, problem.succ_indptr, problem.succ)
        self.pool = CutPool()
        self.nodes = 0
        self.bound_s = 0.0
        self.exhausted = False
        self.ceiling = upper
        self._open: list[_Node] = []
        self._count = itertools.count()

    def run(self, nodes: int, budget: Budget, target: float = np.inf) -> float:
        """Solve at most about `nodes` more relaxations and return the bound; stop early once it reaches `target`.

        Parameters
        ----------
        nodes
            At least 0.
        budget
            Ends the search between two relaxations.
        target
            Seconds.
        """
        last = self.nodes + nodes
        target = min(target, self.upper)
        if self.nodes == 0:
            self._root(budget)
        while self.bound_s < target and not self.exhausted and self.nodes < last and not budget.expired:
            if not self._open:
                self.bound_s = max(self.bound_s, self.ceiling)
                if self.bound_s < self.upper:
                    self._open_root(budget)
                continue
            bound, _, allowed, counts, share = self._open[0]
            self.bound_s = max(self.bound_s, min(bound, self.ceiling))
            children = self._children(allowed, counts, share)
            if not children:
                self.exhausted = True  # Devices are settled: what is left is a matter of order.
                break
            heapq.heappop(self._open)
            for child in children:
                self._expand(*child, bound, budget, 1)
        return self.bound_s

    def _root(self, budget: Budget) -> None:
        """Solve the root, separating; its bound decides the first ceiling."""
        window = shard_windows(self.problem, self.upper, self.allowed)
        if window is None:
            self.nodes += 1
            self.bound_s, self.exhausted = self.upper, True
            return
        self.allowed = window.allowed
        self.bound_s = window.floor_s
        self._open_root(budget)

    def _open_root(self, budget: Budget) -> None:
        """Start again at the root with a higher ceiling."""
        if self.nodes:
            self.ceiling = self._next_ceiling()
        d = self.problem.num_devices
        counts = np.stack([np.zeros(d), np.full(d, float(self.problem.num_ops))])
        self._expand(self.allowed, counts, self.bound_s, budget, _ROOT_ROUNDS)
        if self._open and self.ceiling == self.upper:
            self.bound_s = max(self.bound_s, self._open[0][0])
            self.ceiling = self._next_ceiling()

    def _next_ceiling(self) -> float:
        """Return a ceiling above the bound: by a step, and by no less than a small part of the value to reach."""
        least = _LEAST_STEP * self.upper if np.isfinite(self.upper) else 0.0
        above = max(self.bound_s * _STEP, self.bound_s + least, np.nextafter(self.bound_s, np.inf))
        return float(min(self.upper, above))

    def _expand(
        self, allowed: NDArray[np.bool_], counts: FloatArray, floor: float, budget: Budget, rounds: int
    ) -> None:
        """Tighten the windows of a node, solve its relaxation, and keep it unless it reaches the ceiling."""
        window: ShardWindows | None = shard_windows(self.problem, self.ceiling, allowed)
        self.nodes += 1
        if window is None:
            return
        horizon = latest_end(self.problem, window.allowed)
        program = PlacementLP(self.problem, window, horizon, self.reach, self.pool, counts)
        bound = floor
        for done in itertools.count():
            bound = max(bound, program.solve(budget.remaining_s))
            if bound >= self.ceiling:
                return
            settled = not self._children(window.allowed, counts, program.shares())
            # Rows found last are for the children.
            if program.separate(budget) == 0 or done >= (_ROOT_ROUNDS if settled else rounds) or budget.expired:
                break
        if rounds == _ROOT_ROUNDS:
            program.forget_slack()
        heapq.heappush(self._open, (bound, next(self._count), window.allowed, counts, program.shares()))

    def _children(
        self, allowed: NDArray[np.bool_], counts: FloatArray, share: FloatArray
    ) -> list[tuple[NDArray[np.bool_], FloatArray]]:
        """Return the two ways to settle what is least settled: how many ops a device runs, then which."""
        leaders = self.problem.group == np.arange(len(share))
        number = share[leaders].sum(axis=0)
        usual = np.where(allowed[:, :, -1], self.problem.op_time_s, np.nan)
        usual = np.nan_to_num(np.nanmean(np.vstack([usual, np.zeros(usual.shape[1])]), axis=0))
        between = np.abs(number - np.round(number))
        between[between < _FRACTIONAL_COUNT] = 0.0
        device = int(np.argmax(between * usual))
        if between[device] > 0.0:
            few, many = counts.copy(), counts.copy()
            few[1, device], many[0, device] = np.floor(number[device]), np.ceil(number[device])
            return [(allowed, few), (allowed, many)]
        free = allowed[:, :, -1] & (allowed[:, :, -1].sum(axis=1, keepdims=True) > 1)
        score = np.minimum(share, 1.0 - share) * np.where(free, self.problem.op_time_s, 0.0)
        score[(share < _FRACTIONAL) | (share > 1.0 - _FRACTIONAL)] = 0.0
        op, device = divmod(int(np.argmax(score)), score.shape[1])
        if score[op, device] <= 0.0:
            return []
        here, away = allowed.copy(), allowed.copy()
        here[op] = False
        here[op, device] = allowed[op, device]
        away[op, device] = False
        return [(here, counts), (away, counts)]
