"""A plan as a table of its stages or devices, and what was proven about it: as text, and as HTML for notebooks."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from rlinit.comparison.baselines import baseline_lines
from rlinit.exporters.text import markup
from rlinit.plan import Plan
from rlinit.units import format_bytes, format_seconds

_WIDTH = 80
"""Columns of a plan as text."""

_LEVELS = {
    "memory": ("peak parameters", "off-cache total", "largest traffic"),
    "pipeline": ("bottleneck",),
    "latency": ("latency",),
    "throughput": ("makespan",),
}


@dataclass(frozen=True, slots=True)
class PlanTable:
    """What each stage or device of a plan does.

    Parameters
    ----------
    title
        What the plan is for.
    header, rows
        Names of the columns, and one row for each stage that is not empty, or for each device.
    words
        Columns of words; all others are numbers.
    caption
        What the table leaves out, or nothing.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]
    caption: str = ""


def plan_table(plan: Plan) -> PlanTable:
    """Return the table of a plan with a schedule."""
    return _device_table(plan) if plan.devices else _stage_table(plan)


def _stage_table(plan: Plan) -> PlanTable:
    piped = plan.objective == "pipeline"
    spills = piped and any(use.overflow_s > 0 for use in plan.stages)
    spilled = ("overflow",) if spills else ()
    parts = ("in", "work", *spilled, "out", "total") if piped else ("parameters", "off-cache", "sent on")
    grouped = plan.groups is not None
    if grouped:
        parts = ("replicas", "tensor", *parts[:-1], "sync", parts[-1], "holds")
    header = ("stage", "device", "ops", *parts, *(("working",) if plan.stage_orders else ()))
    rows: list[tuple[str, ...]] = []
    for j, use in enumerate(plan.stages):
        if use.num_ops == 0:
            continue
        if piped:
            seconds = (use.in_s, use.work_s, *([use.overflow_s] if spills else []), use.out_s, use.time_s)
            figures = [format_seconds(part) for part in seconds]
            if grouped:
                figures.insert(-1, format_seconds(use.sync_s + use.gradient_s))
                replicas = " + ".join(str(share.replicas) for share in use.shares) or str(use.replicas)
                figures = [replicas, str(use.tensor_parallel), *figures, format_bytes(use.held_bytes)]
        else:
            figures = [format_bytes(part) for part in (use.param_bytes, use.off_cache_bytes, use.out_bytes)]
        figures += [format_bytes(use.activation_bytes)] if plan.stage_orders else []
        where = use.device if len(use.devices) < 2 else f"{use.devices[0]} to {use.devices[-1]}"
        rows.append((str(j), where, str(use.num_ops), *figures))
    empty = plan.num_stages - len(rows)
    caption = f"{empty} of {plan.num_stages} stages are empty and not shown" if empty else ""
    return PlanTable(_title(plan), header, tuple(rows), (1,), caption)


def _device_table(plan: Plan) -> PlanTable:
    header = ("device", "ops" if plan.inputs == plan.shard_inputs else "batches", "busy", "of the time", "holds")
    rows = []
    for use in plan.devices:
        share = use.busy_s / plan.value if plan.value > 0 else 0.0
        busy, held = format_seconds(use.busy_s), format_bytes(use.held_bytes)
        rows.append((use.device, str(use.num_batches), busy, f"{share:.0%}", held))
    return PlanTable(_title(plan), header, tuple(rows), (0,))


def _title(plan: Plan) -> str:
    whose = str(plan.provenance.get("machine", "")).partition(":")[0]
    return f"{plan.graph} on {plan.hardware}" + (f", {whose}" if whose else "")


def summary_lines(plan: Plan) -> list[str]:
    """Return what is known of a plan's value, a line each, then `baseline_lines` and notes.

    The one that begins with the status has what was proven.
    """
    machine = plan.provenance.get("machine")
    notes = [f"note: {note}" for note in (*([f"{plan.hardware} is {machine}"] if machine else []), *plan.notes)]
    trusted = f" (trusted: {', '.join(plan.trusted)})" if plan.trusted else ""
    if plan.values is None:
        return [f"{plan.status}: {plan.message}{trusted}", *notes]
    show = format_bytes if plan.objective == "memory" else format_seconds
    lines = [
        f"{level}: {show(value)}, proven >= {show(bound)}"
        for level, value, bound in zip(_LEVELS[plan.objective], plan.values, plan.bounds or (), strict=False)
    ]
    proof = "proven optimal" if plan.status == "optimal" else f"gap {plan.gap:.3%}"
    spent = format_seconds(sum(plan.phase_s.values()))
    proof += f" by {plan.bound_source or 'nothing'}{trusted}"
    lines.append(f"{plan.status}: {proof}; found by {plan.method}; searched for {spent}")
    if plan.objective == "throughput":
        lines.append(f"{plan.inputs} inputs, {plan.inputs_per_s:,.4g} a second")
    if plan.training is not None and plan.training.exchange_bytes:
        sent = format_bytes(plan.training.exchange_bytes)
        lines.append(f"gradients of parameters that several devices hold: {sent} sent between them after each step")
    if "numbers" in plan.provenance:
        lines.append(f"numbers: {plan.provenance['numbers']}")
    if set(plan.costs) - {"given", "modelled"}:
        lines.append("costs: " + ", ".join(f"{share:.0%} {name}" for name, share in plan.costs.items()))
    if plan.message:
        lines.append(plan.message)
    return [*lines, *baseline_lines(plan), *notes]


def plan_text(plan: Plan) -> str:
    """Return a plan as plain text: its table, then `summary_lines`, wrapped."""
    said = [part for line in summary_lines(plan) for part in textwrap.wrap(line, _WIDTH, break_long_words=False)]
    if plan.assignment is None:
        return "\n".join([f"{_title(plan)}, {plan.objective}", *said])
    table = plan_table(plan)
    lines = [table.header, *table.rows]
    width = [max(len(line[at]) for line in lines) for at in range(len(table.header))]
    drawn = [
        "  ".join(
            cell.ljust(width[at]) if at in table.words else cell.rjust(width[at]) for at, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]
    caption = [table.caption] if table.caption else []
    return "\n".join([f"{table.title}, {plan.objective}", *drawn, *caption, *said])


def plan_html(plan: Plan) -> str:
    """Return a plan as HTML, as notebooks show it."""
    return f"<pre>{markup(plan_text(plan))}</pre>"
