"""Finds a tree that refutes every schedule below a threshold, as the stand-alone checker replays it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.certificates.lags import BetweenOps, learn_lags
from rlinit.certificates.programs import CANDIDATES
from rlinit.certificates.relaxation import ROOT_ROUNDS, Relaxation, RowName

_LAG_OPS = range(60, 3_000)
"""Numbers of ops of which lags are looked for first, in half of the time."""

_ROUNDS = 2
"""Rounds of further rows in the relaxation of a node below the root."""

_MOST_SKIPPED = 64
"""Nodes between two relaxations where those before refuted nothing."""

_HALVED = 4.0
"""Devices struck out, and shares of time windows lost, that count as half of a case refuted."""


def tree_proof(
    costs: check.Costs, threshold: Fraction, between: Callable[[], BetweenOps], budget: Budget
) -> dict[str, Any] | None:
    """Return a proof of kind ``tree`` that no schedule is below a threshold; None where time ends first, or one may be.

    Parameters
    ----------
    costs
        The problem, in which each op runs once.
    threshold
        Seconds, more than 0.
    between
        Makes what says which least times between ops are worth a tree.
    budget
        Ends the search.
    """
    windows = check.Windows(costs, threshold)
    lags = []
    if len(windows.time) in _LAG_OPS and costs.shard == 1:
        lags = learn_lags(windows, between(), _refute, budget.share(budget.remaining_s / 2))
    nodes = _refute(windows, windows.root.copy(), budget)
    return None if nodes is None else {"kind": "tree", "threshold": str(threshold), "lags": lags, "nodes": nodes}


def _refute(
    windows: check.Windows, state: check.State, budget: Budget, most_nodes: int = sys.maxsize
) -> list[dict[str, Any]] | None:
    """Return the nodes of a tree that refutes a case; None where none was found."""
    return _Search(windows, budget, most_nodes).run(state)


class _Search:
    """A search in depth that stops at the first case that cannot be refuted."""

    def __init__(self, windows: check.Windows, budget: Budget, most_nodes: int) -> None:
        self.windows, self.budget, self.most_nodes = windows, budget, most_nodes
        self.nodes: list[dict[str, Any]] = []
        self._wait = self._skipped = 0

    def run(self, root: check.State) -> list[dict[str, Any]] | None:
        """Return the nodes of the tree in the order of the search; None where there is no tree, or no time."""
        stack: list[tuple[check.State, list[RowName]]] = [(root, [])] if self.windows.settle(root) else []
        while stack:
            if self.budget.expired or len(self.nodes) >= self.most_nodes:
                return None
            state, rows = stack.pop()
            share: FloatArray | None = None
            self._wait -= 1
            if self._wait < 0:
                leaf, rows, share = self._relaxed(state, rows)
                self._skipped = self._skipped // 2 if leaf else min(_MOST_SKIPPED, 2 * self._skipped + 1)
                self._wait = self._skipped
                if leaf:
                    self.nodes.append({"rows": leaf})
                    continue
            found = self._branch(state, share)
            if found is None:
                return None
            self.nodes.append(found[0])
            stack += [(child, rows) for child in reversed(found[1])]
        return self.nodes

    def _relaxed(
        self, state: check.State, rows: list[RowName]
    ) -> tuple[list[list[Any]], list[RowName], FloatArray | None]:
        """Return rows with multipliers that refute a case, if any do; rows for its children; shares of the devices."""
        program = Relaxation(self.windows, state, rows)
        for _ in range(_ROUNDS if self.nodes else ROOT_ROUNDS):
            bound = program.solve(self.budget.remaining_s)
            if program.dual is None:
                return [], rows, None
            rows = program.used()
            if bound > self.windows.most / program.unit:
                found = program.multipliers()
                if check.refuted(self.windows, state, found):
                    return found, rows, None
            if not program.separate():
                break
        return [], rows, program.shares()

    def _branch(self, state: check.State, share: FloatArray | None) -> tuple[dict[str, Any], list[check.State]] | None:
        """Return the split whose cases are most nearly refuted, and those that are left; None where all is settled."""
        best: tuple[float, dict[str, Any], list[check.State]] | None = None
        for node in self._candidates(state, share):
            cases = [case for case in check.branches(self.windows, state, node) if self.windows.settle(case)]
            size = sum(2.0 ** -(self._gain(state, case) / _HALVED) for case in cases)
            if best is None or size < best[0]:
                best = size, node, cases
            if not cases or self.budget.expired:
                break
        return None if best is None else best[1:]

    def _candidates(self, state: check.State, share: FloatArray | None) -> Iterator[dict[str, Any]]:
        """Yield splits to try: ops that are least settled or have least room, and pairs that have least."""
        windows = self.windows
        room = {
            v: [windows.most - state.head[v][i] - windows.time[v][i] - state.tail[v][i] for i in mine]
            for v, mine in enumerate(state.devices)
        }
        loose = [group[0] for group in windows.groups if len(state.devices[group[0]]) > 1]
        slack = {v: min(room[v]) - min(windows.time[v][i] for i in state.devices[v]) for v in loose}
        chosen = sorted(loose, key=slack.__getitem__)[:CANDIDATES]
        if share is not None:
            open_part = 1.0 - share.max(axis=1)
            chosen = [*sorted(loose, key=lambda v: -open_part[v])[: CANDIDATES // 2], *chosen[: CANDIDATES // 2]]
        yield from ({"op": v} for v in dict.fromkeys(chosen))
        fixed: dict[int, list[int]] = {}
        for v, mine in enumerate(state.devices):
            if len(mine) == 1:
                fixed.setdefault(mine[0], []).append(v)
        pairs = []
        for i, ops in fixed.items():
            for u, v in combinations(ops, 2):
                if not (state.later[u] >> v | state.later[v] >> u) & 1:
                    forth = room[u][0] + room[v][0] + state.tail[u][i] + state.head[v][i]
                    back = room[u][0] + room[v][0] + state.head[u][i] + state.tail[v][i]
                    pairs.append((min(forth, back), u, v))
        yield from ({"pair": [u, v]} for _, u, v in sorted(pairs)[:CANDIDATES])

    def _gain(self, state: check.State, case: check.State) -> float:
        """Return how many devices a case strikes out, and how much of the ops' time windows."""
        gain = 0.0
        for v, mine in enumerate(case.devices):
            before, after = (
                max(self.windows.most - s.head[v][i] - self.windows.time[v][i] - s.tail[v][i] for i in s.devices[v])
                for s in (state, case)
            )
            gain += len(state.devices[v]) - len(mine) + (before - after) / (before + 1)
        return gain
