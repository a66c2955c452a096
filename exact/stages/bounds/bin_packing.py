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
from rlinit.exact.stages.bounds.simple import allowed_classes
from rlinit.stages.problem import StageProblem

__all__ = ["bin_packing_bound", "stages_needed"]

_MARGIN = 1e-9
"""Relative room for rounding: bins are this much larger than the trial."""

_STEPS = 60
"""Halvings of the interval between what is refuted and what is not."""

_MOST_PARTS = 40
"""Largest k of the functions u^(k)."""


def bin_packing_bound(problem: StageProblem, upper: float) -> float:
    """Return the largest bottleneck below `upper` that halving finds refuted by packing; 0 where there is none.

    A refuted T is a bound: every assignment costs more. Which T are tried decides how good it is, not whether it holds.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        A value that need not be refuted, such as that of a schedule; inf where there is none.
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
        if high - low <= _MARGIN * high:
            break
        middle = 0.5 * (low + high)
        if stages_needed(work / (middle * (1 + _MARGIN))) > k:
            proven = low = middle
        else:
            high = middle
    return proven


def stages_needed(size: FloatArray) -> int:
    """Return a number of bins of size 1 that things of these sizes need at least.

    The best of: one bin each for what is over 1; L2, where with a threshold p up to 1/2 things over 1 - p count 1 and
    things under p nothing; u^(k), where k + 1 things of equal size fill a bin and size s counts floor((k + 1) s) / k,
    or s where (k + 1) s is whole; and u^(k) after the threshold.

    Parameters
    ----------
    size
        (n,) sizes >= 0.
    """
    if (size > 1 + _MARGIN).any():
        return len(size) + 1
    most = float(size.sum())
    thresholds = np.unique(np.concatenate([[0.0], size[size <= 0.5], 1.0 - size[size > 0.5]]))
    for threshold in thresholds[:: max(1, len(thresholds) // 200)].tolist():
        raised = np.where(size > 1.0 - threshold + _MARGIN, 1.0, np.where(size < threshold, 0.0, size))
        most = max(most, float(raised.sum()))
        if threshold in (0.0, thresholds[-1]) or len(size) <= 200:
            for parts in range(1, _MOST_PARTS):
                scaled = raised * (parts + 1)
                # Where (k + 1) s is within rounding of a whole number either value may be meant: the smaller counts.
                whole = np.abs(scaled - np.round(scaled)) <= _MARGIN * (parts + 1)
                stepped = np.where(whole, np.minimum(raised, (np.round(scaled) - 1) / parts), np.floor(scaled) / parts)
                stepped = np.where(raised >= 1.0, 1.0, np.maximum(stepped, 0.0))
                most = max(most, float(stepped.sum()))
    return int(np.ceil(most * (1 - _MARGIN)))
