"""The linear relaxation of a case of a tree, in the rows that the stand-alone checker knows, and its multipliers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from rlinit.arrays import NOTABLE, FloatArray, IntArray
from rlinit.certificates import check

RowName = tuple[Any, ...]
"""Kind and arguments of a row, as `rlinit.certificates.check.row_of` takes them."""

ROOT_ROUNDS = 8
"""Rounds in which rows that the relaxation of a tree's root violates are added."""

_LATEST = 10.0
"""Makespans by which starts may be late, and what a device's memory without end costs: so there is always a point."""

_THRESHOLDS = 32
"""Heads, and tails, between which intervals are looked for."""

_MULTIPLIER_BITS = 44
"""Multipliers are whole numbers, in parts of 2^-44 of the makespan's."""


class Relaxation:
    """Ops fractionally on devices, starts without orders; rows are added where a point violates them.

    Parameters
    ----------
    windows, state
        The problem, and a case that is settled.
    rows
        Names of rows to begin with beside heads, tails, edges, loads and memory.
    """

    def __init__(self, windows: check.Windows, state: check.State, rows: list[RowName]) -> None:
        self.windows, self.state = windows, state
        self.n, self.d = len(state.devices), windows.d
        self.unit = float(windows.most + 1)
        self.column = np.full((self.n, self.d), -1, np.int64)
        count = 0
        for group in windows.groups:
            for i in state.devices[group[0]]:
                self.column[group, i] = count
                count += 1
        self.num_shares, self.end = count, count + self.n
        self.num_columns = self.end + 1 + self.d  # behind the makespan, what each device's memory lacks
        self.rows: list[RowName] = []
        self._columns: list[IntArray] = []
        self._values: list[FloatArray] = []
        self._limits: list[float] = []
        self.point: FloatArray | None = None
        self.dual: FloatArray | None = None
        self.add([*self._base(), *rows])

    def _base(self) -> Iterator[RowName]:
        """Yield the rows that are there from the start."""
        for v in range(self.n):
            yield ("head", v)
            yield ("tail", v)
            yield from (("before", u, v) for u in dict.fromkeys(u for u, _ in self.windows.before[v]))
        yield from (("before", u, v) for u, v in self.state.pairs)
        for i in range(self.d):
            yield ("between", i, -1, -1)
            if self.windows.room[i] != check.INF:
                yield ("memory", i)

    def add(self, names: list[RowName]) -> int:
        """Add rows that are not there yet; return how many."""
        known = set(self.rows)
        new = [name for name in dict.fromkeys(names) if name not in known]
        for name in new:
            kind, *args = name
            share, start, end, number = check.row_of(self.windows, self.state, kind, list(args))
            unit = float(self.windows.room[args[0]] or 1) if kind == "memory" else self.unit
            columns = [self.column[key] for key in share] + [self.num_shares + v for v in start] + [self.end]
            values = [float(x) / unit for x in share.values()] + [float(x) for x in start.values()] + [-float(end)]
            if kind == "memory":
                columns.append(self.end + 1 + args[0])
                values.append(-1.0)
            self._columns.append(np.array(columns, np.int64))
            self._values.append(np.array(values))
            self._limits.append(-float(number) / unit)
        self.rows += new
        return len(new)

    def solve(self, time_limit_s: float) -> float:
        """Solve; return the least makespan in parts of the threshold, 0 where the solver has none."""
        windows, state, unit = self.windows, self.state, self.unit
        sizes = np.array([len(row) for row in self._columns])
        matrix: Any = csr_matrix(
            (np.concatenate(self._values), np.concatenate(self._columns), np.concatenate([[0], np.cumsum(sizes)])),
            shape=(len(sizes), self.num_columns),
        )
        leaders = [group[0] for group in windows.groups]
        mine = [self.column[v, state.devices[v]] for v in leaders]
        assign: Any = csr_matrix(
            (np.ones(self.num_shares), np.concatenate(mine), np.cumsum([0, *map(len, mine)])),
            shape=(len(mine), self.num_columns),
        )
        cost = np.zeros(self.num_columns)
        cost[self.end] = 1.0
        cost[self.end + 1 :] = _LATEST
        box: Any = np.zeros((self.num_columns, 2))
        box[:, 1] = 1.0
        for v, devices in enumerate(state.devices):
            box[self.num_shares + v] = min(state.head[v][i] for i in devices) / unit, _LATEST
        box[self.end :, 1] = np.inf
        found = linprog(
            cost, A_ub=matrix, b_ub=np.array(self._limits), A_eq=assign, b_eq=np.ones(len(mine)), bounds=box,
            method="highs", options={"time_limit": max(0.01, time_limit_s)},
        )  # fmt: skip
        self.point, self.dual = found.x, None
        if found.x is None:
            return 2.0 if found.status == 2 else 0.0
        self.dual = np.maximum(0.0, -np.asarray(found.ineqlin.marginals))
        return float(found.fun or 0.0)

    def multipliers(self) -> list[list[Any]]:
        """Return the rows with multipliers of the last point, as whole numbers."""
        assert self.dual is not None
        found = []
        for name, amount in zip(self.rows, self.dual.tolist(), strict=True):
            unit = self.unit / float(self.windows.room[name[1]] or 1) if name[0] == "memory" else 1.0
            whole = round(amount * unit * 2.0**_MULTIPLIER_BITS)
            if whole:
                found.append([*name, whole])
        return found

    def shares(self) -> FloatArray:
        """Return (n, d) the share of each op on each device in the last point."""
        assert self.point is not None
        return np.append(self.point[: self.num_shares], 0.0)[self.column] * (self.column >= 0)

    def used(self) -> list[RowName]:
        """Return the rows that hold the last point where it is, of those that were added."""
        assert self.dual is not None
        first = len(set(self._base()))
        return [name for name, amount in zip(self.rows[first:], self.dual[first:].tolist(), strict=True) if amount > 0]

    def separate(self) -> int:
        """Add rows that the last point violates; return how many."""
        assert self.point is not None
        point, share = self.point, self.shares()
        times = np.array([[float(x or 0) for x in row] for row in self.windows.time]) / self.unit
        start = point[self.num_shares : self.end]
        makespan = float(point[self.end])
        return self.add(
            [*self._intervals(times * share, makespan), *self._moves(share, times * share, start, makespan)]
        )

    def _intervals(self, work: FloatArray, makespan: float) -> Iterator[RowName]:
        """Yield the intervals of heads and tails of each device between which too much runs."""
        floor = self.windows.floor(self.state)
        for i in range(self.d):
            mine = np.flatnonzero(self.column[:, i] >= 0)
            heads = sorted({self.state.head[v][i] for v in mine.tolist()})
            tails = sorted({self.state.tail[v][i] for v in mine.tolist()})
            heads, tails = (part[:: max(1, len(part) // _THRESHOLDS)] for part in (heads, tails))
            early = np.array([[self.state.head[v][i] >= h for h in heads] for v in mine.tolist()])
            late = np.array([[self.state.tail[v][i] >= q for q in tails] for v in mine.tolist()])
            if not len(mine):
                continue
            ends = np.array([[float(h + q) for q in tails] for h in heads])
            over = (early * work[mine, i][:, None]).T @ late.astype(np.float64) + ends / self.unit - makespan
            over[ends > float(floor)] = 0.0
            best = np.argsort(-over, axis=None)[:4]
            for flat in best[over.ravel()[best] > NOTABLE * makespan].tolist():
                h, q = heads[flat // len(tails)], tails[flat % len(tails)]
                if h + q <= floor:
                    yield ("interval", i, h, q)

    def _moves(self, share: FloatArray, work: FloatArray, start: FloatArray, makespan: float) -> Iterator[RowName]:
        """Yield the sets of devices that too much leaves between two ops without time for it."""
        if self.d == 1:
            return
        singles = [[i] for i in range(self.d)]
        sets = singles + ([[j for j in range(self.d) if j != i] for i in range(self.d)] if self.d > 2 else [])
        end = start + work.sum(axis=1)
        for v, before in enumerate(self.windows.before):
            for u in dict.fromkeys(u for u, _ in before):
                move = next(move for w, move in before if w == u)
                best, name = NOTABLE * makespan, None
                for inside in sets:
                    cost = min(move[i][j] for i in inside for j in range(self.d) if j not in inside) / self.unit
                    over = cost * float((share[u] - share[v])[inside].sum()) - float(start[v] - end[u])
                    if over > best:
                        best, name = over, ("move", u, v, *inside)
                if name is not None:
                    yield name
