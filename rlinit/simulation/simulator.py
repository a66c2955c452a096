"""The simulator: a plan replayed activity by activity, under the plan's own rule for transfers, or on shared links.

A plan fixes where everything runs and in which order. Every activity (a batch, a transfer) starts
as soon as what it waits for is over and what it needs is free. By its own rule the result is the timeline of the plan
itself; where a plan idles on purpose, the replay does not.

=============  =========================================================================================================
contention     transfers
=============  =========================================================================================================
``plan``       as the plan's own rule says, in the order it lists them
``shared``     any number at once on a directed link, which share its bandwidth equally (latency is not shared)
=============  =========================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from rlinit.checker.compatibility import require_graph, require_hardware
from rlinit.costs.roofline import known_bytes, op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Batch, Plan
from rlinit.simulation.event_queue import Activity, Link, replay
from rlinit.tensors import Tensors

__all__ = ["Contention", "Movement", "Simulation", "movements", "planned_order", "simulate"]

Contention = Literal["plan", "shared"]


@dataclass(frozen=True, slots=True)
class Movement:
    """One transfer of some shards of an op's output, in seconds from the start.

    `consumer` is the op it is for under ``parallel`` transfers, and "" where all consumers on the target share it.
    `tensor` is which of the op's outputs, as `Graph.tensors` calls it.
    """

    op: str
    source: str
    target: str
    shards: tuple[int, ...]
    start_s: float
    end_s: float
    consumer: str = ""
    tensor: str = ""


class Move(NamedTuple):
    """A transfer to be: batches are places in an order, `tensor` is a row of `Graph.tensors`."""

    producer: int
    tensor: int
    target: str
    shards: tuple[int, ...]
    consumers: list[int]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated run did.

    Parameters
    ----------
    batches
        Every batch by start.
    transfers
        Every transfer by start.
    makespan_s
        When the last batch ends.
    busy_s
        device name -> seconds of computing.
    """

    batches: tuple[Batch, ...]
    transfers: tuple[Movement, ...]
    makespan_s: float
    busy_s: Mapping[str, float]


def simulate(
    plan: Plan,
    graph: Graph,
    hardware: Hardware,
    *,
    contention: Contention = "plan",
) -> Simulation:
    """Replay a placement on the costs of a graph and hardware.

    Parameters
    ----------
    plan
        A `latency` or `throughput` plan with a schedule; its order on every device is kept.
    graph, hardware
        What the plan was made for.
    contention
        How transfers of a placement share links and devices; see the table at the top.

    Raises
    ------
    InvalidPlan
        No schedule, a plan for another graph or hardware, a plan of stages, a device that the
        hardware lacks, or a contention that there is not.
    """
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to simulate")
    if not plan.batches:
        raise InvalidPlan(f"a {plan.objective} plan has no batches to simulate; its stages have their seconds in it")
    if contention not in get_args(Contention):
        raise InvalidPlan(f"contention is {contention!r}; expected one of {get_args(Contention)}")
    require_graph(plan, graph)
    require_hardware(plan, hardware)
    return _simulate_batches(plan, graph, hardware, contention)


# -- placements ------------------------------------------------------------------------------------------------------


def planned_order(plan: Plan, graph: Graph) -> list[Batch]:
    """Return the batches by start, such that every batch comes after those it depends on (ties: the plan's order).

    Parameters
    ----------
    plan
        A plan that lists batches.
    graph
        The graph the plan was made for.

    Raises
    ------
    InvalidPlan
        The plan misses a batch that another one depends on.
    """
    listed = sorted(plan.batches, key=lambda batch: batch.start_s)
    where = {(batch.op, shard): at for at, batch in enumerate(listed) for shard in batch.shards}
    import networkx as nx

    reads: nx.DiGraph[int] = nx.DiGraph()
    reads.add_nodes_from(range(len(listed)))
    reads.add_edges_from((p, at) for at, batch in enumerate(listed) for p in _producers(graph, batch, where))
    try:
        return [listed[at] for at in nx.lexicographical_topological_sort(reads)]
    except nx.NetworkXUnfeasible:
        raise InvalidPlan("the batches of the plan depend on each other in a circle") from None


def _producers(graph: Graph, batch: Batch, where: Mapping[tuple[str, int], int]) -> set[int]:
    v = graph.index(batch.op)
    names = [graph.names[u] for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()]
    try:
        return {where[name, shard] for name in names for shard in batch.shards}
    except KeyError as missing:
        raise InvalidPlan(f"op {batch.op!r} needs (op, shard) {missing.args[0]}, which the plan does not run") from None


def movements(order: list[Batch], graph: Graph, *, one_each: bool) -> Iterator[Move]:
    """Yield every transfer: of a tensor to a device where it is read.

    Parameters
    ----------
    one_each
        One transfer for each pair of batches, rather than one for all consumers of a tensor on a device.
    """
    reads = {(u, v): row for (u, v), row in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True)}
    where = {(batch.op, shard): at for at, batch in enumerate(order) for shard in batch.shards}
    for at, batch in enumerate(order):
        u = graph.index(batch.op)
        names = [graph.names[v] for v in graph.succ[graph.succ_indptr[u] : graph.succ_indptr[u + 1]].tolist()]
        takes: dict[int, set[int]] = {}
        for name in names:
            for shard in batch.shards:
                takes.setdefault(where[name, shard], set()).add(shard)
        by_device: dict[tuple[str, int], list[int]] = {}
        for other in sorted(takes):
            if order[other].device != batch.device:
                tensor = reads[u, graph.index(order[other].op)]
                by_device.setdefault((order[other].device, tensor), []).append(other)
        for (target, tensor), consumers in by_device.items():
            if one_each:
                for other in consumers:
                    yield Move(at, tensor, target, tuple(sorted(takes[other])), [other])
            else:
                shards: set[int] = set().union(*(takes[other] for other in consumers))
                yield Move(at, tensor, target, tuple(sorted(shards)), consumers)


def _simulate_batches(plan: Plan, graph: Graph, hardware: Hardware, contention: Contention) -> Simulation:
    """Make activities of batches and transfers, tie them by what waits for what, and replay them."""
    rule = plan.transfer_rule if contention == "plan" else contention
    order = planned_order(plan, graph)
    activities = _batch_activities(order, plan, graph, hardware)
    last: dict[str, int] = {}
    for at, batch in enumerate(order):
        if batch.device in last:
            activities[at].after.append(last[batch.device])
        last[batch.device] = at
    where = {(batch.op, shard): at for at, batch in enumerate(order) for shard in batch.shards}
    for at, batch in enumerate(order):
        activities[at].after.extend(
            p for p in sorted(_producers(graph, batch, where)) if order[p].device == batch.device
        )
    moves = list(movements(order, graph, one_each=rule == "parallel"))
    index = {device.name: i for i, device in enumerate(hardware.devices)}
    tensors = graph.tensors
    size = known_bytes(tensors.size_bytes) * plan.shard_inputs
    links: dict[str, Link] = {}
    for producer, tensor, target, shards, consumers in moves:
        source = order[producer].device
        i, j = index[source], index[target]
        rate = float(hardware.bandwidth[i, j])
        if rate == 0.0:
            raise InvalidPlan(
                f"op {order[producer].op!r} sends its output to {target!r}; no path links {source!r} to it"
            )
        moved = len(shards) * float(size[tensor])
        delay = float(hardware.latency_s[i, j])
        one = Activity(duration_s=delay + moved * (1.0 / rate), after=[producer])
        if rule == "shared":
            one.duration_s, one.flow = delay, moved * (1.0 / rate)
            one.link = links.setdefault(f"{source} -> {target}", Link())
        for consumer in consumers:
            activities[consumer].after.append(len(activities))
        activities.append(one)
    if rule in ("exclusive", "blocking"):
        _tie_transfers(plan, order, moves, tensors, activities)
    replay(activities)
    return _as_simulation(order, moves, tensors, activities, one_each=rule == "parallel")


def _batch_activities(order: list[Batch], plan: Plan, graph: Graph, hardware: Hardware) -> list[Activity]:
    devices = {device.name: device for device in hardware.devices}
    times: dict[tuple[str, int], list[float]] = {}
    activities = []
    for batch in order:
        if batch.device not in devices:
            raise InvalidPlan(f"the plan uses device {batch.device!r}, which {hardware.name!r} does not have")
        size = len(batch.shards) * plan.shard_inputs
        if (batch.device, size) not in times:
            times[batch.device, size] = op_times(graph, devices[batch.device], size).tolist()
        seconds = times[batch.device, size][graph.index(batch.op)]
        if math.isinf(seconds):
            raise InvalidPlan(f"op {batch.op!r} is on device {batch.device!r}, where it is forbidden")
        activities.append(Activity(duration_s=seconds))
    return activities


def _tie_transfers(
    plan: Plan, order: list[Batch], moves: list[Move], tensors: Tensors, activities: list[Activity]
) -> None:
    """Let transfers exclude each other: in the order of the plan."""
    n, rule = len(order), plan.transfer_rule
    lane_of = {
        n + at: f"{order[producer].device} -> {target}" if rule == "exclusive" else target
        for at, (producer, _, target, _, _) in enumerate(moves)
    }
    if rule == "blocking":
        lane_of |= {at: batch.device for at, batch in enumerate(order)}
    planned = {(t.op, t.tensor, t.source, t.target): t for t in plan.transfers}
    # Of equal starts all but one have no length, and that one is last; what a batch needs goes right before it.
    keys: dict[int, tuple[float, float, int, int, int]] = {}
    for at in lane_of:
        if at < n:
            keys[at] = (order[at].start_s, order[at].end_s, at, 1, 0)
            continue
        producer, tensor, target, _, consumers = moves[at - n]
        key = (order[producer].op, tensors.name[tensor], order[producer].device, target)
        if key not in planned:
            raise InvalidPlan(f"the transfer of {key[0]!r} from {key[2]!r} to {key[3]!r} is not in the plan")
        one = planned[key]
        keys[at] = (one.start_s, one.end_s, min(consumers), 0, producer)
    lanes: dict[str, list[int]] = {}
    for at in sorted(lane_of, key=lambda at: keys[at]):
        lanes.setdefault(lane_of[at], []).append(at)
    for members in lanes.values():
        for before, after in pairwise(members):
            activities[after].after.append(before)


def _as_simulation(
    order: list[Batch],
    moves: list[Move],
    tensors: Tensors,
    activities: list[Activity],
    *,
    one_each: bool,
) -> Simulation:
    batches = tuple(
        Batch(batch.op, batch.device, batch.shards, done.start_s, done.end_s)
        for batch, done in zip(order, activities, strict=False)
    )
    transfers = tuple(
        Movement(
            order[move.producer].op,
            order[move.producer].device,
            move.target,
            move.shards,
            done.start_s,
            done.end_s,
            order[move.consumers[0]].op if one_each else "",
            tensors.name[move.tensor],
        )
        for move, done in zip(moves, activities[len(order) :], strict=True)
    )
    ordered = tuple(sorted(batches, key=lambda batch: batch.start_s))
    busy: dict[str, float] = {}
    for batch in ordered:
        busy[batch.device] = busy.get(batch.device, 0.0) + (batch.end_s - batch.start_s)
    return Simulation(
        ordered,
        tuple(sorted(transfers, key=lambda movement: movement.start_s)),
        max((batch.end_s for batch in ordered), default=0.0),
        busy,
    )
