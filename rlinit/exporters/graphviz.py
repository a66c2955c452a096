"""Graphs as Graphviz text, coloured by the device or stage that a plan gives each op."""

from __future__ import annotations

import colorsys
import math
from pathlib import Path

from rlinit.exporters.op_devices import check_graph, op_places
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.units import format_bytes

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
    colours: dict[str, str] = {}
    places: dict[str, tuple[str, ...]] = {}
    if plan is not None:
        check_graph(plan, graph)
        colours = place_colours(plan)
        places = op_places(plan, list(colours))
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
    # Black text can be read on each, and red is for what is critical.
    hues = (colorsys.hls_to_rgb(0.07 + 0.86 * at / len(names), 0.7, 0.6) for at in range(len(names)))
    return {
        name: "#" + "".join(f"{round(255 * part):02x}" for part in hue) for name, hue in zip(names, hues, strict=True)
    }


def _quoted(text: str) -> str:
    """Return a string as Graphviz reads it."""
    escaped = printable(text).replace("\r", "\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
