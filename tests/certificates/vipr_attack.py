"""Mutated files in VIPR's format: ``python -m tests.certificates.vipr_attack --cases 10000 --seed 0``.

Each base is the file of a small random problem. A mutation changes, leaves out or exchanges words behind the program,
of what is proven, the solution and the derivations. What the tests' checker accepts all the same proves no more.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np

import rlinit
from tests.certificates import vipr_checker
from tests.properties import fuzz

EACH = 200
"""Mutations of one file."""


def mutated_proofs(text: str, count: int, seed: int) -> int:
    """Change words behind the program of an optimal plan's file, so often; return how many files are refused."""
    sound = vipr_checker.check(text)
    head, _, tail = text.partition("RTP")
    words, rng, refused = re.split(r"(\s+)", "RTP" + tail), np.random.default_rng(seed), 0
    for _ in range(count):
        bad, at = list(words), 2 * int(rng.integers((len(words) + 1) // 2))
        kind = rng.random()
        if kind < 0.15:
            del bad[at : at + 1 + int(rng.integers(2))]
        elif kind < 0.3:
            other = 2 * int(rng.integers((len(words) + 1) // 2))
            bad[at], bad[other] = bad[other], bad[at]
        elif bad[at].lstrip("-").partition("/")[0].isdigit():
            value = Fraction(bad[at])
            bad[at] = str([value + 1, value - 1, -value, value * 2, value * Fraction(999, 1000)][int(rng.integers(5))])
        else:
            bad[at] = str(rng.choice(["lin", "uns", "asm", "rnd", "G", "L", "E", "{", "}", "inf", "0", "OBJ"]))
        try:
            assert vipr_checker.check(f"{head}{''.join(bad)}").least <= sound.least, (at, words[at], bad[at])
        except vipr_checker.Refused:
            refused += 1
    return refused


def text_of(number: int, seed: int) -> str:
    """Return the file of a random problem whose plan is proven optimal, "" where there is none."""
    case = fuzz.draw(number, seed)
    objective = case.options["objective"]
    if case.large or objective == "throughput":
        return ""
    plan = rlinit.schedule(case.graph, case.hardware, objective=objective, time_limit_s=5.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.vipr"
        if plan.status != "optimal" or plan.certify_vipr(path, case.graph, case.hardware) < (plan.bound or 0.0) * 0.999:
            return ""
        return path.read_text()


def main() -> int:
    """Run from the command line; a proof of too much is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    done = refused = 0
    for number in itertools.count():
        if done >= chosen.cases:
            break
        if text := text_of(number, chosen.seed):
            refused += mutated_proofs(text, EACH, number)
            done += EACH
    print(f"{done} mutated files: {refused} refused; none of the others proves more than the file that it was")
    return 0


if __name__ == "__main__":
    sys.exit(main())
