"""The command line: ``rlinit schedule | bound | inspect | bench``.

Exit codes: 0 a schedule (or figures) was printed, 2 the input is wrong, 3 proven infeasible, 4 the budget ended
without a schedule, 130 interrupted (the incumbent is printed and saved if there is one).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.placement import Resident, Transfers
from rlinit.plan import HistoryEntry, Objective, Plan
from rlinit.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["main"]

EXIT_INPUT, EXIT_INFEASIBLE, EXIT_NO_SOLUTION, EXIT_INTERRUPTED = 2, 3, 4, 130

_STAGE_METHODS = ("natural", "random", "brkga", "anneal", "auto")
_PLACEMENT_METHODS = ("best-device", "met", "greedy", "heft", "m-etf", "sa", "ea", "auto")
"""What `bench` compares unless it is told."""

Model = Annotated[str, tyro.conf.Positional]


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
    """auto, warm (coarse start, windows, SCIP), milp (full SCIP), or a heuristic's name. For stages also agent (the
    learned one alone) and ideals; for placements also sweep, split and branch-and-bound. An unknown name lists them
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
    out: Path | None = None
    """Write the plan here as JSON."""
    plot: Path | None = None
    """Draw the plan here (.svg, .png, .pdf)."""
    batch: int | None = None
    """Batch size of a model file whose first dimension is dynamic."""
    dims: tuple[str, ...] = ()
    """Sizes of other dynamic dimensions of a model file, as NAME=SIZE."""
    sharing: Literal["colocate", "copy"] = "colocate"
    """Parameters that several ops read: held once, by ops that stay together, or copied to each reader."""
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
    """Seconds to spend on each bound."""
    batch: int | None = None
    """As for schedule."""
    dims: tuple[str, ...] = ()
    """As for schedule."""
    sharing: Literal["colocate", "copy"] = "colocate"
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
    sharing: Literal["colocate", "copy"] = "colocate"
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
    sharing: Literal["colocate", "copy"] = "colocate"
    """As for schedule."""
    json: bool = False
    """Print JSON instead of a table."""


Command = (
    Annotated[Schedule, tyro.conf.subcommand("schedule")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process if None.
    """
    from rich.console import Console

    command = tyro.cli(Command, prog="rlinit", args=argv, description="Split neural networks over devices, with proof.")
    notes = Console(stderr=True)
    try:
        if isinstance(command, Schedule):
            return _schedule(command, notes)
        if isinstance(command, Bound):
            return _bound(command)
        if isinstance(command, Inspect):
            return _inspect(command)
        return _bench(command, notes)
    except (RlinitError, OSError) as problem:
        notes.print(f"[bold red]rlinit:[/] {_escape(str(problem))}", highlight=False)
        return EXIT_INPUT


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _load_model(command: Schedule | Bound | Inspect | Bench) -> Graph:
    if command.model.startswith("zoo:"):
        from rlinit.datasets import imagenet

        return imagenet.load(command.model.removeprefix("zoo:"))
    from rlinit.importers import load_graph

    dims = {}
    for entry in command.dims:
        name, _, size = entry.partition("=")
        if not name or not size.isdigit():
            raise RlinitError(f"--dims {entry!r}: expected NAME=SIZE")
        dims[name] = int(size)
    return load_graph(command.model, batch=command.batch, dims=dims, sharing=command.sharing)


def _load_hardware(name: str, stages: int | None) -> Hardware:
    hardware = Hardware.load(name) if Path(name).suffix in (".toml", ".json") else Hardware.preset(name)
    return hardware if stages is None else hardware.with_stages(stages)


def _window(text: str) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text == "full":
        return None
    if not text.isdigit():
        raise RlinitError(f"--window is {text!r}; expected a number of levels, auto, or full")
    return int(text)


def _schedule(command: Schedule, notes: Console) -> int:
    from rlinit.solve import schedule

    for target in (command.out, command.plot):
        if target is not None and not target.parent.is_dir():
            raise RlinitError(f"cannot write {target}: the folder {target.parent} does not exist")
    graph = _load_model(command)
    hardware = _load_hardware(command.hw, command.stages)
    agent: str | Plan = Plan.load(command.agent) if command.agent.endswith(".json") else command.agent
    with _live_line(notes, command.objective) as line:
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
    from rlinit.solve import bound

    graph = _load_model(command)
    hardware = _load_hardware(command.hw, command.stages)
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
    shown = " / ".join(_show(value, command.objective) for value in proven.bounds)
    print(f"{graph.name} on {hardware.name}: no {command.objective} schedule is below {shown}")
    print(f"proven by {proven.source} in {format_seconds(proven.seconds)}")
    return 0


def _inspect(command: Inspect) -> int:
    import numpy as np

    from rlinit.exact.ideals import count_ideals
    from rlinit.lowering import lower_stages

    graph = _load_model(command)
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

    from rlinit.solve import schedule

    graph = _load_model(command)
    hardware = _load_hardware(command.hw, command.stages)
    plans: dict[str, Plan] = {}
    placed = command.objective in ("latency", "throughput")
    for method in command.methods or (_PLACEMENT_METHODS if placed else _STAGE_METHODS):
        with _live_line(notes, command.objective) as line:
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
            _show(plan.value, plan.objective),
            _show(plan.bound, plan.objective),
            f"{plan.gap:.2%}" if plan.values else "-",
            f"{sum(plan.phase_s.values()):.2f}",
        )
    Console().print(table)
    return 0


def _show(value: float, objective: str) -> str:
    return format_bytes(value) if objective == "memory" else format_seconds(value)


def print_plan(plan: Plan) -> None:
    """Print a plan as a table of its stages or devices, and what was proven about it."""
    from rich.console import Console

    console = Console()
    if plan.assignment is None or plan.values is None:
        console.print(f"[bold]{plan.status}[/]: {_escape(plan.message)}", highlight=False)
        return
    console.print(_device_table(plan) if plan.devices else _stage_table(plan))
    levels = _LEVELS[plan.objective]
    for level, value, bound in zip(levels, plan.values, plan.bounds or (), strict=False):
        console.print(
            f"{level}: {_show(value, plan.objective)}, proven >= {_show(bound, plan.objective)}", highlight=False
        )
    proof = "proven optimal" if plan.status == "optimal" else f"gap {plan.gap:.3%}"
    console.print(
        f"[bold]{plan.status}[/]: {proof} by {plan.bound_source or 'nothing'}; found by {plan.method}; "
        f"{format_seconds(sum(plan.phase_s.values()))}",
        highlight=False,
    )
    if plan.objective == "throughput":
        console.print(f"{plan.inputs} inputs, {plan.inputs_per_s:,.4g} a second", highlight=False)
    if plan.message:
        console.print(_escape(plan.message), highlight=False)


_LEVELS = {
    "memory": ("peak parameters", "off-cache total", "largest traffic"),
    "pipeline": ("bottleneck",),
    "latency": ("latency",),
    "throughput": ("makespan",),
}


def _stage_table(plan: Plan) -> Table:
    """Return a table of what each stage costs, the largest in bold."""
    from rich.table import Table

    table = Table(title=f"{plan.graph} on {plan.hardware}", title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("device")
    piped = plan.objective == "pipeline"
    times, sizes = ("in", "work", "overflow", "out", "total"), ("parameters", "off-cache", "sent on")
    for heading in ("ops", *(times if piped else sizes)):
        table.add_column(heading, justify="right")
    for j, use in enumerate(plan.stages):
        if piped:
            parts = [use.in_s, use.work_s, use.overflow_s, use.out_s, use.time_s]
            figures = [format_seconds(part) for part in parts]
            worst = use.time_s >= plan.value * (1 - 1e-9)
        else:
            figures = [format_bytes(part) for part in (use.param_bytes, use.off_cache_bytes, use.out_bytes)]
            worst = use.param_bytes >= plan.value
        table.add_row(str(j), use.device, str(use.num_ops), *figures, style="bold" if worst else None)
    return table


def _device_table(plan: Plan) -> Table:
    """Return a table of what each device does in a placement."""
    from rich.table import Table

    table = Table(title=f"{plan.graph} on {plan.hardware}", title_justify="left")
    table.add_column("device")
    for heading in ("ops" if plan.inputs == plan.shard_inputs else "batches", "busy", "of the time", "holds"):
        table.add_column(heading, justify="right")
    for use in plan.devices:
        share = use.busy_s / plan.value if plan.value > 0 else 0.0
        table.add_row(
            use.device, str(use.num_batches), format_seconds(use.busy_s), f"{share:.0%}", format_bytes(use.held_bytes)
        )
    return table


class _LiveLine:
    """The progress line: value, bound, gap, phase and time; drawn on a terminal only."""

    def __init__(self, objective: str) -> None:
        self.objective = objective
        self.text = ""
        self.lock = threading.Lock()

    def __call__(self, entry: HistoryEntry) -> None:
        from rlinit.plan import relative_gap

        value = _show(entry.values[0], self.objective) if entry.values else "-"
        bound = _show(entry.bounds[0], self.objective) if entry.bounds else "-"
        gap = f"{relative_gap(entry.values, entry.bounds):.2%}" if entry.values else "-"
        with self.lock:
            self.text = f"value {value}  bound {bound}  gap {gap}  [{entry.phase}]"


@contextmanager
def _live_line(console: Console, objective: str) -> Iterator[_LiveLine]:
    """Show a live progress line on a terminal while the body runs."""
    line = _LiveLine(objective)
    if not console.is_terminal:
        yield line
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.fields[text]}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("", text="")
        over = threading.Event()

        def refresh() -> None:
            while not over.wait(0.1):
                with line.lock:
                    bar.update(task, text=_escape(line.text))

        painter = threading.Thread(target=refresh, daemon=True)
        painter.start()
        try:
            yield line
        finally:
            over.set()
            painter.join()


if __name__ == "__main__":
    sys.exit(main())
