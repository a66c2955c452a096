"""Pipelines over few unlike devices on CP-SAT: which device takes each op, and in what order the devices stand.

An op is on one device; of two devices one stands before the other; an op never runs on a device before its producer's.
Where both ends of a path are on a device, so is all between them. Every cost is rounded down to whole steps, so that
the minimum is a bound; a value is recomputed from the assignment.

References
----------
Borba, Ritt: A heuristic and a branch-and-bound algorithm for the assembly line worker assignment and balancing problem,
Computers & Operations Research 45, 2014 (model by pairs of workers, continuity).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, SAFETY
from rlinit.budget import Budget
from rlinit.exact.solvers.cp_sat import ConstraintSearch, ConstraintSettings
from rlinit.stages.problem import StageAssignment, StageProblem, stage_value

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    _Terms: TypeAlias = list[tuple[cp_model.IntVar, int]]

_STEPS = 10**7
"""Steps of the start's value where no quantum of all costs is known, or too small a one."""

_SHARES = 1e12
"""Shares that all parameters together have, and steps of overflow that a fast memory may hide: where it hides more,
overflow is told from none by shares alone."""

MOST_CLAUSES = 20_000
"""Clauses up to which the model closes pipelines: lines of 28 tasks have 1,000 to 3,000 and are closed, those of 70
have 80,000 and more and are hopeless. Beyond, those of continuity, which the others imply, are not written."""


def num_clauses(problem: StageProblem) -> int:
    """Return about how many clauses the model has: orders of devices, and continuity of paths."""
    reaches = _reaches(problem)
    between = int(reaches.sum(axis=0) @ reaches.sum(axis=1))
    return problem.num_stages**2 * len(problem.succ) + problem.num_stages * between


def solve_constraint_program(
    problem: StageProblem,
    *,
    budget: Budget,
    start: StageAssignment,
    settings: ConstraintSettings,
    quantum: float = 0.0,
    on_solution: Callable[[StageAssignment], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> float:
    """Minimise the bottleneck of a pipeline; return a bound in seconds.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    budget
        Time limit and switch.
    start
        A feasible assignment; only what is at most as long is searched.
    settings
        Work limit and seed.
    quantum
        Every bottleneck is a whole multiple of it; 0: not known.
    on_solution
        Called with each assignment found; its value is for the receiver to compute.
    on_bound
        Called with each better bound in seconds.

    Raises
    ------
    SolverFailure
        CP-SAT calls the model invalid.
    """
    value = stage_value(problem, start.stage, start.classes)
    unit = value / _STEPS
    if quantum > 0.0 and value <= quantum * _STEPS:
        unit = quantum
    if not 0.0 < unit < np.inf:
        return 0.0
    model = _Model(problem, unit, int(np.floor(value / unit * (1 + ROUNDING))), budget)
    if budget.expired:
        return 0.0
    model.hint(start)

    def offer(assignment: StageAssignment) -> None:
        if on_solution is not None:
            on_solution(assignment)

    def seconds(steps: float) -> float:
        if not np.isfinite(steps):
            return 0.0
        # What costs were rounded up by, at most: `SAFETY` steps each.
        over = SAFETY * (2 * problem.num_nodes + 2 * problem.num_tensors)
        return max(0.0, (steps * (1 - ROUNDING) - over) * unit)

    def raise_bound(steps: float) -> None:
        if on_bound is not None:
            on_bound(seconds(steps))

    search = ConstraintSearch(model, budget, settings)
    search.run(offer, raise_bound)
    raise_bound(search.bound)
    return seconds(search.bound)


def _reaches(problem: StageProblem) -> NDArray[np.bool_]:
    """Return (n, n) whether a path leads from one op to another."""
    n = problem.num_nodes
    reaches = np.zeros((n, n), np.bool_)
    for v in problem.order[::-1].tolist():
        for u in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]].tolist():
            reaches[v] |= reaches[u]
            reaches[v, u] = True
    return reaches


def _weighted(terms: _Terms) -> cp_model.LinearExprT:
    """Return the sum of variables times weights."""
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([one for one, _ in terms], [weight for _, weight in terms])


class _Model:
    """Variables: op v on device w, device a before device b, position of a device, costs in steps.

    Parameters
    ----------
    problem
        The problem.
    unit
        Seconds of a step.
    horizon
        Steps that no bottleneck exceeds.
    budget
        Once it has expired, the model is not finished.
    """

    def __init__(self, problem: StageProblem, unit: float, horizon: int, budget: Budget) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.unit, self.horizon, self.budget = problem, unit, horizon, budget
        self.cp = cp_model.CpModel()
        self.classes = np.repeat(np.arange(problem.num_classes), problem.class_count)
        self.x: dict[tuple[int, int], cp_model.IntVar] = {}
        self.before: dict[tuple[int, int], cp_model.LiteralT] = {}
        self.position = [self.cp.new_int_var(0, len(self.classes) - 1, "") for _ in self.classes]
        self._devices_of_ops()
        self._orders()
        self._continuity()
        self._memory()
        self.bottleneck = self.cp.new_int_var(0, horizon, "")
        for w in range(len(self.classes)):
            self.cp.add(_weighted(self._cost(w)) <= self.bottleneck)
        self.cp.minimize(self.bottleneck)

    def _steps(self, seconds: float, hidden: int = 0) -> int:
        """Return seconds in whole steps, rounded down but for `SAFETY`, at most one more than horizon and `hidden`."""
        return int(min(np.floor(float(seconds) / self.unit + SAFETY), self.horizon + 1 + hidden))

    def _devices_of_ops(self) -> None:
        """Each op is on one device that may run it."""
        problem = self.problem
        for v in range(problem.num_nodes):
            for w, c in enumerate(self.classes.tolist()):
                if problem.work_s[c, v] < np.inf and self._steps(problem.work_s[c, v]) <= self.horizon:
                    self.x[v, w] = self.cp.new_bool_var("")
            self.cp.add_exactly_one([self.x[v, w] for w in range(len(self.classes)) if (v, w) in self.x])

    def _orders(self) -> None:
        """Devices stand in one order, equal ones in that of their numbers, and no edge leads backwards."""
        k, cp, position = len(self.classes), self.cp, self.position
        cp.add_all_different(position)
        for a in range(k):
            for b in range(a + 1, k):
                before = cp.new_bool_var("")
                self.before[a, b], self.before[b, a] = before, before.Not()
                cp.add(position[a] < position[b]).only_enforce_if(before)
                cp.add(position[b] < position[a]).only_enforce_if(before.Not())
                if self.classes[a] == self.classes[b]:
                    cp.add(before == 1)
        tail = np.repeat(np.arange(self.problem.num_nodes), np.diff(self.problem.succ_indptr))
        for u, v in zip(tail.tolist(), self.problem.succ.tolist(), strict=True):
            if self.budget.expired:
                return
            for a in range(k):
                for b in range(k):
                    if a != b and (u, a) in self.x and (v, b) in self.x:
                        cp.add_bool_or([self.x[u, a].Not(), self.x[v, b].Not(), self.before[a, b]])

    def _continuity(self) -> None:
        """Keep what lies on a path between two ops of a device on that device; implied, but it propagates."""
        if num_clauses(self.problem) > MOST_CLAUSES:
            return
        reaches = _reaches(self.problem)
        for u, v in np.argwhere(reaches).tolist():
            if self.budget.expired:
                return
            between = np.flatnonzero(reaches[u] & reaches[:, v]).tolist()
            for w in range(len(self.classes)):
                if (u, w) in self.x and (v, w) in self.x:
                    ends = [self.x[u, w].Not(), self.x[v, w].Not()]
                    for q in between:
                        self.cp.add_bool_or([*ends, self.x[q, w]] if (q, w) in self.x else ends)

    def _memory(self) -> None:
        """Parameters on a device are at most what it holds within the horizon, in shares that are rounded down."""
        problem = self.problem
        total = float(problem.param_bytes.sum())
        most_s = (self.horizon + 1) * self.unit
        for w, c in enumerate(self.classes.tolist()):
            rate = float(problem.overflow_s_per_byte[c])
            held = float(problem.cache_bytes[c]) + most_s / rate if rate > 0.0 else np.inf
            room = min(held, float(problem.memory_bytes[c]))
            if total > room:
                share = np.floor(problem.param_bytes / total * _SHARES * (1 - ROUNDING)).astype(np.int64)
                most = int(np.ceil(room / total * _SHARES * (1 + SAFETY)))
                self.cp.add(_weighted(self._ops(share.tolist(), w)) <= most)

    def _ops(self, weight: list[int], w: int) -> _Terms:
        """Return the weights of the ops that may be on a device."""
        return [(self.x[v, w], weight[v]) for v in range(len(weight)) if (v, w) in self.x and weight[v] > 0]

    def _cost(self, w: int) -> _Terms:
        """Return what device w costs in steps: work, tensors in and out, overflow."""
        problem, c = self.problem, int(self.classes[w])
        work_s = np.where(np.isfinite(problem.work_s[c]), problem.work_s[c], 0.0)
        terms = self._ops([self._steps(s) for s in work_s], w) + self._tensors(w, c)
        rate = float(problem.overflow_s_per_byte[c])
        steps = rate * float(problem.cache_bytes[c]) / self.unit * (1 + ROUNDING)
        if rate > 0.0 and problem.param_bytes.sum() > problem.cache_bytes[c] and steps <= _SHARES:
            hidden = int(np.ceil(steps))
            parts = self._ops([self._steps(rate * b, hidden) for b in problem.param_bytes.tolist()], w)
            over = self.cp.new_int_var(0, self.horizon, "")
            self.cp.add(_weighted([*parts, (over, -1)]) <= hidden)
            terms.append((over, 1))
        return terms

    def _tensors(self, w: int, c: int) -> _Terms:
        """Return the steps that device w spends on tensors: in once if a consumer is here and its producer is not."""
        problem = self.problem
        terms: _Terms = []
        for t in range(problem.num_tensors):
            src = self.x.get((int(problem.tensor_src[t]), w))
            users = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]].tolist()
            here = [self.x[v, w] for v in users if (v, w) in self.x]
            into, out = self._steps(problem.in_s[c, t]), self._steps(problem.out_s[c, t])
            if into > 0 and here:
                comes = self.cp.new_bool_var("")
                for user in here:
                    self.cp.add_bool_or([user.Not(), comes] if src is None else [user.Not(), src, comes])
                terms.append((comes, into))
            if out > 0 and src is not None:
                goes = self.cp.new_bool_var("")
                for v in users:
                    self.cp.add_bool_or([src.Not(), goes, self.x[v, w]] if (v, w) in self.x else [src.Not(), goes])
                terms.append((goes, out))
        return terms

    def hint(self, start: StageAssignment) -> None:
        """Tell CP-SAT of an assignment.

        Parameters
        ----------
        start
            The assignment.
        """
        device = np.empty(len(self.classes), np.int64)
        free = {c: np.flatnonzero(self.classes == c).tolist() for c in range(self.problem.num_classes)}
        for at, c in enumerate(start.classes.tolist()):
            device[at] = free[c].pop(0)
        for at, w in enumerate(device.tolist()):
            self.cp.add_hint(self.position[w], at)
        for (v, w), x in self.x.items():
            self.cp.add_hint(x, int(device[start.stage[v]] == w))

    def solution(self, values: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> StageAssignment:
        """Return the assignment that CP-SAT's values stand for.

        Parameters
        ----------
        values
            A solver or a callback.
        """
        at = np.array([values.value(p) for p in self.position])
        stage = np.empty(self.problem.num_nodes, np.int64)
        for (v, w), x in self.x.items():
            if values.value(x):
                stage[v] = at[w]
        classes = np.empty(len(at), np.int64)
        classes[at] = self.classes
        return StageAssignment(stage, classes)
