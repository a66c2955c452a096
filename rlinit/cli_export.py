"""``rlinit export``: plans in the formats of other tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rlinit.cli_inputs import SharingChoice, check_folders, load_hardware, load_model
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

__all__ = ["Export", "export_plan"]


@dataclass(frozen=True)
class Export:
    """Write a plan in the formats of other tools."""

    plan: Annotated[Path, tyro.conf.Positional]
    """A plan that schedule wrote (.json)."""
    model: str | None = None
    """What the plan was made for, as for schedule; --dot and --report need it."""
    hw: str | None = None
    """The hardware that the plan was made for, as for schedule; --report needs it."""
    trace: Path | None = None
    """Write a timeline for Perfetto or chrome://tracing here (.json)."""
    dot: Path | None = None
    """Write the graph for Graphviz here (.dot), coloured by device or stage."""
    report: Path | None = None
    """Write one page with everything about the plan here (.html); it opens without a network."""
    plot: Path | None = None
    """Draw the plan here (.svg, .png, .pdf)."""
    device_map: Path | None = None
    """Write which module runs on which device here (.json), for accelerate."""
    coarsen: bool = False
    """With --device-map: put modules that the plan cuts on the device of most of their ops, rather than refuse."""
    stages: int | None = None
    """Number of stages, where it was given to schedule."""
    batch: int | None = None
    """As for schedule."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    sharing: SharingChoice = "auto"
    """As for schedule."""
    costs: Path | None = None
    """The cost table that was given to schedule (.csv, .json), if one was."""
    json: bool = False
    """Print the names of the files as JSON."""


def export_plan(command: Export) -> int:
    """Carry out ``rlinit export``; return the exit code.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, is for another model or hardware, or cannot be said in a format.
    RlinitError
        No format was asked for, what one needs was not given, or a folder does not exist.
    """
    targets = {name: getattr(command, name) for name in ("trace", "dot", "report", "plot", "device_map")}
    wanted: dict[str, Path] = {name: path for name, path in targets.items() if path is not None}
    if not wanted:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise RlinitError(f"nothing to write; give at least one of {flags}")
    check_folders(*wanted.values())
    plan = Plan.load(command.plan)
    writers: dict[str, Callable[[Path], None]] = {
        "trace": plan.to_trace,
        "dot": lambda path: plan.to_dot(path, _graph(command, plan)),
        "report": lambda path: plan.report(path, _graph(command, plan), _hardware(command)),
        "plot": lambda path: _plot(plan, path),
        "device_map": lambda path: _write_map(plan, path, coarsen=command.coarsen),
    }
    for name, path in wanted.items():
        writers[name](path)
    if command.json:
        json.dump({name: str(path) for name, path in wanted.items()}, sys.stdout)
        print()
        return 0
    for name, path in wanted.items():
        print(f"{name.replace('_', ' ')}: {path}")
    return 0


def _graph(command: Export, plan: Plan) -> Graph:
    if command.model is None:
        raise RlinitError("--dot and --report need the model that the plan was made for; give it with --model")
    return load_model(
        command.model,
        objective=plan.objective,
        batch=command.batch,
        dims=command.dims,
        sharing=command.sharing,
        costs=command.costs,
    )


def _hardware(command: Export) -> Hardware:
    if command.hw is None:
        raise RlinitError("--report needs the hardware that the plan was made for; give it with --hw")
    return load_hardware(command.hw, command.stages)


def _plot(plan: Plan, path: Path) -> None:
    if plan.assignment is None:
        raise RlinitError(f"the plan is {plan.status}; there is no schedule to draw")
    plan.plot(path)


def _write_map(plan: Plan, path: Path, *, coarsen: bool) -> None:
    from rlinit.files import write_atomically

    write_atomically(path, json.dumps(plan.to_device_map(coarsen=coarsen), indent=1) + "\n")
