"""Mutated files in VIPR's and VeriPB's format: ``python -m tests.certificates.proof_attack --cases 10000 --seed 0``.

Each base is the file of a small random problem. A mutation changes, leaves out or exchanges words behind the program,
of what is proven, the solution and the derivations. What the tests' checkers accept all the same proves no more.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlinit
from tests.certificates import veripb_checker, vipr_checker
from tests.properties import fuzz

EACH = 200
"""Mutations of one file."""

REFUSED = (vipr_checker.Refused, veripb_checker.Refused)


class File(NamedTuple):
    """What is mutated, words that may stand in it, and what a checker says that it proves."""

    text: str
    words: tuple[str, ...]
    least: Callable[[str], Any]


def vipr_file(path: Path) -> File:
    """Return a file in VIPR's format, of which the program stays as it is."""
    head, _, tail = path.read_text().partition("RTP")
    words = ("lin", "uns", "asm", "rnd", "G", "L", "E", "{", "}", "inf", "0", "OBJ")
    return File(f"RTP{tail}", words, lambda text: vipr_checker.check(head + text).least)


def veripb_file(path: Path) -> File:
    """Return a proof in VeriPB's format, whose program is beside it."""
    program = path.with_suffix(".opb").read_text()
    words = ("pol", "rup", "pbc", "+", "*", "~", ";", ":", ">=", "subproof", "qed", "INF", "0", "-1", "C_0", "~C_0")
    return File(path.read_text(), words, lambda text: veripb_checker.check(program, text).least)


def mutated_proofs(file: File, count: int, seed: int) -> int:
    """Change words of an optimal plan's file, so often; return how many files are refused."""
    sound = file.least(file.text)
    words, rng, refused = re.split(r"(\s+)", file.text), np.random.default_rng(seed), 0
    for _ in range(count):
        bad, at = list(words), 2 * int(rng.integers((len(words) + 1) // 2))
        kind = rng.random()
        if kind < 0.15:
            del bad[at : at + 1 + int(rng.integers(2))]
        elif kind < 0.3:
            other = 2 * int(rng.integers((len(words) + 1) // 2))
            bad[at], bad[other] = bad[other], bad[at]
        elif bad[at].lstrip("+-").partition("/")[0].isdigit():
            value = Fraction(bad[at])
            bad[at] = str([value + 1, value - 1, -value, value * 2, value * Fraction(999, 1000)][int(rng.integers(5))])
        else:
            bad[at] = str(rng.choice(file.words))
        try:
            assert file.least("".join(bad)) <= sound, (at, words[at], bad[at])
        except REFUSED:
            refused += 1
    return refused


def files_of(number: int, seed: int, folder: Path) -> list[File]:
    """Return the files of a random problem whose plan is proven optimal, none where it is not."""
    case = fuzz.draw(number, seed)
    objective = case.options["objective"]
    if case.large or objective == "throughput":
        return []
    plan = rlinit.schedule(case.graph, case.hardware, objective=objective, time_limit_s=5.0)
    vipr, veripb = folder / "x.vipr", folder / "x.pbp"
    if plan.status != "optimal" or plan.certify_vipr(vipr, case.graph, case.hardware) < (plan.bound or 0.0) * 0.999:
        return []
    plan.certify_veripb(veripb, case.graph, case.hardware)
    return [vipr_file(vipr), veripb_file(veripb)]


def main() -> int:
    """Run from the command line; a proof of too much is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    done, refused = 0, {"VIPR": 0, "VeriPB": 0}
    for number in itertools.count():
        if done >= chosen.cases:
            break
        with tempfile.TemporaryDirectory() as folder:
            files = files_of(number, chosen.seed, Path(folder))
            for form, file in zip(refused, files, strict=bool(files)):
                refused[form] += mutated_proofs(file, EACH, number)
        done += EACH if files else 0
    for form, count in refused.items():
        print(f"{form}: of {done} mutated files {count} are refused; none of the others proves more than before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
