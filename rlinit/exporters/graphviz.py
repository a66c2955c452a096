"""Graphs as Graphviz text, coloured by the device or stage that a plan gives each op."""

from __future__ import annotations

import colorsys
import math
from pathlib import Path

from rlinit.exporters.op_devices import check_graph
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.units import format_bytes

_COLOURS = (
    "#4c9be8",
    "#f0a04b",
    "#7bc47f",
    "#c98bdb",
    "#5cc3c0",
    "#d7b441",
    "#e39ac0",
    "#a3a8b0",
    "#b58a68",
    "#8f9be0",
)
"""Of stages and devices, in every picture; black text can be read on each, and red is for what is critical."""
SEVERAL = "#e4e4e4"
"""Of ops that several devices run, where an op has one colour."""


def to_dot(graph: Graph, path: str | Path, plan: Plan | None = None) -> None:
    """Write a graph as Graphviz text, atomically; see `dot_text`.

    Parameters
    ----------
    graph
        The graph.
    path
        The file to write; one that exists is replaced.
    plan
        A plan for the graph, whose stages or devices colour the ops; None draws the graph alone.
    """
    write_atomically(path, dot_text(graph, plan))


def dot_text(graph: Graph, plan: Plan | None = None) -> str:
    """Return a graph as Graphviz text.

    Parameters
    ----------
    graph
        The graph; nodes are labelled with name and kind, edges that leave a device with the bytes they carry.
    plan
        Colours ops by device or stage. Ops whose inputs are split over several devices get stripes.

    Raises
    ------
    InvalidPlan
        The plan is for another graph, or has no schedule.
    """
    places = _places(graph, plan) if plan is not None else {}
    colours = place_colours(plan) if plan is not None else {}
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=TB;", "  node [shape=box, style=filled, fillcolor=white];"]
    for at, name in enumerate(graph.names):
        label = name if not graph.kinds[at] else f"{name}\n{graph.kinds[at]}"
        where = places.get(name, ())
        fill = ":".join(colours[place] for place in where)
        style = "" if not where else f", fillcolor={_quoted(fill)}, tooltip={_quoted(', '.join(where))}"
        style += ", style=striped" if len(where) > 1 else ""
        lines.append(f"  n{at} [label={_quoted(label)}{style}];")
    for (u, v), size in zip(graph.edges.tolist(), graph.edge_bytes.tolist(), strict=True):
        apart = places.get(graph.names[u]) != places.get(graph.names[v])
        text = f" [color=red, label={_quoted(format_bytes(float(size)))}]" if apart and not math.isnan(size) else ""
        lines.append(f"  n{u} -> n{v}{text or (' [color=red]' if apart else '')};")
    for at, (place, colour) in enumerate(colours.items()):
        lines.append(f"  legend{at} [label={_quoted(place)}, shape=ellipse, fillcolor={_quoted(colour)}];")
    return "\n".join([*lines, "}"]) + "\n"


def place_colours(plan: Plan) -> dict[str, str]:
    """Return device or stage -> colour, in the plan's order; stages are called "stage j (device)"."""
    if plan.objective in ("latency", "throughput"):
        names = [use.device for use in plan.devices]
    else:
        names = [f"stage {j} ({use.device})" for j, use in enumerate(plan.stages)]
    if len(names) <= len(_COLOURS):
        return dict(zip(names, _COLOURS, strict=False))
    hues = (colorsys.hls_to_rgb(at / len(names), 0.78, 0.6) for at in range(len(names)))
    return {
        name: "#" + "".join(f"{round(255 * part):02x}" for part in hue) for name, hue in zip(names, hues, strict=True)
    }


def _places(graph: Graph, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return op -> where it runs, as `place_colours` calls it."""
    check_graph(plan, graph)
    if plan.objective in ("pipeline", "memory"):
        return {op: (f"stage {j} ({plan.stages[int(j)].device})",) for op, j in (plan.assignment or {}).items()}
    where: dict[str, list[str]] = {}
    for batch in plan.batches:
        where.setdefault(batch.op, []).append(batch.device)
    return {op: tuple(sorted(set(devices))) for op, devices in where.items()}


def _quoted(text: str) -> str:
    """Return a string as Graphviz reads it."""
    escaped = printable(text).replace("\r", "\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
