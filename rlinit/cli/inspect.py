"""``rlinit inspect``: what a model's graph looks like, and where its costs come from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from rlinit.cli.inputs import Model, ReadingOptions, cost_table, load_hardware, load_model
from rlinit.cli.output import print_table
from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rlinit.costs.sources import CostSource


@dataclass(frozen=True)
class Inspect:
    """Show what a model's graph holds and what its ops cost.

    Parameters that several ops read count once, unless --sharing copy.
    """

    model: Model
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    hw: str | None = None
    """Hardware, as for schedule: also say where the seconds of ops come from on its devices, and how sure they are."""
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

    hardware = None if command.hw is None else load_hardware(command.hw)
    graph = load_model(command.model, command.reading, hardware)
    problem = lower_stages(graph, Hardware.pipeline(1), "memory").problem
    ideals = count_ideals(problem, command.ideal_cap)
    row: dict[str, Any] = {
        "name": graph.name,
        "ops": graph.num_ops,
        "edges": graph.num_edges,
        "depth": graph.depth,
        "width": graph.width,
        "max_in_degree": int(np.diff(graph.pred_indptr).max()),
        "ideals": ideals if ideals <= command.ideal_cap else f"over {command.ideal_cap}",
        "layers": _num_layers(graph),
        "param_bytes": graph.total_param_bytes,
        "tensor_bytes": float(np.nansum(graph.made_bytes)),
        "flops": float(np.nansum(graph.flops)),
        "numbers": precision_of(graph),
    }
    sources = [] if hardware is None else _sources(graph, hardware, command.reading)
    if command.json:
        print(json.dumps(row | {"costs": [dataclasses.asdict(source) for source in sources]}))
    else:
        _print_row(row)
        _print_sources(sources)
    return 0


def _num_layers(graph: Graph) -> int | str:
    """Return how many groups ``--granularity layer`` makes."""
    try:
        return len(graph.group("layer").groups)
    except InvalidGraph:
        return "none found"


def _sources(graph: Graph, hardware: Hardware, reading: ReadingOptions) -> list[CostSource]:
    """Return the sources of costs, of devices that differ in nothing but their name once."""
    from rlinit.costs.sources import cost_sources

    table = cost_table(reading.cost_files[0], graph) if reading.cost_files else None
    timed = {device for device, _ in graph.times}
    kinds = {
        repr(dataclasses.replace(device, name=device.name if device.name in timed else "x", node="")): device
        for device in reversed(hardware.devices)
    }
    return [row for device in reversed(kinds.values()) for row in cost_sources(graph, device, table)]


def _print_sources(sources: list[CostSource]) -> None:
    if sources:
        rows = (
            (
                row.device,
                f"{row.num_ops:,}",
                "-" if np.isnan(row.seconds) else format_seconds(row.seconds),
                row.source,
                row.sure,
            )
            for row in sources
        )
        print_table(("device", "ops", "seconds in all", "from", "how sure"), rows, "costs")


def _print_row(row: dict[str, Any]) -> None:
    shown = []
    for key, value in row.items():
        if key in ("param_bytes", "tensor_bytes"):
            text = format_bytes(float(value))
        else:
            text = value if isinstance(value, str) else f"{value:,.0f}"
        shown.append((key.replace("_", " "), text))
    print_table((), shown, str(row["name"]))
