"""Gantt charts of placements: who runs what when, and where the proven bound lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.exporters.text import printable
from rlinit.plan import Plan
from rlinit.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_gantt"]

_MOST_LABELS = 60
"""Batches up to which each is labelled with its op."""


def draw_gantt(plan: Plan, axes: Axes) -> None:
    """Draw one lane a device, and one a link or receiver where the plan lists transfers.

    Ops are coloured by their place in the order of starts, so that a later picture of the same model compares.

    Parameters
    ----------
    plan
        A plan that lists batches.
    axes
        The axes to draw on; time is in seconds.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import FuncFormatter

    lanes = [use.device for use in plan.devices]
    links = sorted({(t.source, t.target) for t in plan.transfers})
    lane_of_link = {link: len(lanes) + at for at, link in enumerate(links)}
    rank = {op: at for at, op in enumerate(sorted(plan.start_s or {}, key=lambda op: (plan.start_s or {})[op]))}
    colours = colormaps["viridis"]
    for at, device in enumerate(lanes):
        mine = [batch for batch in plan.batches if batch.device == device]
        axes.broken_barh(
            [(batch.start_s, batch.end_s - batch.start_s) for batch in mine],
            (at - 0.4, 0.8),
            facecolors=[colours(rank[batch.op] / max(1, len(rank) - 1)) for batch in mine],
            edgecolor="white",
            linewidth=0.3 if len(plan.batches) < 2000 else 0.0,
        )
        if len(plan.batches) <= _MOST_LABELS:
            for batch in mine:
                middle = (batch.start_s + batch.end_s) / 2
                dark = rank[batch.op] / max(1, len(rank) - 1) < 0.6
                name = printable(batch.op)
                text = name if plan.inputs == plan.shard_inputs else f"{name} x{len(batch.shards)}"
                room = (batch.end_s - batch.start_s) / max(plan.value, 1e-300) * 120
                if room >= len(text):
                    axes.text(
                        middle, at, text, ha="center", va="center", fontsize=7, color="white" if dark else "black"
                    )
    for link, at in lane_of_link.items():
        spans = [(t.start_s, t.end_s - t.start_s) for t in plan.transfers if (t.source, t.target) == link]
        axes.broken_barh(spans, (at - 0.25, 0.5), facecolors="#fdae6b", edgecolor="#e6550d", linewidth=0.3)
    names = [
        f"{use.device}\n{use.num_batches} batches, {use.busy_s / max(plan.value, 1e-300):.0%} busy"
        if plan.objective == "throughput"
        else f"{use.device}\n{use.num_batches} ops, {use.busy_s / max(plan.value, 1e-300):.0%} busy"
        for use in plan.devices
    ]
    names += [f"{source} → {target}" for source, target in links]
    axes.set_yticks(range(len(names)), [printable(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.0, max(plan.value, 1e-300) * 1.02)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_seconds(float(x))))
    axes.axvline(plan.value, color="black", linewidth=1.2, label=f"makespan {format_seconds(plan.value)}")
    axes.axvline(
        plan.bound, color="#d62728", linestyle="--", linewidth=1.2, label=f"bound {format_seconds(plan.bound)}"
    )
    axes.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, -0.28), frameon=False)
