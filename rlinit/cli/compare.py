"""``rlinit bench``: several methods on one model, side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import rlinit
from rlinit import solving
from rlinit.cli import EXIT_CODES
from rlinit.cli.inputs import HardwareName, Model, ReadingOptions, load_hardware, load_model
from rlinit.cli.output import live_line, print_table, show_value
from rlinit.plan import Plan, relative_gap
from rlinit.solving.common.options import ProblemOptions, SolveOptions, places_ops

if TYPE_CHECKING:
    from rich.console import Console

    from rlinit.graph import Graph
    from rlinit.hardware import Hardware

_STAGE_METHODS = ("natural", "random", "brkga", "anneal", "auto")
_PLACEMENT_METHODS = ("best-device", "met", "greedy", "heft", "m-etf", "sa", "ea", "auto")
"""What is compared where no methods are named."""


@dataclass(frozen=True)
class Bench:
    """Compare several methods on one model, side by side.

    Gaps are measured against the best bound that any of them proved.
    """

    model: Model
    hw: HardwareName = "edge-tpu-4"
    problem: Annotated[ProblemOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ProblemOptions)
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    methods: tuple[str, ...] = ()
    """Methods to compare, as schedule's --method; none: the usual ones of the objective."""
    time_limit_s: float = 30.0
    """Seconds for each method."""
    seed: int = 0
    """Seed of everything random."""
    json: bool = False
    """Print JSON instead of a table."""


def compare_methods(command: Bench, notes: Console) -> int:
    """Carry out ``rlinit bench``; return the exit code.

    Parameters
    ----------
    command
        What to do.
    notes
        Where progress is shown.

    Raises
    ------
    RlinitError
        The input is wrong.
    """
    objective = command.problem.objective
    hardware = load_hardware(command.hw)
    methods = command.methods or (_PLACEMENT_METHODS if places_ops(objective) else _STAGE_METHODS)
    for method in methods:
        solving.phases.check_method(SolveOptions(**dataclasses.asdict(command.problem), method=method))
    graph = load_model(command.model, command.reading, hardware)
    plans = _in_turn(command, methods, graph, hardware, notes)
    best = _best_bound(list(plans.values()))
    rows = [_row(method, plan, best) for method, plan in plans.items()]
    if command.json:
        print(json.dumps(rows, indent=1))
    else:
        _print_rows(rows, plans, f"{graph.name} on {hardware.name}", best)
    interrupted = any(plan.provenance["interrupted"] for plan in plans.values())
    return EXIT_CODES["interrupted"] if interrupted else 0


def _in_turn(
    command: Bench, methods: Sequence[str], graph: Graph, hardware: Hardware, notes: Console
) -> dict[str, Plan]:
    """Return a plan by each method, up to the first that is interrupted."""
    plans: dict[str, Plan] = {}
    for method in methods:
        with live_line(notes, command.problem.objective) as line:
            plans[method] = rlinit.schedule(
                graph,
                hardware,
                **dataclasses.asdict(command.problem),
                method=method,
                time_limit_s=command.time_limit_s,
                seed=command.seed,
                progress=line,
            )
        if plans[method].provenance["interrupted"]:
            break
    return plans


def _best_bound(plans: list[Plan]) -> tuple[float, ...] | None:
    """Return the best bound of any of the plans on every level; they are all for one problem."""
    bounds = [plan.bounds for plan in plans if plan.bounds is not None]
    return tuple(map(max, zip(*bounds, strict=True))) if bounds else None


def _row(method: str, plan: Plan, best: tuple[float, ...] | None) -> dict[str, Any]:
    gap = relative_gap(plan.values, best)
    return {
        "method": method,
        "status": "optimal" if plan.values and gap == 0.0 else plan.status,
        "values": plan.values,
        "bounds": plan.bounds,
        "gap": gap if plan.values else None,
        "seconds": sum(plan.phase_s.values()),
    }


def _print_rows(rows: list[dict[str, Any]], plans: dict[str, Plan], title: str, best: tuple[float, ...] | None) -> None:
    objective = next(iter(plans.values())).objective
    proven = "" if best is None else f"; no schedule is below {show_value(best[0], objective)}"
    shown = (
        (
            row["method"],
            row["status"],
            show_value(plan.value, objective),
            show_value(plan.bound, objective),
            f"{row['gap']:.2%}" if plan.values else "-",
            f"{row['seconds']:.2f}",
        )
        for row, plan in zip(rows, plans.values(), strict=True)
    )
    print_table(("method", "status", "value", "own bound", "gap", "seconds"), shown, title + proven)
