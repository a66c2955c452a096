"""A mixed-integer linear model as plain arrays: what the formulations write and the solvers read.

Variables are handles (ints in order of creation), so that the same model goes to SCIP, to an LP solver, or to
a test that checks a point row by row. Rows may be written over *affine expressions*, which lets a formulation
hold a constant wherever a window has fixed what would otherwise be a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse

from rlinit.arrays import FloatArray
from rlinit.budget import ROWS_A_LOOK, Budget
from rlinit.errors import SolverFailure
from rlinit.exact.solvers.lp_dual_bound import LinearProgram


class OutOfTime(Exception):
    """The budget ended while a model was being written."""


def power_of_two_unit(reference: float) -> float:
    """Return a power of two (so that dividing by it is exact) that makes `reference` 128 to 256; 1 for zero."""
    return float(2.0 ** (np.floor(np.log2(reference)) - 7)) if reference > 0 else 1.0


class Affine:
    """An affine expression ``sum of coefs[handle] * variable + constant``; mutable while it is being summed."""

    __slots__ = ("coefs", "constant")

    def __init__(self, coefs: Mapping[int, float] | None = None, constant: float = 0.0) -> None:
        self.coefs: dict[int, float] = dict(coefs) if coefs else {}
        self.constant = constant

    def add(self, other: Affine, factor: float = 1.0) -> Affine:
        """Add `factor` times `other` in place and return self.

        Parameters
        ----------
        other
            The expression to add; it is not changed.
        factor
            What it is multiplied by.
        """
        for handle, coef in other.coefs.items():
            self.coefs[handle] = self.coefs.get(handle, 0.0) + factor * coef
        self.constant += factor * other.constant
        return self

    def minus(self, other: Affine) -> Affine:
        """Return a new expression, self - other, without the terms that cancel."""
        difference = Affine(self.coefs, self.constant).add(other, -1.0)
        difference.coefs = {handle: coef for handle, coef in difference.coefs.items() if coef != 0.0}
        return difference

    def value(self, point: FloatArray) -> float:
        """Return the value at `point` ((num_variables,) in order of the handles)."""
        return self.constant + sum(coef * float(point[handle]) for handle, coef in self.coefs.items())


@dataclass(slots=True)
class LinearModel:
    """Minimise one variable subject to linear rows.

    Parameters
    ----------
    lower, upper
        Bounds of each variable, all finite (bounded below is what lets "infeasible or unbounded" mean
        infeasible, and what makes the dual bound of :meth:`relaxation_bound` safe).
    is_binary, priority
        For each variable whether it is 0/1, and its branching priority (higher first).
    rows
        ``(coefs, lhs, rhs)``: lhs <= coefs . variables <= rhs, with infinite sides allowed.
    objective
        The handle that is minimised.
    infeasible
        Set when a row without variables is violated: nothing satisfies the model.
    maxima
        ``(handle, floor, expressions)`` of the variables made by :meth:`max_of`, in order of creation.
    budget
        Adding a row raises `OutOfTime` once this has ended; None: never.
    """

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    is_binary: list[bool] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    objective: int = -1
    infeasible: bool = False
    maxima: list[tuple[int, float, list[Affine]]] = field(default_factory=list)
    budget: Budget | None = None

    @property
    def num_variables(self) -> int:
        """Number of variables so far."""
        return len(self.lower)

    def binary(self, priority: int = 0) -> int:
        """Add a 0/1 variable and return its handle."""
        return self._variable(0.0, 1.0, True, priority)

    def continuous(self, lower: float, upper: float) -> int:
        """Add a continuous variable and return its handle.

        Parameters
        ----------
        lower, upper
            Finite bounds of the variable, lower <= upper.
        """
        return self._variable(lower, upper, False, 0)

    def _variable(self, lower: float, upper: float, is_binary: bool, priority: int) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_binary.append(is_binary)
        self.priority.append(priority)
        return len(self.lower) - 1

    def at_most(self, expression: Affine, limit: float) -> None:
        """Add ``expression <= limit``.

        Parameters
        ----------
        expression
            The left side; terms with a coefficient of 0 are left out.
        limit
            The right side.
        """
        self._look_at_clock()
        coefs = {handle: coef for handle, coef in expression.coefs.items() if coef != 0.0}
        if coefs:
            self.rows.append((coefs, -np.inf, limit - expression.constant))
        elif expression.constant > limit + 1e-9 * max(1.0, abs(limit)):
            self.infeasible = True

    def equal(self, expression: Affine, value: float) -> None:
        """Add ``expression == value``.

        Parameters
        ----------
        expression
            The left side; terms with a coefficient of 0 are left out.
        value
            The right side.
        """
        self._look_at_clock()
        coefs = {handle: coef for handle, coef in expression.coefs.items() if coef != 0.0}
        if coefs:
            self.rows.append((coefs, value - expression.constant, value - expression.constant))
        elif abs(expression.constant - value) > 1e-9 * max(1.0, abs(value)):
            self.infeasible = True

    def _look_at_clock(self) -> None:
        if self.budget is not None and len(self.rows) % ROWS_A_LOOK == 0 and self.budget.expired:
            raise OutOfTime

    def max_of(self, floor: float, ceiling: float, expressions: Iterable[Affine]) -> int:
        """Return a new variable in [floor, ceiling] that is at least every expression.

        Parameters
        ----------
        floor, ceiling
            Finite bounds of the new variable.
        expressions
            What it is the maximum of wherever it is minimised.
        """
        handle = self.continuous(floor, ceiling)
        parts = list(expressions)
        for expression in parts:
            self.at_most(Affine({handle: -1.0}).add(expression), 0.0)
        self.maxima.append((handle, floor, parts))
        return handle

    def largest_value(self, expression: Affine) -> float:
        """Return the largest value of an expression over the box of its variables."""
        ends = ((coef * self.lower[h], coef * self.upper[h]) for h, coef in expression.coefs.items())
        return expression.constant + sum(max(pair) for pair in ends)

    def complete(self, point: FloatArray) -> FloatArray:
        """Set every variable made by :meth:`max_of` to its smallest value, in place, and return `point`."""
        for handle, floor, expressions in self.maxima:
            point[handle] = max([floor, *(expression.value(point) for expression in expressions)])
        return point

    def matrix(self) -> tuple[scipy.sparse.csr_matrix, FloatArray, FloatArray]:
        """Return (A, lhs, rhs) with A (num_rows, num_variables) in CSR form."""
        sizes = np.array([len(coefs) for coefs, _, _ in self.rows], np.int64)
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        indices = np.fromiter((h for coefs, _, _ in self.rows for h in coefs), np.int64, int(indptr[-1]))
        data = np.fromiter((c for coefs, _, _ in self.rows for c in coefs.values()), np.float64, int(indptr[-1]))
        shape = (len(self.rows), self.num_variables)
        matrix = scipy.sparse.csr_matrix((data, indices, indptr), shape=shape)
        lhs = np.array([lhs for _, lhs, _ in self.rows], np.float64)
        rhs = np.array([rhs for _, _, rhs in self.rows], np.float64)
        return matrix, lhs, rhs

    def relaxation_bound(self, time_limit_s: float) -> float:
        """Return a lower bound on the objective from the LP relaxation, by weak duality.

        HiGHS proposes row multipliers; the bound is the Lagrangian value they give over the box of the variable
        bounds, less what rounding may have added, so it holds whatever the LP solver's tolerances or its reason for
        stopping. Returns ``inf`` where the model is flagged infeasible and the objective's own lower bound where no
        multipliers came back.

        Raises
        ------
        SolverFailure
            If a number of the model is not finite, or HiGHS reports a numerical failure.
        """
        if self.infeasible:
            return np.inf
        floor = self.lower[self.objective]
        if not self.rows or time_limit_s <= 0:
            return floor
        matrix, lhs, rhs = self.matrix()
        has_lhs, has_rhs = np.isfinite(lhs), np.isfinite(rhs)
        at_most = scipy.sparse.vstack([matrix[has_rhs], -matrix[has_lhs]], format="csr")
        cost = np.zeros(self.num_variables)
        cost[self.objective] = 1.0
        program = LinearProgram(
            cost=cost,
            at_most=at_most,
            limit=np.concatenate([rhs[has_rhs], -lhs[has_lhs]]),
            equal=scipy.sparse.csr_matrix((0, self.num_variables)),
            value=np.zeros(0),
            low=np.array(self.lower),
            high=np.array(self.upper),
        )
        solution = program.solve(time_limit_s)
        if solution.failure:
            raise SolverFailure(f"HiGHS failed on the LP relaxation: {solution.failure}")
        return max(floor, solution.bound)
