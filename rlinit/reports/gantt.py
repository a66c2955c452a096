"""Gantt charts of placements: who runs what when, what moves meanwhile, what the makespan waits for, and the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinit.exporters.graphviz import place_colours
from rlinit.exporters.text import printable
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan
from rlinit.reports.critical_path import Link, critical_path
from rlinit.reports.ticks import round_ticks
from rlinit.simulation.simulator import simulate
from rlinit.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CRITICAL = "#c1121f"
"""Colour of the critical path and of the bound, which no place has."""

_MOST_BATCHES = 150
"""Batches above which those that follow each other on a device, less than such a share of the makespan apart, are drawn
as one bar."""

_MOST_LINKS = 16
"""Lanes of links above which those from one device share a lane."""

_LINK_HEIGHT = 0.55
"""Height of the lane of a link over that of a device."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches of a device, drawn as one bar from `start_s` to `end_s`."""

    device: str
    start_s: float
    end_s: float
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What a Gantt chart shows.

    Parameters
    ----------
    devices, links
        Names of the lanes, those of devices first.
    runs
        Bars of the devices.
    moves
        (lane of a link, start, end) of transfers, in seconds.
    path
        The critical path, where graph and hardware are known.
    """

    devices: tuple[str, ...]
    links: tuple[str, ...]
    runs: tuple[Run, ...]
    moves: tuple[tuple[str, float, float], ...]
    path: tuple[Link, ...] = ()

    @property
    def levels(self) -> dict[str, float]:
        """Middle of each lane, downwards, where the lane of a device is one high; links are drawn closer together."""
        devices = {name: float(at) for at, name in enumerate(self.devices)}
        first = len(devices) - 0.15
        return devices | {name: first + _LINK_HEIGHT * at for at, name in enumerate(self.links)}

    @property
    def height(self) -> float:
        """How many lanes of devices all lanes take."""
        return len(self.devices) + _LINK_HEIGHT * len(self.links)


def chart_of(plan: Plan, graph: Graph | None = None, hardware: Hardware | None = None) -> Chart:
    """Return what the Gantt chart of a plan shows.

    Parameters
    ----------
    plan
        A plan that lists batches.
    graph, hardware
        What it was made for. With both, parallel transfers are shown, which a plan does not list, and the critical
        path; without them, the transfers that the plan lists.

    Raises
    ------
    InvalidPlan
        The plan is for another graph or hardware.
    """
    path: Sequence[Link] = ()
    moves = [(t.source, t.target, t.start_s, t.end_s) for t in plan.transfers]
    if graph is not None and hardware is not None:
        path = critical_path(plan, graph, hardware)
        moves = [(t.source, t.target, t.start_s, t.end_s) for t in simulate(plan, graph, hardware).transfers]
    joined = len({move[:2] for move in moves}) > _MOST_LINKS
    lanes = (f"{source} → {target}" for source, target, _, _ in moves)
    named = [(_joined(lane) if joined else lane, *span[2:]) for lane, span in zip(lanes, moves, strict=True)]
    devices = tuple(use.device for use in plan.devices)
    single = [Run(batch.device, batch.start_s, batch.end_s, (batch,)) for batch in plan.batches]
    runs = merged_runs(plan) if len(plan.batches) > _MOST_BATCHES else single
    return Chart(devices, tuple(sorted({lane for lane, _, _ in named})), tuple(runs), tuple(named), tuple(path))


def merged_runs(plan: Plan) -> list[Run]:
    """Return the batches of each device, those that follow each other with hardly a pause as one run."""
    runs = []
    for use in plan.devices:
        mine = sorted((b for b in plan.batches if b.device == use.device), key=lambda batch: batch.start_s)
        held: list[Batch] = []
        for batch in mine:
            if held and batch.start_s > held[-1].end_s + plan.value / _MOST_BATCHES:
                runs.append(Run(use.device, held[0].start_s, held[-1].end_s, tuple(held)))
                held = []
            held.append(batch)
        if held:
            runs.append(Run(use.device, held[0].start_s, held[-1].end_s, tuple(held)))
    return runs


def draw_gantt(plan: Plan, axes: Axes, chart: Chart) -> None:
    """Draw one lane a device, coloured as everywhere else, and one a link, with a line along the critical path.

    Parameters
    ----------
    plan
        A plan that lists batches.
    axes
        The axes to draw on; time is in seconds.
    chart
        What to show; see `chart_of`.
    """
    from matplotlib.ticker import FuncFormatter

    end = max(plan.value, 1e-300)
    level = chart.levels
    colours = place_colours(plan)
    line = 0.6 if len(chart.runs) <= 2 * _MOST_BATCHES else 0.0
    for device in chart.devices:
        spans = [(run.start_s, run.end_s - run.start_s) for run in chart.runs if run.device == device]
        axes.broken_barh(
            spans, (level[device] - 0.4, 0.8), facecolors=colours[device], edgecolor="white", linewidth=line
        )
    for run in chart.runs:
        label = _label(plan, run)
        if (run.end_s - run.start_s) / end * 110 >= len(label):
            middle = (run.start_s + run.end_s) / 2
            axes.text(middle, level[run.device], label, ha="center", va="center", fontsize=7, clip_on=True)
    for link in chart.links:
        spans = [(start, stop - start) for name, start, stop in chart.moves if name == link]
        axes.broken_barh(spans, (level[link] - 0.2, 0.4), facecolors="#8d99ae", linewidth=0.0)
    _draw_path(axes, chart, level)
    axes.set_yticks(list(level.values()), [printable(name) for name in _lane_names(plan, chart)], fontsize=8)
    axes.set_ylim(chart.height - 0.4, -0.6)
    axes.set_xlim(0.0, end * 1.02)
    axes.set_xticks(round_ticks(end * 1.02))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_seconds(float(x))))
    axes.axvline(plan.value, color="black", linewidth=1.2, label=f"makespan {format_seconds(plan.value)}")
    bound = f"bound {format_seconds(plan.bound)}"
    axes.axvline(plan.bound, color=CRITICAL, linestyle="--", linewidth=1.2, label=bound)
    axes.figure.legend(fontsize=8, ncols=3, loc="outside lower center", frameon=False)


def _draw_path(axes: Axes, chart: Chart, level: Mapping[str, float]) -> None:
    """Underline what the makespan waits for: batches at the lower edge of their lane, transfers across it."""
    x: list[float] = []
    y: list[float] = []
    for link in chart.path:
        if link.kind != "idle":
            lane = link.where if link.where in level else _joined(link.where)
            x += [link.start_s, link.end_s, math.nan]
            y += [level[lane] + (0.44 if link.where in chart.devices else 0.0)] * 3
    if x:
        axes.plot(x, y, color=CRITICAL, linewidth=3.0, solid_capstyle="butt", label="critical path", zorder=3)


def _joined(link: str) -> str:
    """Return the lane of all links from the device that a link "source → target" starts at."""
    return f"from {link.partition(' → ')[0]}"


def _lane_names(plan: Plan, chart: Chart) -> list[str]:
    one, more = ("op", "ops") if plan.inputs == plan.shard_inputs else ("batch", "batches")
    end = max(plan.value, 1e-300)
    devices = [
        f"{use.device}\n{use.num_batches} {one if use.num_batches == 1 else more}, {use.busy_s / end:.0%} busy"
        for use in plan.devices
    ]
    return [*devices, *chart.links]


def _label(plan: Plan, run: Run) -> str:
    if len(run.batches) > 1:
        return f"{len(run.batches)} ops"
    batch = run.batches[0]
    name = printable(batch.op)
    return name if plan.inputs == plan.shard_inputs else f"{name} x{len(batch.shards)}"
