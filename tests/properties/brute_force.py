"""The best value of a small problem by trying everything: from graph and hardware alone, by the definitions.

Nothing here comes from the package but the two classes that hold the input. Plain loops, no bounds but the incumbent's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rlinit.graph import Graph
from rlinit.hardware import Hardware

__all__ = ["best_placement", "best_split", "best_stages"]

SLACK = 1.0 + 1e-12
"""Room for rounding where bytes are held against a capacity."""


def _bytes(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _params(graph: Graph, members: Sequence[int]) -> float:
    """Return the bytes of the parameters of ops on one device, what several read once."""
    held = math.fsum(_bytes(graph.param_bytes[v]) for v in members)
    for one in graph.shared:
        readers = [v for v in members if v in one.readers]
        held -= one.size_bytes * max(len(readers) - 1, 0)
    return held


def _seconds(graph: Graph, hardware: Hardware, v: int, device: int, batch: int) -> float:
    """Return the given time of an op; inf where it is forbidden or the device has no such batch size."""
    unit = hardware.devices[device]
    if unit.batch_sizes is not None and batch not in unit.batch_sizes:
        return math.inf
    if any(key in graph.forbidden and graph.forbidden[key][v] for key in (unit.name, unit.kind)):
        return math.inf
    for key in (unit.name, unit.kind, "*"):
        given = graph.times.get((key, batch))
        if given is not None and not math.isnan(given[v]):
            return float(given[v])
    raise AssertionError("every op of a case has a time everywhere")


def _tensors(graph: Graph) -> list[tuple[int, float, tuple[int, ...]]]:
    """Return every tensor as its producer, bytes and readers: main outputs first, then the further ones."""
    makers = [*range(graph.num_ops), *graph.further.op.tolist()]
    sizes = [*graph.out_bytes.tolist(), *graph.further.size_bytes.tolist()]
    read: dict[int, list[int]] = {}
    for (_, v), tensor in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        read.setdefault(tensor, []).append(v)
    return [(u, _bytes(size), tuple(read.get(at, ()))) for at, (u, size) in enumerate(zip(makers, sizes, strict=True))]


def _groups_hold(graph: Graph, where: Sequence[object]) -> bool:
    leader: dict[int, object] = {}
    groups = graph.colocation.tolist()
    return all(g < 0 or leader.setdefault(g, where[v]) == where[v] for v, g in enumerate(groups))


# -- stages --------------------------------------------------------------------------------------------------------


def best_stages(graph: Graph, hardware: Hardware, objective: str, activations: bool) -> tuple[float, ...] | None:
    """Return the best value of a stage problem on each level, or None where nothing is feasible."""
    k, n = hardware.num_devices, graph.num_ops
    edges = graph.edges.tolist()
    best: tuple[float, ...] | None = None
    for stage in itertools.product(range(k), repeat=n):
        if any(stage[u] > stage[v] for u, v in edges) or not _groups_hold(graph, stage):
            continue
        orders = itertools.permutations(range(k)) if objective == "pipeline" else [tuple(range(k))]
        for devices in orders:
            value = _stage_value(graph, hardware, objective, activations, stage, devices)
            if value is not None and (best is None or value < best):
                best = value
    return best


def _stage_value(
    graph: Graph,
    hardware: Hardware,
    objective: str,
    activations: bool,
    stage: Sequence[int],
    devices: Sequence[int],
) -> tuple[float, ...] | None:
    params, off_cache, sent, times = [], [], [], []
    tensors = _tensors(graph)
    for j, i in enumerate(devices):
        members = [v for v in range(graph.num_ops) if stage[v] == j]
        if any(math.isinf(_seconds(graph, hardware, v, i, 1)) for v in members):
            return None
        param = _params(graph, members)
        if param > hardware.devices[i].memory_bytes * SLACK:
            return None
        entering = [size for u, size, to in tensors if stage[u] != j and any(stage[v] == j for v in to)]
        leaving = [size for u, size, to in tensors if stage[u] == j and any(stage[v] != j for v in to)]
        peak = _least_peak(graph, members) if activations else 0.0
        over = max(0.0, param + peak - hardware.devices[i].cache_bytes)
        rate_in, rate_out, delay_in, delay_out = _stage_rates(hardware, i)
        params.append(param)
        off_cache.append(over)
        sent.append(math.fsum(leaving))
        times.append(
            math.fsum(_seconds(graph, hardware, v, i, 1) for v in members)
            + math.fsum(size / rate_in + delay_in for size in entering)
            + math.fsum(size / rate_out + delay_out for size in leaving)
            + over / rate_in
        )
    return (max(times),) if objective == "pipeline" else (max(params), math.fsum(off_cache), max(sent))


def best_split(graph: Graph, hardware: Hardware, chunks: int, order: str, contiguous: bool) -> tuple[float] | None:
    """Return the least bottleneck with several stages a device, or with ops on any device; None where nothing fits."""
    k, n = hardware.num_devices, graph.num_ops
    edges = graph.edges.tolist()
    ranks = [tuple(range(k)) * chunks]
    if order == "free" and contiguous:
        ranks = sorted(set(itertools.permutations(ranks[0])))
    best = math.inf
    for stage in itertools.product(range(k * chunks), repeat=n):
        if (contiguous and any(stage[u] > stage[v] for u, v in edges)) or not _groups_hold(graph, stage):
            continue
        for rank in ranks:
            for devices in itertools.permutations(range(k)):
                on = [devices[r] for r in rank]
                best = min(best, max(_device_load(graph, hardware, stage, on, i) for i in range(k)))
    return None if math.isinf(best) else (best,)


def _device_load(graph: Graph, hardware: Hardware, stage: Sequence[int], on: Sequence[int], i: int) -> float:
    """Return the seconds of device i, which runs the stages j with on[j] = i; inf where they may not run there."""
    members = [v for v in range(graph.num_ops) if on[stage[v]] == i]
    stages = {j: [v for v in members if stage[v] == j] for j in range(len(on)) if on[j] == i}
    param = math.fsum(_params(graph, ops) for ops in stages.values())
    if param > hardware.devices[i].memory_bytes * SLACK:
        return math.inf
    rate_in, rate_out, delay_in, delay_out = _stage_rates(hardware, i)
    terms = [_seconds(graph, hardware, v, i, 1) for v in members]
    terms.append(max(0.0, param - hardware.devices[i].cache_bytes) / rate_in)
    for j in (j for j in range(len(on)) if on[j] == i):
        for u, size, to in _tensors(graph):
            if stage[u] != j and any(stage[v] == j for v in to):
                terms.append(size / rate_in + delay_in)
            if stage[u] == j and any(stage[v] != j for v in to):
                terms.append(size / rate_out + delay_out)
    return math.fsum(terms)


def _stage_rates(hardware: Hardware, i: int) -> tuple[float, float, float, float]:
    """Return bytes a second in and out of a stage, and the latency each tensor pays: own figure or slowest links."""
    own = hardware.devices[i].io_bandwidth
    others = [j for j in range(hardware.num_devices) if j != i]
    if not others or own == math.inf:
        return own or math.inf, own or math.inf, 0.0, 0.0
    return (
        own or min(float(hardware.bandwidth[j, i]) for j in others),
        own or min(float(hardware.bandwidth[i, j]) for j in others),
        max(float(hardware.latency_s[j, i]) for j in others),
        max(float(hardware.latency_s[i, j]) for j in others),
    )


def _least_peak(graph: Graph, members: Sequence[int]) -> float:
    """Return the least over all orders of the most bytes of tensors alive at once."""
    edges = graph.edges.tolist()
    readers = {u: [v for a, v in edges if a == u] for u in range(graph.num_ops)}
    if not members:
        return 0.0
    least = math.inf
    for order in itertools.permutations(members):
        when = {v: step for step, v in enumerate(order)}
        if any(u in when and v in when and when[u] > when[v] for u, v in edges):
            continue
        alive = [0.0] * len(order)
        for u in {a for a, v in edges if v in when} | set(order):
            inside = [when[v] for v in readers[u] if v in when]
            stays = u in when and (len(inside) < len(readers[u]) or not readers[u])
            last = len(order) - 1 if stays else max(inside)
            for step in range(when.get(u, 0), last + 1):
                alive[step] += _bytes(graph.out_bytes[u])
        least = min(least, max(alive))
    return least


# -- placements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """A batch (`what`: its op) or a transfer (`what`: its tensor) of some shards: what it occupies, how long, and
    (task before it, seconds between).
    """

    resource: object
    seconds: float
    after: tuple[tuple[int, float], ...]
    what: int
    source: int
    target: int
    shards: frozenset[int]


def best_placement(
    graph: Graph, hardware: Hardware, num_shards: int, shard_inputs: int, transfers: str, resident: str
) -> float | None:
    """Return the best makespan over every assignment of shards and every order, or None where nothing is feasible."""
    best = math.inf
    for where in _assignments(graph, hardware, num_shards):
        if not _groups_hold(graph, where):
            continue
        if not _fits(graph, hardware, where, shard_inputs, resident):
            continue
        tasks = _tasks(graph, hardware, where, shard_inputs, transfers)
        if tasks is None:
            continue
        best = _shortest(
            tasks, best, partial(_peak_fits, graph, hardware, shard_inputs, tasks) if resident == "peak" else None
        )
    return None if math.isinf(best) else best


def _assignments(graph: Graph, hardware: Hardware, num_shards: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    one = list(itertools.product(range(hardware.num_devices), repeat=num_shards))
    return itertools.product(one, repeat=graph.num_ops)


def _fits(graph: Graph, hardware: Hardware, where: Sequence[Sequence[int]], shard_inputs: int, resident: str) -> bool:
    counted = shard_inputs if resident == "tensors" else 0
    tensors = _tensors(graph)
    for i, device in enumerate(hardware.devices):
        held = 0.0
        for v in range(graph.num_ops):
            count = sum(at == i for at in where[v])
            if count:
                near = math.fsum(size * ((u == v) + (v in to)) for u, size, to in tensors)
                held += count * counted * near
        held += _params(graph, [v for v in range(graph.num_ops) if i in where[v]])
        if held > device.memory_bytes * SLACK:
            return False
    return True


def _tasks(
    graph: Graph, hardware: Hardware, where: Sequence[Sequence[int]], shard_inputs: int, transfers: str
) -> list[_Task] | None:
    """Return batches and, where they share a resource, transfers; None where an op or a transfer is impossible."""
    shards = {
        (v, i): {c for c, at in enumerate(where[v]) if at == i} for v in range(graph.num_ops) for i in set(where[v])
    }
    seconds = {}
    for (v, i), held in shards.items():
        seconds[v, i] = _seconds(graph, hardware, v, i, len(held) * shard_inputs)
        if math.isinf(seconds[v, i]):
            return None
    tensors = _tensors(graph)
    needs: dict[tuple[int, int], list[tuple[int, int, set[int]]]] = {key: [] for key in shards}
    moved: dict[tuple[int, int, int], set[int]] = {}
    for tensor, (u, _, readers) in enumerate(tensors):
        for (a, i), (b, j) in itertools.product(shards, repeat=2):
            common = shards[a, i] & shards[b, j]
            if a == u and b in readers and common:
                needs[b, j].append((tensor, i, common))
                if i != j:
                    moved.setdefault((tensor, i, j), set()).update(common)
    if any(hardware.bandwidth[i, j] == 0 for _, i, j in moved):
        return None

    def delay(tensor: int, i: int, j: int, count: int) -> float:
        if i == j:
            return 0.0
        size = count * shard_inputs * tensors[tensor][1]
        return float(hardware.latency_s[i, j]) + size / float(hardware.bandwidth[i, j])

    number = {key: at for at, key in enumerate(shards)}
    sent = {key: len(number) + at for at, key in enumerate(moved)} if transfers != "parallel" else {}
    tasks = []
    for (v, i), before in needs.items():
        after = [
            (sent[tensor, at, i], 0.0)
            if (tensor, at, i) in sent
            else (number[tensors[tensor][0], at], delay(tensor, at, i, len(common)))
            for tensor, at, common in before
        ]
        tasks.append(_Task(("device", i), seconds[v, i], tuple(after), v, i, i, frozenset(shards[v, i])))
    for tensor, i, j in sent:
        resource = ("link", i, j) if transfers == "exclusive" else ("device", j)
        made = ((number[tensors[tensor][0], i], 0.0),)
        there = moved[tensor, i, j]
        tasks.append(_Task(resource, delay(tensor, i, j, len(there)), made, tensor, i, j, frozenset(there)))
    return tasks


_Copy = tuple[int, int, int]
"""(tensor, device of its batch, device it is on)."""

_Fits = Callable[[dict[int, float], dict[int, float]], bool]


def _peak_fits(
    graph: Graph,
    hardware: Hardware,
    shard_inputs: int,
    tasks: Sequence[_Task],
    begin: dict[int, float],
    ends: dict[int, float],
) -> bool:
    """Return whether weights, reserve and live tensors fit on every device whenever something starts."""
    batches = {(task.what, task.source): at for at, task in enumerate(tasks) if task.source == task.target}
    moves = {(task.what, task.source, task.target): at for at, task in enumerate(tasks) if task.source != task.target}
    there: dict[_Copy, list[float]] = {}  # begin, until, bytes
    root: dict[_Copy, _Copy] = {}
    tensors = _tensors(graph)
    by_maker = sorted(range(len(tensors)), key=lambda t: int(graph.level[tensors[t][0]]))
    for t, i in itertools.product(by_maker, range(hardware.num_devices)):
        v, size, readers = tensors[t]
        if (v, i) not in batches:
            continue
        at = batches[v, i]
        mine = tasks[at].shards
        until = max(ends[at], 0.0) if readers else math.inf
        for j in range(hardware.num_devices):
            reads = [batches[w, j] for w in readers if (w, j) in batches and tasks[batches[w, j]].shards & mine]
            last = max((ends[b] for b in reads), default=0.0)
            if i == j:
                until = max(until, last)
            elif reads:
                shared = mine & frozenset().union(*(tasks[b].shards for b in reads))
                moved_bytes = len(shared) * shard_inputs * size
                leaves, arrives = ends[at], ends[at] + float(hardware.latency_s[i, j])
                arrives += moved_bytes / float(hardware.bandwidth[i, j])
                if (t, i, j) in moves:
                    leaves, arrives = begin[moves[t, i, j]], ends[moves[t, i, j]]
                there[t, i, j] = [leaves, last, moved_bytes]
                until = max(until, arrives)
        there[t, i, i] = [begin[at], until, len(mine) * shard_inputs * size]
        read = [r for r, (_, _, to) in enumerate(tensors) if v in to]
        if graph.extras.get(v, {}).get("view") and len(read) < 2:
            bases = {
                root.get((r, k, i), (r, k, i))
                for r in read
                for k in range(hardware.num_devices)
                if (tensors[r][0], k) in batches and tasks[batches[tensors[r][0], k]].shards & mine
            }
            if len(bases) < 2:
                there[t, i, i][2] = 0.0
            for base in bases if len(bases) == 1 else ():
                root[t, i, i] = base
                there[base][1] = max(there[base][1], until)
    for j, device in enumerate(hardware.devices):
        here = {key: row for key, row in there.items() if key[2] == j}
        needs = [{key for key, row in here.items() if row[0] <= now < row[1]} for now, _, _ in here.values()]
        for (v, i), at in batches.items():
            if i == j:
                used = {
                    root.get((t, k, j), (t, k, j))
                    for t, (u, _, to) in enumerate(tensors)
                    for k in range(hardware.num_devices)
                    if (t, k, j) in here and (v in to or (u == v and k == j))
                    if tasks[batches[u, k]].shards & tasks[at].shards
                }
                needs.append(used | {key for key, row in here.items() if row[0] <= begin[at] < row[1]})
        live = max((math.fsum(here[key][2] for key in need) for need in needs), default=0.0)
        weights = _params(graph, [v for v, i in batches if i == j])
        if weights + live + device.reserve_bytes > device.memory_bytes * SLACK:
            return False
    return True


def _shortest(tasks: Sequence[_Task], best: float, fits: _Fits | None = None) -> float:
    """Return the least makespan over every order in which tasks can be appended to their resources, if below `best`.

    Only schedules that `fits` accepts, which gets the starts and the ends of all tasks.
    """
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    free: dict[object, float] = {}

    def extend(makespan: float) -> None:
        nonlocal best
        if makespan >= best:
            return
        if len(ends) == len(tasks):
            best = makespan if fits is None or fits(starts, ends) else best
            return
        for at, task in enumerate(tasks):
            if at in ends or any(before not in ends for before, _ in task.after):
                continue
            before_free = free.get(task.resource, 0.0)
            ready = max((ends[before] + gap for before, gap in task.after), default=0.0)
            starts[at] = max(before_free, ready)
            ends[at] = starts[at] + task.seconds
            free[task.resource] = ends[at]
            extend(max(makespan, ends[at]))
            free[task.resource] = before_free
            del ends[at]

    extend(0.0)
    return best
