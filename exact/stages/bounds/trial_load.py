"""Fractional balancing under a trial bottleneck: ops only where they cost at most that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.simple import load_balance
from rlinit.stages.problem import StageProblem

_MARGIN = 1e-9
"""Relative room for rounding around a trial."""

_STEPS = 24
"""Halvings of the interval between what is refuted and what is not."""


def trial_load_bound(problem: StageProblem, *, upper: float, budget: Budget | None = None) -> float:
    """Return the largest bottleneck below `upper` that halving finds refuted by balancing the load.

    In an assignment of bottleneck at most T every op is on a class where its time is at most T, so the assignment is
    one of the problem in which all other classes are forbidden to it, and T is at least that problem's fractional load
    (`load_balance`, a value of its dual, so a bound whatever the solver's tolerances). Where the load exceeds T there
    is no such assignment, and T is a bound. On unlike devices that forbids many pairs that balancing would use.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        A value that need not be refuted, such as that of a schedule; inf where there is none.
    budget
        When to stop; what is refuted by then holds.
    """
    budget = budget or Budget()
    proven = load_balance(problem, budget).bound
    if not np.isfinite(proven) or problem.num_nodes == 0:
        return proven
    finite = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
    low, high = proven, min(upper, float(finite.max(axis=0).sum()))
    for _ in range(_STEPS):
        if budget.expired or high - low <= _MARGIN * high:
            break
        middle = 0.5 * (low + high)
        trial = middle * (1 + _MARGIN)
        cut = replace(problem, work_s=np.where(problem.work_s <= trial, problem.work_s, np.inf))
        if load_balance(cut, budget).bound > trial:
            proven = low = middle
        else:
            high = middle
    return proven
