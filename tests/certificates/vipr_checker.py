"""A checker of VIPR's format 1.0, written from its specification in exact fractions, apart from the writer.

viprchk 1.1 is stricter than the specification in one point, and so is this. "Constraint format" lets a constraint of
the objective be written by its coefficients or by the keyword OBJ, and "DER section" asks that the last derivation
dominates OBJ >= lb. viprchk takes the last derivation for one of the objective only where it is written with OBJ.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

SENSES = {"L": -1, "E": 0, "G": 1}


class Refused(Exception):
    """The file proves nothing, and why."""


class Constraint(NamedTuple):
    """A row: sense -1 (<=), 0 (=) or 1 (>=), side, coefficients without zeros, and assumptions it rests on."""

    sense: int
    side: Fraction
    row: dict[int, Fraction]
    rests: frozenset[int] = frozenset()

    def absurd(self) -> bool:
        """Return whether nothing satisfies it: 0 >= 1, 0 <= -1, 0 = 1."""
        wrong = {1: self.side > 0, -1: self.side < 0, 0: self.side != 0}
        return not self.row and wrong[self.sense]

    def dominates(self, other: Constraint) -> bool:
        """Return whether what satisfies it satisfies another, of the same coefficients."""
        if self.absurd():
            return True
        if self.row != other.row or (self.sense not in (0, other.sense)):
            return False
        if other.sense == 0:
            return self.side == other.side
        return (self.side - other.side) * other.sense >= 0


class Reader:
    """The words of a file in turn."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        while lines and lines[0].startswith("%"):
            lines.pop(0)
        self.words = iter(" ".join(lines).split())

    def word(self, *expected: str) -> str:
        """Return the next word, which must be one of those expected."""
        found = next(self.words, "")
        if not found or (expected and found not in expected):
            raise Refused(f"expected {' or '.join(expected) or 'a word'}, got {found!r}")
        return found

    def whole(self, below: int, least: int = 0) -> int:
        """Return the next word as an index."""
        try:
            found = int(self.word())
        except ValueError as problem:
            raise Refused(str(problem)) from None
        if not least <= found < below:
            raise Refused(f"index {found} is not in {least} .. {below - 1}")
        return found

    def value(self) -> Fraction:
        """Return the next word as a number."""
        try:
            return Fraction(self.word())
        except (ValueError, ZeroDivisionError) as problem:
            raise Refused(str(problem)) from None

    def pairs(self, below: int) -> dict[int, Fraction]:
        """Return indices and values, each index once, zeros left out."""
        found: dict[int, Fraction] = {}
        for _ in range(self.whole(10**9)):
            at = self.whole(below)
            if at in found:
                raise Refused(f"index {at} stands twice")
            found[at] = self.value()
        return {at: value for at, value in found.items() if value}


class Problem(NamedTuple):
    """What a file says of the program: names, whole variables, cost, constraints, and the lower bound to be proven."""

    names: list[str]
    whole: set[int]
    cost: dict[int, Fraction]
    constraints: list[Constraint]
    least: Fraction


def check(text: str) -> Problem:
    """Return the program of a file whose derivations prove its lower bound.

    Raises
    ------
    Refused
        A derivation does not hold, the bound is not proven, or the file has another form.
    """
    reader = Reader(text)
    reader.word("VER")
    reader.word("1.0")
    reader.word("VAR")
    names = [reader.word() for _ in range(reader.whole(10**9))]
    n = len(names)
    reader.word("INT")
    whole = {reader.whole(n) for _ in range(reader.whole(n + 1))}
    reader.word("OBJ")
    reader.word("min")
    cost = reader.pairs(n)
    reader.word("CON")
    count, bounds = reader.whole(10**9), reader.whole(10**9)
    known = [_constraint(reader, n) for _ in range(count)]
    if bounds > count or any(len(one.row) != 1 for one in known[:bounds]):
        raise Refused("the bounds are not first")
    reader.word("RTP")
    reader.word("range")
    least = reader.value()
    reader.word("inf")
    reader.word("SOL")
    reader.word("0")
    reader.word("DER")
    last = reader.whole(10**9) - 1
    for at in range(last + 1):
        said = _constraint(reader, n, cost if at == last else None)
        rests = _derive(reader, said, known, whole)
        known.append(said._replace(rests=rests))
        reader.whole(10**9, -1)
    if next(reader.words, None) is not None:
        raise Refused("there is more than the file says")
    if known[-1].rests or not known[-1].dominates(Constraint(1, least, cost)):
        raise Refused("the last constraint does not prove the bound, or rests on assumptions")
    return Problem(names, whole, cost, known[:count], least)


def _constraint(reader: Reader, n: int, cost: dict[int, Fraction] | None = None) -> Constraint:
    """Return a constraint in constraint format; one that must be of the objective where `cost` is given."""
    reader.word()
    sense, side = SENSES[reader.word(*SENSES)], reader.value()
    if cost is None:
        return Constraint(sense, side, reader.pairs(n))
    reader.word("OBJ")
    return Constraint(sense, side, cost)


def _derive(reader: Reader, said: Constraint, known: list[Constraint], whole: set[int]) -> frozenset[int]:
    """Return what a constraint rests on, after checking its reason."""
    reader.word("{")
    kind, place = reader.word("asm", "lin", "rnd", "uns"), len(known)
    rests = frozenset({place})
    if kind in ("lin", "rnd"):
        weights = reader.pairs(place)
        signs = {known[at].sense * (1 if weight > 0 else -1) for at, weight in weights.items()} - {0}
        if len(signs) > 1:
            raise Refused("multipliers have signs that do not fit together")
        row: dict[int, Fraction] = {}
        for at, weight in weights.items():
            for j, amount in known[at].row.items():
                row[j] = row.get(j, Fraction(0)) + weight * amount
        side = sum((weight * known[at].side for at, weight in weights.items()), Fraction(0))
        row = {j: amount for j, amount in row.items() if amount}
        found = Constraint(signs.pop() if signs else 0, side, row)
        if kind == "rnd":
            if not set(row) <= whole or any(amount.denominator > 1 for amount in row.values()) or not found.sense:
                raise Refused("a row that cannot be rounded")
            found = found._replace(side=Fraction(side.__ceil__() if found.sense > 0 else side.__floor__()))
        if not found.dominates(said):
            raise Refused(f"derived {found}, not {said}")
        rests = frozenset().union(*(known[at].rests for at in weights))
    elif kind == "uns":
        one, first, two, second = (reader.whole(place) for _ in range(4))
        low, high = sorted((known[first], known[second]), key=lambda one: one.sense)
        split = low.sense == -1 and high.sense == 1 and low.row == high.row and low.side + 1 == high.side
        sound = low.side.denominator == 1 and set(low.row) <= whole
        if not split or not sound or any(amount.denominator > 1 for amount in low.row.values()):
            raise Refused("a split that does not cover all whole points")
        if not known[one].dominates(said) or not known[two].dominates(said):
            raise Refused("a side of a split does not prove it")
        rests = (known[one].rests - {first}) | (known[two].rests - {second})
    reader.word("}")
    return rests
