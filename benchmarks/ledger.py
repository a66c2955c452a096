"""What each mechanism earns: `auto` as it is, and without each of its mechanisms in turn, on one portfolio of problems.

All sides solve the same problem with the same seed, in turns within one run, and limits count seconds of the processor,
which other work on the machine does not lengthen (other packages' solvers look at the wall clock). A mechanism is left
out only where it ran. Its verdict is the paired ratio, with it over without it, of the primal-dual integral and of the
final gap, and the proofs that are lost without it. Run as ``python -m benchmarks.ledger --problem PROBLEM --seconds 1``
with stages, placements, training, groups or language-models; rows are kept as they come, and a run that was broken off
goes on.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

from benchmarks.learning.protocol import compare
from benchmarks.portfolio import PORTFOLIO, Case, Earned, Side, judge, solve
from benchmarks.provenance import COMMIT
from benchmarks.record import RESULTS, count_processor_time, print_table, save
from rlinit.budget import Budget
from rlinit.heuristics.placements.local_search import search as local_search
from rlinit.solving import placement_phases
from rlinit.solving.activations import ACTIVATION_METHODS, INTERLEAVED_METHODS, TRAINING_METHODS
from rlinit.solving.groups import GROUP_METHODS
from rlinit.solving.phases import Phase
from rlinit.solving.placement_strategies import PLACEMENT_METHODS
from rlinit.solving.splits import SPLIT_METHODS
from rlinit.solving.stage_strategies import STAGE_METHODS

_METHODS: dict[str, tuple[dict[str, Any], ...]] = {
    "stages": (STAGE_METHODS, SPLIT_METHODS, ACTIVATION_METHODS),
    "training": (TRAINING_METHODS, INTERLEAVED_METHODS, STAGE_METHODS, SPLIT_METHODS),
    "placements": (PLACEMENT_METHODS,),
    "groups": (GROUP_METHODS, STAGE_METHODS),
}
"""Tables of phases: for training, its own and those of what it is without activations."""


def _start(name: str) -> Side:
    return lambda: patch.object(placement_phases, "_STARTS", tuple(s for s in placement_phases._STARTS if s != name))


def _way(name: str) -> Side:
    """Return what puts windows in the place of one way of the local search."""
    return lambda: patch.object(local_search._Search, name, local_search._Search._windows)


_PARTS: dict[str, tuple[str, Side, Callable[[Case], bool]]] = {
    **{f"start {name}": ("coarse schedule", _start(name), lambda _: True) for name in placement_phases._STARTS},
    "search along critical paths": ("local search", _way("_critical_paths"), lambda case: "inputs" not in case.options),
    "search under contention": (
        "local search", _way("_under_contention"), lambda case: case.options.get("transfers", "parallel") != "parallel"
    ),
}  # fmt: skip
"""Mechanisms inside phases of placements: by name the phase, what leaves it out, and on which problems it has a say."""


@contextmanager
def _strategy(problem: str, change: Callable[[Sequence[Phase[Any]]], Sequence[Phase[Any]]]) -> Iterator[None]:
    """Exchange the phases of `auto`."""
    with ExitStack() as changed:
        for methods in _METHODS[problem]:
            changed.enter_context(patch.dict(methods, {"auto": tuple(change(methods["auto"]))}))
        yield


def _noting(earned: Earned) -> Callable[[Sequence[Phase[Any]]], Sequence[Phase[Any]]]:
    """Return what makes phases note seconds, relative gains of value and bound, and 1 where they close the gap."""

    def noting(phase: Phase[Any]) -> Phase[Any]:
        def run(search: Any) -> object:
            incumbent, clock = search.incumbent, Budget()
            value, bound = incumbent.values, incumbent.bounds
            result = phase.run(search)
            row = earned.setdefault(phase.name, {"seconds": 0.0, "value": 0.0, "bound": 0.0, "closed": 0.0})
            row["seconds"] += clock.elapsed_s
            row["closed"] += incumbent.closed
            if value and incumbent.values and value[0] > 0:
                row["value"] += 1 - incumbent.values[0] / value[0]
            if incumbent.bounds and incumbent.bounds[0] > 0:
                row["bound"] += 1 - (bound[0] if bound else 0.0) / incumbent.bounds[0]
            return result

        return replace(phase, run=run)

    return lambda phases: [noting(phase) for phase in phases]


def judge_problem(problem: str, case: Case, seconds: float, only: Sequence[str]) -> dict[str, Any]:
    """Return what phases earn on a problem, and what is reached with and without each mechanism that ran."""

    def leave_out(name: str) -> AbstractContextManager[object]:
        return _strategy(problem, lambda phases: [phase for phase in phases if phase.name != name])

    def sides(ran: Sequence[str]) -> dict[str, Side]:
        parts = _PARTS.items() if problem == "placements" else ()
        return {name: partial(leave_out, name) for name in ran} | {
            name: side for name, (phase, side, concerns) in parts if phase in ran and concerns(case)
        }

    def noting(earned: Earned) -> AbstractContextManager[object]:
        return _strategy(problem, _noting(earned))

    judged = judge(partial(solve, case, problem, seconds), noting, sides, only)
    return {"graph": case.graph.name, "ops": case.graph.num_ops} | judged


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, by mechanism and family, the paired ratios with it over without it, and the proofs only it makes."""
    found = []
    for name in sorted({name for row in rows for name in row["without"]}):
        mine = [row for row in rows if name in row["without"]]
        for family in [*dict.fromkeys(row["family"] for row in mine), "all"]:
            some = [row for row in mine if family in (row["family"], "all")]
            proofs = sum(row["whole"]["proven"] - row["without"][name]["proven"] for row in some)
            for measure in ("integral", "gap"):
                sides = ([row["whole"][measure] for row in some], [row["without"][name][measure] for row in some])
                row = {"mechanism": name} | asdict(compare(family, measure, *sides)) | {"proofs": int(proofs)}
                found.append(row | {"verdict": "earns" if row["high"] < 1 else "costs" if row["low"] > 1 else "open"})
    return found


def summary(rows: list[dict[str, Any]], judged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row a mechanism: what it earned where it ran, and the families that are worse or better without it."""
    found = []
    for name in dict.fromkeys(one["mechanism"] for one in judged):
        mine = [one for one in judged if one["mechanism"] == name]
        whole = {one["measure"]: one for one in mine if one["family"] == "all"}
        ran = [row["earned"][name] for row in rows if name in row["earned"]]
        totals: dict[str, float] = defaultdict(float)
        for row in ran:
            for key, amount in row.items():
                totals[key] += amount
        found.append(
            {
                "mechanism": name,
                "problems": whole["integral"]["problems"],
                **{key: totals[key] / len(ran) if ran else None for key in ("seconds", "value", "bound")},
                "closed": totals["closed"],
                "integral": whole["integral"]["ratio"],
                "from": whole["integral"]["low"],
                "to": whole["integral"]["high"],
                "gap": whole["gap"]["ratio"],
                "proofs": whole["gap"]["proofs"],
                "earns": ", ".join(
                    sorted({o["family"] for o in mine if o["verdict"] == "earns" and o["problems"] > 2})
                ),
                "costs": ", ".join(
                    sorted({o["family"] for o in mine if o["verdict"] == "costs" and o["problems"] > 2})
                ),
            }
        )
    return found


def main() -> None:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=(*PORTFOLIO, "language-models"), required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=8, help="problems of each family")
    parser.add_argument("--every", type=int, default=1, help="of those, every so many")
    parser.add_argument("--families", nargs="+", help="these; all")
    parser.add_argument("--only", nargs="+", default=[], help="leave these mechanisms out; all")
    chosen = parser.parse_args()
    count_processor_time()
    families: Mapping[str, Callable[[], Iterator[Any]]]
    judge: Callable[[Any, float, Sequence[str]], dict[str, Any]]
    if chosen.problem == "language-models":
        from benchmarks.families.language_ledger import LANGUAGE_MODELS, judge_language_case

        families, judge = LANGUAGE_MODELS, judge_language_case
    else:
        families, judge = PORTFOLIO[chosen.problem], partial(judge_problem, chosen.problem)
    name = f"ledger_{chosen.problem}_{chosen.seconds:g}s"
    kept = RESULTS / f"{name}_{COMMIT}.part"  # one problem a line
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    rows = list(done)
    for family in chosen.families or families:
        cases: Iterator[Any] = families[family]()
        for at, case in islice(enumerate(cases), 0, chosen.count, chosen.every):
            if any((row["family"], row["at"]) == (family, at) for row in done):
                continue
            row = {"family": family, "at": at} | judge(case, chosen.seconds, chosen.only)
            rows.append(row)
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(family, row["graph"], row["ops"], row["whole"], flush=True)
    judged = verdicts(rows)
    table = summary(rows, judged)
    print_table(name, list(table[0]) if table else ["no phase ran"], (row.values() for row in table))
    save(name, table, seconds=chosen.seconds, count=chosen.count, families=judged)
    kept.unlink()


if __name__ == "__main__":
    main()
