"""Writes the proof of a bound in VIPR's format 1.0, which tools such as viprchk check.

The format: Cheung, Gleixner, Steffy, Verifying Integer Programming Results, IPCO 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from rlinit.certificates.derivations import C, Derivations, Key, text_of
from rlinit.certificates.proof import prove
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan


def write_vipr(path: str | Path, plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float = 60.0) -> float:
    """Write a proof of a lower bound in VIPR's format; return the bound that it proves, which may be below the plan's.

    Parameters
    ----------
    path
        The file, which ``viprchk FILE`` reads.
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
        Nothing is proven of the plan, as `prove` says, or the file would be too long; the message says why.
    """
    proof, solution, proven, about = prove(plan, graph, hardware, time_limit_s)
    write_atomically(path, text_of(vipr_lines(proof, about, solution)))
    return float(proven)


def vipr_lines(proof: Derivations, about: list[str], solution: dict[int, Fraction]) -> Iterator[str]:
    """Yield the lines of the file.

    Parameters
    ----------
    proof
        With what it is of.
    about
        Comments, which come first.
    solution
        Variables of a solution that are not 0, and C; none is written where there is nothing.
    """
    program = proof.program
    bounds = [("low", at) for at in range(len(program.names))]
    grouped = {at for group in program.groups for at in group}
    bounds += [("high", at) for at, binary in program.binary.items() if binary and at not in grouped]
    others = [("one", g) for g in range(len(program.groups))] + [("row", r) for r in range(len(program.rows))]
    index: dict[Key, int] = {key: place for place, key in enumerate([*bounds, *others])}
    whole = [at for at, binary in program.binary.items() if binary or at == 0]
    yield from (f"% {line}" for line in about)
    yield from ("VER 1.0", f"VAR {len(program.names)}", *program.names)
    yield from (
        f"INT {len(whole)}",
        " ".join(map(str, whole)),
        "OBJ min",
        "1 0 1",
        f"CON {len(index)} {len(bounds)}",
    )
    for side, at in bounds:
        yield f"{side}_{program.names[at]} {'GL'[side == 'high']} {int(side == 'high')} 1 {at} 1"
    yield from (f"one_{g} E 1 {_pairs(dict.fromkeys(group, 1))}" for g, group in enumerate(program.groups))
    yield from (f"{name} G {side} {_pairs(row)}" for name, row, side in program.rows)
    yield f"RTP range {proof.goal} {solution.get(0, 'inf')}"
    yield from (f"SOL {int(0 in solution)}", *([f"plan {_pairs(solution)}"] if solution else []))
    yield f"DER {len(proof.derived)}"
    index |= {("derived", place): len(index) + place for place in range(len(proof.derived))}
    for place, (sense, row, least, reason, terms, of_c) in enumerate(proof.derived):
        told = ["rnd" if reason == "rup" else reason]
        if reason == "uns":
            told += [str(index[key]) for pair in terms for key in pair]
        elif reason != "asm":
            told.append(_pairs({index[key]: Fraction(weight, of_c or 1) for key, weight in terms}))
        yield f"d{place} {sense} {least} {'OBJ' if row == C else _pairs(row)} {{ {' '.join(told)} }} -1"


def _pairs(row: Any) -> str:
    """Return coefficients as the format has them: how many, and places and values in turn."""
    return " ".join([str(len(row)), *(f"{at} {amount}" for at, amount in row.items())])
