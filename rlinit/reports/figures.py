"""Pictures of plans: what each stage costs or who runs what when, and where the proven bound lies."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlinit.errors import InvalidPlan
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.plan import Plan
from rlinit.reports.gantt import CRITICAL, chart_of, draw_gantt
from rlinit.reports.ticks import round_ticks
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rlinit.graph import Graph
    from rlinit.hardware import Hardware

KINDS = ("svg", "png", "pdf")
"""Kinds of files that pictures are drawn to."""

PARTS = (
    ("in_s", "transfer in", "#8d99ae"),
    ("work_s", "work", "#4c9be8"),
    ("overflow_s", "overflow", "#e0872f"),
    ("out_s", "transfer out", "#bcc3d0"),
    ("sync_s", "gathers at borders", "#f3c77b"),
    ("gradient_s", "gradients", "#d98c5f"),
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
    if kind not in KINDS:
        raise InvalidPlan(f"cannot draw to {path}; expected a name ending in .svg, .png or .pdf")
    write_atomically(path, picture(plan, kind, graph, hardware))


def picture(plan: Plan, kind: str, graph: Graph | None = None, hardware: Hardware | None = None) -> bytes:
    """Return the picture of a plan with a schedule as a file of some kind; see `draw`.

    Parameters
    ----------
    plan, graph, hardware
        As for `draw`.
    kind
        One of `KINDS`.
    """

    def paint(axes: Axes) -> None:
        if chart is not None:
            draw_gantt(plan, axes, chart)
        else:
            _draw_stages(plan, axes)
        proof = "proven optimal" if plan.status == "optimal" else f"gap {plan.gap:.2%}"
        what = f"{plan.graph} on {plan.hardware}: {plan.objective}, {proof} ({plan.bound_source or 'no bound'})"
        axes.set_title(printable(what), fontsize=10)

    placed = plan.objective in ("latency", "throughput")
    chart = chart_of(plan, graph, hardware) if placed else None
    if chart is not None:
        return drawn((11.0, 1.3 + 0.5 * chart.height), kind, paint)
    return drawn((max(6.0, min(0.9 * plan.num_stages + 3.0, 24.0)), 4.4), kind, paint)


def drawn(size: tuple[float, float], kind: str, paint: Callable[[Axes], None]) -> bytes:
    """Return a picture as a file of some kind.

    Parameters
    ----------
    size
        Width and height in inches.
    kind
        One of `KINDS`.
    paint
        Draws on the axes that it is given.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    # A dollar in a name is a dollar, text in an SVG is text, and the same picture is the same file.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "rlinit"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        paint(axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def inline(svg: bytes) -> str:
    """Return an SVG file as it stands in a page."""
    text = svg.decode()
    return text[text.index("<svg") :]


@dataclass(frozen=True, slots=True)
class Steps:
    """A number over time: `y` from each of the seconds `x_s` until the next; ``nan`` where there is none."""

    name: str
    x_s: Sequence[float]
    y: Sequence[float]
    colour: str
    style: Literal["-", "--"] = "-"


def steps_chart(lines: Sequence[Steps], end_s: float, show: Callable[[float], str]) -> str:
    """Return steps over time as SVG for a page.

    Parameters
    ----------
    lines
        What to draw, each with its name.
    end_s
        Where time ends.
    show
        The text of a number at the axis: `format_bytes`, or `format_seconds`.
    """
    from matplotlib.ticker import FuncFormatter

    def paint(axes: Axes) -> None:
        for one in lines:
            x, y = [*one.x_s, end_s], [*one.y, one.y[-1]]
            axes.step(x, y, one.style, where="post", color=one.colour, label=printable(one.name))
        high = max((value for one in lines for value in one.y if math.isfinite(value)), default=1.0) or 1.0
        axes.set_ylim(0.0, 1.1 * high)
        axes.set_yticks(round_ticks(1.1 * high, binary=show is format_bytes))
        axes.set_xticks(round_ticks(end_s))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_seconds(float(x))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: show(float(y))))
        axes.figure.legend(fontsize=8, ncols=6, loc="outside lower center", frameon=False)

    return inline(drawn((11.0, 3.2), "svg", paint))


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
        axes.set_ylabel("time for each input" if plan.groups is None else "time for each micro-batch")
    axes.axhline(plan.value, color="black", linewidth=1.2, label=f"value {show(plan.value)}")
    axes.axhline(plan.bound, color=CRITICAL, linestyle="--", linewidth=1.2, label=f"proven bound {show(plan.bound)}")
    axes.set_yticks(round_ticks(1.3 * plan.value, binary=plan.objective == "memory"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: show(float(y))))
    labels = []
    for name in names:
        mine = [(j, use.num_ops) for j, use in enumerate(plan.stages) if use.device == name]
        stages, ops = ", ".join(str(j) for j, _ in mine), sum(count for _, count in mine)
        group = plan.stages[mine[0][0]]
        where = printable(name) if plan.groups is None else f"{group.replicas} x {group.tensor_parallel} devices"
        labels.append(f"{stages}\n{where}\n{ops} {'op' if ops == 1 else 'ops'}")
    axes.set_xticks(at, labels, fontsize=8)
    if len(names) > 16:
        some = range(0, len(names), -(-len(names) // 16))
        axes.set_xticks(some, [str(j) for j in some])
        axes.set_xlabel("stage" if plan.chunks == 1 else "device")
    axes.set_ylim(0.0, 1.3 * max(plan.value, 1e-300))
    axes.legend(fontsize=8, ncols=3, loc="upper center", frameon=False)
