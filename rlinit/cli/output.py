"""What the commands print: plans as tables, and a progress line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlinit.comparison.baselines import baseline_lines
from rlinit.plan import HistoryEntry, Plan
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlinit.solving.strategy import PlannedPhase

__all__ = ["EXIT_CODES", "escape_markup", "live_line", "print_phases", "print_plan", "show_value"]

EXIT_CODES = {"input": 2, "infeasible": 3, "no_solution": 4, "interrupted": 130}
"""What the process ends with where it is not 0."""


def escape_markup(text: str) -> str:
    """Return text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)


def show_value(value: float, objective: str) -> str:
    """Return a value of an objective with its unit.

    Parameters
    ----------
    value
        Seconds, or bytes for `memory`.
    objective
        Which of the objectives.
    """
    return format_bytes(value) if objective == "memory" else format_seconds(value)


def print_plan(plan: Plan) -> None:
    """Print a plan as a table of its stages or devices, and what was proven about it."""
    from rich.console import Console

    console = Console()
    if plan.assignment is None or plan.values is None:
        console.print(f"[bold]{plan.status}[/]: {escape_markup(plan.message)}", highlight=False)
        _print_notes(plan, console)
        return
    console.print(_device_table(plan) if plan.devices else _stage_table(plan))
    levels = _LEVELS[plan.objective]
    for level, value, bound in zip(levels, plan.values, plan.bounds or (), strict=False):
        console.print(
            f"{level}: {show_value(value, plan.objective)}, proven >= {show_value(bound, plan.objective)}",
            highlight=False,
        )
    proof = "proven optimal" if plan.status == "optimal" else f"gap {plan.gap:.3%}"
    console.print(
        f"[bold]{plan.status}[/]: {proof} by {plan.bound_source or 'nothing'}; found by {plan.method}; "
        f"{format_seconds(sum(plan.phase_s.values()))}",
        highlight=False,
    )
    if plan.objective == "throughput":
        console.print(f"{plan.inputs} inputs, {plan.inputs_per_s:,.4g} a second", highlight=False)
    if "numbers" in plan.provenance:
        console.print(f"numbers: {plan.provenance['numbers']}", highlight=False)
    if plan.message:
        console.print(escape_markup(plan.message), highlight=False)
    _print_baselines(plan, console)
    _print_notes(plan, console)


def _print_baselines(plan: Plan, console: Console) -> None:
    """Print what the plan is worth beside what simple rules give."""
    for line in baseline_lines(plan):
        console.print(escape_markup(line), highlight=False)


def _print_notes(plan: Plan, console: Console) -> None:
    """Print what failed along the way, and what to know before the plan is used."""
    for note in plan.notes:
        console.print(f"[bold]note:[/] {escape_markup(note)}", highlight=False)


def print_phases(rows: Sequence[PlannedPhase], title: str) -> None:
    """Print the phases of a strategy as a table.

    Parameters
    ----------
    rows
        What each phase would do.
    title
        For what problem.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("phase", "runs", "of the time left", "where", "because", title=title, title_justify="left")
    for row in rows:
        where = "\n".join(f"{'' if held else 'not: '}{text}" for text, held in row.conditions) or "always"
        share = f"{row.share:.0%}" if row.runs else "-"
        style = None if row.runs else "dim"
        table.add_row(row.name, "yes" if row.runs else "no", share, where, row.because, style=style)
    Console().print(table)


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
    peaks = ("working",) if plan.stage_orders else ()
    for heading in ("ops", *(times if piped else sizes), *peaks):
        table.add_column(heading, justify="right")
    for j, use in enumerate(plan.stages):
        if use.num_ops == 0:
            continue
        if piped:
            parts = [use.in_s, use.work_s, use.overflow_s, use.out_s, use.time_s]
            figures = [format_seconds(part) for part in parts]
            worst = plan.device_times_s[use.device] >= plan.value * (1 - 1e-9)
        else:
            figures = [format_bytes(part) for part in (use.param_bytes, use.off_cache_bytes, use.out_bytes)]
            worst = use.param_bytes >= plan.value
        figures += [format_bytes(use.activation_bytes)] if plan.stage_orders else []
        table.add_row(str(j), use.device, str(use.num_ops), *figures, style="bold" if worst else None)
    empty = sum(use.num_ops == 0 for use in plan.stages)
    if empty:
        table.caption = f"{empty} of {plan.num_stages} stages are empty and not shown"
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

        value = show_value(entry.values[0], self.objective) if entry.values else "-"
        bound = show_value(entry.bounds[0], self.objective) if entry.bounds else "-"
        gap = f"{relative_gap(entry.values, entry.bounds):.2%}" if entry.values else "-"
        with self.lock:
            self.text = f"value {value}  bound {bound}  gap {gap}  [{entry.phase}]"


def _note_compiling(console: Console) -> Callable[[HistoryEntry], None]:
    """Return what says, once, why the first schedule on a machine takes longer than its limit."""
    said: list[str] = []

    def tell(entry: HistoryEntry) -> None:
        if entry.phase.startswith("compiling") and not said:
            said.append(entry.phase)
            console.print(f"{entry.phase}; this time is not counted (rlinit compile does it ahead)", highlight=False)

    return tell


@contextmanager
def live_line(console: Console, objective: str) -> Iterator[Callable[[HistoryEntry], None]]:
    """Show a live progress line on a terminal while the body runs.

    Parameters
    ----------
    console
        Where to.
    objective
        What the values are of.
    """
    line = _LiveLine(objective)
    if not console.is_terminal:
        yield _note_compiling(console)
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
                    bar.update(task, text=escape_markup(line.text))

        painter = threading.Thread(target=refresh, daemon=True)
        painter.start()
        try:
            yield line
        finally:
            over.set()
            painter.join()
