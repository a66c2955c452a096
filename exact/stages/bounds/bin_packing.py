"""A bound from packing: under a trial bottleneck, how many stages the ops need whatever their order.

Every op costs its stage at least its time on the cheapest class, so an assignment of bottleneck at most T packs these
times into k bins of size T. A dual feasible function u, from [0, 1] to [0, 1], is one for which numbers that add up to
at most 1 have values that add up to at most 1. The values of the ops over T, added up, are then at most k, or T is
refuted.

References
----------
Martello, Toth: Lower bounds and reduction procedures for the bin packing problem, Discrete Applied Mathematics 28, 1990
(L2). Fekete, Schepers: New classes of fast lower bounds for bin packing problems, Mathematical Programming 91, 2001.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.stages.bounds.simple import allowed_classes
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageProblem

_MARGIN = 1e-9
"""Relative room for rounding: bins are this much larger than the trial."""

_STEPS = 60
"""Halvings of the interval between what is refuted and what is not."""

_MOST_PARTS = 40
"""Largest k of the functions u^(k)."""

_MOST_THRESHOLDS = 200
"""Thresholds p that are tried at most; with more things than that, u^(k) is only taken of the sizes as they are."""


def bin_packing_bound(problem: StageProblem, upper: float, budget: Budget | None = None) -> float:
    """Return the largest bottleneck below `upper` that halving finds refuted by packing; 0 where there is none.

    A refuted T is a bound: every assignment costs more. Which T are tried decides how good it is, not whether it holds.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        A value that need not be refuted, such as that of a schedule; inf where there is none.
    budget
        When to stop; what is refuted by then holds.
    """
    if problem.num_nodes == 0:
        return 0.0
    work = np.where(allowed_classes(problem), problem.work_s, np.inf).min(axis=0)
    if not np.isfinite(work).all() or work.max() <= 0:
        return 0.0
    k = problem.num_stages
    low = max(float(work.max()), float(work.sum()) / k) * (1 - 2 * _MARGIN)
    high = min(upper, float(work.sum()))
    proven = 0.0
    for _ in range(_STEPS):
        if high - low <= _MARGIN * high or (budget is not None and budget.expired):
            break
        middle = 0.5 * (low + high)
        if stages_needed(work / (middle * (1 + _MARGIN)), k) > k:
            proven = low = middle
        else:
            high = middle
    return proven


@njit(cache=True, nogil=True)
def stages_needed(size: FloatArray, enough: int) -> int:
    """Return a number of bins of size 1 that things of these sizes need at least.

    The best of: one bin each for what is over 1; L2, where with a threshold p up to 1/2 things over 1 - p count 1 and
    things under p nothing; u^(k), where k + 1 things of equal size fill a bin and size s counts floor((k + 1) s) / k,
    or s where (k + 1) s is whole; and u^(k) after the threshold.

    Parameters
    ----------
    size
        (n,) sizes >= 0.
    enough
        Ends where more than this many are needed.
    """
    n = len(size)
    if n > 0 and size.max() > 1 + _MARGIN:
        return n + 1
    thresholds = np.sort(np.where(size <= 0.5, size, 1.0 - size))
    step = max(1, n // _MOST_THRESHOLDS)
    raised = np.empty(n)
    most = size.sum()
    for i in range(-1, n, step):
        threshold = thresholds[i] if i >= 0 else 0.0
        for v in range(n):
            over, under = size[v] > 1.0 - threshold + _MARGIN, size[v] < threshold
            raised[v] = 1.0 if over else 0.0 if under else size[v]
        most = max(most, raised.sum())
        parts_tried = _MOST_PARTS if n <= _MOST_THRESHOLDS or i < 0 else 0
        for parts in range(1, parts_tried):
            if most * (1 - _MARGIN) > enough:
                break
            most = max(most, _stepped_sum(raised, parts))
    return int(np.ceil(most * (1 - _MARGIN)))


@njit(cache=True, nogil=True)
def _stepped_sum(size: FloatArray, parts: int) -> float:
    """Return the sum of u^(parts) over sizes of at most 1; what is within rounding of a whole number counts less."""
    total = 0.0
    for v in range(len(size)):
        if size[v] >= 1.0:
            total += 1.0
            continue
        scaled = size[v] * (parts + 1)
        whole = np.round(scaled)
        if abs(scaled - whole) <= _MARGIN * (parts + 1):
            total += max(0.0, min(size[v], (whole - 1) / parts))
        else:
            total += np.floor(scaled) / parts
    return total
