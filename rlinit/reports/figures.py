"""Pictures of plans: what each stage costs or who runs what when, and where the proven bound lies."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rlinit.errors import InvalidPlan
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.plan import Plan
from rlinit.reports.gantt import CRITICAL, chart_of, draw_gantt
from rlinit.reports.ticks import round_ticks
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rlinit.graph import Graph
    from rlinit.hardware import Hardware

PARTS = (
    ("in_s", "transfer in", "#8d99ae"),
    ("work_s", "work", "#4c9be8"),
    ("overflow_s", "overflow", "#e0872f"),
    ("out_s", "transfer out", "#bcc3d0"),
)
"""What the seconds of a stage are made of: field, name, colour."""

CACHED, OFF_CACHE = "#4c9be8", "#e0872f"
"""Colours of parameters in fast memory and beyond it."""


def draw(plan: Plan, path: str | Path, graph: Graph | None = None, hardware: Hardware | None = None) -> None:
    """Draw a plan into a file: its stages' costs, or a Gantt chart, with lines at the value and the bound.

    Parameters
    ----------
    plan
        A plan with a schedule.
    path
        Where to write; the suffix (.svg, .png, .pdf) chooses the format. Written atomically.
    graph, hardware
        What the plan was made for. With both, a Gantt chart shows parallel transfers and the critical path, too.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, the suffix is none of these, or the plan is for another graph or hardware.
    """
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to draw")
    kind = Path(path).suffix.lstrip(".")
    if kind not in ("svg", "png", "pdf"):
        raise InvalidPlan(f"cannot draw to {path}; expected a name ending in .svg, .png or .pdf")
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # a dollar in a name is a dollar
        _figure(plan, graph, hardware).savefig(buffer, format=kind, dpi=130)
    write_atomically(path, buffer.getvalue())


def _figure(plan: Plan, graph: Graph | None, hardware: Hardware | None) -> Figure:
    """Return the figure of a plan with a schedule."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    placed = plan.objective in ("latency", "throughput")
    chart = chart_of(plan, graph, hardware) if placed else None
    if chart is not None:
        size = (11.0, 1.3 + 0.5 * chart.height)
    else:
        size = (max(6.0, min(0.9 * plan.num_stages + 3.0, 24.0)), 4.4)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if chart is not None:
        draw_gantt(plan, axes, chart)
    else:
        _draw_stages(plan, axes)
    proof = "proven optimal" if plan.status == "optimal" else f"gap {plan.gap:.2%}"
    axes.set_title(
        printable(f"{plan.graph} on {plan.hardware}: {plan.objective}, {proof} ({plan.bound_source or 'no bound'})"),
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_stages(plan: Plan, axes: Axes) -> None:
    """Draw one bar a stage, stacked by what its cost is made of."""
    from matplotlib.ticker import FuncFormatter

    names = list(plan.device_times_s)
    at = range(len(names))
    show = format_bytes if plan.objective == "memory" else format_seconds
    if plan.objective == "memory":
        cached = [use.param_bytes - use.off_cache_bytes for use in plan.stages]
        axes.bar(at, cached, color=CACHED, label="parameters in cache")
        off_cache = [use.off_cache_bytes for use in plan.stages]
        if any(off_cache):
            axes.bar(at, off_cache, bottom=cached, color=OFF_CACHE, label="off-cache")
        axes.plot(at, [use.out_bytes for use in plan.stages], "D", color="#31a354", label="leaving the stage")
        axes.set_ylabel("bytes")
    else:
        below, labelled = dict.fromkeys(names, 0.0), set()
        for chunk in range(plan.chunks):
            # One stage of each device, on top of those before: the chunks of a device are told apart by an edge.
            uses = [[use for use in plan.stages if use.device == name][chunk] for name in names]
            for attribute, label, colour in PARTS:
                heights = [getattr(use, attribute) for use in uses]
                if any(heights):
                    shown = None if label in labelled else label
                    edge = "white" if plan.chunks > 1 else colour
                    low = [below[name] for name in names]
                    axes.bar(at, heights, bottom=low, color=colour, edgecolor=edge, label=shown)
                    labelled.add(label)
                for name, height in zip(names, heights, strict=True):
                    below[name] += height
        axes.set_ylabel("time for each input")
    axes.axhline(plan.value, color="black", linewidth=1.2, label=f"value {show(plan.value)}")
    axes.axhline(plan.bound, color=CRITICAL, linestyle="--", linewidth=1.2, label=f"proven bound {show(plan.bound)}")
    axes.set_yticks(round_ticks(1.3 * plan.value, binary=plan.objective == "memory"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: show(float(y))))
    labels = []
    for name in names:
        mine = [(j, use.num_ops) for j, use in enumerate(plan.stages) if use.device == name]
        stages, ops = ", ".join(str(j) for j, _ in mine), sum(count for _, count in mine)
        labels.append(f"{stages}\n{printable(name)}\n{ops} {'op' if ops == 1 else 'ops'}")
    axes.set_xticks(at, labels, fontsize=8)
    if len(names) > 16:
        some = range(0, len(names), -(-len(names) // 16))
        axes.set_xticks(some, [str(j) for j in some])
        axes.set_xlabel("stage" if plan.chunks == 1 else "device")
    axes.set_ylim(0.0, 1.3 * max(plan.value, 1e-300))
    axes.legend(fontsize=8, ncols=3, loc="upper center", frameon=False)
