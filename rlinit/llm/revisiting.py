"""Units in a row on any places, each of which may come back: a program that counts units that are alike.

A row is cut into blocks, each a period of p unlike units repeated r times (attention and experts of every layer). With
integers

    x[j, d]      repeats in which unit j of the period is on place d,
    t[j, d, e]   cuts from d to e between unit j and the one after it (from the last to the first of the next repeat),
    c[d, e]      whether a cut from d to e lies between a block and the next one,

the cost is that of units and cuts, and memory is a sum over x. A block whose cuts into and out of every (j, d) are as
many as its repeats there, and whose used (j, d) are connected, is a path, and every path is such a block (Euler's
theorem on directed multigraphs): since cuts go from j to j + 1 only, it has the row's units in order. Connectivity is
added where a solution lacks it: what visits some (j, d) of a set enters the set, so cuts into it are at least
x[j, d] / r. HiGHS solves it within its tolerances; `rlinit.llm.walk_bounds` proves what its walk is worth, where that
does not take too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinit.llm.contiguous import Places
from rlinit.llm.walk_bounds import ProvenWalk, prove_walk

__all__ = ["solve_revisiting"]

_LONGEST_PERIOD = 12
"""Units of a period: six layers of two, as where every sixth looks back at everything."""

_ROUNDS, _NODES = 40, 2_000
"""Programs solved one after the other, each with more connectivity, and nodes that HiGHS may branch on in each."""

_GAP = 1e-7
"""Relative gap at which a program is closed: a tenth of that within which a plan counts as optimal."""

_TIGHTER = 2e-6
"""Share of a memory left out where HiGHS filled it up to its tolerance of 1e-6 and rounding made that too much."""

Node = tuple[int, int, int]
"""A block, a unit of its period and a place."""


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    period: int
    repeats: int


@dataclass(slots=True)
class _Program:
    """Variables and rows as they are added."""

    costs: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    def variable(self, cost: float, most: float) -> int:
        self.costs.append(cost)
        self.most.append(most)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], least: float, limit: float) -> None:
        self.rows.append(terms)
        self.least.append(least)
        self.limit.append(limit)


def solve_revisiting(problem: Places) -> ProvenWalk:
    """Return the cheapest walk over places and what none is below; where the proof is not closed, by HiGHS.

    Parameters
    ----------
    problem
        Units, places and memories.
    """
    walks, proposed = [], 0.0
    for share in (1.0, 1.0 - _TIGHTER):
        walk, bound = _Search(problem, share).solve()
        proposed = bound if share == 1.0 else proposed
        if walk:
            walks.append(walk)
        if not walk or problem.fits(np.array(walk)):
            break
    found = prove_walk(problem, walks)
    if found.closed:
        return found
    cost = problem.cost(np.array(found.places)) if found.places else np.inf
    return ProvenWalk(found.places, min(max(found.bound, proposed), cost), False)


def _scale(problem: Places) -> float:
    """Return seconds that no placement is below, but for one of 0: HiGHS's tolerances are absolute."""
    least = float(problem.seconds.min(axis=0).sum())
    costs = np.concatenate([problem.seconds.ravel(), problem.transfer_s.ravel()]).tolist()
    return least or min((cost for cost in costs if 0.0 < cost < np.inf), default=1.0)


def _blocks(kinds: Sequence[int]) -> Iterator[_Block]:
    """Cut a row into repeated periods, the one that covers most units first."""
    at = 0
    while at < len(kinds):
        best = _Block(at, 1, 1)
        for period in range(1, min(_LONGEST_PERIOD, (len(kinds) - at) // 2) + 1):
            repeats = 1
            while kinds[at + repeats * period : at + (repeats + 1) * period] == kinds[at : at + period]:
                repeats += 1
            if repeats > 1 and period * repeats > best.period * best.repeats:
                best = _Block(at, period, repeats)
        yield best
        at += best.period * best.repeats


class _Search:
    """The program of a problem, and the rounds of adding connectivity to it."""

    def __init__(self, problem: Places, share: float) -> None:
        self.problem = problem
        self.num_places, n = problem.seconds.shape
        self.scale = _scale(problem)
        numbers: dict[object, int] = {}
        kinds = [
            (*problem.seconds[:, u].tolist(), problem.weight_bytes[u], problem.cache_bytes[u],
             u if u in (0, n - 1) else -1)
            for u in range(n)
        ]  # fmt: skip
        self.blocks = list(_blocks([numbers.setdefault(kind, len(numbers)) for kind in kinds]))
        self.program = _Program()
        self.x: dict[Node, int] = {}
        self.cuts: dict[tuple[Node, Node], int] = {}
        self.entries = [self.program.variable(0.0, 1.0) for _ in range(self.num_places)]
        self.exits = [self.program.variable(0.0, 1.0) for _ in range(self.num_places)]
        self._units()
        self._all_cuts()
        self._flow()
        self._memory(share)

    def _units(self) -> None:
        for b, block in enumerate(self.blocks):
            for j in range(block.period):
                for d in range(self.num_places):
                    seconds = float(self.problem.seconds[d, block.start + j]) / self.scale
                    here = np.isfinite(seconds) and all(
                        need <= self.problem.room_bytes[m] for m, need in self._needs(block.start + j, d).items()
                    )
                    self.x[b, j, d] = self.program.variable(
                        seconds if here else 0.0, float(block.repeats) if here else 0.0
                    )
                whole = {self.x[b, j, d]: 1.0 for d in range(self.num_places)}
                self.program.row(whole, block.repeats, block.repeats)

    def _needs(self, unit: int, place: int) -> dict[int, float]:
        """Return the bytes of each memory that a unit takes on a place."""
        weight, cache = int(self.problem.weight_home[place]), int(self.problem.cache_home[place])
        needs = {weight: float(self.problem.weight_bytes[unit])}
        needs[cache] = needs.get(cache, 0.0) + float(self.problem.cache_bytes[unit])
        return needs

    def _all_cuts(self) -> None:
        """Add a variable for each linked pair of places at each boundary of unlike units."""
        for b, block in enumerate(self.blocks):
            for j in range(block.period):
                if j + 1 < block.period:
                    self._cuts((b, j), (b, j + 1), block.repeats)
                else:
                    if block.repeats > 1:
                        self._cuts((b, j), (b, 0), block.repeats - 1)
                    if b + 1 < len(self.blocks):
                        self._cuts((b, j), (b + 1, 0), 1)

    def _cuts(self, before: tuple[int, int], after: tuple[int, int], most: int) -> None:
        for d in range(self.num_places):
            for e in range(self.num_places):
                seconds = float(self.problem.transfer_s[d, e]) if d != e else 0.0
                if seconds < np.inf:
                    key = ((*before, d), (*after, e))
                    self.cuts[key] = self.program.variable(seconds / self.scale, float(most))

    def _flow(self) -> None:
        """Let x equal the cuts into a place, and those out of it."""
        into: dict[Node, dict[int, float]] = {node: {} for node in self.x}
        out: dict[Node, dict[int, float]] = {node: {} for node in self.x}
        for (one, other), variable in self.cuts.items():
            out[one][variable] = into[other][variable] = 1.0
        last = (len(self.blocks) - 1, self.blocks[-1].period - 1)
        for d in range(self.num_places):
            into[0, 0, d][self.entries[d]] = 1.0
            out[(*last, d)][self.exits[d]] = 1.0
        for node, variable in self.x.items():
            self.program.row({**into[node], variable: -1.0}, 0.0, 0.0)
            self.program.row({**out[node], variable: -1.0}, 0.0, 0.0)
        self.program.row(dict.fromkeys(self.entries, 1.0), 1.0, 1.0)

    def _memory(self, share: float) -> None:
        nodes = [(node, self.blocks[node[0]].start + node[1], v) for node, v in self.x.items() if self.program.most[v]]
        buffers = {d: self._used(d) for d in np.flatnonzero(self.problem.buffer_bytes).tolist()}
        for m, room in enumerate((self.problem.room_bytes * share).tolist()):
            if not 0.0 < room < np.inf:
                continue
            row = {v: self._needs(unit, node[2]).get(m, 0.0) / room for node, unit, v in nodes}
            for d, used in buffers.items():
                if self.problem.cache_home[d] == m:
                    row[used] = float(self.problem.buffer_bytes[d]) / room
            if self.problem.shared_bytes:
                both = self.program.variable(0.0, 1.0)
                row[both] = -self.problem.shared_bytes / room
                homes = np.flatnonzero(self.problem.weight_home == m).tolist()
                for b, j in ((0, 0), (len(self.blocks) - 1, self.blocks[-1].period - 1)):
                    self.program.row({both: 1.0} | {self.x[b, j, d]: -1.0 for d in homes}, -np.inf, 0.0)
            self.program.row({v: share for v, share in row.items() if share}, -np.inf, 1.0)

    def _used(self, d: int) -> int:
        """Return a variable that is 1 where a place is used."""
        used = self.program.variable(0.0, 1.0)
        for node, v in self.x.items():
            if node[2] == d and self.program.most[v]:
                self.program.row({v: 1.0, used: -self.program.most[v]}, -np.inf, 0.0)
        return used

    def solve(self) -> tuple[tuple[int, ...], float]:
        """Solve again and again, until what is found is connected; return that walk, or none, and HiGHS's bound."""
        bound = 0.0
        for _ in range(_ROUNDS):
            counts, proposed = self._round()
            bound = max(bound, proposed)
            if counts is None:
                break
            apart = self._apart(counts)
            if not apart:
                return self._path(counts), bound
            for block, nodes in apart:
                self._connect(block, nodes)
        return (), bound

    def _round(self) -> tuple[NDArray[np.int64] | None, float]:
        """Return the whole numbers that HiGHS finds, and its bound; inf where it finds that nothing fits.

        Without presolve: with it, HiGHS 1.12 takes memories that are filled exactly, by units some of which are a
        billionth of others, for too small.
        """
        # Here and not above: the command line starts without it.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        program = self.program
        at = [(row, column, value) for row, terms in enumerate(program.rows) for column, value in terms.items()]
        rows, columns, values = (np.array(part) for part in zip(*at, strict=True))
        shape = (len(program.rows), len(program.costs))
        matrix = csr_array((values, (rows, columns)), shape=shape)
        result = milp(
            np.array(program.costs),
            integrality=np.ones(len(program.costs), np.int64),
            bounds=Bounds(np.zeros(len(program.costs)), np.array(program.most)),
            constraints=LinearConstraint(matrix, np.array(program.least), np.array(program.limit)),
            options={"mip_rel_gap": _GAP, "node_limit": _NODES, "presolve": False},
        )
        if result.status == 2:
            return None, np.inf
        bound = 0.0 if result.mip_dual_bound is None else float(result.mip_dual_bound) * self.scale
        return None if result.x is None else np.rint(result.x).astype(np.int64), bound

    def _apart(self, counts: NDArray[np.int64]) -> list[tuple[int, set[Node]]]:
        """Return sets of (block, j, d) that are used and are not connected with where their block is entered."""
        links: dict[Node, set[Node]] = {node: set() for node, variable in self.x.items() if counts[variable]}
        for (one, other), variable in self.cuts.items():
            if counts[variable] and one[0] == other[0]:
                links[one].add(other)
                links[other].add(one)
        found = []
        for b in range(len(self.blocks)):
            left = {node for node in links if node[0] == b}
            seen = _reached(self._entry(counts, b), links)
            left -= seen
            while left:
                part = _reached(min(left), links)
                found.append((b, part))
                left -= part
        return found

    def _entry(self, counts: NDArray[np.int64], b: int) -> Node:
        """Return where a block is entered."""
        if b == 0:
            return (0, 0, next(d for d, variable in enumerate(self.entries) if counts[variable]))
        return next(to for (one, to), v in self.cuts.items() if one[0] == b - 1 and to[0] == b and counts[v])

    def _connect(self, b: int, nodes: set[Node]) -> None:
        """Ask for a cut into a set wherever something in it is used."""
        into = {v: 1.0 for (one, to), v in self.cuts.items() if to in nodes and one not in nodes}
        if b == 0:
            into |= {self.entries[d]: 1.0 for d in range(self.num_places) if (0, 0, d) in nodes}
        for node in sorted(nodes):
            self.program.row({**into, self.x[node]: -1.0 / self.blocks[b].repeats}, 0.0, np.inf)

    def _path(self, counts: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the place of each unit: an Euler path through each block (Hierholzer)."""
        devices: list[int] = []
        for b in range(len(self.blocks)):
            left: dict[Node, list[Node]] = {}
            for (one, to), variable in self.cuts.items():
                if one[0] == to[0] == b:
                    left.setdefault(one, []).extend([to] * int(counts[variable]))
            way, trail = [self._entry(counts, b)], []
            while way:
                onward = left.get(way[-1])
                if onward:
                    way.append(onward.pop())
                else:
                    trail.append(way.pop())
            devices += [d for _, _, d in reversed(trail)]
        return tuple(devices)


def _reached(start: Node, links: dict[Node, set[Node]]) -> set[Node]:
    seen, waiting = {start}, [start]
    while waiting:
        for other in links.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen
