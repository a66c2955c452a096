"""Clauses over bounds of starts, devices and orders, and how each comes out of rows of the program of latency.

A literal is a variable, whether it is at least or at most a number, and the number. Variables are starts, by op, and
binaries: ("x", first op of a group, device), ("y", op, later op, device), 1 where the first of two is first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from rlinit.certificates import check
from rlinit.certificates.derivations import C, Derivations, Key
from rlinit.certificates.latency_program import LatencyProgram

Var = Any
Lit = tuple[Var, bool, int]
Name = tuple[Any, ...]


def negated(lit: Lit) -> Lit:
    """Return the opposite of a literal."""
    var, up, bound = lit
    return var, not up, bound - 1 if up else bound + 1


def _literal(var: Var, up: bool, bound: int) -> tuple[str, int, int]:
    """Return a literal as the checker has it, where which of two ops is first is the same on every device."""
    if isinstance(var, int):
        return ("from" if up else "until"), var, bound
    kind, v, x, *_ = var
    if kind == "x":
        return ("on" if up else "off"), v, x
    return ("first", v, x) if up else ("first", x, v)


class Clauses(Derivations):
    """Clauses by name, and derivations of those that a refutation needs.

    arc k a b s      by arc k, from devices a to devices b (bits), op u starts at s or later, so op v as much later
    end v a s        an op that starts on devices a at s or later ends too late
    order u v i s    u is first of two ops of device i, and starts at s or later
    neither u v i s t  of two ops of device i u starts at s or later, v at t or later: neither may be first
    energy i h e ... device i has parts (op, time) of its ops to do between h and e, longer than that
    one g i j, some g  a group is on one device
    up v s t         a start is at least s, so at least t
    row r            a row as it is
    learned k        what others refute by propagation

    Parameters
    ----------
    program
        What all schedules satisfy.
    goal
        In units of C.
    """

    def __init__(self, program: LatencyProgram, goal: int) -> None:
        super().__init__(program, goal)
        self.program: LatencyProgram = program
        windows, self.devices = program.windows, program.state.devices
        self.d, self.last = windows.d, goal - 1
        self.time = [[0 if x is None else x for x in row] for row in windows.time]
        self.members = {group[0]: group for group in windows.groups}
        self.lead = [0] * len(self.devices)
        for group in windows.groups:
            for v in group:
                self.lead[v] = group[0]
        self.group = {group[0]: at for at, group in enumerate(windows.groups)}
        self._group_of = {at: g for g, group in enumerate(program.groups) for at in group}
        self.every = {g: sum(1 << i for i in self.devices[g]) for g in self.members}
        self.rest = [
            [a + b for a, b in zip(*rows, strict=True)] for rows in zip(self.time, program.state.tail, strict=True)
        ]
        self.arcs = [(u, v, move) for v, before in enumerate(windows.before) for u, move in before]
        self.learned: list[list[Lit]] = []
        self.roots: dict[int, int] = {}
        self._steps: list[dict[Name, int]] = []
        self._least: dict[Name, int] = {}
        self._lits: dict[Name, list[Lit]] = {}
        self._keys: dict[Name, Key] = {}

    def least(self, k: int, a: int, b: int) -> int:
        """Return the least time from the start of an arc's first op to that of its second, between sets of devices.

        Parameters
        ----------
        k, a, b
            The arc, and devices of both ops as bits.
        """
        if (k, a, b) not in self._least:
            u, _, move = self.arcs[k]
            self._least[k, a, b] = min(
                self.time[u][i] + move[i][j] for i in range(self.d) for j in range(self.d) if a >> i & 1 and b >> j & 1
            )
        return self._least[k, a, b]

    def named(self, name: Name, lit: Lit | None) -> Name:
        """Return the name of a clause that says a literal, where a start of it was left open.

        Parameters
        ----------
        name, lit
            The clause, of which the last number may be missing, and the literal; None at a conflict of all others.
        """
        if lit is None or len(name) != {"arc": 4, "order": 4, "end": 3}.get(name[0]):
            return name
        _, up, bound = lit
        time = 0 if not up else self.least(*name[1:]) if name[0] == "arc" else self.time[name[1]][name[3]]
        return (*name, bound - time if up else bound + 1)

    def lits(self, name: Name) -> list[Lit]:
        """Return the literals of a clause.

        Parameters
        ----------
        name
            The clause.
        """
        if name[0] == "learned":
            return self.learned[name[1]]
        if name not in self._lits:
            self._lits[name] = list(dict.fromkeys(self._literals(*name)))
        return self._lits[name]

    def _literals(self, kind: str, *args: Any) -> Iterator[Lit]:
        if kind == "arc":
            k, a, b, start = args
            u, v, _ = self.arcs[k]
            yield v, True, start + self.least(k, a, b)
            yield from self._starts(u, start)
            yield from self._off(u, a)
            yield from self._off(v, b)
        elif kind == "end":
            v, a, start = args
            yield from self._starts(v, start)
            yield from self._off(v, a)
        elif kind in ("order", "neither"):
            u, v, i, *starts = args
            yield from self._off(u, 1 << i)
            yield from self._off(v, 1 << i)
            if kind == "order":
                yield ("y", min(u, v), max(u, v), i), u > v, int(u > v)
            for start, first, second in zip(starts, (u, v), (v, u), strict=False):
                yield second, True, start + self.time[first][i]
                yield from self._starts(first, start)
        elif kind == "energy":
            i, head, end, parts = args
            for v, part in parts:
                yield from self._off(v, 1 << i)
                yield from self._starts(v, head - self.time[v][i] + part)
                yield v, True, end - part + 1
        elif kind == "one":
            yield from ((("x", args[0], i), False, 0) for i in args[1:])
        elif kind == "some":
            yield from ((("x", args[0], i), True, 1) for i in self.devices[args[0]])
        elif kind == "up":
            v, _, start, less = args
            yield v, False, start - 1
            yield v, True, less

    def _starts(self, v: int, start: int) -> Iterator[Lit]:
        if start > 0:
            yield v, False, start - 1

    def _off(self, v: int, mask: int) -> Iterator[Lit]:
        """Yield that an op is not on one of a set of devices."""
        g = self.lead[v]
        if mask & (mask - 1) == 0 and mask != self.every[g]:
            yield ("x", g, mask.bit_length() - 1), False, 0
        else:
            yield from ((("x", g, i), True, 1) for i in self.devices[g] if not mask >> i & 1)

    def implied(self, name: Name, lit: Lit) -> Iterator[Name]:
        """Yield what leads from the literal that a clause says to one that says less.

        Parameters
        ----------
        name, lit
            The clause, and the literal that says less.
        """
        bound = next(each for each in self.lits(name) if each[:2] == lit[:2])
        yield ("up", *bound, lit[2]) if lit[1] else ("up", *negated(lit), bound[2] + 1)

    def learn(self, lits: list[Lit], steps: dict[Name, int]) -> int:
        """Keep a clause that the sum of others, so often each, is up to rounding; return its number.

        Parameters
        ----------
        lits
            The clause.
        steps
            Names of the others in the order in which they propagate from its opposite, and how often each counts.
        """
        self.learned.append(lits)
        self._steps.append(steps)
        return len(self.learned) - 1

    def _needed(self) -> list[int]:
        """Return the numbers of the clauses that the last one follows from, in order."""
        needed, stack = set[int](), [len(self.learned) - 1]
        while stack:
            if (at := stack.pop()) not in needed:
                needed.add(at)
                stack += [name[1] for name in self._steps[at] if name[0] == "learned"]
        return sorted(needed)

    def for_checker(self) -> list[Any]:
        """Return clauses and steps as `check.prove_clauses` reads them, whose starts and devices imply others."""
        place = {at: k for k, at in enumerate(self._needed())}
        proof = []
        for at in place:
            steps = list[Any]()
            for kind, *args in self._steps[at]:
                if kind == "learned":
                    steps.append(place[args[0]])
                elif kind == "arc":
                    steps.append(["arc", *self.arcs[args[0]][:2]])
                elif kind in ("end", "order", "neither", "energy"):
                    count = {"end": 1, "energy": 3}.get(kind, 2)
                    steps.append([{"energy": "work", "neither": "order"}.get(kind, kind), *args[:count]])
            proof.append([[_literal(*lit) for lit in self.learned[at]], steps])
        return proof

    # Derivations

    def conclude(self) -> None:
        """Derive the goal from the last clause learned, which has no literal."""
        asm = self.derive("L", C, self.last, "asm", [])
        self._below = asm
        for at in self._needed():
            terms = defaultdict[Key, int](int)
            for name, weight in self._steps[at].items():
                terms[self._key(name)] += weight
            self._keys["learned", at] = self._clause(terms, self.learned[at], "rup")
        case = self.derive("G", C, self.goal, "asm", [])
        self.derive("G", C, self.goal, "uns", [(self._keys["learned", len(self.learned) - 1], asm), (case, case)])

    def _key(self, name: Name) -> Key:
        """Return the derivation of a clause."""
        if name not in self._keys and name[0] == "neither":  # that one is first is false, and that the other is
            _, u, v, i, *starts = name
            both = (("order", *pair, i, start) for pair, start in zip(((u, v), (v, u)), starts, strict=True))
            self._keys[name] = self._clause(Counter(map(self._key, both)), self.lits(name), "rup")
        elif name not in self._keys:
            self._keys[name] = self._clause(self._rows(*name), self.lits(name), "rnd")
        return self._keys[name]

    def _rows(self, kind: str, *args: Any) -> dict[Key, int]:
        """Return rows whose sum a clause is up to rounding."""
        program, terms = self.program, defaultdict[Key, int](int)

        def start(v: int, least: int, up: bool) -> None:
            """Add that a start is at least a number where a literal is, or at most one below where it is not."""
            if least > 0 or not up:
                terms["row", program.level(v, least)[0 if up else 1]] += 1
            else:
                terms["low", program.start[v]] += 1

        if kind == "arc":
            k, a, b, begin = args
            u, v, _ = self.arcs[k]
            terms["row", program.arc(u, v, self.least(k, a, b), a, b)] += 1
            start(u, begin, True)
            start(v, begin + self.least(k, a, b), False)
        elif kind == "end":
            v, _, begin = args
            terms["row", program.top[program.start[v]]] += 1
            terms[self._below] -= 1
            start(v, begin, True)
        elif kind == "order":
            u, v, i, begin = args
            terms["row", program.order_row(u, v, i)] += 1
            start(u, begin, True)
            start(v, begin + self.time[u][i], False)
        elif kind == "energy":
            terms["row", program.energy(*args)] += 1
        elif kind in ("one", "some"):
            terms["one", self.group[args[0]]] = -1 if kind == "one" else 1
        elif kind == "up":
            v, _, begin, less = args
            start(v, begin, True)
            start(v, less, False)
        return terms

    def _row_of(self, key: Key) -> tuple[dict[int, int], int]:
        kind, at = key
        if kind == "row":
            return self.program.rows[at][1:]
        if kind == "one":
            return dict.fromkeys(self.program.groups[at], 1), 1
        if kind == "derived":
            return self.derived[at].row, self.derived[at].side
        return {at: 1}, int(kind == "high")

    def _binary(self, lit: Lit) -> tuple[int, bool]:
        """Return the binary of a literal, and whether it is 1."""
        var, up, bound = lit
        if isinstance(var, int):
            return (self.program.level(var, bound)[2], True) if up else (self.program.level(var, bound + 1)[2], False)
        return (self.program.share[var[1:]] if var[0] == "x" else self.program.order_of(*var[1:])), up

    def _clause(self, terms: dict[Key, int], lits: list[Lit], reason: str) -> Key:
        """Derive a clause from rows: what the sum says of other binaries is taken away, and the rest is rounded."""
        said = dict(map(self._binary, lits))
        left, side = defaultdict[int, int](int), 0

        def take(key: Key, weight: int) -> None:
            nonlocal side
            row, least = self._row_of(key)
            side += weight * least
            for at, amount in row.items():
                left[at] += weight * amount

        def more(key: Key, weight: int) -> None:
            if weight:
                terms[key] += weight
                take(key, weight)

        for key, weight in list(terms.items()):
            take(key, weight)
        for g, group in enumerate(self.program.groups):
            # Of learned clauses, and of two devices that exclude each other, nothing else is left.
            if reason == "rnd" and any(left[at] for at in group) and [said.get(at) for at in group].count(False) < 2:
                others = [left[at] for at in group if at not in said] or [left[at] for at in group if not said[at]]
                more(("one", g), -max(others, default=0))

        def high(at: int, weight: int) -> None:
            """Add, so often, that a binary is at most 1."""
            if at not in self._group_of:
                more(("high", at), -weight)
            elif weight:
                more(("one", self._group_of[at]), -weight)
                for other in self.program.groups[self._group_of[at]]:
                    if other != at:
                        more(("low", other), weight)

        for at in list(left):
            if at not in said or said[at] != (left[at] > 0):
                if left[at] > 0:
                    high(at, left[at])
                else:
                    more(("low", at), -left[at])
        scale = max((abs(left[at]) for at in said), default=0)
        for at, up in said.items():
            if up:
                more(("low", at), scale - left[at])
            else:
                high(at, scale + left[at])
        row = {at: 1 if up else -1 for at, up in said.items()}
        least = 1 - sum(not up for up in said.values())
        rest = {at: amount for at, amount in left.items() if amount}
        said_all = rest == {at: amount * scale for at, amount in row.items() if scale}
        check.need(said_all and side > (least - 1) * scale, "the rows of a clause do not say it")
        kept = [(key, weight) for key, weight in terms.items() if weight]
        exact = reason == "rnd" and side >= least * scale  # as of equations, which are not rounded
        return self.derive("G", row, least, "lin" if exact else reason, kept, scale)
