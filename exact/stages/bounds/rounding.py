"""Bounds on a bottleneck raised to the next value that a bottleneck can have."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import SAFETY
from rlinit.exact.solvers.quantum import exact_quantum, round_up
from rlinit.stages.problem import StageProblem


def value_quantum(problem: StageProblem) -> float:
    """Return a number of which every bottleneck of the problem is a whole multiple, 0 where none is known.

    A stage without overflow costs a sum of times of nodes and of tensors, so the exact common divisor of these divides
    it (`exact_quantum`). Where overflow may cost something there is none.

    Parameters
    ----------
    problem
        The problem; for `memory` the result is 0.
    """
    overflows = (problem.overflow_s_per_byte > 0) & (problem.param_bytes.sum() > problem.cache_bytes)
    if problem.objective != "pipeline" or overflows.any():
        return 0.0
    if not (np.isfinite(problem.in_s).all() and np.isfinite(problem.out_s).all()):
        return 0.0
    work = problem.work_s[np.isfinite(problem.work_s)]
    return exact_quantum(np.concatenate([work, problem.in_s.ravel(), problem.out_s.ravel()]))


def raised_bound(bound: float, quantum: float) -> float:
    """Return the smallest multiple of the quantum that is not below a bound, taken with room for its rounding.

    The optimum is a multiple and at least the bound, up to a relative 1e-9, so it is at least the result.

    Parameters
    ----------
    bound
        A lower bound on the bottleneck.
    quantum
        As `value_quantum` returns it.
    """
    return bound if quantum <= 0 else max(bound, round_up(bound * (1 - SAFETY), quantum))
