"""Lower bounds from linear programs that hold whatever the tolerances of the solver: weak duality over a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from rlinit.arrays import UNIT_ROUNDING, FloatArray
from rlinit.budget import reserve
from rlinit.errors import SolverFailure

ENTRY_BYTES = 500
"""Bytes that a solver takes for each entry of a program at most, as it is, presolved and factorized."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearSolution:
    """What an LP solver proposed, and what follows from it.

    Parameters
    ----------
    point
        (num_variables,) primal point, or None; satisfied up to the solver's tolerances only.
    at_most_dual, equal_dual
        Multipliers of the rows (the first at most 0), or None.
    bound
        Proven lower bound on the minimum; ``-inf`` if the solver proposed no multipliers.
    failure
        What HiGHS says of a numerical failure; "" where there was none.
    """

    point: FloatArray | None
    at_most_dual: FloatArray | None
    equal_dual: FloatArray | None
    bound: float
    failure: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProgram:
    """Minimise ``cost . x`` with ``at_most x <= limit``, ``equal x = value``, ``low <= x <= high`` (all finite).

    Parameters
    ----------
    cost, low, high
        (num_variables,).
    at_most, limit, equal, value
        Sparse rows and right-hand sides.
    """

    cost: FloatArray
    at_most: scipy.sparse.csr_matrix
    limit: FloatArray
    equal: scipy.sparse.csr_matrix
    value: FloatArray
    low: FloatArray
    high: FloatArray

    def solve(self, time_limit_s: float, *, interior: bool = False) -> LinearSolution:
        """Solve with HiGHS and return its point and multipliers with the bound these prove.

        Where the time ends first, the program is infeasible or unbounded, or HiGHS fails, there may be no multipliers;
        then nothing is proven and the bound is ``-inf``.

        Parameters
        ----------
        time_limit_s
            Seconds for HiGHS.
        interior
            By the interior point method, not the dual simplex method.

        Raises
        ------
        SolverFailure
            If a number of the program is not finite.
        OutOfMemory
            The memory that is left has no room for HiGHS.
        """
        if time_limit_s <= 0:
            return LinearSolution(None, None, None, -np.inf)
        self._check_finite()
        entries = self.at_most.nnz + self.equal.nnz
        reserve(ENTRY_BYTES * (entries + len(self.cost)), f"a linear program of {entries:,} entries")
        some = len(self.value) > 0
        rows: dict[str, Any] = {"A_eq": self.equal, "b_eq": self.value} if some else {}
        box: Any = np.column_stack([self.low, self.high])
        options: Any = {"time_limit": min(time_limit_s, 1e9)}
        method: Any = "highs-ipm" if interior else "highs-ds"
        upper: Any = self.at_most
        result = linprog(self.cost, A_ub=upper, b_ub=self.limit, bounds=box, method=method, options=options, **rows)
        failure = str(result.message) if result.status == 4 else ""
        marginals = None if result.status in (2, 3) else result.ineqlin.marginals
        if marginals is None:
            return LinearSolution(result.x, None, None, -np.inf, failure)
        dual = np.minimum(np.nan_to_num(np.asarray(marginals, np.float64)), 0.0)
        free = np.nan_to_num(np.asarray(result.eqlin.marginals, np.float64)) if some else np.zeros(0)
        return LinearSolution(result.x, dual, free, self.dual_value(dual, free), failure)

    def _check_finite(self) -> None:
        """Refuse numbers that are not finite, naming the row or variable."""
        for what, rows, sides in (("row", self.at_most, self.limit), ("equality", self.equal, self.value)):
            broken = np.flatnonzero(~np.isfinite(sides))
            if not np.isfinite(rows.data).all():
                entry = int(np.flatnonzero(~np.isfinite(rows.data))[0])
                broken = np.append(broken, np.searchsorted(rows.indptr, entry, side="right") - 1)
            if len(broken):
                raise SolverFailure(f"{what} {int(broken[0])} of a linear program holds a number that is not finite")
        columns = np.flatnonzero(~(np.isfinite(self.cost) & np.isfinite(self.low) & np.isfinite(self.high)))
        if len(columns):
            raise SolverFailure(
                f"variable {int(columns[0])} of a linear program has a cost or bound that is not finite"
            )

    def dual_value(self, at_most_dual: FloatArray, equal_dual: FloatArray) -> float:
        """Return the least value of the Lagrangian over the box, less what rounding may have added.

        It is a lower bound for any multipliers, of which the first are at most 0.

        Parameters
        ----------
        at_most_dual
            (rows of `at_most`,) multipliers, each at most 0.
        equal_dual
            (rows of `equal`,) multipliers of either sign.
        """
        reduced = self.cost - self.at_most.T @ at_most_dual - self.equal.T @ equal_dual
        constants = np.concatenate([at_most_dual * self.limit, equal_dual * self.value])
        ends = np.minimum(reduced * self.low, reduced * self.high)
        # Terms that went into the reduced costs, each at the largest value of its variable.
        extent = np.maximum(np.abs(self.low), np.abs(self.high))
        terms = np.abs(self.cost) - abs(self.at_most).T @ at_most_dual + abs(self.equal).T @ np.abs(equal_dual)
        rounding = UNIT_ROUNDING * (np.abs(constants).sum() + float(terms @ extent))
        return float(constants.sum() + ends.sum() - rounding)
