"""A plan as one HTML page: graph, timeline, memory, history of the bound, what limits it. Needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rlinit.checker.compatibility import require_graph, require_hardware
from rlinit.errors import InvalidPlan
from rlinit.exporters.graphviz import SEVERAL, place_colours
from rlinit.exporters.text import markup
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan, StageUse
from rlinit.reports.critical_path import Link, critical_path
from rlinit.reports.facts import (
    assignment_table,
    comparison,
    html_table,
    key_figures,
    layer_view,
    places_of,
    settings,
    used,
)
from rlinit.reports.figures import CACHED, OFF_CACHE, PARTS
from rlinit.reports.svg_charts import Bar, Series, bar_chart, graph_picture, step_chart
from rlinit.simulation.memory_profile import memory_profile
from rlinit.simulation.simulator import simulate
from rlinit.units import format_bytes, format_seconds

_MOST_BARS = 6000
_MOST_OPS = 3000
_STYLE = """
:root { --ink: #1d2433; --dim: #667085; --line: #e2e6ec; --back: #ffffff; --card: #f5f7fa; --critical: #c1121f;
  --moved: #8d99ae; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #9aa3b2; --line: #333a47; --back: #171a21; --card: #20242e; --critical: #ff5d5d; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; color: var(--ink);
  background: var(--back); }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .15rem .9rem .15rem 0; text-align: left;
  vertical-align: top; } th { color: var(--dim); font-weight: 500; } .full { width: 100%; } .wide { width: 60%; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; } .card { background: var(--card); border-radius: .5rem;
  padding: .7rem 1.1rem; flex: 1 1 11rem; } .card b { font-size: 1.5rem; } .card div { color: var(--dim); }
.columns { display: flex; flex-wrap: wrap; gap: 0 3rem; }
svg { width: 100%; height: auto; display: block; } text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.lane { text-anchor: end; } .tick { text-anchor: middle; fill: var(--dim); } .bar { height: .9em; margin-top: .35em;
  background: var(--moved); border-radius: 2px; } .mine { background: #4c9be8; } .strip { display: flex; height: .9em;
  margin-top: .35em; } .name { text-anchor: middle; pointer-events: none; fill: #1d2433; } .key { font-weight: 600; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; } .note { color: var(--dim); }
"""


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
    sections = [key_figures(plan)]
    if plan.batches:
        path = critical_path(plan, graph, hardware)
        sections += [_timeline(plan, graph, hardware, path), comparison(plan), _limits(plan, path)]
        sections += [_memory(plan, graph, hardware)]
    else:
        sections += [_stages(plan), comparison(plan)]
    sections += [layer_view(plan, graph), _history(plan), _graph(plan, graph), used(plan, hardware)]
    sections += [assignment_table(plan, graph), settings(plan, graph)]
    body = "\n".join(section for section in sections if section)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _timeline(plan: Plan, graph: Graph, hardware: Hardware, path: Sequence[Link]) -> str:
    """Draw who runs what when; the critical path is underlined in red."""
    run = simulate(plan, graph, hardware)
    on_path = {(link.kind, link.what, link.where, link.start_s) for link in path}
    colours = place_colours(plan)
    lanes = [use.device for use in plan.devices]
    links = sorted({(move.source, move.target) for move in run.transfers})
    place = {lane: at for at, lane in enumerate([*lanes, *(f"{source} → {target}" for source, target in links)])}
    bars = [
        Bar(
            place[batch.device],
            batch.start_s,
            batch.end_s,
            colours[batch.device],
            batch.op if len(batch.shards) == plan.inputs // plan.shard_inputs else f"{batch.op} x{len(batch.shards)}",
            f"{batch.op} on {batch.device}: {format_seconds(batch.start_s)} to {format_seconds(batch.end_s)}",
            ("compute", batch.op, batch.device, batch.start_s) in on_path,
        )
        for batch in run.batches
    ]
    for move in run.transfers:
        lane = f"{move.source} → {move.target}"
        tip = f"{move.op}, {lane}: {format_seconds(move.start_s)} to {format_seconds(move.end_s)}"
        strong = ("transfer", move.op, lane, move.start_s) in on_path
        bars.append(Bar(place[lane], move.start_s, move.end_s, "var(--moved)", "", tip, strong))
    note = ""
    if len(bars) > _MOST_BARS:
        bars = sorted(bars, key=lambda bar: bar.start - bar.end)[:_MOST_BARS]
        note = f'<p class="note">The {_MOST_BARS:,} longest of {len(run.batches) + len(run.transfers):,} are drawn.</p>'
    lines = [(plan.bound, "var(--critical)", f"proven bound {format_seconds(plan.bound)}")]
    chart = bar_chart(bars, list(place), max(plan.value, run.makespan_s), format_seconds, lines=lines)
    legend = "Underlined in red: what the makespan waits for. Dashed: the proven bound."
    return f"<h2>Timeline</h2>{chart}{note}<p class='note'>{legend}</p>"


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
    busiest = max(plan.devices, key=lambda use: use.busy_s)
    said = (
        f"The busiest device, {busiest.device}, computes {busiest.busy_s / max(plan.value, 1e-300):.1%} of the time. "
        f"The critical path has {len(path)} members."
    )
    return f"<h2>What limits the plan</h2><p>{markup(said)}</p>{first}{second}"


def _memory(plan: Plan, graph: Graph, hardware: Hardware) -> str:
    profiles = memory_profile(plan, graph, hardware)
    capacity = {device.name: device.memory_bytes for device in hardware.devices}
    series, rows, colours = [], [], place_colours(plan)
    for use in plan.devices:
        profile = profiles[use.device]
        held = profile.held_bytes.tolist()
        series.append(Series(use.device, profile.time_s.tolist(), held, colours[use.device]))
        rows.append(
            [
                use.device,
                str(use.num_batches),
                format_seconds(use.busy_s),
                f"{use.busy_s / max(plan.value, 1e-300):.1%}",
                format_bytes(profile.param_bytes),
                format_bytes(profile.peak_bytes),
                format_bytes(use.held_bytes),
                format_bytes(capacity[use.device]) if capacity[use.device] < math.inf else "unlimited",
            ]
        )
    header = ["device", "batches", "busy", "share", "parameters", "peak", "counted by the plan", "memory"]
    over = [use.device for use in plan.devices if profiles[use.device].peak_bytes > capacity[use.device]]
    said = f"<p>The peak exceeds the memory of {markup(', '.join(over))}.</p>" if over else ""
    chart = step_chart(series, plan.value, format_seconds, format_bytes, binary=True)
    return f"<h2>Memory by device</h2>{chart}{said}{html_table(header, rows)}"


def _stages(plan: Plan) -> str:
    """Draw what each stage costs, those of one device in one bar, and name the one that limits."""
    show = format_bytes if plan.objective == "memory" else format_seconds
    bars, ends = [], dict.fromkeys((use.device for use in plan.stages), 0.0)
    devices = list(ends)
    for j, use in enumerate(plan.stages):
        for name, amount, colour in _stage_parts(plan, use):
            at = ends[use.device]
            told = f"stage {j}: {name} {show(amount)}"
            bars.append(Bar(devices.index(use.device), at, at + amount, colour, name, told))
            ends[use.device] = at + amount
    lanes = devices if plan.chunks > 1 else [f"{j} {use.device}" for j, use in enumerate(plan.stages)]
    lines = [(plan.bound, "var(--critical)", f"proven bound {show(plan.bound)}")]
    chart = bar_chart(bars, lanes, max(plan.value, 1e-300), show, lines=lines, binary=plan.objective == "memory")
    costs = [sum(amount for _, amount, _ in _stage_parts(plan, use)) for use in plan.stages]
    full = max(devices, key=lambda device: ends[device])
    worst = max((j for j, use in enumerate(plan.stages) if use.device == full), key=lambda j: costs[j])
    name, amount, _ = max(_stage_parts(plan, plan.stages[worst]), key=lambda part: part[1])
    said = f"Stage {worst} on {full} limits the plan; most of it is {name} ({show(amount)})."
    if plan.chunks > 1:
        said = f"Device {full} limits the plan; its longest stage is {worst}, and most of that is {name}."
    rows = [
        [
            str(j),
            use.device,
            str(use.num_ops),
            format_bytes(use.param_bytes),
            *([format_bytes(use.activation_bytes)] if plan.stage_orders else []),
            format_bytes(use.out_bytes),
            show(costs[j]),
        ]
        for j, use in enumerate(plan.stages)
    ]
    peaks = ["peak activations"] if plan.stage_orders else []
    header = ["stage", "device", "ops", "parameters", *peaks, "bytes out", "cost"]
    return f"<h2>Stages</h2>{chart}<h2>What limits the plan</h2><p>{markup(said)}</p>{html_table(header, rows)}"


def _stage_parts(plan: Plan, use: StageUse) -> list[tuple[str, float, str]]:
    if plan.objective == "memory":
        cached = use.param_bytes - use.off_cache_bytes
        return [("in cache", cached, CACHED), ("off-cache", use.off_cache_bytes, OFF_CACHE)]
    return [(name, getattr(use, field), colour) for field, name, colour in PARTS]


def _history(plan: Plan) -> str:
    if not plan.history:
        return ""
    show = format_bytes if plan.objective == "memory" else format_seconds
    end = max([entry.time_s for entry in plan.history] + [sum(plan.phase_s.values())])
    times = [entry.time_s for entry in plan.history]
    values = [entry.values[0] if entry.values else float("nan") for entry in plan.history]
    bounds = [entry.bounds[0] if entry.bounds else float("nan") for entry in plan.history]
    series = [
        Series("value", times, values, "var(--ink)"),
        Series("bound", times, bounds, "var(--critical)", dashed=True),
    ]
    rows = [
        [format_seconds(entry.time_s), entry.phase]
        + [show(levels[0]) if levels else "" for levels in (entry.values, entry.bounds)]
        for entry in plan.history[-12:]
    ]
    chart = step_chart(series, max(end, 1e-9), format_seconds, show, binary=plan.objective == "memory")
    return f"<h2>History of value and bound</h2>{chart}{html_table(['after', 'phase', 'value', 'bound'], rows)}"


def _graph(plan: Plan, graph: Graph) -> str:
    """Draw the graph, coloured by place; dark edges leave a place."""
    colours = place_colours(plan)
    legend = " ".join(
        f'<span class="swatch" style="background:{colour}"></span> {markup(place)}' for place, colour in colours.items()
    )
    kinds = f"{graph.num_ops:,} ops, {graph.num_edges:,} edges, {graph.depth:,} levels"
    if graph.num_ops > _MOST_OPS:
        return f"<h2>Graph</h2><p>{kinds}; too many to draw here, export it as DOT.</p>"
    where = places_of(plan, graph)
    picture = graph_picture(
        graph.level.tolist(),
        [(u, v) for u, v in graph.edges.tolist()],
        [colours.get(place, SEVERAL) for place in where],
        list(graph.names),
        [f"{name} ({kind}) on {place}" for name, kind, place in zip(graph.names, graph.kinds, where, strict=True)],
    )
    return f"<h2>Graph</h2><p>{kinds}; dark edges lead from one place to another. {legend}</p>{picture}"
