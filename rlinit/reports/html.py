"""A plan as one HTML page: timeline, memory, history of the bound, what limits it. Needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rlinit.checker.compatibility import require_graph, require_hardware
from rlinit.errors import InvalidPlan
from rlinit.exporters.graphviz import place_colours
from rlinit.exporters.text import markup
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan, StageUse
from rlinit.reports.critical_path import Link, critical_path
from rlinit.reports.facts import assignment_table, html_table, layer_view, settings, used
from rlinit.reports.figures import PARTS, Steps, inline, picture, steps_chart
from rlinit.reports.gantt import CRITICAL
from rlinit.reports.tables import plan_table, summary_lines
from rlinit.simulation.memory_profile import memory_profile
from rlinit.units import format_bytes, format_seconds


def to_report(plan: Plan, graph: Graph, hardware: Hardware, path: str | Path) -> None:
    """Write the report of a plan as one HTML file, atomically; see `report_html`.

    Parameters
    ----------
    plan
        A plan of any objective.
    graph
        The graph the plan was made for.
    hardware
        The devices and links it was made for.
    path
        The file to write; one that exists is replaced.
    """
    write_atomically(path, report_html(plan, graph, hardware))


def report_html(plan: Plan, graph: Graph, hardware: Hardware) -> str:
    """Return the report of a plan as HTML with pictures in it; it loads nothing else and runs no script.

    Parameters
    ----------
    plan
        A plan with a schedule.
    graph, hardware
        What it was made for.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, or is for another graph or hardware.
    """
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to report")
    require_graph(plan, graph)
    require_hardware(plan, hardware)
    title = markup(f"{plan.graph} on {plan.hardware}: {plan.objective}")
    table = plan_table(plan)
    said = "".join(f"<div>{markup(line)}</div>" for line in summary_lines(plan))
    sections = [said, html_table(table.header, table.rows)]
    if plan.batches:
        path = critical_path(plan, graph, hardware)
        sections += [_timeline(plan, graph, hardware), _limits(plan, path)]
        sections += [_memory(plan, graph, hardware)]
    else:
        sections += [_stages(plan)]
    sections += [layer_view(plan, graph), _history(plan), used(plan, hardware)]
    sections += [assignment_table(plan, graph), settings(plan, graph)]
    body = "\n".join(section for section in sections if section)
    style = resources.files("rlinit.reports").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{style}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _timeline(plan: Plan, graph: Graph, hardware: Hardware) -> str:
    """Draw who runs what when."""
    legend = "Underlined in red: what the makespan waits for. Dashed: the proven bound."
    chart = inline(picture(plan, "svg", graph, hardware))
    return f"<h2>Timeline</h2><div class='picture'>{chart}</div><p class='note'>{legend}</p>"


def _limits(plan: Plan, path: Sequence[Link]) -> str:
    """Say what the makespan is made of."""
    total = max(sum(link.end_s - link.start_s for link in path), 1e-300)
    shares: dict[tuple[str, str], float] = {}
    for link in path:
        key = ({"compute": "computing on", "transfer": "moving", "idle": "idle before"}[link.kind], link.where)
        shares[key] = shares.get(key, 0.0) + link.end_s - link.start_s
    by_share = sorted(shares.items(), key=lambda entry: -entry[1])
    first = html_table(
        ["of the critical path", "", "seconds", "share"],
        [
            [what, where, format_seconds(seconds), f"{seconds / total:.1%}"]
            for (what, where), seconds in by_share
            if seconds
        ],
    )
    longest = sorted(path, key=lambda link: link.start_s - link.end_s)[:12]
    second = html_table(
        ["longest members", "", "starts", "seconds", "waited for"],
        [
            [
                link.what,
                link.where,
                format_seconds(link.start_s),
                format_seconds(link.end_s - link.start_s),
                link.because,
            ]
            for link in longest
        ],
    )
    return f"<h2>What limits the plan</h2><p>The critical path has {len(path)} members.</p>{first}{second}"


def _memory(plan: Plan, graph: Graph, hardware: Hardware) -> str:
    profiles = memory_profile(plan, graph, hardware)
    capacity = {device.name: device.memory_bytes for device in hardware.devices}
    lines, rows, colours = [], [], place_colours(plan)
    for use in plan.devices:
        profile, room = profiles[use.device], capacity[use.device]
        lines.append(Steps(use.device, profile.time_s.tolist(), profile.held_bytes.tolist(), colours[use.device]))
        held = (profile.param_bytes, profile.peak_bytes, use.held_bytes)
        rows.append([use.device, *map(format_bytes, held), format_bytes(room) if room < math.inf else "unlimited"])
    header = ["device", "parameters", "peak", "counted by the plan", "memory"]
    over = [use.device for use in plan.devices if profiles[use.device].peak_bytes > capacity[use.device]]
    said = f"<p>The peak exceeds the memory of {markup(', '.join(over))}.</p>" if over else ""
    chart = steps_chart(lines, plan.value, format_bytes)
    return f"<h2>Memory by device</h2><div class='picture'>{chart}</div>{said}{html_table(header, rows)}"


def _stages(plan: Plan) -> str:
    """Draw what each stage costs, those of one device in one bar, and name the one that limits."""
    show = format_bytes if plan.objective == "memory" else format_seconds
    costs = [sum(amount for _, amount in _stage_parts(plan, use)) for use in plan.stages]
    spent: dict[str, float] = {}
    for use, cost in zip(plan.stages, costs, strict=True):
        spent[use.device] = spent.get(use.device, 0.0) + cost
    full = max(spent, key=spent.__getitem__)
    worst = max((j for j, use in enumerate(plan.stages) if use.device == full), key=costs.__getitem__)
    name, amount = max(_stage_parts(plan, plan.stages[worst]), key=lambda part: part[1])
    said = f"Stage {worst} on {full} limits the plan; most of it is {name} ({show(amount)})."
    if plan.chunks > 1:
        said = f"Device {full} limits the plan; its longest stage is {worst}, and most of that is {name}."
    chart = inline(picture(plan, "svg"))
    return f"<h2>Stages</h2><div class='picture'>{chart}</div><h2>What limits the plan</h2><p>{markup(said)}</p>"


def _stage_parts(plan: Plan, use: StageUse) -> list[tuple[str, float]]:
    if plan.objective == "memory":
        return [("in cache", use.param_bytes - use.off_cache_bytes), ("off-cache", use.off_cache_bytes)]
    return [(name, getattr(use, field)) for field, name, _ in PARTS]


def _history(plan: Plan) -> str:
    if not plan.history:
        return ""
    show = format_bytes if plan.objective == "memory" else format_seconds
    end = max([entry.time_s for entry in plan.history] + [sum(plan.phase_s.values()), 1e-9])
    times = [entry.time_s for entry in plan.history]
    values = [entry.values[0] if entry.values else math.nan for entry in plan.history]
    bounds = [entry.bounds[0] if entry.bounds else math.nan for entry in plan.history]
    lines = [Steps("value", times, values, "black"), Steps("bound", times, bounds, CRITICAL, "--")]
    rows = [
        [format_seconds(entry.time_s), entry.phase]
        + [show(levels[0]) if levels else "" for levels in (entry.values, entry.bounds)]
        for entry in plan.history[-12:]
    ]
    chart = steps_chart(lines, end, show)
    table = html_table(["after", "phase", "value", "bound"], rows)
    return f"<h2>History of value and bound</h2><div class='picture'>{chart}</div>{table}"
