"""What a report says beside its charts: devices, layers, assignment, settings; as HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import rlinit
from rlinit.exporters.device_map import module_paths
from rlinit.exporters.graphviz import SEVERAL, place_colours
from rlinit.exporters.op_devices import op_places
from rlinit.exporters.text import markup
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.units import format_bytes, format_seconds


def used(plan: Plan, hardware: Hardware) -> str:
    """Return the devices with what is known of them, in their colours.

    Parameters
    ----------
    plan
        A plan with an assignment.
    hardware
        Its hardware.
    """
    colours = place_colours(plan)
    if not plan.batches:  # the places of stage plans are stages
        colours = {use.device: colour for use, colour in zip(plan.stages, colours.values(), strict=True)}
    rows = hardware.to_dict()["device"]
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "efficiency"]
    cells = [[_said(key, row.get(key, "")) for key in keys] for row in rows]
    table = html_table([key.replace("_", " ") for key in keys], cells, [colours.get(row["name"], "") for row in rows])
    return f"<h2>Hardware</h2>{table}"


def _said(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(key, one)}" for name, one in value.items())
    if isinstance(value, float):
        return format_bytes(value) if key.endswith("bytes") else f"{value:.4g}"
    return str(value)


def layer_view(plan: Plan, graph: Graph) -> str:
    """Return one row a layer: what it holds, and a strip that says where its ops are; "" without modules.

    A layer is a module whose path ends in the first number, such as ``layers.3``; modules outside of such count by the
    first part of their path.

    Parameters
    ----------
    plan
        A plan with an assignment.
    graph
        Its graph.
    """
    paths = module_paths(graph)
    if not any(paths.values()):
        return ""
    colours = place_colours(plan)
    places = op_places(plan, list(colours))
    held: dict[str, Counter[str]] = {}
    size: dict[str, float] = {}
    for at, op in enumerate(graph.names):
        found = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", paths[op])
        layer = found[0] if found else paths[op].partition(".")[0] or "(no module)"
        held.setdefault(layer, Counter())[", ".join(places[op])] += 1
        size[layer] = size.get(layer, 0.0) + float(graph.param_bytes[at])
    rows = []
    for layer, counts in held.items():
        total = counts.total()
        strip = "".join(
            f'<span title="{markup(place)}" style="width:{count / total:.2%};background:{colour}"></span>'
            for place, count in counts.items()
            for colour in [colours.get(place, SEVERAL)]
        )
        rows.append(
            f"<tr><td>{markup(layer)}</td><td class='n'>{total:,}</td><td class='n'>{format_bytes(size[layer])}</td>"
            f'<td class="wide"><div class="strip">{strip}</div></td></tr>'
        )
    head = "<tr><th>layer</th><th class='n'>ops</th><th class='n'>parameters</th><th>where</th></tr>"
    return f"<h2>Layers</h2><table class='full'>{head}{''.join(rows)}</table>"


def assignment_table(plan: Plan, graph: Graph) -> str:
    """Return where each op is, and when it starts, behind a fold.

    Parameters
    ----------
    plan
        A plan with an assignment.
    graph
        Its graph.
    """
    starts, colours = plan.start_s or {}, place_colours(plan)
    where = op_places(plan, list(colours))
    places = [", ".join(where[op]) for op in graph.names]
    rows = [
        [name, graph.kinds[at], places[at], *([format_seconds(starts[name])] if starts else [])]
        for at, name in enumerate(graph.names)
    ]
    header = ["op", "kind", "where", *(["starts"] if starts else [])]
    table = html_table(header, rows, [colours.get(place, SEVERAL) for place in places])
    return f"<h2>Assignment</h2><details><summary>{len(rows):,} ops</summary>{table}</details>"


def settings(plan: Plan, graph: Graph) -> str:
    """Return what led to the plan: version, options, seed, numbers, and the seconds of each phase.

    Parameters
    ----------
    plan
        A plan with an assignment.
    graph
        Its graph.
    """
    rules = [("transfers", plan.transfer_rule), ("memory holds", plan.resident)] if plan.batches else []
    rows = [
        ("written by", f"rlinit {rlinit.__version__}"),
        ("graph", f"{plan.graph}, {graph.num_ops:,} ops, fingerprint {plan.graph_fingerprint[:16]}"),
        ("hardware", f"{plan.hardware}, fingerprint {plan.hardware_fingerprint[:16]}"),
        ("objective", plan.objective),
        *rules,
        *((key.replace("_", " "), str(value)) for key, value in plan.provenance.items() if value not in (None, "")),
    ]
    options = html_table([], [list(row) for row in rows])
    phases = html_table(
        ["phase", "seconds"], [[phase, format_seconds(seconds)] for phase, seconds in plan.phase_s.items()]
    )
    return f"<h2>How it was made</h2><div class='columns'>{options}{phases if plan.phase_s else ''}</div>"


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], swatches: Sequence[str] = ()) -> str:
    """Return a table of text.

    Parameters
    ----------
    header
        Names of the columns; none: no head.
    rows
        Cells as text; a column whose cells all begin with a digit is set flush right.
    swatches
        A colour in front of each row, "" for none; empty: no colours at all.
    """
    columns = len(rows[0]) if rows else len(header)
    numeric = [at > 0 and all(row[at][:1].isdigit() or not row[at] for row in rows) for at in range(columns)]
    side = [' class="n"' if one else "" for one in numeric]
    head = "".join(f"<th{side[at]}>{markup(cell)}</th>" for at, cell in enumerate(header))
    body = []
    for number, row in enumerate(rows):
        colour = swatches[number] if swatches else ""
        mark = f'<span class="swatch" style="background:{colour}"></span> ' if colour else ""
        cells = (f"<td{side[at]}>{mark if at == 0 else ''}{markup(cell)}</td>" for at, cell in enumerate(row))
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{f'<tr>{head}</tr>' if header else ''}{''.join(body)}</table>"
