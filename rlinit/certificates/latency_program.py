"""The integer program of schedules that are no longer than a known one, with its rows of paths and of time windows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from rlinit.arrays import NEARLY, FloatArray
from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.certificates.check import ONE
from rlinit.certificates.programs import Program
from rlinit.certificates.relaxation import ROOT_ROUNDS, Relaxation

_MISSED = 1e-3, 1e-9
"""Parts of the known schedule's length by which a path must be missed for its row, and where devices are decided."""

_PAIRS = 4
"""Pairs of ops of which one is chosen to be ordered."""

MOST_LOOKED_AT = 1 << 18
"""Paths between ops, by the devices of both, and windows times the ops of a device: beyond it no rows are of them."""


class LatencyProgram(Program):
    """A schedule of ops on devices, no longer than a known one; rows are those of trees in `rlinit.certificates.check`.

    An op has no x for a device on which the longest path through it is longer. ``path`` bounds the time between two
    ops from below, by their devices; ``alike`` chooses one of the schedules in which alike devices change places.

    Parameters
    ----------
    costs
        The problem.
    longest
        Seconds of the known schedule.
    time_limit_s
        Of the search for rows.
    """

    def __init__(self, costs: check.Costs, longest: Fraction, time_limit_s: float) -> None:
        self.windows = windows = check.Windows(costs, longest * (1 + check.ROUNDING), check.QUANTUM_BITS)
        super().__init__(1 / windows.units)
        self.longest = windows.most = int(longest * windows.units)
        self.state = state = windows.root.copy()
        for group in windows.groups:
            common = set(state.devices[group[0]]).intersection(*(state.devices[v] for v in group))
            check.need(common, "an op fits on no device")
            for v in group:
                state.devices[v] = sorted(common)
        while self._longest_paths(state):
            pass
        self.share: dict[tuple[int, int], int] = {}
        for group in windows.groups:
            on = {i: self._variable(f"x_{group[0]}_{i}", True) for i in state.devices[group[0]]}
            self.groups.append(list(on.values()))
            self.share |= {(v, i): at for v in group for i, at in on.items()}
        self.start = [self._variable(f"t_{v}", False) for v in range(len(state.devices))]
        self.orders: dict[tuple[int, int, int], int] = {}
        self.levels: dict[tuple[int, int], int] = {}
        self._named: dict[tuple[Any, ...], int] = {}
        self._known: set[Any] = set()
        self._paths = _Paths(windows, state)
        self._leads = sorted(
            (group[0] for group in windows.groups),
            key=lambda v: max(-state.head[v][i] - windows.time[v][i] - state.tail[v][i] for i in state.devices[v]),
        )
        self._likes = [[i for i in range(windows.d) if windows.alike[i] == j] for j in sorted(set(windows.alike))]
        program, budget = Relaxation(windows, state, []), Budget(time_limit_s)
        for _ in range(ROOT_ROUNDS):
            program.solve(budget.remaining_s)
            if program.dual is None or budget.expired or not program.separate():
                break
        for kind, *args in program.rows:
            if kind != "head":  # t >= 0, which is a bound
                self.top |= {self.start[args[0]]: len(self.rows)} if kind == "tail" else {}
                name = "_".join(map(str, ["end" if kind == "tail" else kind, *args])).replace("-1", "end")
                share, start, end, number = check.row_of(windows, state, kind, list(args))
                terms = [(self.share[key], -amount) for key, amount in share.items()]
                self._row(name, [*terms, *((self.start[v], -amount) for v, amount in start.items()), (0, end)], number)

    def copy(self) -> LatencyProgram:
        """Return a program to which variables and rows are added apart from this one's."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, set)):
                setattr(other, name, copy(value))
        return other

    def solution(self, plan: Any, value: Fraction) -> dict[int, Fraction]:
        """Return the variables that are not 0 in a plan's schedule, whose ops run as early as its orders let them.

        Parameters
        ----------
        plan, value
            The plan as the checker reads it, and its exact value.
        """
        costs, found = self.windows.costs, super().solution(plan, value)
        batches, ends = check.timeline(plan, costs.graph, costs.hardware)
        where, start, moved = dict(batches.at), dict[int, int](), dict[int, int]()
        for like in self._likes:
            on = {v: i for v, i in where if i in like}
            used = list(dict.fromkeys(on[v] for v in self._leads if v in on))
            moved |= dict(zip(used, like, strict=False))
        for (v, k), job in batches.at.items():
            i = moved[k]
            # Times are whole numbers in the program, rounded down where they have no unit; so may starts be, then.
            start[v] = math.floor((ends[job] - batches.jobs[job][0]) / self.unit)
            found |= {self.share[v, i]: ONE, self.start[v]: Fraction(start[v])}
        for (u, v, i), at in self.orders.items():
            found[at] = Fraction(start[u] + self.windows.time[u][i] <= start[v])
        for (v, least), at in self.levels.items():
            found[at] = Fraction(start[v] >= least)
        return {at: amount for at, amount in found.items() if amount or not at}

    def pairs(self, fixed: dict[int, int], point: Any) -> list[int]:
        """Return the orders of the pairs of ops of one device that are furthest from either order in a point.

        Parameters
        ----------
        fixed, point
            Variables decided, and a value for each, starts in units of C.
        """
        least, over = NEARLY * float(self.longest), dict[tuple[int, int, int], float]()
        on = defaultdict[int, list[int]](list)
        for (v, i), at in self.share.items():
            if point[at] > 0.5:
                on[i].append(v)
        begin = {v: point[at] for v, at in enumerate(self.start)}
        for i, ops in on.items():
            for u, v in combinations(sorted(ops), 2):
                ends = [begin[w] + float(self.windows.time[w][i]) for w in (v, u)]
                ordered = (self.state.later[u] >> v | self.state.later[v] >> u) & 1
                if not ordered and self.orders.get((u, v, i)) not in fixed:
                    # Of an op without time within another, too, it says how far it is from both orders.
                    over[u, v, i] = min(ends[0] - begin[u], ends[1] - begin[v])
        return [self.order_of(*key) for key in sorted(over, key=lambda key: -over[key])[:_PAIRS] if over[key] > least]

    def _longest_paths(self, state: check.State) -> bool:
        """Raise heads and tails to longest paths, and strike out devices on which one is too long; return if any was.

        Nothing else that time windows say is taken for granted.
        """
        windows = self.windows
        windows.carry(state, windows.order, state.head, windows.before, {})
        windows.carry(state, windows.order[::-1], state.tail, windows.after, {})
        struck = windows.strike(state)
        check.need(struck is not None, "an op is on no device of a schedule as long as the plan")
        return bool(struck)

    def cut(self, point: Any, decided: bool) -> bool:
        """Add rows of paths, and of devices that are alike, that a point violates; return whether there were any.

        Parameters
        ----------
        point, decided
            A value for each variable, starts in units of C; whether each op is wholly on one device.
        """
        windows, before = self.windows, len(self.rows)
        shares = np.zeros((len(self.start), windows.d))
        for (v, i), at in self.share.items():
            shares[v, i] = point[at]
        begin = np.array([point[at] for at in self.start])
        for u, v, first, second in self._paths.violated(shares, begin, _MISSED[decided] * float(self.longest)):
            if (key := (u, v, *first, *second)) not in self._known:
                self._known.add(key)
                terms = [(self.share[u, i], -windows.time[u][i] - first[i]) for i in self.state.devices[u]]
                terms += [(self.share[v, i], -second[i]) for i in self.state.devices[v]]
                self._row(f"path_{u}_{v}_{len(self.rows)}", [(self.start[v], 1), (self.start[u], -1), *terms], 0)
        self._alike(point)
        return len(self.rows) > before

    def _alike(self, point: Any) -> None:
        """Add that of devices that are alike one has an op only where the one before it has an earlier op."""
        for i, j in (pair for like in self._likes for pair in pairwise(like)):
            earlier: list[int] = []
            for v in self._leads:
                if (v, j) in self.share:
                    at = self.share[v, j]
                    if point[at] > sum(point[each] for each in earlier) + NEARLY and (v, j) not in self._known:
                        self._known.add((v, j))
                        self._row(f"alike_{v}_{j}", [(at, -1), *((each, 1) for each in earlier)], 0)
                    earlier.append(self.share[v, i])

    def order_of(self, u: int, v: int, i: int) -> int:
        """Return y, which is 1 where u is before v on device i, else 0; elsewhere its rows say nothing.

        Parameters
        ----------
        u, v, i
            Two ops, of which u has the lower number, and a device.
        """
        if (u, v, i) in self.orders:
            return self.orders[u, v, i]
        y = self.orders[u, v, i] = self._variable(f"y_{u}_{v}_{i}", True)
        for first, second, sign in ((u, v, -1), (v, u, 1)):
            lasts = [(self.share[first, k], -self.windows.time[first][k]) for k in self.state.devices[first]]
            both = [(self.share[w, i], -self.longest) for w in (u, v)]
            times = [(self.start[second], 1), (self.start[first], -1), (y, sign * self.longest)]
            self._named["order", first, second, i] = len(self.rows)
            self._row(f"order_{first}_{second}_{i}", [*times, *lasts, *both], self.longest * (sign - 5) // 2)
        return y

    def order_row(self, u: int, v: int, i: int) -> int:
        """Return the row that says of two ops of device i that v starts after u ends, where u is first.

        Parameters
        ----------
        u, v, i
            Two ops and a device.
        """
        self.order_of(min(u, v), max(u, v), i)
        return self._named["order", u, v, i]

    def level(self, v: int, least: int) -> tuple[int, int, int]:
        """Return the binary that says whether an op starts at a time or later, and before it two rows that say so.

        Parameters
        ----------
        v, least
            The op, and the time, above 0, in units of C.
        """
        if (v, least) not in self.levels:
            at = self.levels[v, least] = self._variable(f"b_{v}_{least}", True)
            self._named["level", v, least] = len(self.rows)
            self._row(f"from_{v}_{least}", [(self.start[v], 1), (at, -least)], 0)
            self._row(f"until_{v}_{least}", [(self.start[v], -1), (at, self.longest - least + 1)], 1 - least)
        row = self._named["level", v, least]
        return row, row + 1, self.levels[v, least]

    def arc(self, u: int, v: int, least: int, a: int, b: int) -> int:
        """Return the row of the least time between the starts of two ops, on sets of devices given as bits.

        Parameters
        ----------
        u, v
            Two ops, of which v reads what u writes.
        least
            No more than from the start of u to that of v between any two devices of the sets, in units of C.
        a, b
            Devices of u and of v.
        """
        if (key := ("arc", u, v, least, a, b)) not in self._named:
            self._named[key] = len(self.rows)
            out = [
                (self.share[w, i], least)
                for w, on in ((u, a), (v, b))
                for i in self.state.devices[w]
                if not on >> i & 1
            ]
            self._row(f"arc_{u}_{v}_{len(self.rows)}", [(self.start[v], 1), (self.start[u], -1), *out], least)
        return self._named[key]

    def energy(self, i: int, start: int, end: int, parts: tuple[tuple[int, int], ...]) -> int:
        """Return the row that parts of ops that device i does between two times take no longer than that.

        An op that starts at least its own time less the part before ``start``, and no later than the part before
        ``end``, has that part between them.

        Parameters
        ----------
        i, start, end
            The device and the two times, in units of C.
        parts
            Ops, each once, and their parts, no longer than the op on that device or the time between the two.
        """
        if (key := ("energy", i, start, end, parts)) not in self._named:
            terms = list[tuple[int, int]]()
            for v, part in parts:
                most = min(self.windows.time[v][i], end - start)
                check.need(0 < part <= most, "a part is longer than an op or the time it is in")
                terms.append((self.share[v, i], -part))
                head = start - self.windows.time[v][i] + part
                terms += [(self.level(v, head)[2], -part)] if head > 0 else []
                terms.append((self.level(v, end - part + 1)[2], part))
            spare = sum(part for v, part in parts if start - self.windows.time[v][i] + part > 0)
            self._named[key] = len(self.rows)
            self._row(f"energy_{i}_{start}_{end}_{len(self.rows)}", terms, start - end - spare)
        return self._named[key]


class _Paths:
    """Longest paths from the end of an op to the start of another, by the devices of both.

    Numbers a of the devices of one op and b of those of the other, of which no two add up to more than such a path, say
    that between the ops lies at least ``sum a x + sum b x``. Either are what the others leave.
    """

    def __init__(self, windows: check.Windows, state: check.State) -> None:
        self.devices, self.d = state.devices, range(windows.d)
        self.time = [[0 if x is None else x for x in row] for row in windows.time]
        every = sum(later.bit_count() for later in state.later) * windows.d**2 <= MOST_LOOKED_AT
        found = [
            (u, v, path.tolist())
            for u in windows.order
            for v, path in self._from(u, windows, every).items()
            if path.any()
        ]
        self.ends, self.paths = [(u, v) for u, v, _ in found], [path for _, _, path in found]
        self.floats = np.array(self.paths, np.float64).reshape(-1, windows.d, windows.d)
        self.out = np.array([[i not in on for i in self.d] for on in state.devices])

    def _from(self, u: int, windows: check.Windows, every: bool) -> dict[int, Any]:
        """Return (d, d) the paths to each op behind one, or to those that read it."""
        found = dict[int, Any]()
        for v in windows.order:
            for w, move in windows.before[v]:
                path = np.array(move, object)
                if w in found and every:
                    on = self.devices[w]
                    ends = found[w][:, on] + np.array(self.time[w], object)[on]
                    path = (ends[:, :, None] + path[None, on]).min(axis=1)
                elif w != u:
                    continue
                found[v] = np.maximum(found[v], path) if v in found else path
        return found

    def violated(self, shares: FloatArray, begin: FloatArray, missed: float) -> Iterator[tuple[int, int, Any, Any]]:
        """Yield two ops and their numbers, those that a point misses most, where it does by more than a time.

        Parameters
        ----------
        shares, begin
            (n, d) of ops on devices, and (n,) their starts.
        missed
            In the unit of starts.
        """
        if not self.ends:
            return
        one, two = np.array(self.ends).T
        lag = begin[two] - begin[one] - (np.array(self.time, np.float64) * shares).sum(axis=1)[one]
        inside = shares[one] > shares[two] + NEARLY
        across = np.where(inside[:, :, None] & ~inside[:, None, :], self.floats, np.inf).min(axis=(1, 2))
        across[np.isinf(across)] = 0.0
        sides = [(-across[:, None] * inside, False)]
        sides += [(side, turned) for turned in (False, True) for side in np.moveaxis(self.floats, 1 + turned, 0)]
        values = []
        for side, turned in sides:
            paths, near, far = (self.floats.swapaxes(1, 2), two, one) if turned else (self.floats, one, two)
            rest = np.where(self.out[far][:, None, :], np.inf, paths - side[:, None, :]).min(axis=2)
            values.append((rest * shares[near]).sum(axis=1) + (side * shares[far]).sum(axis=1))
        most = np.argmax(values, axis=0)
        for e in np.flatnonzero(np.max(values, axis=0) - lag > missed).tolist():
            yield *self.ends[e], *self._numbers(e, int(most[e]), inside[e].tolist())

    def _numbers(self, e: int, which: int, inside: list[bool]) -> tuple[list[int], list[int]]:
        """Return the numbers of a row: which is 0 for the devices inside against others, then by a device of an end."""
        (u, v), path = self.ends[e], self.paths[e]
        turned = which > len(self.d)
        if turned:
            path = [list(row) for row in zip(*path, strict=True)]
        if which:
            side = path[(which - 1) % len(self.d)]
        else:
            least = min((path[i][j] for i in self.d for j in self.d if inside[i] and not inside[j]), default=0)
            side = [-least * each for each in inside]
        rest = [min(path[i][j] - side[j] for j in self.devices[u if turned else v]) for i in self.d]
        return (side, rest) if turned else (rest, side)
