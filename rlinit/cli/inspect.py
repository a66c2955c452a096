"""``rlinit inspect``: what a model's graph looks like."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import tyro

from rlinit.cli.inputs import Model, ReadingOptions, load_model
from rlinit.hardware import Hardware
from rlinit.units import format_bytes

__all__ = ["Inspect", "inspect_model"]


@dataclass(frozen=True)
class Inspect:
    """Say what a model's graph looks like. Parameters that several ops share count once, unless --sharing copy."""

    model: Model
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    ideal_cap: int = 1_000_000
    """Stop counting ideals here."""
    json: bool = False
    """Print JSON instead of a table."""


def inspect_model(command: Inspect) -> int:
    """Carry out ``rlinit inspect``; return the exit code.

    Raises
    ------
    RlinitError
        The input is wrong.
    """
    from rlinit.exact.stages.ideals.enumeration import count_ideals
    from rlinit.importers.common.precision import precision_of
    from rlinit.stages.lowering import lower_stages

    graph = load_model(command.model, "latency", command.reading)
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
        if command.model.startswith("zoo:") and not command.reading.dtype
        else precision_of(graph),
    }
    if command.json:
        json.dump(row, sys.stdout)
        print()
    else:
        _print_row(row)
    return 0


def _print_row(row: dict[str, str | int | float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(row["name"]), show_header=False)
    for key, value in row.items():
        if key == "param_bytes":
            shown = format_bytes(float(value))
        else:
            shown = value if isinstance(value, str) else f"{value:,}"
        table.add_row(key.replace("_", " "), shown)
    Console().print(table)
