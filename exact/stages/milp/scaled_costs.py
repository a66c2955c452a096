"""The costs of a pipeline problem as coefficients that a solver with tolerances can compute with.

A solver's tolerances are relative to the largest coefficient it meets, so a program is scaled by that, and what is out
of its sight is left out on the safe side: no cost here is more than the true one, so what is proven with them is a
bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.exact.solvers.linear_model import power_of_two_unit
from rlinit.exact.solvers.scip import BOUND_SAFETY, RESOLUTION
from rlinit.stages.problem import StageProblem, stage_cost

SPAN = 1e8
"""Coefficients this much smaller than the largest, or the work of a node than that of a stage, are left out."""

_ROOM = 16.0
"""How far the largest coefficient may exceed the reference before it sets the unit: all stay below 1e4."""


def safe_bound(bound: float, unit: float) -> float:
    """Return SCIP's dual bound of a program in seconds, less what its tolerances may have added.

    Parameters
    ----------
    bound
        The dual bound in the program's unit; may be infinite.
    unit
        Seconds that the program counts as 1.
    """
    if not np.isfinite(bound):
        return bound
    return bound * unit - max(BOUND_SAFETY * bound, RESOLUTION) * unit


def single_stage_cost(problem: StageProblem) -> float:
    """Return the least cost of everything on one stage, at least the optimum; inf where no stage takes it."""
    everything = np.ones(problem.num_nodes, np.bool_)
    return min(stage_cost(problem, everything, c) for c in np.flatnonzero(problem.class_count).tolist())


def overflow_terms(param: FloatArray, rate: float, cache: float, most: float) -> tuple[FloatArray, float]:
    """Return the seconds of each node's parameters, and those that a cache hides: overflow is what exceeds it.

    Parameters
    ----------
    param
        (n,) parameter bytes.
    rate, cache
        Seconds per byte of overflow, and bytes of cache.
    most
        Seconds of overflow that need no exact price: a node that alone costs more counts as that.
    """
    if rate == 0 or param.sum() <= cache:
        return np.zeros(len(param)), 0.0
    return np.minimum(param, cache + most / rate) * rate, cache * rate


@dataclass(frozen=True, slots=True, eq=False)
class ScaledCosts:
    """Costs in a unit that makes the largest about 1e2 to 1e4, none more than the true one.

    Parameters
    ----------
    unit
        Seconds that count as 1.
    ceiling
        Seconds above which nothing is priced exactly.
    work
        (c, n) cost of each node, inf where it may not run.
    into, out_of
        (c, m) cost of each tensor that enters or leaves a stage.
    overflow
        (c, n) cost of each node's parameters where they overflow; zeros on a class whose cache holds everything.
    hidden
        (c,) how much of it the cache of a stage hides.
    """

    unit: float
    ceiling: float
    work: FloatArray
    into: FloatArray
    out_of: FloatArray
    overflow: FloatArray
    hidden: FloatArray

    @staticmethod
    def of(problem: StageProblem, ceiling: float, reference: float | None = None) -> ScaledCosts:
        """Return the costs of a problem.

        A node or tensor that alone exceeds the ceiling counts as twice the ceiling, which rules the same assignments
        out. Costs below 1e-8 of the largest count as nothing.

        Parameters
        ----------
        problem
            A ``pipeline`` problem.
        ceiling
            Value in seconds up to which assignments are priced exactly; inf for all.
        reference
            Seconds of about the size of the optimum, which the unit suits; None: the ceiling.
        """
        most = 2.0 * ceiling
        work = np.where(np.isfinite(problem.work_s), np.minimum(problem.work_s, most), np.inf)
        into, out_of = np.minimum(problem.in_s, most), np.minimum(problem.out_s, most)
        terms = [
            overflow_terms(problem.param_bytes, float(rate), float(cache), most)
            for rate, cache in zip(problem.overflow_s_per_byte, problem.cache_bytes, strict=True)
        ]
        overflow, hidden = np.stack([term[0] for term in terms]), np.array([term[1] for term in terms])
        finite = work[np.isfinite(work)]
        largest = max(float(costs.max(initial=0.0)) for costs in (finite, into, out_of, overflow, hidden))
        size = ceiling if reference is None else reference
        unit = power_of_two_unit(max(size if np.isfinite(size) else 0.0, largest / _ROOM))

        def scaled(costs: FloatArray) -> FloatArray:
            return np.where(costs >= largest / SPAN, costs, 0.0) / unit

        return ScaledCosts(unit, ceiling, scaled(work), scaled(into), scaled(out_of), scaled(overflow), hidden / unit)
