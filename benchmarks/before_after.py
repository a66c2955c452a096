"""`auto` of this checkout against `auto` of another one, on the ledger's portfolio.

Both sides solve the same problems with the same seeds, in turns within one run, each in a process of its own; limits
count seconds of the processor. A problem counts once, by the geometric mean over its seeds, of which one alone may
be lucky. Run as ``python -m benchmarks.before_after --other FOLDER --problem stages --seconds 1``
(or ``placements``, ``training``), where FOLDER holds the other commit (``git worktree add FOLDER COMMIT``).
Rows are kept as they come, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.protocol import compare
from benchmarks.portfolio import PORTFOLIO, Case, solve
from benchmarks.provenance import COMMIT, load_solvers
from benchmarks.record import RESULTS, count_processor_time, print_table, save

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("before", "after")


def chosen_cases(problem: str, families: list[str] | None, count: int, every: int) -> Iterator[tuple[str, int, Case]]:
    """Yield the problems that were asked for, by family and place in it."""
    for family in families or PORTFOLIO[problem]:
        for at, case in islice(enumerate(PORTFOLIO[problem][family]()), 0, count, every):
            yield family, at, case


def answer(problem: str, seconds: float, families: list[str] | None, count: int, every: int, seeds: int) -> None:
    """Solve the next problem for every line that is read, and write what was reached as JSON."""
    count_processor_time()
    for family, at, case in chosen_cases(problem, families, count, every):
        if sys.stdin.readline().strip() == "pass":
            continue
        try:
            solve(case, problem, min(seconds, 1.0))  # compiles
            runs = [solve(_seeded(case, seed), problem, seconds) for seed in range(seeds)]
            reached = {key: math.exp(fmean(math.log(run[key]) for run in runs)) for key in ("integral", "gap")}
            reached["proven"] = min(run["proven"] for run in runs)
        except Exception as error:
            reached = {"integral": 1.0, "gap": 1.0, "proven": 0.0}
            print(f"{family} {at}: {error!r}", file=sys.stderr)
        print(json.dumps(reached), flush=True)


def _seeded(case: Case, seed: int) -> Case:
    return replace(case, options={**case.options, "seed": seed})


@contextmanager
def _sides(other: Path, options: list[str]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start a process a side: the portfolio of this checkout, and the library of either."""
    with tempfile.TemporaryDirectory() as folder:
        workers = {}
        for side, library in zip(SIDES, (other, ROOT), strict=True):
            root = Path(folder, side)
            root.mkdir()
            (root / "rlinit").symlink_to(library / "rlinit")
            (root / "benchmarks").symlink_to(ROOT / "benchmarks")
            workers[side] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.before_after", "--answer", *options],
                cwd=root,
                env=dict(os.environ) | {"PYTHONPATH": str(root)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        try:
            yield workers
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()


def _ask(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{line}\n")
    worker.stdin.flush()


def _reached(worker: subprocess.Popen[str]) -> dict[str, float]:
    assert worker.stdout is not None
    while not (line := worker.stdout.readline()).startswith("{"):
        if not line:
            raise SystemExit("a side has ended; its error stands above")
    found: dict[str, float] = json.loads(line)
    return found


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, by family and for all, the ratios of after over before with their intervals, and the proofs."""
    found = []
    for family in [*dict.fromkeys(row["family"] for row in rows), "all"]:
        some = [row for row in rows if family in (row["family"], "all")]
        proofs = {f"proofs {side}": int(sum(row[side]["proven"] for row in some)) for side in SIDES}
        for measure in ("integral", "gap"):
            sides = ([row["after"][measure] for row in some], [row["before"][measure] for row in some])
            verdict = compare(family, measure, *sides)
            found.append(
                {
                    "family": family,
                    "problems": verdict.problems,
                    "measure": measure,
                    "ratio": verdict.ratio,
                    "from": verdict.low,
                    "to": verdict.high,
                    **proofs,
                }
            )
    return found


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=PORTFOLIO, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=8, help="problems of each family")
    parser.add_argument("--every", type=int, default=1, help="of those, every so many")
    parser.add_argument("--families", nargs="+", help="these; all")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each problem")
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--other", type=Path, help="folder of the checkout to compare with")
    side.add_argument("--answer", action="store_true", help="be one of the sides: solve a problem a line of input")
    chosen = parser.parse_args()
    asked = (chosen.problem, chosen.families, chosen.count, chosen.every)
    if chosen.answer:
        answer(chosen.problem, chosen.seconds, *asked[1:], chosen.seeds)
        return
    other = chosen.other.resolve()
    load_solvers()
    commit = subprocess.run(
        ["git", "-C", str(other), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    name = f"before_after_{chosen.problem}_{chosen.seconds:g}s"
    kept = RESULTS / f"{name}_{commit[:7]}_{COMMIT}.part"  # one problem a line
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["family"], row["at"]) for row in rows}
    options = [a for a in sys.argv[1:] if a not in ("--other", str(chosen.other))]
    with _sides(other, options) as workers:
        for turn, (family, at, case) in enumerate(chosen_cases(*asked)):
            if (family, at) in done:
                for worker in workers.values():
                    _ask(worker, "pass")
                continue
            row: dict[str, Any] = {"family": family, "at": at, "graph": case.graph.name, "ops": case.graph.num_ops}
            for name_of in SIDES if turn % 2 else SIDES[::-1]:
                _ask(workers[name_of], "solve")
                row[name_of] = _reached(workers[name_of])
            rows.append(row)
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(family, case.graph.name, *(f"{s} {row[s]['integral']:.4f}" for s in SIDES), flush=True)
    table = compared(rows)
    print_table(name, list(table[0]), (row.values() for row in table))
    seeds = tuple(range(chosen.seeds))
    save(name, table, seeds=seeds, seconds=chosen.seconds, count=chosen.count, before=commit, problems=rows)
    kept.unlink()


if __name__ == "__main__":
    main()
