"""Linear relaxation of the placement problem: devices fractional, no order, with rows for what lies between two ops.

Variables: ``N[v, i, c]`` whether device i runs a batch of c shards of op v (one set for a group of ops), ``t[v]`` the
mean over shards of the start of the batch with that shard of v, and C. With ``x[v, i] = sum_c c/s N[v, i, c]`` and
``D[v] = sum_i D[v, i]``, ``D[v, i] = sum_c c/s time[v, i, c] N[v, i, c]``, the mean over shards of the batch's time:

============  ====================================================================================================
assign        ``sum_i x[v, i] = 1``
precedence    ``t[u] + D[u] <= t[v]`` for each edge
head, tail    ``sum_i head[v, i] x[v, i] <= t[v]``;  ``t[v] + D[v] + sum_i tail[v, i] x[v, i] <= C``
load          ``sum_v sum_c time[v, i, c] N[v, i, c] <= C`` for each device i
memory        ``sum_v sum_c (weight[v] + c shard[v]) N[v, i, c] <= capacity[i]``
between (cut) ``t[a] + D[a] + sum_{a < v < b} D[v, i] <= t[b]`` for a device i and ops a before b; also from the start
              to b, and from a to C. A shard of the ops between runs after that shard of a and before that of b.
interval      ``h + sum_{head[v, i] >= h, tail[v, i] >= q} time N + q <= C`` for a device i where h + q is below a bound
(cut)         on C: device i runs nothing of these before h and nothing in the last q seconds.
transfer      ``t[u] + D[u] + least_out[S] (x[u, S] - x[v, S]) <= t[v]`` for an edge and a set S of one device or all
(cut)         but one: as much as leaves S is transferred out of S.
============  ====================================================================================================

Every row holds for each shard of each placement (`load`, `memory` and `interval` for the placement), hence for the
means. The bounds are Lagrangian values of multipliers that HiGHS proposes, see
:mod:`rlinit.exact.solvers.lp_dual_bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from rlinit.arrays import NOTABLE, SAFETY, FloatArray, IntArray
from rlinit.budget import ROWS_A_LOOK, Budget, reserve
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.solvers.linear_model import power_of_two_unit
from rlinit.exact.solvers.lp_dual_bound import LinearProgram, LinearSolution
from rlinit.placements.problem import PlacementProblem

_FEWEST, _ENDS = 20, 0.1
"""Rows from the start and to the end of each round and device: some, and a share of all."""

_INTERVALS = 4
"""Rows of intervals for each device in a round."""

_THRESHOLDS = 48
"""Starts, and ends, of intervals that are looked at."""


class CutPool:
    """Rows over ops that hold in every placement whatever its windows, so that they outlast a relaxation.

    A row is ``(kind, device, a, b)``: what lies between ops a and b on a device, with -1 for the start and the end.
    """

    __slots__ = ("_known", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._known: set[tuple[int, int, int]] = set()

    def add(self, device: int, before: int, after: int) -> bool:
        """Add a row unless it is there; return whether it was new.

        Parameters
        ----------
        device
            Whose ops lie between.
        before, after
            Ops, or -1 for the start and the end.
        """
        row = (device, before, after)
        if row in self._known:
            return False
        self._known.add(row)
        self.rows.append(row)
        return True

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Forget the rows that are not chosen."""
        self.rows = [row for row, wanted in zip(self.rows, chosen.tolist(), strict=True) if wanted]
        self._known = set(self.rows)


@dataclass(slots=True, eq=False)
class _Rows:
    """Sparse rows ``coefs . variables <= limit`` in the making."""

    columns: list[IntArray]
    coefs: list[FloatArray]
    limits: list[float]

    def add(self, columns: IntArray, coefs: FloatArray, limit: float) -> None:
        self.columns.append(columns)
        self.coefs.append(coefs)
        self.limits.append(limit)

    def matrix(self, num_variables: int) -> scipy.sparse.csr_matrix:
        sizes = [len(row) for row in self.columns]
        indptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        indices = np.concatenate(self.columns) if sizes else np.zeros(0, np.int64)
        data = np.concatenate(self.coefs) if sizes else np.zeros(0)
        return scipy.sparse.csr_matrix((data, indices, indptr), shape=(len(sizes), num_variables))


class PlacementLP:
    """The relaxation for the batches and windows left over, in units that make the numbers moderate.

    Parameters
    ----------
    problem, window
        What is relaxed.
    horizon_s
        Makespan that some placement of the batches left does not exceed, so that the relaxation has a point: the box of
        the variables. See :func:`~rlinit.exact.placements.analysis.time_windows.latest_end`.
    reach
        (n, n) whether a path leads from row to column; None leaves the between rows out.
    pool
        Between rows known so far, extended by :meth:`separate`.
    gaps
        ``(a, b, seconds)`` with (d, d) proven lower bounds on ``t[b] - t[a]`` by the devices of both; -1 for the start
        (its device is 0, its time 0) and the end (device 0, time C).
    like
        A relaxation in the same window, of whose transfer and interval rows those are taken that its last point needs.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        window: ShardWindows,
        horizon_s: float,
        reach: NDArray[np.bool_] | None,
        pool: CutPool,
        gaps: Sequence[tuple[int, int, FloatArray]] = (),
        like: PlacementLP | None = None,
    ) -> None:
        self.problem = problem
        self.window = window
        self.reach = reach
        self.pool = pool
        self.unit_s = power_of_two_unit(window.floor_s if window.floor_s > 0 else horizon_s)
        self.horizon = horizon_s / self.unit_s
        self.floor = min(window.floor_s / self.unit_s, self.horizon)
        n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
        self._columns(n, d, s)
        self.start = self.num_columns + np.arange(n)
        self.end = self.num_columns + n
        self.excess = self.end + 1
        self.joint = self.excess + d
        self.num_variables = self.joint + sum(int(np.isfinite(seconds).sum()) for _, _, seconds in gaps)
        self._local = _Rows([], [], [])
        self._equal = self._assign()
        self._equal_value = np.ones(len(self.representative))
        self._fixed = self._base_rows()
        self._add_gaps(gaps)
        self._num_gaps = len(gaps)
        if like is not None:
            for row in like._needed():
                self._local.add(*row)
        self._pooled: list[tuple[IntArray, FloatArray]] = []
        self._first_local = 0
        self.solution: LinearSolution | None = None

    def _columns(self, n: int, d: int, s: int) -> None:
        """Give the batches of each group their columns, and list for every op which are its own."""
        allowed = self.window.allowed
        representative = np.flatnonzero(self.problem.group == np.arange(n))
        column = np.full((n, d, s + 1), -1, np.int64)
        op, device, count = np.nonzero(allowed[representative])
        column[representative[op], device, count] = np.arange(len(op))
        self.num_columns = len(op)
        column = column[self.problem.group]
        self.entry_op, self.entry_device, entry_count = np.nonzero(column >= 0)
        self.entry_column = column[self.entry_op, self.entry_device, entry_count]
        self.entry_share = entry_count / s
        self.entry_time = self.problem.time_s[self.entry_op, self.entry_device, entry_count] / self.unit_s
        self.entry_mean = self.entry_share * self.entry_time
        self.entry_count = entry_count
        self.op_indptr = np.searchsorted(self.entry_op, np.arange(n + 1))
        self.representative = representative
        by_device = np.argsort(self.entry_device, kind="stable")
        self.device_entries = np.split(by_device, np.searchsorted(self.entry_device[by_device], np.arange(1, d)))

    def _over_entries(self, values: FloatArray) -> scipy.sparse.csr_matrix:
        """Return (n, num_columns) with `values` of the entries of each op."""
        shape = (self.problem.num_ops, self.num_columns)
        matrix: scipy.sparse.csr_matrix = scipy.sparse.coo_matrix(
            (values, (self.entry_op, self.entry_column)), shape=shape
        ).tocsr()
        return matrix

    def _base_rows(self) -> tuple[scipy.sparse.csr_matrix, FloatArray]:
        """Return precedence, head, tail, load and memory rows, and one batch of an op on a device."""
        problem, window = self.problem, self.window
        n, d = problem.num_ops, problem.num_devices
        mean = self._over_entries(self.entry_mean)
        head = self._over_entries(self.entry_share * window.head_s[self.entry_op, self.entry_device] / self.unit_s)
        tail = self._over_entries(
            self.entry_mean + self.entry_share * window.tail_s[self.entry_op, self.entry_device] / self.unit_s
        )
        eye = scipy.sparse.identity(n, format="csr")
        end = scipy.sparse.csr_matrix(np.ones((n, 1)))
        u, v = problem.edges[:, 0], problem.edges[:, 1]
        m = len(u)
        blocks = [
            [mean[u], eye[u] - eye[v], scipy.sparse.csr_matrix((m, 1))],
            [head, -eye, scipy.sparse.csr_matrix((n, 1))],
            [tail, eye, -end],
            [self._device_rows(self.entry_time), scipy.sparse.csr_matrix((d, n)), -end[:1][np.zeros(d, np.int64)]],
        ]
        blocks = [row for row in blocks if row[0].shape[0]]
        stacked = scipy.sparse.bmat(blocks, format="csr")
        parts = [self._widened(stacked)]
        limits = [np.zeros(stacked.shape[0])]
        capped = np.flatnonzero(np.isfinite(problem.capacity_bytes))
        if len(capped):
            held = problem.weight_bytes[self.entry_op] + self.entry_count * problem.shard_bytes[self.entry_op]
            scale = max(1.0, float(problem.capacity_bytes[capped].max()), float(held.max(initial=0.0)))
            parts.append(self._elastic(self._device_rows(held / scale))[capped])
            limits.append(problem.capacity_bytes[capped] / scale * (1.0 + SAFETY))
        if problem.num_shards > 1:
            single = self._one_batch()
            parts.append(single)
            limits.append(np.ones(single.shape[0]))
        return scipy.sparse.vstack(parts, format="csr"), np.concatenate(limits)

    def _widened(self, matrix: Any) -> scipy.sparse.csr_matrix:
        """Return the rows with zeros for the variables that they have no columns for."""
        rows = scipy.sparse.csr_matrix(matrix)
        return scipy.sparse.csr_matrix(
            (rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], self.num_variables)
        )

    def _elastic(self, rows: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
        """Return rows of the devices less the excess of each, which costs a horizon: so there always is a point."""
        between = scipy.sparse.csr_matrix((rows.shape[0], self.excess - self.num_columns))
        excess = scipy.sparse.identity(rows.shape[0], format="csr")
        return self._widened(scipy.sparse.hstack([rows, between, -excess], format="csr"))

    def _device_rows(self, values: FloatArray) -> scipy.sparse.csr_matrix:
        shape = (self.problem.num_devices, self.num_columns)
        matrix: scipy.sparse.csr_matrix = scipy.sparse.coo_matrix(
            (values, (self.entry_device, self.entry_column)), shape=shape
        ).tocsr()
        return matrix

    def _one_batch(self) -> scipy.sparse.csr_matrix:
        """Return rows ``sum_c N[v, i, c] <= 1``."""
        own = self.problem.group[self.entry_op] == self.entry_op
        row = (self.entry_op * self.problem.num_devices + self.entry_device)[own]
        _, row = np.unique(row, return_inverse=True)
        shape = (int(row.max(initial=-1)) + 1, self.num_variables)
        matrix: scipy.sparse.csr_matrix = scipy.sparse.coo_matrix(
            (np.ones(len(row)), (row, self.entry_column[own])), shape=shape
        ).tocsr()
        return matrix

    def _assign(self) -> scipy.sparse.csr_matrix:
        own = self.problem.group[self.entry_op] == self.entry_op
        row = np.searchsorted(self.representative, self.entry_op[own])
        shape = (len(self.representative), self.num_variables)
        matrix: scipy.sparse.csr_matrix = scipy.sparse.coo_matrix(
            (self.entry_share[own], (row, self.entry_column[own])), shape=shape
        ).tocsr()
        return matrix

    def _add_gaps(self, gaps: Sequence[tuple[int, int, FloatArray]]) -> None:
        """Add rows ``t[b] - t[a] >= sum_ij seconds[i, j] y[i, j]`` where y has the devices of a and b as marginals."""
        first = self.joint
        marginals = _Rows([], [], [])
        for before, after, seconds in gaps:
            sources, targets = np.nonzero(np.isfinite(seconds))
            columns = first + np.arange(len(sources))
            first += len(columns)
            ends = [(self.start[before], 1.0)] if before >= 0 else []
            ends.append((self.start[after] if after >= 0 else self.end, -1.0))
            self._local.add(
                np.append(columns, [handle for handle, _ in ends]),
                np.append(seconds[sources, targets] / self.unit_s, [sign for _, sign in ends]),
                0.0,
            )
            for op, devices in ((before, sources), (after, targets)):
                if op < 0:
                    continue
                own = slice(self.op_indptr[op], self.op_indptr[op + 1])
                for i in range(self.problem.num_devices):
                    mine = self.entry_device[own] == i
                    marginals.add(
                        np.append(columns[devices == i], self.entry_column[own][mine]),
                        np.append(np.ones(int((devices == i).sum())), -self.entry_share[own][mine]),
                        0.0,
                    )
        if marginals.columns:
            rows = marginals.matrix(self.num_variables)
            self._equal = scipy.sparse.vstack([self._equal, rows], format="csr")
            self._equal_value = np.append(self._equal_value, np.zeros(rows.shape[0]))

    def _between_row(self, device: int, before: int, after: int) -> tuple[IntArray, FloatArray]:
        """Return the row of :class:`CutPool` that says what lies between two ops."""
        assert self.reach is not None
        inside = np.ones(self.problem.num_ops, np.bool_)
        ends: list[tuple[int, float]] = []
        if before >= 0:
            inside &= self.reach[before]
            ends.append((int(self.start[before]), 1.0))
        if after >= 0:
            inside &= self.reach[:, after]
        ends.append((int(self.start[after]) if after >= 0 else self.end, -1.0))
        chosen = self.device_entries[device]
        chosen = chosen[inside[self.entry_op[chosen]]]
        columns, coefs = [self.entry_column[chosen]], [self.entry_mean[chosen]]
        if before >= 0:
            own = slice(self.op_indptr[before], self.op_indptr[before + 1])
            columns.append(self.entry_column[own])
            coefs.append(self.entry_mean[own])
        columns.append(np.array([handle for handle, _ in ends]))
        coefs.append(np.array([coef for _, coef in ends]))
        return np.concatenate(columns), np.concatenate(coefs)

    def solve(self, time_limit_s: float, *, interior: bool = False) -> float:
        """Solve with all rows so far and return the proven bound in seconds (0 if nothing was proven).

        Parameters
        ----------
        time_limit_s
            Of the solver.
        interior
            Whether the interior-point method is used, not the simplex method.
        """
        for row in self.pool.rows[len(self._pooled) :]:
            self._pooled.append(self._between_row(*row))
        extra = _Rows(
            [c for c, _ in self._pooled] + self._local.columns,
            [a for _, a in self._pooled] + self._local.coefs,
            [0.0] * len(self._pooled) + self._local.limits,
        )
        matrix, limit = self._fixed
        self._first_local = matrix.shape[0] + len(self._pooled)
        n = self.problem.num_ops
        cost = np.zeros(self.num_variables)
        cost[self.end] = 1.0
        cost[self.excess : self.joint] = self.horizon
        high = np.ones(self.num_variables)
        high[self.start] = high[self.end] = self.horizon
        high[self.excess : self.joint] = n
        low = np.zeros(self.num_variables)
        low[self.end] = self.floor
        program = LinearProgram(
            cost,
            scipy.sparse.vstack([matrix, extra.matrix(self.num_variables)], format="csr"),
            np.concatenate([limit, np.array(extra.limits)]),
            self._equal,
            self._equal_value,
            low,
            high,
        )
        self.solution = program.solve(time_limit_s, interior=interior)
        self.floor = max(self.floor, min(self.solution.bound, self.horizon))
        return max(self.window.floor_s, self.solution.bound * self.unit_s)

    def _multipliers(self) -> FloatArray | None:
        """Return those of the rows; None where there are none, or the floor proves the bound without any row."""
        dual = None if self.solution is None else self.solution.at_most_dual
        return dual if dual is not None and dual.any() else None

    def forget_slack(self) -> None:
        """Forget the pooled rows that the last solution leaves slack; those found since are kept."""
        dual = self._multipliers()
        if dual is None:
            return
        first = self._fixed[0].shape[0]
        used = dual[first : first + len(self._pooled)] < -SAFETY
        self._pooled = [row for row, wanted in zip(self._pooled, used.tolist(), strict=True) if wanted]
        self.pool.keep(np.append(used, np.ones(len(self.pool.rows) - len(used), np.bool_)))

    def _needed(self) -> Iterator[tuple[IntArray, FloatArray, float]]:
        """Yield the transfer and interval rows that the last point does not leave slack, and those found since."""
        rows = list(zip(self._local.columns, self._local.coefs, self._local.limits, strict=True))
        dual = self._multipliers()
        for at in range(self._num_gaps, len(rows)):
            row = self._first_local + at
            if dual is None or row >= len(dual) or dual[row] < -SAFETY:
                yield rows[at]

    def separate(self, budget: Budget) -> int:
        """Add rows that the last point violates; return how many.

        Parameters
        ----------
        budget
            Ends the search for them.
        """
        if self.solution is None or self.solution.point is None:
            return 0
        point = self.solution.point
        added = self._separate_transfers(point) + self._separate_intervals(point)
        if self.reach is not None:
            added += self._separate_between(point, budget)
        return added

    def _mean_time(self, point: FloatArray) -> FloatArray:
        """Return (n, d) the values of D[v, i]."""
        mean = np.zeros((self.problem.num_ops, self.problem.num_devices))
        np.add.at(mean, (self.entry_op, self.entry_device), self.entry_mean * point[self.entry_column])
        return mean

    def _separate_between(self, point: FloatArray, budget: Budget) -> int:
        """Add for each device and op at most one row from it, and one to it."""
        assert self.reach is not None
        mean = self._mean_time(point)
        start, total = point[self.start], mean.sum(axis=1)
        reserve(20.0 * len(self.reach) ** 2, f"rows between {len(self.reach):,} ops")
        reach = self.reach.astype(np.float32)
        least = NOTABLE * point[self.end]
        n, added = len(start), 0
        slack = np.where(self.reach, start[None, :] - (start + total)[:, None], np.inf).astype(np.float32)
        for device in range(mean.shape[1]):
            weight = mean[:, device]
            busy = np.flatnonzero(weight)
            over = np.empty((n, n), np.float32)
            for first in range(0, n, ROWS_A_LOOK):
                if budget.expired:
                    return added
                rows = slice(first, first + ROWS_A_LOOK)
                loads = (reach[rows, busy] * weight[busy].astype(np.float32)) @ reach[busy]
                over[rows] = loads - slack[rows]
            pairs = np.argwhere(over > least)
            pairs = pairs[np.argsort(-over[pairs[:, 0], pairs[:, 1]], kind="stable")]
            used = np.zeros((2, n), np.bool_)
            for a, b in pairs.tolist():
                if not used[0, a] and not used[1, b]:
                    used[0, a] = used[1, b] = True
                    added += self.pool.add(device, a, b)
            for b in _largest(weight.astype(np.float32) @ reach - start, least):
                added += self.pool.add(device, -1, b)
            for a in _largest(start + total + reach @ weight.astype(np.float32) - point[self.end], least):
                added += self.pool.add(device, a, -1)
        return added

    def _separate_intervals(self, point: FloatArray) -> int:
        """Add the most violated interval rows of each device."""
        added = 0
        head = self.window.head_s / self.unit_s
        tail = self.window.tail_s / self.unit_s
        for device in range(self.problem.num_devices):
            entries = self.device_entries[device]
            if not len(entries):
                continue
            weight = self.entry_time[entries] * point[self.entry_column[entries]]
            early, late = head[self.entry_op[entries], device], tail[self.entry_op[entries], device]
            heads, tails = _thresholds(early), _thresholds(late)
            bins = (np.searchsorted(heads, early, side="right") - 1, np.searchsorted(tails, late, side="right") - 1)
            table = np.zeros((len(heads), len(tails)))
            np.add.at(table, bins, weight)
            table = table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
            ends = heads[:, None] + tails[None, :]
            over = np.where(ends <= self.floor, table + ends - point[self.end], 0.0)
            over[0, 0] = 0.0
            for flat in np.argsort(-over, axis=None, kind="stable")[:_INTERVALS].tolist():
                a, b = divmod(flat, len(tails))
                if over[a, b] <= NOTABLE * point[self.end]:
                    break
                inside = entries[(early >= heads[a]) & (late >= tails[b])]
                columns = np.append(self.entry_column[inside], self.end)
                self._local.add(columns, np.append(self.entry_time[inside], -1.0), -float(ends[a, b]))
                added += 1
        return added

    def _separate_transfers(self, point: FloatArray) -> int:
        """Add the violated transfer rows of edges, the most violated set of devices of each edge."""
        problem = self.problem
        d = problem.num_devices
        if d == 1 or not len(problem.edges):
            return 0
        share = np.zeros((problem.num_ops, d))
        np.add.at(share, (self.entry_op, self.entry_device), self.entry_share * point[self.entry_column])
        total = self._mean_time(point).sum(axis=1)
        u, v = problem.edges[:, 0], problem.edges[:, 1]
        slack = point[self.start[v]] - point[self.start[u]] - total[u]
        best = np.full(len(u), NOTABLE * point[self.end])
        which = np.full(len(u), -1)
        costs, sets = [], _device_sets(d)
        for k, inside in enumerate(sets):
            cost = self._least_out(inside)
            costs.append(cost)
            over = cost[u] * (share[u][:, inside].sum(axis=1) - share[v][:, inside].sum(axis=1)) - slack
            which = np.where(over > best, k, which)
            best = np.maximum(best, over)
        chosen = np.flatnonzero(which >= 0)
        for e in chosen.tolist():
            self._add_transfer(int(u[e]), int(v[e]), sets[which[e]], float(costs[which[e]][u[e]]))
        return len(chosen)

    def _least_out(self, inside: NDArray[np.bool_]) -> FloatArray:
        """Return (n,) the least time to send one shard of an op out of a set of devices; at most the horizon."""
        problem = self.problem
        delay = problem.delay_s[np.ix_(inside, ~inside)] / self.unit_s
        pace = problem.s_per_byte[np.ix_(inside, ~inside)] / self.unit_s
        cost = np.full(problem.num_ops, self.horizon)
        for wait, slope in zip(delay.ravel().tolist(), pace.ravel().tolist(), strict=True):
            if wait < np.inf:
                cost = np.minimum(cost, wait + problem.tensor_bytes * slope)
        return cost

    def _add_transfer(self, u: int, v: int, inside: NDArray[np.bool_], cost: float) -> None:
        columns, coefs = [], []
        for op, factor, with_time in ((u, cost, True), (v, -cost, False)):
            own = slice(self.op_indptr[op], self.op_indptr[op + 1])
            columns.append(self.entry_column[own])
            value = factor * self.entry_share[own] * inside[self.entry_device[own]]
            coefs.append(value + self.entry_mean[own] if with_time else value)
        columns.append(np.array([self.start[u], self.start[v]]))
        coefs.append(np.array([1.0, -1.0]))
        self._local.add(np.concatenate(columns), np.concatenate(coefs), 0.0)


def _largest(values: FloatArray, least: float) -> list[int]:
    """Return where the largest values are, of those above `least`, largest first and at most `_ENDS` of all."""
    order = np.argsort(-values, kind="stable")[: _FEWEST + int(_ENDS * len(values))]
    chosen: list[int] = order[values[order] > least].tolist()
    return chosen


def _thresholds(values: FloatArray) -> FloatArray:
    """Return 0 and at most `_THRESHOLDS` of the values, sorted."""
    distinct = np.unique(np.append(values, 0.0))
    if len(distinct) <= _THRESHOLDS:
        return distinct
    picked: FloatArray = distinct[np.linspace(0, len(distinct) - 1, _THRESHOLDS).astype(np.int64)]
    return picked


def _device_sets(num_devices: int) -> list[NDArray[np.bool_]]:
    """Return each device alone, and each set of all but one."""
    eye = np.eye(num_devices, dtype=np.bool_)
    return [*eye, *(~eye if num_devices > 2 else [])]
