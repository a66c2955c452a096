"""Placement problems on HiGHS by DIVIML's mixed-integer program, through `scipy.optimize.milp`.

References
----------
DIVIML, Section IV-A, conditions (1) to (7).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable

import numpy as np
import scipy.sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.peers import PeerResult, Status, horizon_s, judged, require_parallel
from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import SolverFailure
from rlinit.exact.solvers.linear_model import power_of_two_unit
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem

__all__ = ["solve_highs"]

Terms = Iterable[tuple[int, float]]

_LIMIT_STATUS, _INFEASIBLE_STATUS = 1, 2


def solve_highs(problem: PlacementProblem, *, time_limit_s: float) -> PeerResult:
    """Solve a placement problem with parallel transfers on HiGHS.

    The bound is the one HiGHS claims: rows with large constants hold within its tolerances only, so it may exceed the
    optimum by about 1e-6 of the sum of all times.

    Parameters
    ----------
    problem
        ``latency`` or ``throughput``.
    time_limit_s
        Wall-clock limit of the search; building the model comes on top.

    Raises
    ------
    RlinitError
        The transfers are not ``parallel``.
    SolverFailure
        HiGHS ends in another way than with a result, an infeasibility or a limit.
    """
    require_parallel(problem, "HiGHS")
    began = time.perf_counter()
    model = _Model(problem)
    model.write()
    outcome = milp(
        model.cost(),
        integrality=np.array(model.integral),
        bounds=Bounds(np.array(model.lower), np.array(model.upper)),
        constraints=model.rows(),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    seconds = time.perf_counter() - began
    if outcome.status == _INFEASIBLE_STATUS:
        return judged(problem, None, None, math.inf, "infeasible", seconds)
    if outcome.status not in (0, _LIMIT_STATUS):
        raise SolverFailure(f"HiGHS ended with status {outcome.status}: {outcome.message}")
    claimed = outcome.mip_dual_bound
    bound_s = max(0.0, float(claimed)) * model.unit_s if claimed is not None and math.isfinite(claimed) else 0.0
    if outcome.x is None:
        return judged(problem, None, None, bound_s, "no_solution", seconds)
    status: Status = "optimal" if outcome.status == 0 else "feasible"
    device, start_s = model.schedule(outcome.x)
    return judged(problem, device, start_s, bound_s, status, seconds)


class _Model:
    """DIVIML's program. Times are in units of a power of two that makes the horizon 128 to 256.

    ==============  ==========================================================
    variable        meaning
    ==============  ==========================================================
    ``on[v,i,l]``   shard l of v is on device i (x)
    ``size[v,i,c]`` the batch of v on i has c shards (b)
    ``start[v,i]``  its start (s)
    ``end``         the makespan (C)
    ==============  ==========================================================
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        longest = horizon_s(problem)
        self.unit_s = power_of_two_unit(longest)
        self.horizon = longest / self.unit_s
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.integral: list[int] = []
        self._data: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self.end = self._variable(self.horizon, integral=False)
        self.on: dict[tuple[int, int, int], int] = {}
        self.size: dict[tuple[int, int, int], int] = {}
        self.start: dict[tuple[int, int], int] = {}

    def _variable(self, upper: float, *, integral: bool = True) -> int:
        self.lower.append(0.0)
        self.upper.append(upper)
        self.integral.append(int(integral))
        return len(self.lower) - 1

    def _row(self, terms: Terms, low: float, high: float) -> None:
        """Add low <= sum of coefficient * variable <= high."""
        at = len(self._low)
        for column, coefficient in terms:
            self._rows.append(at)
            self._columns.append(column)
            self._data.append(coefficient)
        self._low.append(low)
        self._high.append(high)

    def cost(self) -> FloatArray:
        """Return the objective: the makespan."""
        cost = np.zeros(len(self.lower))
        cost[self.end] = 1.0
        return cost

    def rows(self) -> LinearConstraint:
        """Return the rows."""
        shape = (len(self._low), len(self.lower))
        matrix = scipy.sparse.csc_array((self._data, (self._rows, self._columns)), shape=shape)
        return LinearConstraint(matrix, np.array(self._low), np.array(self._high))

    def write(self) -> None:
        """Write variables and rows."""
        self._add_variables()
        self._add_sizes()
        self._add_ends()
        self._add_memory()
        for u, w in self.problem.edges.tolist():
            self._add_dependency(u, w)
        self._add_groups()
        self._add_no_overlap()

    def _add_variables(self) -> None:
        problem = self.problem
        s = problem.num_shards
        for v, i in itertools.product(range(problem.num_ops), range(problem.num_devices)):
            self.start[v, i] = self._variable(self.horizon, integral=False)
            offered = np.isfinite(problem.time_s[v, i]) & (problem.time_s[v, i] <= self.horizon * self.unit_s)
            for c in range(1, s + 1):
                self.size[v, i, c] = self._variable(1.0 if offered[c] else 0.0)
            for shard in range(s):
                self.on[v, i, shard] = self._variable(1.0 if offered[1:].any() else 0.0)

    def _duration(self, v: int, i: int, factor: float = 1.0) -> list[tuple[int, float]]:
        """Return the terms of the time of batch (v, i)."""
        seconds = np.where(np.isfinite(self.problem.time_s[v, i]), self.problem.time_s[v, i], 0.0) / self.unit_s
        return [(self.size[v, i, c], factor * float(seconds[c])) for c in range(1, self.problem.num_shards + 1)]

    def _present(self, v: int, i: int, factor: float) -> list[tuple[int, float]]:
        return [(self.size[v, i, c], factor) for c in range(1, self.problem.num_shards + 1)]

    def _add_sizes(self) -> None:
        """Conditions 1, 4 and 5: each shard is on one device, and sizes count the shards of a batch."""
        problem = self.problem
        d, s = problem.num_devices, problem.num_shards
        for v in range(problem.num_ops):
            for shard in range(s):
                self._row([(self.on[v, i, shard], 1.0) for i in range(d)], 1.0, 1.0)
            for i in range(d):
                self._row(self._present(v, i, 1.0), 0.0, 1.0)
                counted = [(self.size[v, i, c], float(c)) for c in range(1, s + 1)]
                self._row([*counted, *((self.on[v, i, shard], -1.0) for shard in range(s))], 0.0, 0.0)

    def _add_ends(self) -> None:
        """Condition 2: every batch ends by the makespan."""
        for v, i in self.start:
            self._row([(self.start[v, i], 1.0), *self._duration(v, i), (self.end, -1.0)], -np.inf, 0.0)

    def _add_memory(self) -> None:
        """Condition 6: what a device holds fits."""
        problem = self.problem
        for i, capacity in enumerate(problem.capacity_bytes.tolist()):
            if math.isinf(capacity):
                continue
            unit = power_of_two_unit(max(capacity, 1e-300))
            terms = []
            for v in range(problem.num_ops):
                for c in range(1, problem.num_shards + 1):
                    held = float(problem.weight_bytes[v] + c * problem.shard_bytes[v])
                    if held > capacity * CAPACITY_SLACK:
                        self.upper[self.size[v, i, c]] = 0.0
                    else:
                        terms.append((self.size[v, i, c], held / unit))
            self._row(terms, -np.inf, capacity / unit)

    def _add_dependency(self, u: int, w: int) -> None:
        """Condition 3: where u and w share shards, w waits for u and for the transfer of these."""
        problem = self.problem
        for i, j in itertools.product(range(problem.num_devices), repeat=2):
            pairs = [(self.on[u, i, shard], self.on[w, j, shard]) for shard in range(problem.num_shards)]
            delay = float(problem.delay_s[i, j]) / self.unit_s
            each = float(problem.tensor_bytes[u] * problem.s_per_byte[i, j]) / self.unit_s
            if delay + each > self.horizon:
                for producer, consumer in pairs:
                    self._row([(producer, 1.0), (consumer, 1.0)], -np.inf, 1.0)
                continue
            moved = self._shared(pairs) if len(pairs) > 1 and each > 0 else []
            for producer, consumer in pairs:
                # start[u,i] + time + delay + each * moved <= start[w,j] unless the pair is not chosen.
                wait = delay + (0.0 if moved else each)
                large = self.horizon + wait + each * len(moved)
                terms = [(self.start[u, i], 1.0), *self._duration(u, i), (self.start[w, j], -1.0)]
                terms += [(both, each) for both in moved]
                self._row([*terms, (producer, large), (consumer, large)], -np.inf, 2 * large - wait)

    def _shared(self, pairs: list[tuple[int, int]]) -> list[int]:
        """Return variables that are at least 1 where both of a pair are chosen."""
        shared = []
        for producer, consumer in pairs:
            both = self._variable(1.0, integral=False)
            self._row([(producer, 1.0), (consumer, 1.0), (both, -1.0)], -np.inf, 1.0)
            shared.append(both)
        return shared

    def _add_groups(self) -> None:
        """Let the ops of a group be together, shard by shard."""
        for v, leader in enumerate(self.problem.group.tolist()):
            if v != leader:
                for i, shard in itertools.product(range(self.problem.num_devices), range(self.problem.num_shards)):
                    self._row([(self.on[v, i, shard], 1.0), (self.on[leader, i, shard], -1.0)], 0.0, 0.0)

    def _add_no_overlap(self) -> None:
        """Condition 7: two batches on a device run one after the other; one input's paths order them already."""
        problem = self.problem
        ordered = _reach(problem) if problem.num_shards == 1 else [0] * problem.num_ops
        for u, v in itertools.combinations(range(problem.num_ops), 2):
            if ordered[u] >> v & 1 or ordered[v] >> u & 1:
                continue
            for i in range(problem.num_devices):
                first = self._variable(1.0)
                for a, b, sign in ((u, v, 1.0), (v, u, -1.0)):
                    # start[a] + time[a] <= start[b] unless the other comes first, or one of them is not there.
                    large = self.horizon
                    terms = [(self.start[a, i], 1.0), *self._duration(a, i), (self.start[b, i], -1.0)]
                    terms += [(first, sign * large)]
                    terms = _summed([*terms, *self._present(a, i, large), *self._present(b, i, large)])
                    self._row(terms, -np.inf, 2 * large + (large if sign > 0 else 0.0))

    def schedule(self, point: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the devices and starts of a solution."""
        problem = self.problem
        chosen = np.zeros((problem.num_ops, problem.num_shards, problem.num_devices))
        for (v, i, shard), column in self.on.items():
            chosen[v, shard, i] = point[column]
        device = chosen.argmax(axis=2)
        start_s = np.full((problem.num_ops, problem.num_devices), np.nan)
        for (v, i), column in self.start.items():
            if (device[v] == i).any():
                start_s[v, i] = point[column] * self.unit_s
        return device, start_s


def _summed(terms: Terms) -> list[tuple[int, float]]:
    """Return terms with one coefficient for each variable."""
    total: dict[int, float] = {}
    for column, coefficient in terms:
        total[column] = total.get(column, 0.0) + coefficient
    return list(total.items())


def _reach(problem: PlacementProblem) -> list[int]:
    """Return, for each op, the ops after it as the bits of an integer."""
    reach = [0] * problem.num_ops
    for u in reversed(problem.order.tolist()):
        for w in problem.succ[problem.succ_indptr[u] : problem.succ_indptr[u + 1]].tolist():
            reach[u] |= reach[w] | 1 << w
    return reach
