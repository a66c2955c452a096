"""What limits a placement: the chain of batches and transfers, back from the end, of which each waited for the last."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rlinit.executors.simulator import Movement, Simulation, simulate
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan

__all__ = ["Link", "critical_path"]


Because = Literal["data", "device", "link", "start"]


@dataclass(frozen=True, slots=True)
class Link:
    """One member of a critical path.

    Parameters
    ----------
    kind
        ``compute`` (a batch), ``transfer``, or ``idle`` (the plan waits although nothing forces it to).
    what
        The op.
    where
        The device, or "source → target".
    start_s, end_s
        Seconds from the start.
    because
        What the member waited for: its ``data``, its ``device``, its ``link``, or nothing (``start``).
    """

    kind: Literal["compute", "transfer", "idle"]
    what: str
    where: str
    start_s: float
    end_s: float
    because: Because


def critical_path(plan: Plan, graph: Graph, hardware: Hardware) -> list[Link]:
    """Return a critical path of a `latency` or `throughput` plan, from its start to its makespan.

    Its members follow each other without gaps, so that their seconds add up to the makespan: to be faster, one of them
    has to be shorter, elsewhere, or unnecessary. Where several things are waited for, data comes before the device.

    Parameters
    ----------
    plan, graph, hardware
        As for `simulate`; the times are those of the replayed plan.

    Raises
    ------
    InvalidPlan
        As for `simulate`.
    """
    run = simulate(plan, graph, hardware)
    if not run.batches:
        return []
    history = _History(run, plan, graph)
    tolerance = 1e-12 * run.makespan_s
    at: Batch | Movement | None = max(run.batches, key=lambda batch: batch.end_s)
    path: list[Link] = []
    seen: set[int] = set()
    while at is not None and id(at) not in seen:  # activities of no length may stand in a circle of equal times
        seen.add(id(at))
        before, because = history.waited_for(at)
        kind: Literal["compute", "transfer"] = "compute" if isinstance(at, Batch) else "transfer"
        path.append(Link(kind, at.op, _lane(at), at.start_s, at.end_s, because))
        if before is not None and before.end_s < at.start_s - tolerance:
            path.append(Link("idle", at.op, _lane(at), before.end_s, at.start_s, "start"))
        at = before
    return path[::-1]


class _History:
    """Finds what an activity waited for: the last to end of its data and of what came before it on its lanes."""

    def __init__(self, run: Simulation, plan: Plan, graph: Graph) -> None:
        self._rule, self._graph = plan.transfer_rule, graph
        self._made: dict[str, list[Batch]] = {}
        self._moved: dict[tuple[str, str], list[Movement]] = {}
        self._lanes: dict[str, list[Batch | Movement]] = {}
        for batch in run.batches:
            self._made.setdefault(batch.op, []).append(batch)
            self._lanes.setdefault(f"device {batch.device}", []).append(batch)
        for move in run.transfers:
            self._moved.setdefault((move.op, move.target), []).append(move)
            if self._rule == "exclusive":
                self._lanes.setdefault(f"link {_lane(move)}", []).append(move)
            elif self._rule == "blocking":
                self._lanes.setdefault(f"device {move.target}", []).append(move)
        for members in self._lanes.values():
            members.sort(key=_span)

    def waited_for(self, one: Batch | Movement) -> tuple[Batch | Movement | None, Because]:
        """Return what ended last of all that an activity had to wait for."""
        found: list[tuple[float, int, Batch | Movement, Because]] = []
        if isinstance(one, Batch):
            found.extend((other.end_s, 1, other, "data") for other in self._inputs_of(one))
            lane, because = f"device {one.device}", "device"
        else:
            found.extend((b.end_s, 1, b, "data") for b in self._made[one.op] if b.device == one.source)
            blocking = self._rule == "blocking"
            lane, because = (f"device {one.target}", "device") if blocking else (f"link {_lane(one)}", "link")
        members = self._lanes.get(lane, [])
        place = bisect.bisect_left(members, _span(one), key=_span)
        if place:
            before = members[place - 1]
            found.append((before.end_s, 0, before, "device" if because == "device" else "link"))
        if not found:
            return None, "start"
        _, _, last, why = max(found, key=lambda entry: entry[:2])
        return (last, why) if last.end_s > 0.0 or why == "data" else (None, "start")

    def _inputs_of(self, one: Batch) -> Iterator[Batch | Movement]:
        graph, v, shards = self._graph, self._graph.index(one.op), set(one.shards)
        for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist():
            name = graph.names[u]
            yield from (b for b in self._made[name] if b.device == one.device and shards & set(b.shards))
            for move in self._moved.get((name, one.device), ()):
                if move.consumer in ("", one.op) and shards & set(move.shards):
                    yield move


def _span(one: Batch | Movement) -> tuple[float, float]:
    return one.start_s, one.end_s


def _lane(one: Batch | Movement) -> str:
    return one.device if isinstance(one, Batch) else f"{one.source} → {one.target}"
