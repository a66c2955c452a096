"""Finds least times between two ops, for each pair of their devices, that trees over the ops between them prove."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from rlinit.arrays import ROUNDING
from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.exact.placements.analysis.chains import restricted
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import placement_of, timeline

Lag = dict[str, Any]

Refute = Callable[[check.Windows, check.State, Budget, int], list[Any] | None]
"""Returns a tree of at most a number of nodes, or None."""

_MOST_OPS = 80
"""Ops between two, beyond which no tree is looked for."""

_MOST_CHOICES, _MOST_NODES = 2_000, 200
"""Choices that the compiled search for a least time looks at, and nodes of the tree that is to prove it."""


class BetweenOps:
    """Least times between two ops by the compiled search, which says what to prove and proves nothing here.

    Parameters
    ----------
    graph, hardware
        The whole problem.
    """

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._problem = lower_placement(graph, hardware, "latency", resident="weights").problem
        self._reach = reachability(self._problem.order, self._problem.succ_indptr, self._problem.succ)

    def least_s(self, a: int, b: int, i: int, j: int, upper: float, budget: Budget) -> tuple[float, float]:
        """Return seconds from the end of op a on device i to the start of op b on device j: proven, and found.

        Parameters
        ----------
        a, b
            Ops in order.
        i, j
            Their devices.
        upper
            Seconds; more is not looked for.
        budget
            Ends the search.
        """
        inside = self._reach[a] & self._reach[:, b]
        inside[[a, b]] = True
        time_s = self._problem.time_s[inside]
        local = np.cumsum(inside) - 1
        for op, device in ((a, i), (b, j)):
            time_s[local[op], :, 1] = np.inf
            time_s[local[op], device, 1] = 0.0
        problem = restricted(self._problem, inside, time_s)
        search = DestructiveSearch(problem, upper=upper)
        proven = search.run(_MOST_CHOICES, budget)
        if not search.exhausted:
            return proven, proven
        # It ends a little below the least time, which what it could not refute mostly has.
        if search.standing is None:
            return proven, upper
        return proven, min(upper, timeline(problem, placement_of(problem, *search.standing)).makespan_s)


def learn_lags(windows: check.Windows, between: BetweenOps, refute: Refute, budget: Budget) -> list[Lag]:
    """Add lags to a problem until they refute it, and return them as `check.learn_lags` reads them.

    At first each two ops between which branches run get what propagation proves. Then those on the longest path are
    looked at again, for the devices that they have there.

    Parameters
    ----------
    windows
        The problem and the threshold; it gets what is proven.
    between
        Says which times are worth a tree.
    refute
        Finds trees.
    budget
        Ends the search between two of them.
    """
    return _Lags(windows, between, refute, budget).run()


class _Lags:
    """What is known so far, and which pairs of ops are copies of each other."""

    def __init__(self, windows: check.Windows, between: BetweenOps, refute: Refute, budget: Budget) -> None:
        self.windows, self.between, self.refute, self.budget = windows, between, refute, budget
        self.found: list[Lag] = []
        self.copies: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.least: dict[tuple[int, int], list[list[int]]] = {}
        self.solved: set[tuple[int, int, int, int]] = set()

    def run(self) -> list[Lag]:
        windows = self.windows
        alike = defaultdict[str, list[tuple[int, int]]](list)
        for _, a, b in sorted(_regions(windows)):
            if not self.budget.expired:
                alike[repr(windows.between(a, b).data())].append((a, b))
        for pairs in alike.values():
            self.copies |= dict.fromkeys(pairs, pairs)
            self._add(pairs, self._by_propagation(*pairs[0]))
        # What is found for others lowers what a pair has to reach, and a tree for that may be smaller.
        while self._by_search() and not self.budget.expired:
            pass
        return self.found

    def _by_search(self) -> bool:
        """Look once at each pair that comes to be on the longest path; return whether anything was found."""
        known = len(self.found)
        tried = set(self.solved)
        while not self.budget.expired:
            state = self.windows.root.copy()
            if not self.windows.settle(state):
                break
            where = dict(_longest_path(self.windows, state))
            todo = [
                (pairs[0], where[a], where[b])
                for (a, b), pairs in self.copies.items()
                if a in where and b in where and (*pairs[0], where[a], where[b]) not in tried
            ]
            if not todo:
                break
            for (a, b), i, j in dict.fromkeys(todo):
                tried.add((a, b, i, j))
                self._improve(state, a, b, i, j)
        return len(self.found) > known

    def _add(self, pairs: list[tuple[int, int]], new: dict[tuple[int, int], tuple[int, list[Any]]]) -> None:
        """Let all copies of a pair keep apart by what is known by devices, and what is new with its trees.

        What was known needs no tree again: it is a lag of the same two ops by now.
        """
        if not new:
            return
        d, first, known = self.windows.d, len(self.found), self.least.get(pairs[0])
        least = [[new.get((i, j), (known[i][j] if known else 0, 0))[0] for j in range(d)] for i in range(d)]
        trees = [[new[i, j][1] if (i, j) in new else [] for j in range(d)] for i in range(d)]
        self.least[pairs[0]] = least
        for at, (a, b) in enumerate(pairs):
            rest: Lag = {"same": first} if at else {"least": least, "trees": trees}
            self.found.append({"from": a, "to": b, **rest})
            self.windows.add_lag(a, b, least)

    def _by_propagation(self, a: int, b: int) -> dict[tuple[int, int], tuple[int, list[Any]]]:
        """Return what heads say of the second op, from each device of the first."""
        part = self.windows.between(a, b)
        found: dict[tuple[int, int], tuple[int, list[Any]]] = {}
        for i in part.root.devices[part.order[0]]:
            for j in part.root.devices[part.order[-1]]:
                if self.budget.expired:
                    break
                problem, case = part.ends_on(i, j, self.windows.most + 2)
                least = case.head[part.order[-1]][j] if problem.settle(case) else problem.most + 1
                if least:
                    found[i, j] = least, []
        return found

    def _improve(self, state: check.State, a: int, b: int, i: int, j: int) -> None:
        """Look for a longer least time between two ops on two devices, which no schedule below the threshold has."""
        windows = self.windows
        rests = [
            state.head[u][i] + windows.time[u][i] + windows.time[v][j] + state.tail[v][j] for u, v in self.copies[a, b]
        ]
        asked = windows.most + 1 - min(rests)
        if asked <= 0:
            return
        part = windows.between(a, b)
        upper = float(asked / windows.units)
        least = self.between.least_s(a, b, i, j, upper, self.budget)
        low, high = (min(asked, math.ceil(Fraction(each * (1.0 - ROUNDING)) * windows.units)) for each in least)
        problem, case = part.ends_on(i, j, asked)
        proven = case.head[part.order[-1]][j] if problem.settle(case) else asked
        found = (proven, list[Any]())
        for trial in dict.fromkeys((high, low, (low + proven) // 2)):
            if trial <= proven or self.budget.expired:
                break
            tree = self.refute(*part.ends_on(i, j, trial), self.budget, _MOST_NODES)
            if tree is not None:
                found = trial, tree
                break
        if max(found[0], proven) >= high > low:
            self.solved.add((a, b, i, j))
        known = self.least.get((a, b))
        if found[0] > (known[i][j] if known else 0):
            self._add(self.copies[a, b], {(i, j): found})


def _longest_path(windows: check.Windows, state: check.State) -> Iterator[tuple[int, int]]:
    """Yield the ops of a longest path, and the devices on which it runs over them."""

    def total(v: int, i: int) -> int:
        return int(state.head[v][i] + windows.time[v][i] + state.tail[v][i])

    v = max(range(len(state.devices)), key=lambda v: min(total(v, i) for i in state.devices[v]))
    i = min(state.devices[v], key=lambda i: total(v, i))
    yield v, i
    for bound, nearer in ((state.head, windows.before), (state.tail, windows.after)):
        at, on = v, i
        while bound[at][on] > 0:
            ends = [
                (min((bound[u][j] + windows.time[u][j] + move[j][on], j) for j in state.devices[u]), u)
                for u, move in nearer[at]
            ]
            if not ends:
                break
            (_, on), at = max(ends, key=lambda end: end[0][0])
            yield at, on


def _regions(windows: check.Windows) -> Iterator[tuple[int, int, int]]:
    """Yield each op at which branches part with that at which they join, and before these how many lie between."""
    pairs = set()
    for order, before, turned in (
        (windows.order, windows.before, False),
        (windows.order[::-1], windows.after, True),
    ):
        for b, a in _dominators(order, before).items():
            if a is not None and len({u for u, _ in before[b]}) > 1:
                pairs.add((b, a) if turned else (a, b))
    for a, b in pairs:
        if 0 < (size := len(windows.inside(a, b))) <= _MOST_OPS:
            yield size, a, b


def _dominators(order: list[int], before: list[Any]) -> dict[int, int | None]:
    """Return the last op through which every path to each op goes; None where there is none."""
    parent: dict[int, int | None] = {}
    depth: dict[int | None, int] = {None: 0}
    for v in order:
        ends: list[int | None] = [u for u, _ in before[v]] or [None]
        while len(set(ends)) > 1:
            deepest = max(depth[u] for u in ends)
            ends = [parent[u] if u is not None and depth[u] == deepest else u for u in ends]
        parent[v] = ends[0]
        depth[v] = depth[ends[0]] + 1
    return parent
