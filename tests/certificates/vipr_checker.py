"""A checker of VIPR's format 1.0, written from its specification in exact fractions, apart from the writer.

viprchk 1.1 and cake_vipr are stricter than the specification in some points, and so is this; each is named here by the
sentence of the specification that allows more, and stands in the page on certificates.

comment     "Each comment line must begin with the character %": the sign is a word of its own; what has a name that
            begins with it in CON or DER is a comment
number      "Values are rational numbers expressed as finite decimals or fractions": a whole number, or a fraction in
            lowest terms, for numbers are compared as they are written
derivation  "constraint reason index": each is a line, as are "VER 1.0" and "DER" with its number; the sense of a sum is
            that of its rows; the index is -1, for a row is forgotten where it is 0 or more
objective   "or the keyword OBJ": the derivation that proves the bound must be written with the keyword
"""

from __future__ import annotations

import re
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
    """The words of a file in turn, with the end of a line as a word where it is asked for."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        while lines and lines[0].split()[:1] == ["%"]:
            lines.pop(0)
        self.words = [word for line in lines for word in [*line.split(), "\n"]]
        self.at = 0
        self.by_lines = False

    def end(self) -> None:
        """Go on behind the end of a line, which must be here."""
        if self.words[self.at : self.at + 1] != ["\n"]:
            raise Refused("what must be on a line of its own is not")
        self.at += 1

    def over(self) -> bool:
        """Return whether there are no more words."""
        return all(word == "\n" for word in self.words[self.at :])

    def word(self, *expected: str) -> str:
        """Return the next word, which must be one of those expected."""
        while not self.by_lines and self.words[self.at : self.at + 1] == ["\n"]:
            self.at += 1
        found = self.words[self.at] if self.at < len(self.words) else ""
        self.at += 1
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
        word = self.word()
        if not re.fullmatch(r"-?[0-9]+(/[1-9][0-9]*)?", word) or str(Fraction(word)) != word:
            raise Refused(f"{word} is no number in lowest terms")
        return Fraction(word)

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
    """What a file says of the program: names, whole variables, cost, constraints, and the range proven."""

    names: list[str]
    whole: set[int]
    cost: dict[int, Fraction]
    constraints: list[Constraint]
    least: Fraction
    most: str


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
    reader.end()
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
    known = [_constraint(reader, n, cost) for _ in range(count)]
    if bounds > count or any(len(one.row) != 1 for one in known[:bounds]):
        raise Refused("the bounds are not first")
    reader.word("RTP")
    reader.word("range")
    least = reader.value()
    most = reader.word()
    reader.word("SOL")
    if reader.word("0", "1") == "1":
        reader.word()
        _feasible(solution := reader.pairs(n), known, whole)
        value = sum((amount * solution.get(at, 0) for at, amount in cost.items()), Fraction(0))
        if str(value) != most or value < least:
            raise Refused("the solution is not what the range says")
    elif most != "inf":
        raise Refused("the range has an end without a solution")
    reader.end()
    reader.by_lines = True
    reader.word("DER")
    last = reader.whole(10**9) - 1
    reader.end()
    for at in range(last + 1):
        said = _constraint(reader, n, cost, at == last)
        rests = _derive(reader, said, known, whole)
        known.append(said._replace(rests=rests))
        reader.word("-1")
        reader.end()
    if not reader.over():
        raise Refused("there is more than the file says")
    if known[-1].rests or not known[-1].dominates(Constraint(1, least, cost)):
        raise Refused("the last constraint does not prove the bound, or rests on assumptions")
    return Problem(names, whole, cost, known[:count], least, most)


def _constraint(reader: Reader, n: int, cost: dict[int, Fraction], last: bool = False) -> Constraint:
    """Return a constraint in constraint format, which may be of the objective; the last one must be."""
    if reader.word().startswith("%"):
        raise Refused("a row whose name begins with % is a comment")
    sense, side = SENSES[reader.word(*SENSES)], reader.value()
    if last or reader.words[reader.at] == "OBJ":
        reader.word("OBJ")
        return Constraint(sense, side, cost)
    return Constraint(sense, side, reader.pairs(n))


def _feasible(solution: dict[int, Fraction], constraints: list[Constraint], whole: set[int]) -> None:
    """Refuse a solution that breaks a constraint, or is not whole where it must be."""
    if any(amount.denominator > 1 for at, amount in solution.items() if at in whole):
        raise Refused("a solution is not whole")
    for one in constraints:
        over = sum(amount * solution.get(at, 0) for at, amount in one.row.items()) - one.side
        if over * one.sense < 0 or (one.sense == 0 and over):
            raise Refused("a solution breaks a constraint")


def _derive(reader: Reader, said: Constraint, known: list[Constraint], whole: set[int]) -> frozenset[int]:
    """Return what a constraint rests on, after checking its reason."""
    reader.word("{")
    kind, place = reader.word("asm", "lin", "rnd", "uns"), len(known)
    rests = frozenset({place})
    if kind in ("lin", "rnd"):
        weights = reader.pairs(place)
        if {known[at].sense * (1 if weight > 0 else -1) for at, weight in weights.items()} - {0, said.sense}:
            raise Refused("multipliers have signs that do not fit together")
        row: dict[int, Fraction] = {}
        for at, weight in weights.items():
            for j, amount in known[at].row.items():
                row[j] = row.get(j, Fraction(0)) + weight * amount
        side = sum((weight * known[at].side for at, weight in weights.items()), Fraction(0))
        row = {j: amount for j, amount in row.items() if amount}
        found = Constraint(said.sense, side, row)
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
