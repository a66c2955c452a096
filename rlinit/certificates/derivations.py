"""Derivations of a bound from a program, as both formats of other people write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from rlinit.certificates.programs import Program
from rlinit.errors import InvalidPlan
from rlinit.files import MAX_BYTES

_TOO_LONG = "the proof takes more than {:,} bytes"

C = {0: 1}
"""The objective, as a row."""

Key = tuple[Any, ...]
"""A constraint: ("low" | "high", variable), ("one", group), ("row", row) or ("derived", place)."""


class Derivation(NamedTuple):
    """A constraint with its reason: "asm", an assumption; "lin" or "rnd", a sum, rounded up; "uns", of two cases.

    ``terms`` are constraints with whole multipliers, which prove ``of_c`` times the constraint, or a contradiction
    where that is 0; or pairs of what is proven in a case and its assumption. Of "rup" they are rows of binaries that
    propagate once each, in turn, from the opposite of a clause to one that cannot hold; their sum, rounded up, is it.
    """

    sense: str
    row: dict[int, int]
    side: int
    reason: str
    terms: list[Any]
    of_c: int = 0


class Derivations:
    """Derivations in turn, of which the last says ``C >= goal``.

    Parameters
    ----------
    program
        What all schedules satisfy.
    goal
        In units of C.
    """

    def __init__(self, program: Program, goal: int) -> None:
        self.program, self.goal, self.bytes = program, goal, 0
        self.derived: list[Derivation] = []
        self.rests = defaultdict[Key, frozenset[Key]](frozenset)  # assumptions that a constraint rests on

    def derive(self, sense: str, row: dict[int, int], side: int, reason: str, terms: list[Any], of_c: int = 0) -> Key:
        """Add a derivation; return what names it.

        Parameters
        ----------
        sense, row, side, reason, terms, of_c
            As a `Derivation` has them.

        Raises
        ------
        InvalidPlan
            They would take more than `MAX_BYTES`.
        """
        new = "derived", len(self.derived)
        rests = (self.rests[one] - {other} for one, other in terms)
        self.rests[new] = frozenset({new} if reason == "asm" else ()).union(*rests)
        self.derived.append(Derivation(sense, row, side, reason, terms, of_c))
        self.bytes += 40 + sum(len(str(each)) for each in terms)
        if self.bytes > MAX_BYTES:
            raise InvalidPlan(_TOO_LONG.format(MAX_BYTES))
        return new


def text_of(lines: Iterable[str]) -> str:
    """Return lines as one text.

    Raises
    ------
    InvalidPlan
        They take more than `MAX_BYTES`.
    """
    kept, size = list[str](), 0
    for line in lines:
        kept.append(f"{line}\n")
        size += len(line) + 1
        if size > MAX_BYTES:
            raise InvalidPlan(_TOO_LONG.format(MAX_BYTES))
    return "".join(kept)
