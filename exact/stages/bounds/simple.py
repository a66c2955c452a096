"""Elementary lower bounds: largest op and average load, over unequal stages, for both objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from rlinit.arrays import SAFETY, FloatArray
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.exact.effort import PREPARATION
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.priorities import balance_prices
from rlinit.stages.problem import StageProblem, Value

_PROGRAM_S = 1.5e-5
"""Seconds that the balancing program takes for each pair of a node and a class that may run it (HiGHS: 1.0 s for 64,000
of them, 1.4 s for 100,000)."""

_PAIRS, _MOST_ROUNDS = 50_000_000, 400
"""Pairs looked at, and rounds, of multiplicative weights."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadBalance:
    """A dual solution of the fractional balancing of work over the stages of each class.

    Parameters
    ----------
    bound
        Seconds; a lower bound on the bottleneck.
    price
        (c,) nonnegative weight of a stage of each class, 1 on average over the stages.
    overflow_share
        (c,) fraction in [0, 1] of the linearised overflow that enters the work of a class.
    """

    bound: float
    price: FloatArray
    overflow_share: FloatArray


def allowed_classes(problem: StageProblem) -> NDArray[np.bool_]:
    """Return (c, n): whether a node may run alone on a stage of the class, and the class has stages."""
    return (
        np.isfinite(problem.work_s)
        & (problem.param_bytes[None, :] <= problem.memory_bytes[:, None] * CAPACITY_SLACK)
        & (problem.class_count[:, None] > 0)
    )


def load_balance(problem: StageProblem, budget: Budget | None = None) -> LoadBalance:
    """Balance the work of all nodes over the classes, each node divisible, communication free.

    With x[c, v] the fraction of node v on class c, k_c stages of class c, and
    overflow_c(S) >= share * rate_c * (param(S) - cache_c) for every share in [0, 1]::

        min T   sum_v work[c, v] x[c, v]                         <= k_c T
                sum_v (work[c, v] + rate_c param[v]) x[c, v]     <= k_c (T + rate_c cache_c)
                sum_c x[c, v] = 1,  x >= 0

    The bound is recomputed from the dual prices alone, so it does not rest on the solver's accuracy.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    budget
        Where the program would take much of what is left of it, prices come from a few rounds of multiplicative
        weights instead, which give a weaker bound.

    Raises
    ------
    SolverFailure
        If HiGHS does not solve the LP, which always has an optimum.
    """
    count, allowed = problem.class_count.astype(np.float64), allowed_classes(problem)
    if not allowed.any(axis=0).all():
        return LoadBalance(np.inf, np.where(count > 0, 1.0, 0.0), np.zeros(len(count)))
    used, none, whole = np.where(count > 0, 1.0, 0.0), np.zeros(len(count)), np.ones(len(count))
    if (count > 0).sum() == 1:
        duals = [(used, none), (used, whole)]
    elif allowed.sum() * _PROGRAM_S <= (np.inf if budget is None else PREPARATION * budget.remaining_s):
        price, share = _balance_duals(problem, allowed)
        duals = [(price, share), (price, none)]
    else:
        work = np.where(allowed, problem.work_s, np.inf)
        rounds = min(1 + _PAIRS // work.size, _MOST_ROUNDS)
        rate = np.where(_has_overflow(problem), problem.overflow_s_per_byte, 0.0)
        heavy = work + rate[:, None] * problem.param_bytes
        prices = [balance_prices(one, problem.class_count, rounds) for one in (work, heavy)]
        duals = [(price, share) for price in prices for share in (none, whole)]
    best = LoadBalance(0.0, np.where(count > 0, 1.0, 0.0), np.zeros(len(count)))
    for price, share in duals:
        share = np.where(_has_overflow(problem), share, 0.0)
        value = _balance_value(problem, allowed, price, share)
        if value > best.bound:
            best = LoadBalance(value, price, share)
    return best


def simple_bound(problem: StageProblem, budget: Budget | None = None) -> Value:
    """Return an elementary lower bound on the optimal value.

    For `pipeline`, the larger of the costliest op alone on its best class and the fractional balancing of all work
    (:func:`load_balance`). For `memory`, (largest op or average bytes, total bytes less all caches, 0), where the
    average is rounded up if bytes are integers. ``inf`` means that nothing is feasible.

    Parameters
    ----------
    problem
        The problem.
    budget
        What is left of it decides how good the balance may be.

    References
    ----------
    MTPP, Lemma 3.3 (equation 13), for equal stages and without overflow.
    """
    if problem.objective == "memory":
        return _memory_bound(problem)
    if problem.num_nodes == 0:
        return (0.0,)
    alone = np.where(allowed_classes(problem), problem.work_s + _lone_overflow(problem), np.inf).min(axis=0)
    return (max(float(alone.max()), load_balance(problem, budget).bound),)


def _has_overflow(problem: StageProblem) -> NDArray[np.bool_]:
    return np.isfinite(problem.cache_bytes) & (problem.overflow_s_per_byte > 0)


def _lone_overflow(problem: StageProblem) -> FloatArray:
    """Return (c, n) seconds of overflow of each node alone."""
    over = np.maximum(problem.param_bytes[None, :] - problem.cache_bytes[:, None], 0.0)
    return np.where(over > 0, over * problem.overflow_s_per_byte[:, None], 0.0) * (1 - SAFETY)


def _balance_value(problem: StageProblem, allowed: NDArray[np.bool_], price: FloatArray, share: FloatArray) -> float:
    """Return the bound that prices and shares prove: (sum_v min_c price_c work'_cv - rebate) / sum_c k_c price_c."""
    rate = share * problem.overflow_s_per_byte
    cache = np.where(rate > 0, problem.cache_bytes, 0.0)
    work = np.where(allowed, problem.work_s, 0.0) + rate[:, None] * problem.param_bytes
    load = np.where(allowed, price[:, None] * work, np.inf).min(axis=0).sum()
    capacity = float(problem.class_count @ price)
    rebate = float((problem.class_count * price * rate * cache).sum())
    if capacity <= 0:
        return 0.0
    return max(0.0, float(load * (1 - SAFETY) - rebate * (1 + SAFETY)) / capacity)


def _balance_duals(problem: StageProblem, allowed: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Return (price, overflow share) from the dual of the balancing LP, whose numbers are scaled to about 1."""
    count = problem.class_count.astype(np.float64)
    num_classes, n = allowed.shape
    rate = np.where(_has_overflow(problem), problem.overflow_s_per_byte, 0.0)
    cache = np.where(_has_overflow(problem), problem.cache_bytes, 0.0)
    c, v = np.nonzero(allowed)
    work, heavy = problem.work_s[c, v], problem.work_s[c, v] + rate[c] * problem.param_bytes[v]
    unit = float(heavy.max()) * n / max(count.sum(), 1.0)
    if unit <= 0:
        return np.where(count > 0, 1.0, 0.0), np.zeros(num_classes)
    x = np.arange(len(c))
    last, classes = np.full(num_classes, len(c)), np.arange(num_classes)
    rows = np.concatenate([c, classes, num_classes + c, num_classes + classes])
    cols = np.concatenate([x, last, x, last])
    data = np.concatenate([work / unit, -count, heavy / unit, -count])
    # SciPy's types know no sparse constraints, though linprog takes them.
    limits: Any = csr_array((data, (rows, cols)), shape=(2 * num_classes, len(c) + 1))
    once: Any = csr_array((np.ones(len(c)), (v, x)), shape=(n, len(c) + 1))
    objective = np.zeros(len(c) + 1)
    objective[-1] = 1.0
    room = np.concatenate([np.zeros(num_classes), count * rate * cache / unit])
    found = linprog(objective, A_ub=limits, b_ub=room, A_eq=once, b_eq=np.ones(n), bounds=(0, None), method="highs")
    if found.status != 0:
        raise SolverFailure(f"the load-balance LP must have an optimum, HiGHS says: {found.message}")
    dual = np.maximum(-found.ineqlin.marginals, 0.0)
    price = dual[:num_classes] + dual[num_classes:]
    share = np.divide(dual[num_classes:], price, out=np.zeros(num_classes), where=price > 0)
    total = float(count @ price)
    return (price / total * count.sum() if total > 0 else np.where(count > 0, 1.0, 0.0)), share


def _memory_bound(problem: StageProblem) -> Value:
    """Return (peak, off-cache, traffic) bounds, the first two valid on their own."""
    param, room = problem.param_bytes, problem.memory_bytes[problem.stage_class] * CAPACITY_SLACK
    if problem.num_nodes == 0:
        return (0.0, 0.0, 0.0)
    allowed = allowed_classes(problem)
    total = float(param.sum()) * (1 - SAFETY)
    if not allowed.any(axis=0).all() or total > room.sum():
        return (np.inf, np.inf, np.inf)
    cache = problem.cache_bytes[problem.stage_class]
    peak = max(float(param.max()), _average_peak(param, total, room))
    held = np.minimum(cache, room).sum()
    alone = np.where(allowed, np.maximum(param[None, :] - problem.cache_bytes[:, None], 0.0), np.inf).min(axis=0)
    spilled = max(total - held, float(alone.max()) * (1 - SAFETY), 0.0) if np.isfinite(held) else alone.max()
    return (peak, float(spilled), 0.0)


def _average_peak(param: FloatArray, total: float, room: FloatArray) -> float:
    """Return the least peak at which stages filled to min(peak, capacity) hold `total` bytes."""
    filled, left = 0.0, len(room)
    for capacity in np.sort(room):
        if filled + left * capacity >= total:
            break
        filled += float(capacity)
        left -= 1
    peak = (total - filled) / left if left else 0.0
    integral = bool((param == np.floor(param)).all()) and param.sum() < 2.0**53
    return float(np.ceil(peak)) if integral else peak
