"""Proofs of random problems in three formats: ``python -m tests.certificates.proof_attack --cases 10000 --seed 0``.

First the plans of small random problems, infeasible ones too, are certified in the own format, VIPR's and VeriPB's, and
read by the checkers of the formats; with ``--ops 12`` of problems of up to so many ops on up to four devices, whole
numbers and decimals, alike or not. Where `viprchk` is on the PATH, it reads each file in VIPR's format as well, and
must print the same range. Then files of the last two are mutated. A mutation changes, leaves out or exchanges
words behind the program, of what is proven, the solution and the derivations. A file that is accepted all the same may
claim less; a lower end above the sound one, or an upper end below, is a wrong claim, and an error.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlinit
from rlinit.certificates import certificate_of
from rlinit.hardware import Device, Hardware
from tests.certificates import attack, veripb_checker, vipr_checker
from tests.properties import fuzz

EACH = 200
"""Mutations of one file."""

VIPRCHK = shutil.which("viprchk")
"""The checker of the SCIP family, which is no package of this project."""

REFUSED = (vipr_checker.Refused, veripb_checker.Refused)


Claim = tuple[Fraction, Fraction | None]
"""Ends between which a file proves the optimum to be; no upper one where there is no schedule."""


class File(NamedTuple):
    """What is mutated, words that may stand in it, and what a checker says that it proves."""

    text: str
    words: tuple[str, ...]
    claim: Callable[[str], Claim]


def vipr_file(path: Path) -> File:
    """Return a file in VIPR's format, of which the program stays as it is."""
    head, _, tail = path.read_text().partition("RTP")
    words = ("lin", "uns", "asm", "rnd", "G", "L", "E", "{", "}", "inf", "0", "OBJ")

    def claim(text: str) -> Claim:
        found = vipr_checker.check(head + text)
        return found.least, None if found.most == "inf" else Fraction(found.most)

    return File(f"RTP{tail}", words, claim)


def veripb_file(path: Path) -> File:
    """Return a proof in VeriPB's format, whose program is beside it."""
    program = path.with_suffix(".opb").read_text()
    words = ("pol", "rup", "pbc", "+", "*", "~", ";", ":", ">=", "subproof", "qed", "INF", "0", "-1", "C_0", "~C_0")

    def claim(text: str) -> Claim:
        found = veripb_checker.check(program, text)
        return Fraction(found.least), None if found.most is None else Fraction(found.most)

    return File(path.read_text(), words, claim)


def mutated_proofs(file: File, count: int, seed: int) -> collections.Counter[str]:
    """Change words of an optimal or infeasible plan's file, so often; return what comes of the files.

    They are refused, claim the same, of them some in the same words, or claim less.
    """
    sound = file.claim(file.text)
    words, rng, found = re.split(r"(\s+)", file.text), np.random.default_rng(seed), collections.Counter[str]()
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
            least, most = file.claim("".join(bad))
        except REFUSED:
            found["refused"] += 1
            continue
        if sound[1] is not None:
            assert least <= sound[0], (at, words[at], bad[at])
            assert most is None or most >= sound[1], (at, words[at], bad[at])
        same = "in the same words" if bad == words else "the same in other words"
        found[same if (least, most) == sound else "less"] += 1
    return found


def drawn(number: int, seed: int, ops: int) -> fuzz.Case:
    """Return a random problem by its number, of half as many ops as are asked for at least."""
    rng = np.random.default_rng([seed, number, ops])
    n, d, digits, alike = (
        int(rng.integers(ops // 2, ops + 1)),
        int(rng.integers(2, 5)),
        3 * (number // 3 % 2),
        rng.random() < 0.4,
    )
    names = [f"d{i}" for i in range(d)]

    def amount() -> float:
        return 0.0 if rng.random() < 0.1 else round(float(rng.uniform(0.5, 20.5)), digits)

    def row() -> dict[str, Any]:
        times = [amount()] * d if alike else [amount() for _ in names]
        return {"time_s": dict(zip(names, times, strict=True)), "param_bytes": amount(), "out_bytes": amount()}

    rows = {f"v{v}": row() for v in range(n)}
    edges = [pair for pair in itertools.combinations(rows, 2) if rng.random() < 3 / n]
    cache = round(sum(row["param_bytes"] for row in rows.values()) * float(rng.random()) / d, digits)
    rates = np.full((d, d), 2.0) if alike else rng.choice([0.5, 2.0, 4.0], (d, d))
    hardware = Hardware(tuple(Device(name, cache_bytes=cache) for name in names), rates, np.zeros((d, d)), "drawn")
    objective = ("latency", "pipeline", "memory")[number % 3]
    return fuzz.Case(number, rlinit.Graph.build(list(rows.items()), edges), hardware, {"objective": objective})


def assert_viprchk_accepts(path: Path, claim: Claim) -> None:
    """Let viprchk read a file, if it is on the PATH; it must say that it proves what is claimed."""
    if VIPRCHK:
        printed = subprocess.run([VIPRCHK, path], capture_output=True, text=True, check=False, timeout=300).stdout
        least, most = claim
        wanted = f"Successfully verified optimal value range [{least}, {'inf)' if most is None else f'{most}]'}"
        assert wanted in printed, printed[-500:]


def certified(case: fuzz.Case, folder: Path) -> tuple[str, list[File], float]:
    """Return the objective, the files that two readers accept, and the seconds of one; no files of what is left out.

    Left out are large problems, plans without proof, and `throughput` with a schedule, which other formats do not have.
    """
    number, asked = (
        case.number,
        {key: case.options[key] for key in ("objective", "transfers", "resident", "inputs") if key in case.options},
    )
    if case.large:
        return "", [], 0.0
    plan = rlinit.schedule(case.graph, case.hardware, time_limit_s=5.0, **asked)
    if plan.status not in ("optimal", "infeasible") or (plan.objective == "throughput" and plan.values is not None):
        return "", [], 0.0
    proof = certificate_of(plan, case.graph, case.hardware)
    data = (plan.to_dict(), case.graph.to_dict(), case.hardware.to_dict(), proof)
    told = attack.verdict(dict(zip(attack.FILES, data, strict=True)))
    assert told.startswith("VERIFIED (exact)" if case.graph.num_ops < 6 else "VERIFIED"), (number, told)
    assert told.endswith(("optimal", "infeasible")), (number, told)
    vipr, veripb = folder / "x.vipr", folder / "x.pbp"
    began = time.perf_counter()
    bound = plan.certify_vipr(vipr, case.graph, case.hardware)
    seconds = time.perf_counter() - began
    assert plan.certify_veripb(veripb, case.graph, case.hardware) == bound, number
    found = [vipr_file(vipr), veripb_file(veripb)]
    one, other = (file.claim(file.text) for file in found)
    assert one == other, (number, one, other)
    assert_viprchk_accepts(vipr, one)
    optimal = one[1] is None or one[0] == one[1] or bound >= (plan.values or (0.0,))[0] * (1 - 1e-8)
    what = "infeasible" if plan.values is None else plan.objective
    return what if optimal else f"{what}, less than the optimum", found, seconds


def main() -> int:
    """Run from the command line; a proof that is refused, or of too much, is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--ops", type=int, default=0, help="of problems drawn; 0: those of tests.properties.fuzz")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    answers, spent, sizes = collections.Counter[str](), list[float](), list[list[int]]()
    mutated = {"VIPR": collections.Counter[str](), "VeriPB": collections.Counter[str]()}
    for number in itertools.count():
        done = EACH * len(spent)
        if done >= chosen.cases and len(spent) >= chosen.problems:
            break
        with tempfile.TemporaryDirectory() as folder:
            case = drawn(number, chosen.seed, chosen.ops) if chosen.ops else fuzz.draw(number, chosen.seed)
            what, files, seconds = certified(case, Path(folder))
            if files:
                answers[what] += 1
                spent.append(seconds)
                sizes.append([len(file.text) for file in files])
            for tally, file in zip(mutated.values(), files if done < chosen.cases else (), strict=False):
                tally += mutated_proofs(file, EACH, number)
    print(f"{len(spent)} problems, three proofs each, all accepted: {dict(answers)}")
    print(
        f"viprchk read {len(spent) if VIPRCHK else 'no'} files in VIPR's format{'' if VIPRCHK else ': not on the PATH'}"
    )
    print(f"one in VIPR's format: median {np.median(spent):.2f} s, most {max(spent):.2f} s")
    for form, each in zip(mutated, zip(*sizes, strict=True), strict=True):
        print(f"{form}, without its program: median {np.median(each):,.0f} bytes, most {max(each):,}")
    for form, tally in mutated.items():
        print(f"{form}: {tally.total()} mutated files: {dict(tally)}; none claims anything wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
