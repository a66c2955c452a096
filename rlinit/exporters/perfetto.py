"""Plans as Chrome trace JSON, which Perfetto and chrome://tracing show: devices as threads, transfers as flows.

The format is the Trace Event Format: complete events ("X"), flows ("s" to "f"), counters ("C") and names ("M"); times
are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidPlan
from rlinit.exporters.text import printable
from rlinit.files import write_atomically
from rlinit.plan import Batch, Plan, PlannedTransfer

_DEVICES, _LINKS = 1, 2
"""Numbers of the two processes that a trace shows."""
_STREAMED = 4
"""Inputs of a stage plan that a trace shows, besides one for each stage."""


def to_trace(plan: Plan, path: str | Path) -> None:
    """Write a plan as trace JSON, atomically.

    Parameters
    ----------
    plan
        A plan with a schedule and times.
    path
        Where to write; open it at ui.perfetto.dev or chrome://tracing.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, or is a `memory` plan, which has no times.
    """
    events = trace_events(plan)
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "graph": printable(plan.graph),
            "hardware": printable(plan.hardware),
            "objective": plan.objective,
            "status": plan.status,
            "value_s": plan.value,
            "bound_s": plan.bound,
            "bound_source": plan.bound_source,
        },
        "traceEvents": events,
    }
    write_atomically(path, json.dumps(document, allow_nan=False) + "\n")


def trace_events(plan: Plan) -> list[dict[str, Any]]:
    """Return the events that `to_trace` writes.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, or is a memory plan, which has no times.
    """
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to export")
    if plan.objective == "memory":
        raise InvalidPlan("a memory plan has no times to export; draw it with Plan.plot")
    writer = _Writer()
    writer.run(plan.batches or _streamed(plan), plan.transfers)
    return writer.events


def _streamed(plan: Plan) -> list[Batch]:
    """Return a few inputs as they go through the stages, one after the other (part by part: in, work, out).

    The chunks of a device take turns. Where ops are loose, these are rounds, each of which begins when the last ended.
    """
    batches = []
    free = dict.fromkeys((use.device for use in plan.stages), 0.0)
    ready = [0.0] * (plan.num_stages + _STREAMED)
    what = "input" if plan.contiguous else "round"
    pairs = [(at, j) for at in range(len(ready)) for j in range(plan.num_stages)]
    for at, j in sorted(pairs, key=lambda pair: (sum(pair), pair[1])) if plan.chunks > 1 else pairs:
        use = plan.stages[j]
        now = max(ready[at], free[use.device])
        for part in ("in_s", "work_s", "overflow_s", "out_s"):
            seconds = getattr(use, part)
            if seconds > 0:
                name = f"{what} {at}" if part == "work_s" else f"{what} {at} {part.removesuffix('_s')}"
                batches.append(Batch(name, f"stage {j} on {use.device}", (at,), now, now + seconds))
            now += seconds
        free[use.device] = now
        if plan.contiguous:
            ready[at] = now
        elif at + 1 < len(ready):
            ready[at + 1] = max(ready[at + 1], now)
    return batches


class _Writer:
    """Collects events; a process shows devices, another one links."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._threads: dict[tuple[int, str], int] = {}

    def run(self, batches: Sequence[Batch], transfers: Sequence[PlannedTransfer]) -> None:
        """Add batches and transfers."""
        self._name(_DEVICES, 0, "process_name", "plan: devices")
        for device in sorted({batch.device for batch in batches}):
            self._thread(_DEVICES, device)
        for batch in batches:
            track = _DEVICES, self._thread(_DEVICES, batch.device)
            args = {"args": {"shards": list(batch.shards)}} if len(batch.shards) != 1 or batch.shards[0] else {}
            self.add("X", batch.op, track, batch.start_s, _lasting(batch) | args)
        made = {(batch.op, batch.device): batch for batch in batches}
        if transfers:
            self._name(_LINKS, 0, "process_name", "plan: transfers")
        for flow, move in enumerate(transfers, start=1):
            track = _LINKS, self._thread(_LINKS, f"{move.source} → {move.target}")
            self.add("X", move.op, track, move.start_s, _lasting(move))
            producer = made.get((move.op, move.source))
            if producer is not None:
                # An arrow from the batch that made the tensor to its transfer.
                start, arrow = (_DEVICES, self._thread(_DEVICES, move.source)), {"id": flow, "cat": "transfer"}
                self.add("s", move.op, start, producer.start_s, arrow)
                self.add("f", move.op, track, move.start_s, arrow | {"bp": "e"})  # bind to the slice around the end

    def add(self, phase: str, name: str, track: tuple[int, int], start_s: float, more: dict[str, Any]) -> None:
        """Add one event of a process and thread."""
        process, thread = track
        event = {"ph": phase, "name": printable(name), "pid": process, "tid": thread, "ts": start_s * 1e6}
        self.events.append(event | more)

    def _thread(self, process: int, name: str) -> int:
        if (process, name) not in self._threads:
            self._threads[process, name] = sum(one == process for one, _ in self._threads) + 1
            self._name(process, self._threads[process, name], "thread_name", name)
        return self._threads[process, name]

    def _name(self, process: int, thread: int, what: str, name: str) -> None:
        self.events.append({"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": printable(name)}})


def _lasting(one: Batch | PlannedTransfer) -> dict[str, float]:
    return {"dur": max(0.0, one.end_s - one.start_s) * 1e6}
