"""A checker of VeriPB's format 3.0 for the rules that the writer uses, written from the page on the format.

Source: https://veripb.org/overview.html. Of rules there are ``f``, ``pol`` with ``*`` and ``+``, ``rup`` with hints,
``pbc`` with a subproof of these, ``output NONE`` and ``conclusion BOUNDS``; of programs ``min:``, ``>=`` and ``=``.
All else is refused. Rows are kept as the page has them: positive coefficients of literals, at least a degree.

CakePB, which is formally verified, reads less than the page says, and so does this: each step is a line; no number of
a row is below 0; hints propagate once each, in turn, and the last one ends in a conflict.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"[A-Za-z_][A-Za-z0-9_\[\]{}^-]+"


class Refused(Exception):
    """The files prove nothing, and why."""


class Row(NamedTuple):
    """Positive coefficients of literals, a name with or without ~ before it, whose sum is at least the degree."""

    terms: dict[str, int]
    degree: int


class Checked(NamedTuple):
    """The variables of a program, its objective and rows, and the bounds that are proven."""

    names: set[str]
    cost: dict[str, int]
    rows: list[Row]
    least: int
    most: int | None


def _no(literal: str) -> str:
    """Return the opposite of a literal."""
    return literal.removeprefix("~") if literal.startswith("~") else f"~{literal}"


def normal(terms: list[tuple[int, str]], degree: int) -> Row:
    """Return a row whose coefficients are positive, one of each variable."""
    sums: dict[str, int] = {}
    for amount, literal in terms:
        name = literal.removeprefix("~")
        if literal.startswith("~"):  # a ~x = a - a x
            degree, amount = degree - amount, -amount
        sums[name] = sums.get(name, 0) + amount
    low = sum(-amount for amount in sums.values() if amount < 0)
    return Row({(x if a > 0 else f"~{x}"): abs(a) for x, a in sums.items() if a}, degree + low)


def added(one: Row, other: Row) -> Row:
    """Return the sum of two rows."""
    terms = [(amount, literal) for row in (one, other) for literal, amount in row.terms.items()]
    return normal(terms, one.degree + other.degree)


def negated(row: Row) -> Row:
    """Return what holds where a row does not."""
    return normal([(-amount, literal) for literal, amount in row.terms.items()], 1 - row.degree)


def refutes(rows: list[Row]) -> bool:
    """Return whether propagation over rows, once each and in turn, ends with one that cannot hold."""
    true, spare = set[str](), 0
    for row in rows:
        spare = sum(amount for literal, amount in row.terms.items() if _no(literal) not in true) - row.degree
        true |= {x for x, amount in row.terms.items() if amount > spare and _no(x) not in true}
    return spare < 0


class Words:
    """The words of a text in turn, without its comments."""

    def __init__(self, text: str, comment: str) -> None:
        self.words = [word for line in text.split("\n") if not line.startswith(comment) for word in line.split()]
        self.at = 0

    def peek(self) -> str:
        """Return the next word, "" at the end."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def word(self, *expected: str) -> str:
        """Return the next word and go on; it must be one of those expected."""
        found = self.peek()
        self.at += 1
        if not found or (expected and found not in expected):
            raise Refused(f"expected {' or '.join(expected) or 'a word'}, got {found!r}")
        return found

    def number(self) -> int:
        """Return the next word, a whole number."""
        if not re.fullmatch(r"[+-]?(0|[1-9][0-9]*)", found := self.word()):
            raise Refused(f"{found} is no number")
        return int(found)

    def literal(self) -> str:
        """Return the next word, a literal."""
        if not re.fullmatch(f"~?{_NAME}", found := self.word()):
            raise Refused(f"{found} is no literal")
        return found

    def sum(self, *ends: str) -> list[tuple[int, str]]:
        """Return coefficients and literals up to one of some words."""
        found = []
        while self.peek() not in ends:
            found.append((self.number(), self.literal()))
        return found


def check(program: str, proof: str) -> Checked:
    """Return the bounds of a program that a proof shows.

    Raises
    ------
    Refused
        A step does not hold, the bounds are not proven, or a file has another form.
    """
    head = re.match(r"\* #variable= ([0-9]+) #constraint= ([0-9]+)\n", program)
    lines = [line for line in [*program.split("\n"), *proof.split("\n")[1:]] if line[:1] not in ("", "*")]
    if not all(re.fullmatch("(?!pbc )[^;]*;|pbc [^;]*: subproof", line) for line in lines):
        raise Refused("a step is not on a line of its own")
    words = Words(program, "*")
    words.word("min:")
    cost = words.sum(";")
    words.word(";")
    rows, count = list[Row](), 0
    while words.peek():
        terms, sense, side, count = words.sum(">=", "="), words.word(), words.number(), count + 1
        words.word(";")
        rows.append(normal(terms, side))
        if sense == "=":
            rows.append(normal([(-amount, literal) for amount, literal in terms], -side))
    names = {literal.removeprefix("~") for row in [normal(cost, 0), *rows] for literal in row.terms}
    if head is None or (len(names), count) != tuple(map(int, head.groups())):
        raise Refused("the program has another size than it says")
    known, last, words = dict(enumerate(rows, 1)), len(rows), Words(proof, "%")
    if not proof.startswith(f"pseudo-Boolean proof version 3.0\nf {len(rows)} ;\n"):
        raise Refused("the proof begins otherwise")
    while words.word() != ";":
        pass
    while words.peek() != "output":
        last, row = _step(words, known, last, deeper=True)
        known[last] = row
    for each in ("output", "NONE", ";", "conclusion", "BOUNDS"):
        words.word(each)
    least = words.number()
    words.word(":")
    _implies(_row(words, known), normal(cost, least))
    most = None if words.peek() == "INF" else words.number()
    words.word("INF" if most is None else ":")
    if most is not None:
        chosen = set[str]()
        while words.peek() != ";":
            chosen.add(words.literal())
        if any((name in chosen) == (f"~{name}" in chosen) for name in names) or len(chosen) != len(names):
            raise Refused("the solution is no assignment")
        for row in [*rows, negated(normal(cost, most + 1))]:
            if sum(amount for literal, amount in row.terms.items() if literal in chosen) < row.degree:
                raise Refused("the solution breaks a row, or the upper bound")
    for each in (";", "end", "pseudo-Boolean", "proof", ";"):
        words.word(each)
    if words.peek():
        raise Refused("there is more behind the end")
    return Checked(names, dict((literal, amount) for amount, literal in cost), rows, least, most)


def _row(words: Words, known: dict[int, Row]) -> Row:
    """Return the row of the number that is next."""
    if (number := words.number()) not in known:
        raise Refused(f"there is no row {number}")
    return known[number]


def _step(words: Words, known: dict[int, Row], last: int, deeper: bool) -> tuple[int, Row]:
    """Return the number and the row of one step, after the last number."""
    kind = words.word("pol", "rup", *(["pbc"] if deeper else []))
    if kind == "pol":
        return last + 1, _sum(words, known)
    row = normal(words.sum(">="), (words.word(">="), words.number())[1])
    words.word(":")
    if kind == "rup":
        used = []
        while words.peek() != ";":
            used.append(negated(row) if words.peek() == "~" and words.word() else _row(words, known))
        words.word(";")
        if not refutes(used):
            raise Refused("propagation does not refute the opposite")
        return last + 1, row
    words.word("subproof")
    inside = known | {(last := last + 1): negated(row)}
    while words.peek() != "qed":
        last, found = _step(words, inside, last, deeper=False)
        inside[last] = found
    for each in ("qed", ":"):
        words.word(each)
    if not refutes([_row(words, inside)]):
        raise Refused("a subproof ends without a contradiction")
    words.word(";")
    return last + 1, row


def _sum(words: Words, known: dict[int, Row]) -> Row:
    """Return what a sequence of operations leaves."""
    stack = list[Row]()
    while (word := words.peek()) != ";":
        if word == "+":
            words.word()
            if len(stack) < 2:
                raise Refused("there are no two rows to add")
            stack.append(added(stack.pop(), stack.pop()))
        elif words.words[words.at + 1 : words.at + 2] == ["*"]:
            factor = words.number()
            words.word("*")
            if factor < 0 or not stack:
                raise Refused("a factor below 0, or of nothing")
            row = stack.pop()
            stack.append(normal([(factor * a, literal) for literal, a in row.terms.items()], factor * row.degree))
        else:
            stack.append(_row(words, known))
    words.word(";")
    if len(stack) != 1:
        raise Refused("a sequence leaves more or less than one row")
    return stack[0]


def _implies(row: Row, claim: Row) -> None:
    """Refuse a claim that adding literals, whose sums are at least 0, does not make of a row."""
    lost = sum(max(0, amount - claim.terms.get(literal, 0)) for literal, amount in row.terms.items())
    if row.degree - lost < claim.degree:
        raise Refused("the lower bound is not what is proven")
