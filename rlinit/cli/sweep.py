"""``rlinit sweep``: one model on many kinds of hardware, as a table, JSON or a picture."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

import rlinit
from rlinit import solving
from rlinit.cli.inputs import (
    PICTURES,
    ReadingOptions,
    check_endings,
    check_targets,
    load_hardware,
    load_model,
)
from rlinit.cli.output import print_table, show_value
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.plan import Objective
from rlinit.solving.common.options import SolveOptions
from rlinit.sweeping.figure import draw_sweep
from rlinit.sweeping.rows import SweepRow

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Sweep:
    """Compare models on many kinds of hardware."""

    models: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL ...", help="Models, each as for schedule.")
    ]
    hw: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A hardware file or preset; give --hw again for each."""
    stages: str | None = None
    """Instead of several --hw: the one with each of these numbers of stages, as 1..8 or 4."""
    devices: str | None = None
    """Instead of several --hw: the first devices of it, as 1..4."""
    objective: Objective = "pipeline"
    """pipeline, memory, latency or throughput, as for schedule."""
    inputs: int | None = None
    """For throughput: inputs to finish."""
    method: str = "auto"
    """As for schedule."""
    time_limit_s: float | None = None
    """Seconds for each hardware; without it, a fixed amount of work."""
    seed: int = 0
    """Seed of everything random."""
    workers: int | None = None
    """Schedules side by side."""
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    out: Path | None = None
    """Write rows here as they come, a line of JSON each; what is there already is not solved again."""
    plot: Path | None = None
    """Draw the rows here (.svg, .png, .pdf)."""
    json: bool = False
    """Print JSON instead of a table."""


def sweep_hardware(command: Sweep, notes: Console) -> int:
    """Carry out ``rlinit sweep``; return the exit code.

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
    check_targets(command.out, command.plot)
    check_endings(command.plot, "--plot", *PICTURES)
    solving.phases.check_method(SolveOptions(objective=command.objective, inputs=command.inputs, method=command.method))
    hardware = _hardware(command)
    # A model's default dtype may go by the hardware (INT8 on Edge TPUs): what reads all models alike is swept together.
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for at, one in enumerate(hardware):
        dtypes = tuple(command.reading.on(model, one).dtype for model in command.models)
        groups.setdefault(dtypes, []).append(at)
    total = len(command.models) * len(hardware)
    found: dict[tuple[int, int], SweepRow] = {}
    with notes.status(f"0 of {total}") as status:
        done: list[SweepRow] = []

        def tell(row: SweepRow) -> None:
            done.append(row)
            status.update(f"{len(done)} solved of {total}")

        for places in groups.values():
            graphs = [load_model(model, command.reading, hardware[places[0]]) for model in command.models]
            solved = rlinit.sweep(
                graphs,
                [hardware[at] for at in places],
                objective=command.objective,
                inputs=command.inputs,
                method=command.method,
                time_limit_s=command.time_limit_s,
                seed=command.seed,
                workers=command.workers,
                out=command.out,
                progress=tell,
            )
            pairs = [(model, at) for model in range(len(graphs)) for at in places]
            found |= dict(zip(pairs, solved, strict=True))
    rows = [found[model, at] for model in range(len(command.models)) for at in range(len(hardware))]
    if command.plot is not None:
        draw_sweep(rows, command.plot)
    if command.json:
        extra = [{**dataclasses.asdict(row), "speed_up": row.speed_up} for row in rows]
        print(json.dumps(extra, indent=1))
    else:
        _print_rows(rows)
    return 0


def _hardware(command: Sweep) -> list[Hardware]:
    """Return the kinds of hardware a command names."""
    if not command.hw:
        raise RlinitError("sweep needs --hw, once for each kind of hardware, or once with --stages or --devices")
    if command.stages is None and command.devices is None:
        return [_told_apart(name) for name in command.hw]
    if len(command.hw) > 1 or (command.stages is not None and command.devices is not None):
        raise RlinitError("--stages or --devices, not both, go with one --hw")
    base = load_hardware(command.hw[0])
    if command.stages is not None:
        return [base.with_stages(k) for k in _numbers("--stages", command.stages)]
    counts = _numbers("--devices", command.devices or "")
    return [base.part(range(k), base.name if k == len(base) else f"{base.name}, first {k}") for k in counts]


def _told_apart(name: str) -> Hardware:
    """Return a preset or a file's hardware, called after the file where it has no name of its own."""
    hardware = load_hardware(name)
    unnamed = hardware.name == Hardware.__dataclass_fields__["name"].default
    return dataclasses.replace(hardware, name=Path(name).stem) if unnamed else hardware


def _numbers(flag: str, text: str) -> range:
    """Return the numbers that ``1..8`` or ``4`` stand for."""
    match = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise RlinitError(f"{flag} {text!r}: expected FIRST..LAST, such as 1..8")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _print_rows(rows: Sequence[SweepRow]) -> None:
    priced = any(row.cost_per_hour is not None for row in rows)
    several = len({row.graph for row in rows}) > 1
    headings = ("hardware", "devices", "status", "value", "bound", "speed-up", "x first")
    title = rows[0].objective if several else f"{rows[0].graph}: {rows[0].objective}"
    header = (*(("model",) if several else ()), *headings, *(("an hour",) if priced else ()))
    shown = []
    firsts: dict[str, SweepRow] = {}
    for row in rows:
        cost = "-" if row.cost_per_hour is None else f"{row.cost_per_hour:,.2f}"
        shown.append(
            (
                *((row.graph,) if several else ()),
                row.hardware,
                str(row.devices),
                row.status,
                "-" if row.value is None else show_value(row.value, row.objective),
                "-" if row.bound is None else show_value(row.bound, row.objective),
                _times(row.speed_up),
                _times(row.over(firsts.setdefault(row.graph, row))),
                *((cost,) if priced else ()),
            )
        )
    caption = "speed-up: over the best single device of the row; x first: over the model's first row"
    print_table(header, shown, title, caption)
    for row in rows:
        if row.message:
            print(f"{row.graph} on {row.hardware}: {row.message}")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
