"""Whole numbers for the times of a placement problem, rounded so that a bound on them is one on the true times.

Rounding every duration and delay *down* to steps of a unit keeps a bound valid. Let ``s_v`` be the starts of any true
schedule in units and ``S_v = floor(s_v)``. From ``s_w >= s_v + p_v + l`` follows
``S_w >= floor(s_v + p_v + l) >= S_v + floor(p_v) + floor(l)``, for the order of ops on a device alike, so the rounded
starts are a schedule of the rounded times, and its makespan is at most ``floor(C)``. Where all times are multiples of
one quantum nothing is rounded, and a proof on the whole numbers is one on the problem itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlinit.arrays import ROUNDING
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.placements.problem import PlacementProblem

STEPS_BITS = 27
"""log2 of the steps that a makespan, or the memory of a device, is cut into at most, by a common quantum of times where
there is one: coarse enough for CP-SAT's presolve, which is unreliable from 2^34 on (OR-Tools 9.15), and fine enough
that 100 roundings cost under 1e-6 of a makespan."""


@dataclass(frozen=True, slots=True)
class IntegerTimes:
    """The steps that seconds become.

    Parameters
    ----------
    unit_s
        Seconds of one step.
    exact
        Whether every time of the problem is a whole number of steps.
    """

    unit_s: float
    exact: bool

    @classmethod
    def of(cls, problem: PlacementProblem, reached_s: float) -> IntegerTimes:
        """Return the steps for makespans up to `reached_s` seconds: of the common quantum, or of a power of two.

        Parameters
        ----------
        problem
            A latency problem.
        reached_s
            A makespan that is reached.
        """
        quantum = makespan_quantum(problem)
        if quantum > 0 and reached_s / quantum < 2.0**STEPS_BITS:
            return cls(quantum, True)
        unit = 2.0 ** (math.floor(math.log2(reached_s)) - STEPS_BITS) if reached_s > 0 else 1.0
        return cls(unit, False)

    def floor(self, seconds: float) -> int:
        """Return seconds in whole steps, rounded down, so that a bound on the steps is one on the seconds."""
        return round(seconds / self.unit_s) if self.exact else math.floor(seconds / self.unit_s * (1.0 - ROUNDING))

    def below(self, seconds: float) -> int:
        """Return the most steps of a makespan that is less than `seconds`."""
        return math.ceil(seconds / self.unit_s * (1.0 - ROUNDING)) - 1 if self.exact else self.floor(seconds)
