"""Covering of all ops by convex loads under a trial bottleneck, one load a stage, as a linear program and its dual."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.effort import NARROW, ROUNDS
from rlinit.exact.stages.bounds.convex_load import StageRoom, best_load, reach_bits
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.passes import HALVINGS
from rlinit.stages.problem import StageProblem

_SAFETY = 1e-7
"""Relative room for rounding before prices count as a refutation."""

_CAP = 300_000
"""Loads of up to 256 ops that are looked at for one class and one set of prices: some 10 ms. Larger ones are fewer."""

MOST_COVERED = 200
"""Nodes of a problem at most. Beyond, halving ends far below other bounds: after 10 s it proves nothing on an
InceptionV3 of 313 ops, after 30 s half of `simple` on a NASNet of 1,017."""

_CLOSE = 0.005
"""Prices are good enough where stages hold at most this share more than known loads do."""


@dataclass(slots=True)
class ConvexCover:
    """Refutes trial bottlenecks of one problem; keeps loads and prices from trial to trial.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    budget
        When to stop.
    price
        (n,) prices of ops that sum up to 1.
    behind
        (n, words) as `reach_bits` returns it.
    """

    problem: StageProblem
    budget: Budget
    price: FloatArray = field(init=False)
    behind: NDArray[np.uint64] = field(init=False)
    _loads: list[list[NDArray[np.bool_]]] = field(init=False)
    _costs: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem
        self.price = np.full(problem.num_nodes, 1.0 / max(1, problem.num_nodes))
        self.behind = reach_bits(np.ascontiguousarray(problem.order), problem.succ_indptr, problem.succ)
        self._loads = [[] for _ in range(problem.num_classes)]
        self._costs = [[] for _ in range(problem.num_classes)]

    def refutes(self, trial: float) -> bool:
        """Return whether it is proven that no assignment has a bottleneck of at most `trial` seconds.

        Whatever the prices, none below 0, a stage of a class holds at most what the costliest convex load that fits is
        worth (`best_load`); where all stages together hold less than all ops, there is no assignment. Prices come from
        the dual of a program that covers every op as often as possible by known loads, to which the costliest are
        added; the best ones are kept for the next trial.

        Parameters
        ----------
        trial
            Seconds that a stage may cost.
        """
        least, price, best = np.inf, self.price, self.price
        for _ in range(ROUNDS):
            if self.budget.expired:
                break
            held = float(self.problem.class_count @ self._dearest(price, trial)) * (1 + _SAFETY)
            if held < least:
                least, best = held, price
                if least < 1.0:
                    break
            covered, dual = self._covered(trial)
            if covered >= 1.0 or least <= covered * (1 + _CLOSE) or not dual.sum() > 0.0:
                break
            price = best + dual / dual.sum()  # half way, so that they do not jump to and fro
            price = price / price.sum()
        self.price = best
        return least < 1.0

    def rooms(self, trial: float) -> list[StageRoom]:
        """Return what a stage of each class may hold."""
        problem = self.problem
        memory = problem.memory_bytes * CAPACITY_SLACK
        return [
            StageRoom(trial, float(memory[c]), float(problem.cache_bytes[c]), float(problem.overflow_s_per_byte[c]))
            for c in range(problem.num_classes)
        ]

    def _dearest(self, price: FloatArray, trial: float) -> FloatArray:
        """Return (c,) what a load of each class is worth at most, and keep the costliest ones."""
        problem, order = self.problem, self.problem.order
        most = np.zeros(problem.num_classes)
        param, prices = np.ascontiguousarray(problem.param_bytes[order]), np.ascontiguousarray(price[order])
        for c, room in enumerate(self.rooms(trial)):
            if problem.class_count[c] == 0:
                continue
            known = zip(self._loads[c], self._costs[c], strict=True)
            floor = max((float(price[one].sum()) for one, cost in known if cost <= trial), default=0.0)
            chosen = np.zeros(problem.num_nodes, np.bool_)
            work = np.ascontiguousarray(problem.work_s[c, order])
            cap = 4 * _CAP // max(4, self.behind.shape[1])
            most[c] = best_load(work, param, prices, room, self.behind, floor, cap, chosen)[0]
            if chosen.any():
                member = np.zeros(problem.num_nodes, np.bool_)
                member[order] = chosen
                over = max(0.0, float(problem.param_bytes[member].sum() - room.cache))
                self._loads[c].append(member)
                self._costs[c].append(float(problem.work_s[c, member].sum()) + (over * room.overflow if over else 0.0))
        return most

    def _covered(self, trial: float) -> tuple[float, FloatArray]:
        """Return how often known loads cover every op, and (n,) the prices of the dual; nothing is proven by them."""
        problem, n = self.problem, self.problem.num_nodes
        columns = [
            (c, one)
            for c in range(problem.num_classes)
            for one, cost in zip(self._loads[c], self._costs[c], strict=True)
            if cost <= trial
        ]
        m = len(columns)
        if not m:
            return 0.0, np.zeros(n)
        op, of_op = np.array([one for _, one in columns]).T.nonzero()
        row = np.concatenate([op, np.arange(n), [n + c for c, _ in columns]])
        column = np.concatenate([of_op, np.full(n, m), np.arange(m)])
        value = np.concatenate([-np.ones(len(op)), np.ones(n + m)])
        # SciPy's types know no sparse constraints, though linprog takes them.
        rows: Any = csr_array((value, (row, column)), shape=(n + problem.num_classes, m + 1))
        limits = np.concatenate([np.zeros(n), problem.class_count])
        left = self.budget.remaining_s
        options: Any = {"time_limit": left} if math.isfinite(left) else {}
        result = linprog(np.concatenate([np.zeros(m), [-1.0]]), A_ub=rows, b_ub=limits, method="highs", options=options)
        if result.fun is None:
            return 0.0, np.zeros(n)
        return -float(result.fun), np.maximum(0.0, -np.asarray(result.ineqlin.marginals[:n], np.float64))


def convex_cover_bound(cover: ConvexCover, *, lower: float, upper: float, quantum: float = 0.0) -> float:
    """Return the largest bottleneck between two that halving finds refuted, `lower` where there is none.

    In an assignment of bottleneck at most T, each stage is a convex set of ops whose work and overflow on its device
    are at most T. With any prices of ops, none below 0, the price of all ops is the sum of what the stages hold, and a
    stage of class c holds at most the largest price of such a set on c. Where that, summed over all stages, is less
    than the price of all ops, there is no such assignment. Transfers are left out.

    Parameters
    ----------
    cover
        Of a `pipeline` problem; when its budget is over, what is refuted by then holds.
    lower, upper
        A proven bound, and a value that need not be refuted.
    quantum
        Every bottleneck is a whole multiple of it; 0: not known. Trials lie between two multiples then.
    """
    problem = cover.problem
    finite = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
    low, high, proven = lower, min(upper, float(finite.max(axis=0, initial=0.0).sum())), lower
    for _ in range(HALVINGS):
        if cover.budget.expired or high - low <= max(NARROW * high, quantum):
            break
        middle = 0.5 * (low + high)
        if quantum > 0.0:
            middle = (math.floor(middle / quantum) + 0.5) * quantum
        if cover.refutes(middle):
            proven = low = middle
        else:
            high = middle
    return proven
