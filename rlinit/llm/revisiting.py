"""Units in a row on any devices, each of which may come back: a program that counts units that are alike.

A row is cut into blocks, each a period of p unlike units repeated r times (attention and experts of every layer). With
integers

    x[j, d]      repeats in which unit j of the period is on device d,
    t[j, d, e]   cuts from d to e between unit j and the one after it (from the last to the first of the next repeat),
    c[d, e]      whether a cut from d to e lies between a block and the next one,

the cost is that of units and cuts, and memory is a sum over x. A block whose cuts into and out of every (j, d) are as
many as its repeats there, and whose used (j, d) are connected, is a path, and every path is such a block (Euler's
theorem on directed multigraphs): since cuts go from j to j + 1 only, it has the row's units in order. Connectivity is
added where a solution lacks it: what visits some (j, d) of a set enters the set, so cuts into it are at least
x[j, d] / r.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import SolverFailure
from rlinit.hardware import CAPACITY_SLACK
from rlinit.llm.contiguous import ChainProblem

__all__ = ["Revisit", "solve_revisiting"]

_LONGEST_PERIOD = 12
"""Units of a period: six layers of two, as where every sixth looks back at everything."""

_ROUNDS, _NODES = 40, 2_000
"""Programs solved one after the other, each with more connectivity, and nodes that HiGHS may branch on in each."""

_GAP = 5e-7
"""Relative gap at which a program is closed: half of that within which a plan counts as optimal."""

_TIGHTER = 2e-6
"""Share of a memory left out where HiGHS filled it up to its tolerance of 1e-6 and rounding made that too much."""

Node = tuple[int, int, int]
"""A block, a unit of its period and a device."""


@dataclass(frozen=True, slots=True)
class Revisit:
    """The device of each unit, none where no placement was found, and what was proven that no placement is below.

    Parameters
    ----------
    devices
        (n,) device of each unit.
    bound
        By HiGHS; inf where it proved that nothing fits.
    """

    devices: tuple[int, ...]
    bound: float


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


def solve_revisiting(problem: ChainProblem) -> Revisit:
    """Return the cheapest placement of units on any devices, of a problem whose costs add up.

    No device of it may only come first, and all may be used.

    Raises
    ------
    SolverFailure
        HiGHS ended in a way that says nothing.
    """
    found = _Search(problem, 1.0).solve()
    if not found.devices or _fits(problem, found.devices):
        return found
    tighter = _Search(problem, 1.0 - _TIGHTER).solve().devices
    return Revisit(tighter if tighter and _fits(problem, tighter) else (), found.bound)


def _fits(problem: ChainProblem, devices: Sequence[int]) -> bool:
    held = np.bincount(devices, problem.held_bytes, minlength=len(problem.room_bytes))
    if devices[0] == devices[-1]:
        held[devices[0]] -= problem.shared_bytes
    return bool((held <= problem.room_bytes * CAPACITY_SLACK).all())


def _scale(problem: ChainProblem) -> float:
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

    def __init__(self, problem: ChainProblem, share: float) -> None:
        self.problem, self.num_devices = problem, len(problem.room_bytes)
        n = problem.num_units
        self.scale = _scale(problem)
        numbers: dict[object, int] = {}
        kinds = [
            (*problem.seconds[:, u].tolist(), problem.held_bytes[u], u if u in (0, n - 1) else -1) for u in range(n)
        ]
        self.blocks = list(_blocks([numbers.setdefault(kind, len(numbers)) for kind in kinds]))
        self.program = _Program()
        self.x: dict[Node, int] = {}
        self.cuts: dict[tuple[Node, Node], int] = {}
        self.entries = [self.program.variable(0.0, 1.0) for _ in range(self.num_devices)]
        self.exits = [self.program.variable(0.0, 1.0) for _ in range(self.num_devices)]
        self._units()
        self._all_cuts()
        self._flow()
        self._memory(share)

    def _units(self) -> None:
        alone = self.problem.shared_bytes if self.problem.num_units == 1 else 0.0
        for b, block in enumerate(self.blocks):
            for j in range(block.period):
                for d in range(self.num_devices):
                    seconds = float(self.problem.seconds[d, block.start + j]) / self.scale
                    need = self.problem.held_bytes[block.start + j] - alone
                    fits = need <= self.problem.room_bytes[d] * CAPACITY_SLACK
                    self.x[b, j, d] = self.program.variable(seconds, float(block.repeats) if fits else 0.0)
                whole = {self.x[b, j, d]: 1.0 for d in range(self.num_devices)}
                self.program.row(whole, block.repeats, block.repeats)

    def _all_cuts(self) -> None:
        """Add a variable for each linked pair of devices at each boundary of unlike units."""
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
        for d in range(self.num_devices):
            for e in range(self.num_devices):
                seconds = float(self.problem.transfer_s[d, e]) if d != e else 0.0
                if seconds < np.inf:
                    key = ((*before, d), (*after, e))
                    self.cuts[key] = self.program.variable(seconds / self.scale, float(most))

    def _flow(self) -> None:
        """Let x equal the cuts into a device, and those out of it."""
        into: dict[Node, dict[int, float]] = {node: {} for node in self.x}
        out: dict[Node, dict[int, float]] = {node: {} for node in self.x}
        for (one, other), variable in self.cuts.items():
            out[one][variable] = into[other][variable] = 1.0
        last = (len(self.blocks) - 1, self.blocks[-1].period - 1)
        for d in range(self.num_devices):
            into[0, 0, d][self.entries[d]] = 1.0
            out[(*last, d)][self.exits[d]] = 1.0
        for node, variable in self.x.items():
            self.program.row({**into[node], variable: -1.0}, 0.0, 0.0)
            self.program.row({**out[node], variable: -1.0}, 0.0, 0.0)
        self.program.row(dict.fromkeys(self.entries, 1.0), 1.0, 1.0)

    def _memory(self, share: float) -> None:
        if self.problem.num_units == 1:
            return
        last = self.blocks[-1]
        for d in range(self.num_devices):
            room = float(self.problem.room_bytes[d]) * share
            if not 0.0 < room < np.inf:
                continue
            row = {
                self.x[b, j, d]: float(self.problem.held_bytes[block.start + j]) / room
                for b, block in enumerate(self.blocks)
                for j in range(block.period)
                if self.program.most[self.x[b, j, d]]
            }
            if self.problem.shared_bytes:
                both = self.program.variable(0.0, 1.0)
                row[both] = -self.problem.shared_bytes / room
                ends = (self.x[0, 0, d], self.x[len(self.blocks) - 1, last.period - 1, d])
                for end in ends:
                    self.program.row({both: 1.0, end: -1.0}, -np.inf, 0.0)
            self.program.row(row, -np.inf, 1.0)

    def solve(self) -> Revisit:
        """Solve again and again, until what is found is connected; the bound of each round is one of the problem."""
        bound = 0.0
        for _ in range(_ROUNDS):
            counts, proven = self._round()
            bound = max(bound, proven)
            if counts is None:
                return Revisit((), bound)
            apart = self._apart(counts)
            if not apart:
                return Revisit(self._path(counts), bound)
            for block, nodes in apart:
                self._connect(block, nodes)
        return Revisit((), bound)

    def _round(self) -> tuple[NDArray[np.int64] | None, float]:
        """Return the whole numbers that HiGHS finds, and its bound.

        Without presolve: with it, HiGHS 1.12 takes memories that are filled exactly, by units some of which are a
        billionth of others, for too small, and calls what it finds instead optimal.
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
        if result.status not in (0, 1):
            raise SolverFailure(f"HiGHS ended with status {result.status}: {result.message}")
        proven = 0.0 if result.mip_dual_bound is None else float(result.mip_dual_bound) * self.scale
        return (None if result.x is None else np.rint(result.x).astype(np.int64)), proven

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
            into |= {self.entries[d]: 1.0 for d in range(self.num_devices) if (0, 0, d) in nodes}
        for node in sorted(nodes):
            self.program.row({**into, self.x[node]: -1.0 / self.blocks[b].repeats}, 0.0, np.inf)

    def _path(self, counts: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the device of each unit: an Euler path through each block (Hierholzer)."""
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
