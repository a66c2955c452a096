"""What limits a placement: the chain of batches and transfers, back from the end, of which each waited for the last."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rlinit.arrays import ROUNDING
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan
from rlinit.simulation.simulator import Movement, Simulation, simulate

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
    tolerance = ROUNDING * run.makespan_s
    at: Batch | Movement = max(run.batches, key=lambda batch: batch.end_s)
    path: list[Link] = []
    while at.start_s > 0.0:
        members = history.waited_for(at, tolerance)
        if len(members) == 1:  # it waits for nothing and does not start
            path += [_link(at, "start"), Link("idle", at.op, _lane(at), 0.0, at.start_s, "start")]
            return path[::-1]
        path.extend(_link(member, because) for member, because in members[:-1])
        after, at = members[-2][0], members[-1][0]
        if at.end_s < after.start_s - tolerance:
            path.append(Link("idle", after.op, _lane(after), at.end_s, after.start_s, "start"))
    path.append(_link(at, "start"))
    return path[::-1]


class _History:
    """Finds what an activity waited for: the last to end of its data and of what came before it on its lanes."""

    def __init__(self, run: Simulation, plan: Plan, graph: Graph) -> None:
        self._rule, self._graph = plan.transfer_rule, graph
        names = graph.tensors.name
        self._reads = {
            tuple(edge): names[row] for edge, row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True)
        }
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
            members.sort(key=_end)

    def waited_for(self, one: Batch | Movement, tolerance: float) -> list[tuple[Batch | Movement, Because]]:
        """Return an activity, what it waited for, what that waited for ..., up to the first that started earlier.

        Each comes with why it waited for the next. Between them are activities of no length, all at one time, among
        which the search goes any way that leads further back.
        """
        trail: dict[int, list[tuple[Batch | Movement, Because]]] = {id(one): []}
        stack: list[Batch | Movement] = [one]
        while stack:
            at = stack.pop()
            for before, because in reversed(self._before(at)):
                if id(before) in trail or before.end_s < at.start_s - tolerance:
                    continue
                trail[id(before)] = [*trail[id(at)], (at, because)]
                if before.start_s < one.start_s - tolerance or before.start_s == 0.0:
                    return [*trail[id(before)], (before, "start")]
                stack.append(before)
        options = self._before(one)
        return [(one, options[0][1]), (options[0][0], "start")] if options else [(one, "start")]

    def _before(self, one: Batch | Movement) -> list[tuple[Batch | Movement, Because]]:
        """Return what an activity had to wait for, the last to end first, and data before lanes."""
        found: list[tuple[float, int, Batch | Movement, Because]] = []
        because: Because = "device"
        if isinstance(one, Batch):
            found.extend((other.end_s, 1, other, "data") for other in self._inputs_of(one))
            lane = f"device {one.device}"
        else:
            found.extend((b.end_s, 1, b, "data") for b in self._made[one.op] if b.device == one.source)
            if self._rule == "blocking":
                lane = f"device {one.target}"
            else:
                lane, because = f"link {_lane(one)}", "link"
        members = self._lanes.get(lane, [])
        # All that ended just when this one started, since their order is not known, and the last one before.
        first = bisect.bisect_left(members, one.start_s, key=_end)
        last = bisect.bisect_right(members, one.start_s, key=_end)
        near = members[max(0, first - 1) : last]
        found.extend((other.end_s, 0, other, because) for other in near if other is not one)
        found.sort(key=lambda entry: entry[:2], reverse=True)
        return [(other, why) for _, _, other, why in found]

    def _inputs_of(self, one: Batch) -> Iterator[Batch | Movement]:
        graph, v, shards = self._graph, self._graph.index(one.op), set(one.shards)
        for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist():
            name = graph.names[u]
            yield from (b for b in self._made[name] if b.device == one.device and shards & set(b.shards))
            for move in self._moved.get((name, one.device), ()):
                mine = move.tensor == self._reads[u, v] and move.consumer in ("", one.op)
                if mine and shards & set(move.shards):
                    yield move


def _end(one: Batch | Movement) -> float:
    return one.end_s


def _link(one: Batch | Movement, because: Because) -> Link:
    return Link(
        "compute" if isinstance(one, Batch) else "transfer", one.op, _lane(one), one.start_s, one.end_s, because
    )


def _lane(one: Batch | Movement) -> str:
    return one.device if isinstance(one, Batch) else f"{one.source} → {one.target}"
