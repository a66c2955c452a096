"""Writes the proof of a bound in VeriPB's format 3.0, beside the program in the format of pseudo-Boolean problems, OPB.

Numbers are sums of bits, as many as the plan's own value takes, for neither a start nor what a stage costs is above C.
The bound is proven by contradiction (``pbc``): with C below it, every leaf of the tree is a sum of rows (``pol``) that
its assumptions leave no point of, and every split is by propagation (``rup``) from its two cases.

The format: https://veripb.org/overview.html.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from rlinit.certificates.derivations import C, Derivations, Key, text_of
from rlinit.certificates.proof import Proven, prove
from rlinit.errors import InvalidPlan
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan


def write_veripb(path: str | Path, plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float = 60.0) -> float:
    """Write a program and a proof of a lower bound in VeriPB's formats; return the bound, as `write_vipr` does.

    Parameters
    ----------
    path
        The proof, which ends in ``.pbp``; the program is written beside it, with the ending ``.opb``. ``veripb x.opb
        x.pbp`` reads both.
    plan
        A plan with a schedule, or one that is infeasible, as `verify` accepts it.
    graph, hardware
        What the plan is for.
    time_limit_s
        Of the search for a tree. Where it ends first, the file proves what one linear program says.

    Returns
    -------
    float
        Seconds, or for `memory` bytes of the largest stage; inf where there is no schedule.

    Raises
    ------
    InvalidPlan
        The path does not end in ``.pbp``; nothing is proven of the plan, as `prove` says; its times
        are whole numbers in no unit; or a file would be too long. The message says which.
    """
    target = Path(path)
    if target.suffix != ".pbp":
        raise InvalidPlan(f"{target} does not end in .pbp, as proofs for VeriPB do")
    proven = prove(plan, graph, hardware, time_limit_s)
    program, derivations = veripb_texts(proven)
    write_atomically(target.with_suffix(".opb"), program)
    write_atomically(target, derivations)
    return float(proven.value)


def veripb_texts(proven: Proven) -> tuple[str, str]:
    """Return the texts of a program and its proof.

    Parameters
    ----------
    proven
        What is proven of a plan.

    Raises
    ------
    InvalidPlan
        Times are whole numbers in no unit, or a text is too long.
    """
    if any(value.denominator > 1 for value in proven.solution.values()):
        raise InvalidPlan("times are whole numbers in no unit that is short enough for VeriPB")
    bits = Bits(proven.proof, max(1, int(proven.solution.get(0, 1)).bit_length()))
    return text_of(bits.program(proven.about)), text_of(bits.derivations(proven.solution))


class Bits:
    """A proof and its program over variables that are 0 or 1.

    Parameters
    ----------
    proof
        A tree of linear programs.
    width
        Bits of each number.
    """

    def __init__(self, proof: Derivations, width: int) -> None:
        self.proof, self.names = proof, list[list[str]]()
        used = {0}.union(*proof.program.groups, *(row for _, row, _ in proof.program.rows))
        for at, name in enumerate(proof.program.names):
            bits = range(width) if at in used else ()
            self.names.append([name] if at in used and proof.program.binary[at] else [f"{name}_{bit}" for bit in bits])
        self.index: dict[Key, int] = {}
        for g in range(len(proof.program.groups)):  # an equation counts as two rows
            self.index |= {("one", g): 2 * g + 1, ("one", g, -1): 2 * g + 2}
        for r in range(len(proof.program.rows)):
            self.index["row", r] = 2 * len(proof.program.groups) + r + 1

    def _sum(self, row: Any) -> str:
        """Return a sum over bits."""
        bits = ((amount << bit, name) for at, amount in row.items() for bit, name in enumerate(self.names[at]))
        return " ".join(f"{amount:+d} {name}" for amount, name in bits)

    def program(self, about: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the program.

        Parameters
        ----------
        about
            Comments.
        """
        program = self.proof.program
        count = len(program.groups) + len(program.rows)
        yield f"* #variable= {sum(map(len, self.names))} #constraint= {count}"
        yield from (f"* {line}" for line in about)
        yield f"min: {self._sum(C)} ;"
        yield from (f"{self._sum(dict.fromkeys(group, 1))} = 1 ;" for group in program.groups)
        yield from (f"{self._sum(row)} >= {side} ;" for _, row, side in program.rows)

    def derivations(self, solution: dict[int, Fraction]) -> Iterator[str]:
        """Yield the lines of the proof.

        Parameters
        ----------
        solution
            Variables of the plan that are not 0, whole numbers.
        """
        below = last = len(self.index) + 1  # C < goal
        yield from ("pseudo-Boolean proof version 3.0", f"f {len(self.index)} ;")
        yield f"pbc {self._sum(C)} >= {self.proof.goal} : subproof"
        numbers, literals = dict[Key, int](), dict[Key, str]()  # of rows, and of what is opposite to assumptions
        for place, (_, row, side, reason, terms, of_c) in enumerate(self.proof.derived):
            key = "derived", place
            if reason == "asm" and row == C:  # C < goal; the other case, C >= goal, is what is refuted
                numbers[key] = below
            elif reason == "asm":
                literals[key] = f"+1 {'~' * side}{self.names[next(iter(row))][0]} "
            if reason == "asm" or (reason == "uns" and terms[0][1] in numbers):
                continue
            numbers[key] = last = last + 1
            if reason in ("uns", "rup"):
                clause = [literals[each] for each in sorted(self.proof.rests[key] & literals.keys())]
                clause += [f"+1 {'~' * (amount < 0)}{self.names[at][0]} " for at, amount in row.items() if at]
                hints = [str(numbers[each]) for each, _ in terms if each in numbers]
                yield f"rup {''.join(clause)}>= 1 : ~ {' '.join(hints)} ;"
            else:
                rows = [(below, of_c if row == C else 0)]
                rows += [(numbers.get(each) or self._number(each, weight), abs(weight)) for each, weight in terms]
                summed = [f"{number} {weight} *" for number, weight in rows if number and weight]
                yield f"pol {' '.join([summed[0], *(f'{each} +' for each in summed[1:])])} ;"
        yield f"qed : {last} ;"
        values = {at: int(amount) for at, amount in solution.items()}
        bits = (
            (name, values.get(at, 0) >> bit & 1)
            for at, names in enumerate(self.names)
            for bit, name in enumerate(names)
        )
        told = " ".join("~" * (1 - value) + name for name, value in bits)
        most = f"{values[0]} : {told}" if values else "INF"
        yield from ("output NONE ;", f"conclusion BOUNDS {self.proof.goal} : {last + 1} {most} ;")
        yield "end pseudo-Boolean proof ;"

    def _number(self, key: Key, weight: int) -> int:
        """Return the number of a row, 0 where it says no more than the bits."""
        return self.index.get((*key, -1) if key[0] == "one" and weight < 0 else key, 0)
