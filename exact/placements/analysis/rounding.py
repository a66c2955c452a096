"""The step between values that a makespan can have."""

from __future__ import annotations

import numpy as np

from rlinit.exact.solvers.quantum import exact_quantum
from rlinit.placements.problem import PlacementProblem


def makespan_quantum(problem: PlacementProblem) -> float:
    """Return a number of which the least makespan of the problem is a whole multiple, 0 where none is known.

    Take a schedule of least makespan and start everything in it as early as its data and the order on its device or
    link allow: it ends no later, and each end is a sum of times of ops and transfers along a path. So the exact common
    divisor of these divides it, and in floats such sums are exact (`exact_quantum`).

    Parameters
    ----------
    problem
        The problem; where ops are split into batches the result is 0.
    """
    if problem.num_shards != 1:
        return 0.0
    times = problem.op_time_s[np.isfinite(problem.op_time_s)]
    linked = np.isfinite(problem.delay_s) & ~np.eye(problem.num_devices, dtype=np.bool_)
    used = np.diff(problem.succ_indptr) > 0
    moved = np.unique(problem.tensor_bytes[used])
    links = np.unique(np.column_stack([problem.delay_s[linked], problem.s_per_byte[linked]]), axis=0)
    lags = links[:, :1] + links[:, 1:] * moved
    # Every op and transfer may be on the path, so all of them have to add up exactly, not only distinct ones.
    most = problem.num_ops * (times.max(initial=0.0) + problem.num_devices * lags.max(initial=0.0))
    quantum = exact_quantum(np.concatenate([np.unique(times), lags.ravel()]))
    return quantum if quantum > 0 and most < quantum * 2.0**52 else 0.0
