"""The independent checker of stages: the definitions, over columns of the graph.

Nothing here comes from the solvers, the kernels or the array form they work on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.checker.tolerances import OVERFULL, ROUNDING
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Objective, Plan, StageUse

Readers = dict[int, tuple[int, list[int]]]
"""Tensor -> (producer, ops that read it): an op's index is its main output, n + i its i-th further one."""


def check_stages(plan: Plan, graph: Graph, hardware: Hardware) -> tuple[float, ...]:
    """Check every rule of the stage problems on a plan; return its value on each level.

    Parameters
    ----------
    plan
        A 'pipeline' or 'memory' plan.
    graph
        The graph it is for, whose fingerprint was compared.
    hardware
        The devices it is for, one a stage, or one for each of its chunks.

    Raises
    ------
    InvalidPlan
        An op missing, unknown or on a stage that does not exist; a cycle among stages; colocated ops apart; an op where
        it is forbidden; a memory overfull; an order that is none; chunks on other devices than their order says; a
        figure that is not true.
    """
    assignment = {op: int(stage) for op, stage in (plan.assignment or {}).items()}
    devices = [use.device for use in plan.stages]
    if not devices:
        raise InvalidPlan("the plan has no stages")
    check_devices(plan, hardware, devices)
    ordered = graph.edges if plan.contiguous else graph.edges[:0]
    check_stage_rules(assignment, graph, hardware, devices, ordered=ordered)
    _check_orders(plan, graph)
    uses = stage_uses(assignment, graph, hardware, devices, plan.objective, orders=plan.stage_orders)
    for j, (claimed, true) in enumerate(zip(plan.stages, uses, strict=True)):
        check_stage(j, claimed, true)
    for name in dict.fromkeys(devices):
        device = hardware.devices[device_index(hardware, name)]
        held = math.fsum(use.param_bytes for use in uses if use.device == name)
        if held > device.memory_bytes * (1.0 + OVERFULL):
            raise InvalidPlan(
                f"device {name!r} holds {held:,.0f} parameter bytes; its memory has {device.memory_bytes:,.0f}"
            )
    return _values(uses, plan.objective)


def stage_uses(
    assignment: Mapping[str, int | str],
    graph: Graph,
    hardware: Hardware,
    devices: list[str],
    objective: Objective,
    *,
    orders: Sequence[Sequence[str]] = (),
) -> tuple[StageUse, ...]:
    """Return what each stage does under an assignment, from the definitions alone (MTPP eq. 1 to 3).

    The seconds are zero for `memory`, which is about bytes and needs no times.

    Parameters
    ----------
    assignment
        op name -> stage.
    graph, hardware
        The problem.
    devices
        Device name of each stage. The parameters of all stages of a device count against its cache together, and each
        stage has its share, by bytes, of what is off the cache.
    orders
        Ops of each stage in the order they run in, where the overflow counts their peak of activation memory.
    """
    k = len(devices)
    stage = np.array([assignment[name] for name in graph.names], np.int64)
    held = [np.flatnonzero(stage == j).tolist() for j in range(k)]
    maker = np.concatenate([np.arange(graph.num_ops), graph.further.op])
    size = known(np.concatenate([graph.out_bytes, graph.further.size_bytes]))
    # A tensor enters a stage once, whoever reads it there.
    entering = np.unique(np.column_stack([stage[graph.edges[:, 1]], graph.edge_tensor]), axis=0)
    entering = entering[stage[maker[entering[:, 1]]] != entering[:, 0]]
    leaving = np.unique(entering[:, 1])
    enter = [entering[entering[:, 0] == j, 1] for j in range(k)]
    leave = [leaving[stage[maker[leaving]] == j] for j in range(k)]
    uses = []
    peaks = _activation_peaks(orders, graph) if orders else [0.0] * k
    for j, name in enumerate(devices):
        i = device_index(hardware, name)
        device = hardware.devices[i]
        members = held[j]
        param = held_parameters(graph, members)
        peak = peaks[j]
        spare = _off_cache(graph, [held[i] for i in range(k) if devices[i] == name], param, peak, device.cache_bytes)
        seconds = op_times(graph, device) if objective == "pipeline" else None
        rate_in, rate_out, delay_in, delay_out = (
            io_rates(hardware, i) if seconds is not None else (math.inf, math.inf, 0.0, 0.0)
        )
        uses.append(
            StageUse(
                device=name,
                num_ops=len(members),
                work_s=math.fsum(seconds[members].tolist()) if seconds is not None else 0.0,
                in_s=math.fsum((size[enter[j]] / rate_in + delay_in).tolist()),
                out_s=math.fsum((size[leave[j]] / rate_out + delay_out).tolist()),
                overflow_s=spare / rate_in,
                param_bytes=param,
                off_cache_bytes=spare,
                out_bytes=math.fsum(size[leave[j]].tolist()),
                activation_bytes=peak,
            )
        )
    return tuple(uses)


def _off_cache(graph: Graph, chunks: Sequence[Sequence[int]], param: float, peak: float, cache: float) -> float:
    """Return the bytes off the cache of a stage with so many: its share of those of all stages of its device."""
    if len(chunks) == 1:
        return max(0.0, param + peak - cache)
    together = math.fsum(held_parameters(graph, members) for members in chunks)
    return max(0.0, together - cache) * (param / together) if together > 0 else 0.0


def held_parameters(graph: Graph, members: Sequence[int]) -> float:
    """Return the bytes of the parameters that ops together hold: those that several of them read, once.

    Parameters
    ----------
    graph
        The graph.
    members
        Indices of the ops of a stage or device.
    """
    inside = set(members)
    again = [one.size_bytes * max(0, len(inside & set(one.readers)) - 1) for one in graph.shared]
    return math.fsum([*(size_of(graph.param_bytes[v]) for v in members), *(-size for size in again)])


def readers_of(graph: Graph) -> Readers:
    """Return who reads each tensor."""
    readers: Readers = {}
    for (u, v), tensor in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        readers.setdefault(tensor, (u, []))[1].append(v)
    return readers


def _activation_peaks(orders: Sequence[Sequence[str]], graph: Graph) -> list[float]:
    """Return the most bytes of tensors that are alive together while the ops of each stage run in an order.

    Alive is what arrives from outside, until its last reader here; and what is made here, from the start of its op
    until its last reader, or until the end if somebody reads it elsewhere or nobody at all.
    """
    when = {graph.index(op): (j, step) for j, order in enumerate(orders) for step, op in enumerate(order)}
    changes: list[list[int | Fraction]] = [[0] * (len(order) + 1) for order in orders]
    readers = readers_of(graph)
    sizes = (size_of(value) for value in (*graph.out_bytes.tolist(), *graph.further.size_bytes.tolist()))
    for tensor, (u, size) in enumerate(zip((*range(graph.num_ops), *graph.further.op.tolist()), sizes, strict=True)):
        own, made = when[u]
        last: dict[int, int] = {}
        for v in readers.get(tensor, (u, []))[1]:
            j, step = when[v]
            last[j] = max(last.get(j, 0), step)
        if set(last) != {own}:
            last[own] = len(orders[own]) - 1
        exact = exactly(size)
        for j, end in last.items():
            changes[j][made if j == own else 0] += exact
            changes[j][end + 1] -= exact
    return [float(max(itertools.accumulate(change))) for change in changes]


def _check_orders(plan: Plan, graph: Graph) -> None:
    """Check that the orders of the stages, where there are any, hold the ops of each and respect their data flow."""
    if not plan.stage_orders:
        return
    if plan.objective != "pipeline" or len(plan.stage_orders) != len(plan.stages):
        raise InvalidPlan(f"the plan orders {len(plan.stage_orders)} stages; expected {len(plan.stages)} of a pipeline")
    listed = [(op, j) for j, order in enumerate(plan.stage_orders) for op in order]
    if sorted(listed) != sorted((plan.assignment or {}).items()):
        raise InvalidPlan("the orders of the stages do not hold every op of each stage once")
    step = {op: at for at, (op, _) in enumerate(listed)}
    for u, v in graph.edges.tolist():
        if step[graph.names[u]] > step[graph.names[v]]:
            raise InvalidPlan(f"the order of a stage runs {graph.names[v]!r} before {graph.names[u]!r}, which it reads")


def known(sizes: FloatArray) -> FloatArray:
    """Return sizes, 0 where they are not given."""
    return np.where(np.isnan(sizes), 0.0, sizes)


def exactly(size: float) -> int | Fraction:
    """Return a size as a number whose sums are not rounded; whole ones as integers, which add up fast."""
    return int(size) if size.is_integer() else Fraction(size)


def size_of(value: float) -> float:
    """Return a size, 0 where it is not given."""
    return 0.0 if math.isnan(value) else float(value)


def device_index(hardware: Hardware, name: str) -> int:
    """Return the place of a device by its name; InvalidPlan if there is none.

    Parameters
    ----------
    hardware
        The devices.
    name
        One of their names.

    Raises
    ------
    InvalidPlan
        No device has the name.
    """
    for i, device in enumerate(hardware.devices):
        if device.name == name:
            return i
    raise InvalidPlan(f"the plan uses device {name!r}, which {hardware.name!r} does not have")


def io_rates(hardware: Hardware, i: int) -> tuple[float, float, float, float]:
    """Return (bytes/s in, bytes/s out, seconds of latency in, out) of a device as a stage.

    Parameters
    ----------
    hardware
        The devices and links.
    i
        The device's index.

    Raises
    ------
    InvalidPlan
        It has no rate of its own, and no path links it with some other device.
    """
    own = hardware.devices[i].io_bandwidth
    others = [j for j in range(len(hardware.devices)) if j != i]
    if own == math.inf or not others:
        return own or math.inf, own or math.inf, 0.0, 0.0
    slower = hardware.devices[i].slowdown
    rate_in = own or min(float(hardware.bandwidth[j, i]) for j in others)
    rate_out = own or min(float(hardware.bandwidth[i, j]) for j in others)
    if not rate_in or not rate_out:
        raise InvalidPlan(f"no path links device {hardware.devices[i].name!r} with every other device")
    delay_in = max(float(hardware.latency_s[j, i]) for j in others)
    delay_out = max(float(hardware.latency_s[i, j]) for j in others)
    return rate_in / slower, rate_out / slower, delay_in * slower, delay_out * slower


def check_devices(plan: Plan, hardware: Hardware, devices: list[str]) -> None:
    """Check which device serves which stage: one each, or as many as the plan has chunks, in their order.

    Parameters
    ----------
    plan, hardware
        The plan, and what it is for.
    devices
        Device name of each stage.

    Raises
    ------
    InvalidPlan
        Another number of stages on a device, or another order.
    """
    for name in dict.fromkeys(devices):
        if devices.count(name) != plan.chunks:
            wanted = "a device serves two stages" if plan.chunks == 1 else f"a device has not {plan.chunks} stages"
            raise InvalidPlan(f"{wanted}: {', '.join(devices)}")
    k = len(devices) // plan.chunks
    if plan.chunk_order == "interleaved" and any(devices[j] != devices[j % k] for j in range(len(devices))):
        raise InvalidPlan(f"stages are not interleaved: stage j is not on the device of stage j mod {k}")
    if plan.objective != "pipeline" and devices != [device.name for device in hardware.devices]:
        raise InvalidPlan("the stages are not on the devices in the hardware's order")


def check_stage_rules(
    assignment: Mapping[str, int],
    graph: Graph,
    hardware: Hardware,
    devices: Sequence[str],
    *,
    ordered: Sequence[Sequence[int]] | IntArray,
) -> None:
    """Check the rules of an assignment to stages that have nothing to do with bytes or seconds.

    Parameters
    ----------
    assignment
        op name -> stage.
    graph, hardware
        The problem.
    devices
        Device name of each stage.
    ordered
        Pairs of ops, the first of which is on no later stage than the second.

    Raises
    ------
    InvalidPlan
        An op missing, unknown, on a stage that does not exist, where it is forbidden, before what it reads, or apart
        from one it is colocated with.
    """
    known_ops = set(graph.names)
    on = [hardware.devices[device_index(hardware, name)] for name in devices]
    for name in graph.names:
        if name not in assignment:
            raise InvalidPlan(f"op {name!r} is not assigned")
        if not 0 <= assignment[name] < len(devices):
            raise InvalidPlan(f"op {name!r} is on stage {assignment[name]!r}; expected 0..{len(devices) - 1}")
    for name in assignment:
        if name not in known_ops:
            raise InvalidPlan(f"the plan assigns op {name!r}, which the graph does not have")
    stage = np.array([assignment[name] for name in graph.names], np.int64)
    for j, device in enumerate(on):
        for key in {device.name, device.kind} & set(graph.forbidden):
            wrong = np.flatnonzero((stage == j) & graph.forbidden[key])
            if len(wrong):
                raise InvalidPlan(f"op {graph.names[wrong[0]]!r} is on device {device.name!r}, where it is forbidden")
    pairs = np.array(ordered, np.int64).reshape(-1, 2)
    backwards = np.flatnonzero(stage[pairs[:, 0]] > stage[pairs[:, 1]])
    if len(backwards):
        u, v = pairs[backwards[0]].tolist()
        raise InvalidPlan(
            f"edge ({graph.names[u]!r}, {graph.names[v]!r}) runs backwards, from stage {stage[u]} to stage {stage[v]}"
        )
    grouped = np.flatnonzero(graph.colocation >= 0)
    _, first, member = np.unique(graph.colocation[grouped], return_index=True, return_inverse=True)
    leader = grouped[first][member]
    apart = np.flatnonzero(stage[leader] != stage[grouped])
    if len(apart):
        u, v = leader[apart[0]], grouped[apart[0]]
        raise InvalidPlan(
            f"colocated ops {graph.names[u]!r} and {graph.names[v]!r} are on stages {stage[u]} and {stage[v]}"
        )


def _values(uses: tuple[StageUse, ...], objective: str) -> tuple[float, ...]:
    if objective == "memory":
        return (
            max(use.param_bytes for use in uses),
            math.fsum(use.off_cache_bytes for use in uses),
            max(use.out_bytes for use in uses),
        )
    return (max(math.fsum(use.time_s for use in uses if use.device == name) for name in {u.device for u in uses}),)


def check_stage(j: int, claimed: StageUse, true: StageUse) -> None:
    """Check the figures of one stage; bytes off the cache are a difference, rounded as the sum it is taken from.

    Parameters
    ----------
    j
        The stage.
    claimed, true
        What the plan says, and what is so.

    Raises
    ------
    InvalidPlan
        They differ by more than rounding.
    """
    total = true.param_bytes + true.activation_bytes
    share = true.overflow_s / true.off_cache_bytes if true.off_cache_bytes > 0 else 0.0
    scales = {"off_cache_bytes": total, "overflow_s": total * share}
    for what in ("devices", "variants"):
        if getattr(claimed, what) != getattr(true, what):
            raise InvalidPlan(f"stage {j}: {what} is {str(getattr(claimed, what))[:80]}")
    words = ("device", "devices", "variants", "shares")
    for figure in (one.name for one in fields(StageUse) if one.name not in words):
        said, is_so = getattr(claimed, figure), getattr(true, figure)
        if abs(said - is_so) > ROUNDING * max(said, is_so, 1e-3 * scales.get(figure, 0.0)):
            raise InvalidPlan(f"stage {j}: {figure} is given as {said} but is {is_so}")
