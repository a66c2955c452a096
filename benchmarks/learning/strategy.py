"""`auto` with a learned part and without it, or with another in its place, on problems that it was not trained on.

All sides solve the same problem, in turns within one run; the order changes from problem to problem. Limits count
seconds of the processor, which other work on the machine does not lengthen (other packages' solvers look at the wall
clock). Run as ``python -m benchmarks.learning.strategy QUESTION [--seconds S] [--count N]``.

==============  ==================================================================================================
question        sides
==============  ==================================================================================================
flow            the dual ascent among the phases for `latency`, and without it
opening         a schedule by quick heuristics before the bound by loads, and after it
first-search    a short local search before the bound by loads, and none before it
first-beam      on unlike stages a short beam before the bounds, and none until they are done
latency-agent   the shipped agent; none; its decoders with a network that says nothing; no looking ahead;
                the agent after the loads, and no search before them
stage-agent     the shipped agent or another, asked after few ideals; none; its decoders with a network that says
                nothing
==============  ==================================================================================================
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import rlinit
from benchmarks.learning.families import FAMILIES, OTHER_RULES, Case
from benchmarks.learning.protocol import compare, primal_dual_integral, print_comparisons
from benchmarks.record import save
from rlinit.agent.latency_selection import LatencyChoice, choose_for_latency, load_latency_agent
from rlinit.agent.network.checkpoint import Checkpoint, load_checkpoint, shipped
from rlinit.agent.placements.agent import LatencyAgent
from rlinit.agent.selection import StageChoice, choose_for_stages, load_stage_agent
from rlinit.agent.stages.agent import OneShotStageAgent
from rlinit.solving import placement_phases, stage_phases
from rlinit.solving.phases import Phase
from rlinit.solving.placement_strategies import PLACEMENT_METHODS
from rlinit.solving.stage_phases import StageSearch
from rlinit.solving.stage_strategies import STAGE_METHODS

Side = Callable[[], AbstractContextManager[object]]
History = list[tuple[float, float | None, float | None]]

LEAST = 1e-4
"""Integrals below this count as this: a problem that all sides close at once says nothing."""

MOMENTS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Seconds at which values are compared."""


@contextmanager
def without_phase(name: str) -> Iterator[None]:
    """Leave a phase of `auto` for `latency` out."""
    whole = PLACEMENT_METHODS["auto"]
    with patch.dict(PLACEMENT_METHODS, {"auto": tuple(phase for phase in whole if phase.name != name)}):
        yield


def silenced(name: str) -> Checkpoint:
    """Return a shipped checkpoint with its last layers set to zero: what an untrained one proposes."""
    path = shipped(name)
    assert path is not None
    whole = load_checkpoint(path)
    arrays = {key: array * np.float32(not _is_last(key)) for key, array in whole.arrays.items()}
    return Checkpoint(arrays, whole.card)


def _is_last(key: str) -> bool:
    return key in ("key_out.weight", "key_out.bias", "devices.out.weight", "devices.out.bias")


def _latency_side(change: Callable[[LatencyChoice], LatencyChoice]) -> Side:
    """Return the side on which another choice of an agent is made."""
    return lambda: patch.object(
        placement_phases, "choose_for_latency", lambda p, name: change(choose_for_latency(p, name))
    )


@contextmanager
def asked(change: Callable[[StageChoice], StageChoice] = lambda choice: choice) -> Iterator[None]:
    """Ask the stage agent in `auto` after few ideals, on graphs like real networks."""

    def ask(search: StageSearch) -> None:
        if change(choose_for_stages(search.incumbent.problem, "auto")).agent is not None:
            stage_phases.agent_alone(search)

    whole = list(STAGE_METHODS["auto"])
    place = 1 + [phase.name for phase in whole].index("few ideals")
    whole.insert(place, Phase("learned agent", ask))
    with (
        patch.dict(STAGE_METHODS, {"auto": tuple(whole)}),
        patch.object(stage_phases, "choose_for_stages", lambda p, name: change(choose_for_stages(p, name))),
    ):
        yield


def _with_agent(kind: str, path: Path) -> Side:
    """Return the side on which a checkpoint of a path is asked."""
    if kind == "latency":
        placer = load_latency_agent(path)
        return _latency_side(lambda choice: replace(choice, agent=choice.agent and placer))
    agent = StageChoice(load_stage_agent(path), 16, "named")
    return lambda: asked(lambda _: agent)


def _untrained_latency(choice: LatencyChoice) -> LatencyChoice:
    return replace(choice, agent=choice.agent and LatencyAgent(silenced("latency")))


def _untrained_stages(choice: StageChoice) -> StageChoice:
    return replace(choice, agent=choice.agent and OneShotStageAgent(silenced("stages")))


def _no_lookahead() -> AbstractContextManager[object]:
    def nothing(arrays: Any, *_: object) -> tuple[float, Any, Any]:
        ops = int(arrays.ptr[-1])
        return np.inf, np.zeros(ops, np.int64), np.zeros(ops)

    return patch("rlinit.agent.placements.agent.play_ahead", nothing)


@contextmanager
def loads_first() -> Iterator[None]:
    """Compute the loads of devices before the first schedule is made."""
    whole = PLACEMENT_METHODS["auto"]
    loads = next(phase for phase in whole if phase.name == "bound load")
    with patch.dict(PLACEMENT_METHODS, {"auto": (loads, *(phase for phase in whole if phase is not loads))}):
        yield


@contextmanager
def agent_after_loads() -> Iterator[None]:
    """Ask the agent once loads are computed, without a search between."""
    whole = [phase for phase in PLACEMENT_METHODS["auto"] if phase.name != "first search"]
    at = [phase.name for phase in whole].index("learned agent")
    whole[at : at + 2] = [whole[at + 1], whole[at]]
    with patch.dict(PLACEMENT_METHODS, {"auto": tuple(whole)}):
        yield


@contextmanager
def bounds_first() -> Iterator[None]:
    """Slice to the end and bound before any beam."""
    phases = [phase for phase in STAGE_METHODS["auto"] if phase.name != "first beam"]
    whole = [replace(phase, share=1.0) if phase.name == "coarse schedule" else phase for phase in phases]
    with patch.dict(STAGE_METHODS, {"auto": tuple(whole)}):
        yield


QUESTIONS: dict[str, tuple[str, dict[str, Side]]] = {
    "flow": ("latency", {"with": nullcontext, "without": lambda: without_phase("bound flow")}),
    "opening": ("latency", {"schedule first": nullcontext, "loads first": loads_first}),
    "first-search": ("latency", {"first search": nullcontext, "none": lambda: without_phase("first search")}),
    "first-beam": ("stages", {"first beam": nullcontext, "bounds first": bounds_first}),
    "latency-agent": (
        "latency",
        {
            "agent": nullcontext,
            "none": _latency_side(lambda choice: replace(choice, agent=None)),
            "untrained": _latency_side(_untrained_latency),
            "no look-ahead": _no_lookahead,
            "after loads": agent_after_loads,
        },
    ),
    "stage-agent": (
        "stages",
        {
            "agent": asked,
            "none": nullcontext,
            "untrained": lambda: asked(_untrained_stages),
        },
    ),
}
"""Kind of problem and sides by question; the first side is held against each of the others."""

ASKED = {"latency-agent": "agent", "stage-agent": "agent", "first-beam": "first beam"}
"""Phase, as `Plan.phase_s` names it, without which a problem says nothing about a question."""


def run(case: Case, side: Side, objective: str, seconds: float) -> tuple[History, dict[str, float]]:
    """Return the history of one side on the processor's clock, and the seconds of its phases."""
    with side():
        told: dict[str, Any] = {"objective": objective} | dict(case.options)
        plan = rlinit.schedule(case.graph, case.hardware, time_limit_s=seconds, **told)
    history = [
        (one.time_s, one.values[0] if one.values else None, one.bounds[0] if one.bounds else None)
        for one in plan.history
    ]
    return history, dict(plan.phase_s)


def value_at(history: History, moment: float) -> float | None:
    """Return the value at a moment, None where there is none yet."""
    found = [value for time_s, value, _ in history if value is not None and time_s <= moment]
    return min(found) if found else None


def measures(histories: dict[str, History], seconds: float) -> dict[str, dict[str, float]]:
    """Return, by side, the integrals, and the values at some moments over the best of all sides."""
    best = min((v for h in histories.values() for _, v, _ in h if v is not None), default=0.0)
    found: dict[str, dict[str, float]] = {}
    for name, history in histories.items():
        found[name] = {
            "primal-dual integral": max(LEAST, primal_dual_integral(history, seconds)),
            "primal integral": max(LEAST, primal_dual_integral(history, seconds, best=best)),
        }
        for moment in MOMENTS:
            value = value_at(history, moment)
            if moment <= seconds and value is not None and best > 0:
                found[name][f"value at {moment:g} s"] = value / best
    return found


def measured(case: Case, sides: dict[str, Side], objective: str, seconds: float, at: int) -> dict[str, Any]:
    """Return what all sides reach on a problem, the first of them `at` places on, and the phases of the first side."""
    names = list(sides)
    ran = {
        name: run(case, sides[name], objective, seconds) for name in names[at % len(names) :] + names[: at % len(names)]
    }
    row: dict[str, Any] = {"graph": case.graph.name, "hardware": case.hardware.name, "ops": case.graph.num_ops}
    row["phases"] = sorted(ran[names[0]][1])
    return row | measures({name: ran[name][0] for name in names}, seconds)


def judge(rows: list[dict[str, Any]], sides: list[str]) -> list[dict[str, Any]]:
    """Return the comparisons of the first side with each other one, by family and over all."""
    found = []
    for rival in sides[1:]:
        for measure in dict.fromkeys(key for row in rows for key in row[sides[0]]):
            for family in [*dict.fromkeys(row["family"] for row in rows), "all"]:
                mine = [row for row in rows if family in (row["family"], "all")]
                mine = [row for row in mine if measure in row[sides[0]] and measure in row[rival]]
                if mine:
                    ours, theirs = ([row[side][measure] for row in mine] for side in (sides[0], rival))
                    found.append(compare(family, f"{measure}, {sides[0]} / {rival}", ours, theirs))
    print_comparisons("; ".join(sides), found)
    return [asdict(one) for one in found]


def main() -> None:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=5, help="problems of each family")
    parser.add_argument("--families", nargs="+", help="these; all of the question, but those by other rules")
    parser.add_argument("--rivals", nargs="+", help="sides to hold the first against; all")
    parser.add_argument("--agent", type=Path, help="a checkpoint to ask in place of the shipped one")
    chosen = parser.parse_args()
    time.monotonic = time.perf_counter = time.process_time
    kind, known = QUESTIONS[chosen.question]
    first, *others = known
    sides = {name: known[name] for name in (first, *(chosen.rivals or others))}
    if chosen.agent is not None:
        sides = {first: _with_agent(kind, chosen.agent), "shipped": known[first]} | sides
    objective = "latency" if kind == "latency" else "pipeline"
    rows: list[dict[str, Any]] = []
    cases = FAMILIES[kind] | (OTHER_RULES if kind == "latency" else {})
    for family in chosen.families or FAMILIES[kind]:
        for at, case in enumerate(islice(cases[family](), chosen.count)):
            if at == 0:
                for side in sides.values():
                    run(case, side, objective, 1.0)  # compiles
            row = measured(case, sides, objective, chosen.seconds, at)
            if ASKED.get(chosen.question) not in (None, *row["phases"]):
                print(f"{family}, {case.graph.name}: no {ASKED[chosen.question]} is asked", flush=True)
                continue
            rows.append({"family": family} | row)
            brief = {name: [float(f"{v:.4g}") for v in row[name].values()] for name in sides}
            print(family, case.graph.name, case.graph.num_ops, brief, flush=True)
    comparisons = judge(rows, list(sides))
    settings = {"seconds": chosen.seconds, "count": chosen.count, "clock": "processor"}
    question = chosen.question if chosen.agent is None else f"{chosen.question}_trained_again"
    save(f"learning_{question}_{chosen.seconds:g}s".replace("-", "_"), rows, **settings, comparisons=comparisons)


if __name__ == "__main__":
    main()
