"""``rlinit schedule`` and ``rlinit bound``: the options of the library as flags, plans and bounds as text or JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

import rlinit
from rlinit import solving
from rlinit.cli import EXIT_CODES
from rlinit.cli.inputs import (
    PICTURES,
    HardwareName,
    Model,
    Models,
    ReadingOptions,
    check_endings,
    check_targets,
    load_hardware,
    load_model,
    load_models,
    measured_folders,
)
from rlinit.cli.output import UNEXPLAINED_S, escape_markup, live_line, print_phases, show_value
from rlinit.costs.sources import paper_machine
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.solving.common.options import ProblemOptions, SolveOptions, groups_devices
from rlinit.solving.groups import with_menu
from rlinit.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from rlinit.hardware import Hardware

EXIT_INPUT, EXIT_INTERRUPTED = EXIT_CODES["input"], EXIT_CODES["interrupted"]


@dataclass(frozen=True)
class Schedule:
    """Split a model over devices and prove how good the split is."""

    models: Models
    hw: HardwareName = "edge-tpu-4"
    solving: Annotated[SolveOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=SolveOptions)
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    rates: tuple[float, ...] = ()
    """With several models: how often a second each runs, in their order; once each by default."""
    out: Path | None = None
    """Write the plan here as JSON."""
    plot: Path | None = None
    """Draw the plan here (.svg, .png, .pdf)."""
    certify: Path | None = None
    """Write plan, graph, hardware and a proof of the bound into this folder, for `rlinit verify FOLDER`."""
    certify_s: float = 60.0
    """With --certify and the two below: seconds to look for a proof, beside those of the time limit."""
    certify_vipr: Path | None = None
    """Write a proof of a bound in VIPR's format here, for viprchk; in up to --certify-s seconds more."""
    certify_veripb: Path | None = None
    """Write the same in VeriPB's format to this .pbp file, and the program to the .opb file beside it."""
    robust: bool = False
    """Of the plans seen, give the one that is best in the mean over draws of the costs within their errors."""
    sensitivity: bool = False
    """Also say what the plan is worth when costs are off: drawn anew within their errors, against other plans."""
    json: bool = False
    """Print the plan as JSON instead of tables."""
    explain: bool = False
    """Print the strategy that would be followed, phase by phase, and why, and solve nothing."""


@dataclass(frozen=True)
class Bound:
    """Prove what no schedule of a model can be better than."""

    model: Model
    hw: HardwareName = "edge-tpu-4"
    problem: Annotated[ProblemOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ProblemOptions)
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    method: str = "auto"
    """auto (all, the cheapest first) or the name of one bound; an unknown name lists them."""
    time_limit_s: float | None = 20.0
    """Seconds to spend on all of them together; Ctrl-C ends it sooner, with the best one so far."""
    json: bool = False
    """Print JSON instead of a table."""


def schedule_model(command: Schedule, notes: Console) -> int:
    """Carry out ``rlinit schedule``; return the exit code.

    Parameters
    ----------
    command
        What to do.
    notes
        Where progress is shown.

    Raises
    ------
    RlinitError
        The input is wrong, or a file could not be written in the end; nothing was solved.
    """
    began = time.monotonic()
    if not command.certify_s > 0:
        raise RlinitError(f"certify_s is {command.certify_s}; expected seconds > 0 (--certify-s)")
    grouped, proofs = groups_devices(command.solving), _proofs(command)
    if grouped and proofs:
        flag = next(iter(proofs))
        raise RlinitError(f"{flag}: stages of several devices have no proofs in this format, but with --certify")
    options, hardware = command.solving, load_hardware(command.hw)
    if command.certify is not None:
        command.certify.mkdir(parents=True, exist_ok=True)
    folder = command.certify and command.certify / "plan.json"
    check_targets(command.out, command.plot, folder, *proofs.values(), command.solving.checkpoint)
    check_endings(command.plot, "--plot", *PICTURES)
    check_endings(command.certify_veripb, "--certify-veripb", ".pbp")
    start = Plan.load(options.agent) if options.agent.endswith(".json") else None
    solving.phases.check_method(options if start is None else dataclasses.replace(options, agent="auto"))
    models = load_models(command.models, command.rates, command.reading, hardware)
    devices = hardware if options.stages is None else hardware.with_stages(options.stages)
    joined = bool(command.rates) or len(models) > 1
    timed = devices if options.objective == "pipeline" else None
    graph = Graph.union(models, timed) if joined else next(iter(models.values()))[0]
    if grouped:
        graph = with_menu(graph, devices, options, measured_folders(command.reading.costs) or None)
    if command.explain:
        rows = solving.api.explain(graph, hardware, options, start)
        if command.json:
            print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        else:
            print_phases(rows, f"{graph.name} on {hardware.name}: {options.objective} by method {options.method}")
        return 0
    settings = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
    with live_line(notes, options.objective) as line:
        plan = rlinit.schedule(
            graph, hardware, **{**settings, "agent": start or options.agent}, robust=command.robust, progress=line
        )
    if command.sensitivity and plan.assignment is not None:
        found = plan.sensitivity(graph, hardware, options=options, seed=options.seed)
        plan = dataclasses.replace(plan, notes=(*plan.notes, str(found)))
    if joined and options.objective in ("pipeline", "memory") and plan.assignment:
        plan = _with_sharing(plan, models, devices, options)
    code = _give(plan, command, graph, hardware, notes)
    spent, searched = time.monotonic() - began, sum(plan.phase_s.values())
    if spent > searched + UNEXPLAINED_S:
        notes.print(
            f"{format_seconds(spent)} in all: imports, reading, kernels compiled or loaded, checks and files took "
            f"{format_seconds(spent - searched)}"
        )
    return code


_APART = "each model on devices of its own"
_APART_S = 1.0
"""Seconds for each model on each row of devices that it may have alone."""


def _with_sharing(
    plan: Plan, models: Mapping[str, tuple[Graph, float]], devices: Hardware, options: SolveOptions
) -> Plan:
    """Return a plan of several models that says how far rates can grow, and what they reach on devices of their own."""
    if plan.provenance.get("interrupted"):
        return plan
    k, most = devices.num_devices, max(rate for _, rate in models.values())
    limit_s = min(_APART_S, options.time_limit_s or _APART_S)
    settings = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
    settings |= {"time_limit_s": limit_s, "agent": "auto", "checkpoint": None, "stages": None}

    def alone(name: str, start: int, end: int) -> float:
        (graph, rate), row = models[name], devices.part(range(start, end))
        share = rate / most if options.objective == "pipeline" else 1.0
        return share * rlinit.schedule(graph, row, **settings).value

    least = [0.0, *[math.inf] * k]  # by devices that are taken
    for left, name in zip(range(len(models) - 1, -1, -1), models, strict=True):
        least = [
            min((max(least[i], alone(name, i, j)) for i in range(j) if least[i] < math.inf), default=math.inf)
            if j <= k - left and (left or j == k)
            else math.inf
            for j in range(k + 1)
        ]
    notes, baselines = [*plan.notes], dict(plan.baselines)
    if least[k] < math.inf:
        baselines[_APART] = least[k]
    if options.objective == "pipeline":
        reached, limit = (1 / (most * seconds) if seconds > 0 else math.inf for seconds in (plan.value, plan.bound))
        order = " with stages in one order for all models" if options.contiguous else ""
        factor = f"all rates can grow by a factor of {reached:.4g} together"
        notes.append(f"{factor}; no more than {limit:.4g} is possible{order}")
    return dataclasses.replace(plan, notes=tuple(notes), baselines=baselines)


def _proofs(command: Schedule) -> dict[str, Path]:
    """Return the files in other people's formats that are asked for, by their flags."""
    files = {"--certify-vipr": command.certify_vipr, "--certify-veripb": command.certify_veripb}
    return {flag: path for flag, path in files.items() if path is not None}


def _give(plan: Plan, command: Schedule, graph: Graph, hardware: Hardware, notes: Console) -> int:
    """Write and print a plan; where it cannot be written after all, print it all the same."""
    code = EXIT_CODES.get(plan.status, 0)
    try:
        if command.out is not None:
            plan.save(command.out)
        if command.plot is not None and plan.assignment is not None:
            plan.plot(command.plot, graph, hardware)
        whole = (
            hardware.with_stages(plan.num_stages // plan.chunks) if plan.stages and plan.groups is None else hardware
        )
        if command.certify is not None and plan.status != "no_solution":
            _certify(plan, command, graph, whole, notes)
        for flag, path in _proofs(command).items() if plan.status != "no_solution" else ():
            write = plan.certify_vipr if flag == "--certify-vipr" else plan.certify_veripb
            proven = write(path, graph, whole, time_limit_s=command.certify_s)
            told = [show_value(each, plan.objective) for each in (proven, (plan.bounds or (0.0,))[0])]
            bound = f"a bound of {told[0]}; the plan's is {told[1]}"
            notes.print(f"{path} proves {bound if proven < math.inf else 'that there is no schedule'}")
    except (OSError, InvalidPlan) as problem:
        notes.print(f"[bold red]rlinit:[/] {escape_markup(str(problem))}", highlight=False)
        code = EXIT_INPUT
    if command.json:
        print(json.dumps(plan.to_dict(), indent=1))
    else:
        print(plan)
    return EXIT_INTERRUPTED if plan.provenance.get("interrupted") else code


def _certify(plan: Plan, command: Schedule, graph: Graph, hardware: Hardware, notes: Console) -> None:
    """Write what a stranger needs to check a plan, and say what the bound still rests on."""
    folder, limit_s = command.certify, command.certify_s
    assert folder is not None
    plan.save(folder / "plan.json")
    graph.save(folder / "graph.json")
    hardware.save(folder / "hardware.json")
    notes.print(f"looking for a proof of the bound, {format_seconds(limit_s)} at most (--certify-s)")
    began = time.monotonic()
    rests = plan.certify(folder / "certificate.json", graph, hardware, time_limit_s=limit_s)
    if not rests:
        notes.print("the bound is certified")
        return
    late = " within the time" if time.monotonic() - began >= limit_s else ""
    notes.print(f"the bound is not certified: no proof was found{late}, and it rests on {', '.join(rests)}")


def prove_bound(command: Bound, notes: Console) -> int:
    """Carry out ``rlinit bound``; return the exit code.

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
    options = SolveOptions(
        **dataclasses.asdict(command.problem), method=command.method, time_limit_s=command.time_limit_s
    )
    solving.phases.check_method(options, bounds=True)
    graph = load_model(command.model, command.reading, hardware)
    with live_line(notes, objective) as line:
        proven = solving.api.prove(graph, hardware, options, line)
    code = EXIT_INTERRUPTED if proven.interrupted else 0
    if command.json:
        print(json.dumps(dataclasses.asdict(proven)))
        return code
    shown = " / ".join(show_value(value, objective) for value in proven.bounds)
    print(f"{graph.name} on {hardware.name}: no {objective} schedule is below {shown}")
    limited = command.time_limit_s is not None and proven.seconds >= command.time_limit_s
    ended = ", until Ctrl-C" if proven.interrupted else ", the time limit (--time-limit-s)" if limited else ""
    print(f"proven by {proven.source} in {format_seconds(proven.seconds)}{ended}")
    machine = paper_machine(hardware)
    for note in (*([f"{hardware.name} is {machine}"] if machine else []), *proven.notes):
        print(f"note: {note}")
    return code
