"""The command line: ``rlinit schedule | bound | inspect | bench | run | measure | calibrate | export | compile``.

Exit codes: 0 a schedule (or figures) was printed, 2 the input is wrong, 3 proven infeasible, 4 the budget ended
without a schedule, 130 interrupted (the incumbent is printed and saved if there is one).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rlinit.cli.export import Export, export_plan
from rlinit.cli.inputs import SharingChoice, check_folders, load_hardware, load_model
from rlinit.cli.output import escape_markup, live_line, print_plan, show_value
from rlinit.cli.run import Calibrate, Measure, Run, calibrate_costs, measure_model, run_plan
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Objective, Plan, Resident, Transfers
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]

EXIT_INPUT, EXIT_INFEASIBLE, EXIT_NO_SOLUTION, EXIT_INTERRUPTED = 2, 3, 4, 130

_STAGE_METHODS = ("natural", "random", "brkga", "anneal", "auto")
_PLACEMENT_METHODS = ("best-device", "met", "greedy", "heft", "m-etf", "sa", "ea", "auto")
"""What `bench` compares unless it is told."""

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


@dataclass(frozen=True)
class Schedule:
    """Split a model over devices and prove how good the split is."""

    model: Model
    """A graph or model file (.json, .json.gz, .pt2, .onnx, .tflite, .keras), or zoo:NAME for a network of the zoo
    (zoo:resnet152)."""
    hw: str = "edge-tpu-4"
    """A hardware file (.toml, .json) or a preset (edge-tpu-K, cpu-t4-a100, moirai-inter, moirai-intra, gpt3-nodes)."""
    objective: Objective = "pipeline"
    """pipeline: smallest bottleneck stage. memory: smallest peak parameter memory (then off-cache bytes, then
    traffic). latency: smallest makespan of one input, each op on any device. throughput: of several inputs."""
    stages: int | None = None
    """Number of stages, where the hardware does not say."""
    method: str = "auto"
    """auto, warm (coarse start, windows, SCIP), milp (full SCIP), agent (the learned one alone), or a heuristic's
    name. For stages also ideals; for placements also sweep, split and branch-and-bound. An unknown name lists them
    all."""
    agent: str = "auto"
    """Where the coarse schedule comes from: auto, a heuristic's name, a learned agent (a checkpoint's name or a path
    ending in .safetensors), or a saved plan (.json) to refine."""
    window: str = "auto"
    """Levels around the stage boundaries (placements: ops at a time) that the exact solver may change: a number, auto,
    or full."""
    gap: float = 0.0
    """Stop once the schedule is proven within this fraction of the best possible."""
    time_limit_s: float | None = None
    """Seconds to spend; without it, a fixed amount of work."""
    seed: int = 0
    """Seed of everything random."""
    jobs: int = 1
    """Runs of the heuristics side by side."""
    inputs: int | None = None
    """For throughput: inputs to finish."""
    transfers: Transfers = "parallel"
    """For placements: parallel, exclusive (one at a time on each directed link) or blocking (the receiver waits)."""
    resident: Resident = "tensors"
    """For placements: what a device's memory holds at once, all tensors of its ops beside weights, or weights alone."""
    coarsen: bool = False
    """For placements: search with fused ops and contracted chains only, which is faster on large graphs."""
    activations: bool = False
    """For pipeline: count the peak of activation memory against a stage's cache, too."""
    out: Path | None = None
    """Write the plan here as JSON."""
    plot: Path | None = None
    """Draw the plan here (.svg, .png, .pdf)."""
    batch: int | None = None
    """Batch size of a model file whose first dimension is dynamic."""
    dims: tuple[str, ...] = ()
    """Sizes of other dynamic dimensions of a model file, as NAME=SIZE."""
    sharing: SharingChoice = "auto"
    """Parameters that several ops read: held once, by ops that stay together (colocate), or by each reader (copy);
    auto: copy for stages, colocate for placements."""
    costs: Path | None = None
    """Times of ops from this cost table (.csv, .json), as measure and calibrate write them."""
    dtype: str | None = None
    """What a model's numbers are counted in: fp32, fp16, bf16, fp8, int8, int4, or WEIGHTS/ACTIVATIONS such as
    int4/fp16. By default what the file says; .keras files and the zoo: int8."""
    json: bool = False
    """Print the plan as JSON instead of tables."""


@dataclass(frozen=True)
class Bound:
    """Prove a lower bound on the full problem, without looking for a schedule."""

    model: Model
    """As for schedule."""
    hw: str = "edge-tpu-4"
    """As for schedule."""
    objective: Objective = "pipeline"
    """As for schedule."""
    stages: int | None = None
    """As for schedule."""
    inputs: int | None = None
    """As for schedule."""
    transfers: Transfers = "parallel"
    """As for schedule."""
    resident: Resident = "tensors"
    """As for schedule."""
    method: str = "auto"
    """auto (cheapest first, the best is kept) or the name of one bound; an unknown name lists them."""
    time_limit_s: float | None = 60.0
    """Seconds to spend on all of them together."""
    batch: int | None = None
    """As for schedule."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    sharing: SharingChoice = "auto"
    """As for schedule."""
    costs: Path | None = None
    """As for schedule."""
    dtype: str | None = None
    """As for schedule."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class Inspect:
    """Say what a model's graph looks like."""

    model: Model
    """As for schedule."""
    ideal_cap: int = 1_000_000
    """Stop counting ideals here."""
    batch: int | None = None
    """As for schedule."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    sharing: SharingChoice = "auto"
    """As for schedule; auto: colocate, so that shared parameters count once."""
    costs: Path | None = None
    """As for schedule."""
    dtype: str | None = None
    """As for schedule."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class Bench:
    """Run several methods on one model and print their values, bounds and seconds side by side."""

    model: Model
    """As for schedule."""
    hw: str = "edge-tpu-4"
    """As for schedule."""
    objective: Objective = "pipeline"
    """As for schedule."""
    stages: int | None = None
    """As for schedule."""
    inputs: int | None = None
    """As for schedule."""
    transfers: Transfers = "parallel"
    """As for schedule."""
    resident: Resident = "tensors"
    """As for schedule."""
    methods: tuple[str, ...] = ()
    """Methods to compare, as schedule's --method; none: the usual ones of the objective."""
    time_limit_s: float = 30.0
    """Seconds for each method."""
    seed: int = 0
    """Seed of everything random."""
    batch: int | None = None
    """As for schedule."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    sharing: SharingChoice = "auto"
    """As for schedule."""
    costs: Path | None = None
    """As for schedule."""
    dtype: str | None = None
    """As for schedule."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class Compile:
    """Compile every kernel now, once on a machine, rather than within the time of the first schedules."""


Command = (
    Annotated[Schedule, tyro.conf.subcommand("schedule")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Measure, tyro.conf.subcommand("measure")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Compile, tyro.conf.subcommand("compile")]
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process if None.
    """
    from rich.console import Console

    notes = Console(stderr=True)
    try:
        command = tyro.cli(
            Command, prog="rlinit", args=argv, description="Split neural networks over devices, with proof."
        )
        if isinstance(command, Schedule):
            return _schedule(command, notes)
        if isinstance(command, Bound):
            return _bound(command)
        if isinstance(command, Inspect):
            return _inspect(command)
        if isinstance(command, Run):
            return run_plan(command, argv)
        if isinstance(command, Measure):
            return measure_model(command)
        if isinstance(command, Calibrate):
            return calibrate_costs(command)
        if isinstance(command, Export):
            return export_plan(command)
        if isinstance(command, Compile):
            return _compile(notes)
        return _bench(command, notes)
    except BrokenPipeError:  # whoever reads the output has seen enough; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except (RlinitError, OSError) as problem:
        notes.print(f"[bold red]rlinit:[/] {escape_markup(str(problem))}", highlight=False)
        return EXIT_INPUT


def _compile(notes: Console) -> int:
    from rlinit.solving.warm_up import compile_kernels

    with notes.status("compiling") as status:
        seconds = compile_kernels(lambda step: status.update(f"compiling: {step}"))
    notes.print(f"compiled in {seconds:.0f} s; schedules find the kernels on disk from now on")
    return 0


def _graph(command: Schedule | Bound | Inspect | Bench) -> Graph:
    return load_model(
        command.model,
        objective="latency" if isinstance(command, Inspect) else command.objective,
        batch=command.batch,
        dims=command.dims,
        sharing=command.sharing,
        costs=command.costs,
        dtype=command.dtype,
    )


def _window(text: str) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text == "full":
        return None
    if not text.isdecimal():
        raise RlinitError(f"--window is {text!r}; expected a number of levels, auto, or full")
    return int(text)


def _schedule(command: Schedule, notes: Console) -> int:
    from rlinit.solving.api import schedule

    check_folders(command.out, command.plot)
    graph = _graph(command)
    hardware = load_hardware(command.hw, command.stages)
    agent: str | Plan = Plan.load(command.agent) if command.agent.endswith(".json") else command.agent
    with live_line(notes, command.objective) as line:
        plan = schedule(
            graph,
            hardware,
            objective=command.objective,
            agent=agent,
            window=_window(command.window),
            method=command.method,
            gap=command.gap,
            time_limit_s=command.time_limit_s,
            seed=command.seed,
            jobs=command.jobs,
            inputs=command.inputs,
            transfers=command.transfers,
            resident=command.resident,
            coarsen=command.coarsen,
            activations=command.activations,
            progress=line,
        )
    if command.out is not None:
        plan.save(command.out)
    if command.plot is not None and plan.assignment is not None:
        plan.plot(command.plot)
    if command.json:
        json.dump(plan.to_dict(), sys.stdout, indent=1)
        print()
    else:
        print_plan(plan)
    if plan.provenance.get("interrupted"):
        return EXIT_INTERRUPTED
    return {"infeasible": EXIT_INFEASIBLE, "no_solution": EXIT_NO_SOLUTION}.get(plan.status, 0)


def _bound(command: Bound) -> int:
    from rlinit.solving.api import bound

    graph = _graph(command)
    hardware = load_hardware(command.hw, command.stages)
    proven = bound(
        graph,
        hardware,
        command.objective,
        method=command.method,
        inputs=command.inputs,
        transfers=command.transfers,
        resident=command.resident,
        time_limit_s=command.time_limit_s,
    )
    if command.json:
        json.dump({"bounds": list(proven.bounds), "source": proven.source, "seconds": proven.seconds}, sys.stdout)
        print()
        return 0
    shown = " / ".join(show_value(value, command.objective) for value in proven.bounds)
    print(f"{graph.name} on {hardware.name}: no {command.objective} schedule is below {shown}")
    print(f"proven by {proven.source} in {format_seconds(proven.seconds)}")
    return 0


def _inspect(command: Inspect) -> int:
    import numpy as np

    from rlinit.exact.stages.ideals.enumeration import count_ideals
    from rlinit.importers.common.precision import precision_of
    from rlinit.stages.lowering import lower_stages

    graph = _graph(command)
    problem = lower_stages(graph, Hardware.pipeline(1), "memory").problem
    ideals = count_ideals(problem, command.ideal_cap)
    row: dict[str, str | int | float] = {
        "name": graph.name,
        "ops": graph.num_ops,
        "edges": graph.num_edges,
        "depth": graph.depth,
        "width": graph.width,
        "max_in_degree": int(np.diff(graph.pred_indptr).max()),
        "ideals": ideals if ideals <= command.ideal_cap else f"over {command.ideal_cap}",
        "param_bytes": float(np.nansum(graph.param_bytes)),
        "flops": float(np.nansum(graph.flops)),
        "numbers": "weights int8, activations int8"
        if command.model.startswith("zoo:") and not command.dtype
        else precision_of(graph),
    }
    if command.json:
        json.dump(row, sys.stdout)
        print()
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(row["name"]), show_header=False)
    for key, value in row.items():
        shown = (
            format_bytes(float(value))
            if key == "param_bytes"
            else f"{value:,}"
            if not isinstance(value, str)
            else value
        )
        table.add_row(key.replace("_", " "), shown)
    Console().print(table)
    return 0


def _bench(command: Bench, notes: Console) -> int:
    from rich.console import Console
    from rich.table import Table

    from rlinit.solving.api import schedule

    graph = _graph(command)
    hardware = load_hardware(command.hw, command.stages)
    plans: dict[str, Plan] = {}
    placed = command.objective in ("latency", "throughput")
    for method in command.methods or (_PLACEMENT_METHODS if placed else _STAGE_METHODS):
        with live_line(notes, command.objective) as line:
            plans[method] = schedule(
                graph,
                hardware,
                objective=command.objective,
                method=method,
                time_limit_s=command.time_limit_s,
                seed=command.seed,
                inputs=command.inputs,
                transfers=command.transfers,
                resident=command.resident,
                progress=line,
            )
    rows = [
        {
            "method": method,
            "status": plan.status,
            "values": plan.values,
            "bounds": plan.bounds,
            "gap": plan.gap if plan.values else None,
            "seconds": sum(plan.phase_s.values()),
        }
        for method, plan in plans.items()
    ]
    if command.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    table = Table("method", "status", "value", "bound", "gap", "seconds", title=f"{graph.name} on {hardware.name}")
    for method, plan in plans.items():
        table.add_row(
            method,
            plan.status,
            show_value(plan.value, plan.objective),
            show_value(plan.bound, plan.objective),
            f"{plan.gap:.2%}" if plan.values else "-",
            f"{sum(plan.phase_s.values()):.2f}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
