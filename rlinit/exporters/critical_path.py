"""What limits a placement: the chain of batches and transfers, back from the end, of which each waited for the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlinit.executors.simulator import Movement, Simulation, simulate
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan

__all__ = ["Link", "critical_path"]


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
    because: Literal["data", "device", "link", "start"]


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
    tolerance = 1e-12 * run.makespan_s
    at: Batch | Movement | None = max(run.batches, key=lambda batch: batch.end_s)
    path: list[Link] = []
    seen: set[int] = set()
    while at is not None:
        seen.add(id(at))
        before, because = _waited_for(at, run, plan, graph)
        if before is not None and id(before) in seen:
            break  # activities of no length in a circle of equal times
        path.append(_link(at, because))
        if before is not None and before.end_s < at.start_s - tolerance:
            path.append(Link("idle", _name(at), _lane(at), before.end_s, at.start_s, "start"))
        at = before
    return path[::-1]


def _waited_for(
    one: Batch | Movement, run: Simulation, plan: Plan, graph: Graph
) -> tuple[Batch | Movement | None, Literal["data", "device", "link", "start"]]:
    """Return what ended last of all that an activity had to wait for."""
    found: list[tuple[float, int, Batch | Movement, Literal["data", "device", "link"]]] = []

    def consider(others: Sequence[Batch | Movement], rank: int, because: Literal["data", "device", "link"]) -> None:
        found.extend((other.end_s, rank, other, because) for other in others if other is not one)

    if isinstance(one, Batch):
        v = graph.index(one.op)
        reads = {graph.names[u] for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()}
        shards = set(one.shards)
        consider(
            [b for b in run.batches if b.op in reads and b.device == one.device and shards & set(b.shards)], 3, "data"
        )
        arrived = [m for m in run.transfers if m.op in reads and m.target == one.device and shards & set(m.shards)]
        consider([m for m in arrived if m.consumer in ("", one.op)], 3, "data")
        consider([b for b in run.batches if b.device == one.device and _is_before(b, one)], 2, "device")
        if plan.transfer_rule == "blocking":
            consider([m for m in run.transfers if m.target == one.device and _is_before(m, one)], 2, "device")
    else:
        consider([b for b in run.batches if b.op == one.op and b.device == one.source], 3, "data")
        if plan.transfer_rule == "exclusive":
            same = [m for m in run.transfers if (m.source, m.target) == (one.source, one.target)]
            consider([m for m in same if _is_before(m, one)], 1, "link")
        elif plan.transfer_rule == "blocking":
            consider([m for m in run.transfers if m.target == one.target and _is_before(m, one)], 1, "device")
            consider([b for b in run.batches if b.device == one.target and _is_before(b, one)], 2, "device")
    if not found:
        return None, "start"
    _, _, before, because = max(found, key=lambda entry: entry[:2])
    return (before, because) if before.end_s > 0.0 or because == "data" else (None, "start")


def _is_before(other: Batch | Movement, one: Batch | Movement) -> bool:
    return other.end_s <= one.start_s and (other.start_s, other.end_s) < (one.start_s, one.end_s)


def _link(one: Batch | Movement, because: Literal["data", "device", "link", "start"]) -> Link:
    kind: Literal["compute", "transfer"] = "compute" if isinstance(one, Batch) else "transfer"
    return Link(kind, _name(one), _lane(one), one.start_s, one.end_s, because)


def _name(one: Batch | Movement) -> str:
    return one.op


def _lane(one: Batch | Movement) -> str:
    return one.device if isinstance(one, Batch) else f"{one.source} → {one.target}"
