"""The independent checker of stages of several devices: plain Python over menus and the definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlinit.checker.stages import check_stage, size_of
from rlinit.checker.tolerances import OVERFULL, ROUNDING
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.menu import Menu, Variant, is_recomputed
from rlinit.plan import GroupRules, Plan, ShareUse, StageUse


def check_groups(plan: Plan, graph: Graph, hardware: Hardware) -> tuple[float, ...]:
    """Check every rule of stages of several devices on a plan; return its value.

    Parameters
    ----------
    plan
        A 'pipeline' plan with `groups`.
    graph, hardware
        What it is for, whose fingerprints were compared.

    Raises
    ------
    InvalidPlan
        An op missing, on a stage that does not exist or in a way that its menu does not have; an edge that runs
        backwards; a device that is unknown, in two stages, or in a group with one of another node; replicas that do
        not divide the micro-batches; a memory overfull; a figure that is not true.
    """
    rules, menu = plan.groups, graph.menu
    if rules is None or menu is None:
        raise InvalidPlan("the plan has stages of several devices, but the graph has no menu")
    if plan.training is not None or plan.chunks > 1 or not plan.contiguous or plan.stage_orders:
        raise InvalidPlan("stages of several devices are contiguous, without chunks, orders and training fields")
    stage = {op: int(at) for op, at in (plan.assignment or {}).items()}
    if set(stage) != set(graph.names) or not set(stage.values()) <= set(range(len(plan.stages))):
        raise InvalidPlan("the plan does not put exactly the ops of the graph on its stages")
    for u, v in graph.edges.tolist():
        if stage[graph.names[u]] > stage[graph.names[v]]:
            raise InvalidPlan(f"the edge from {graph.names[u]!r} to {graph.names[v]!r} runs backwards")
    _check_devices(plan, rules, hardware)
    rate, delay = _slowest(hardware), float(hardware.latency_s.max(initial=0.0))
    places: dict[str, list[int]] = {}
    for i, device in enumerate(hardware.devices):
        places.setdefault(device.kind, []).append(i)
    kinds = {kind: hardware.part(row, kind) for kind, row in places.items()}
    slowest = {kind: rate if len(kinds) == 1 else _slowest(alike) for kind, alike in kinds.items()}
    inside = {kind: _group_rate(alike, slowest[kind]) for kind, alike in kinds.items()}
    values, kind_of = list[float](), {device.name: device.kind for device in hardware.devices}
    for j, claimed in enumerate(plan.stages):
        shares = _shares(j, claimed, rules, kind_of)
        first = shares[0].kind
        around, ring = (hardware, rate) if len(shares) > 1 else (kinds[first], slowest[first])
        if rules.exchange != "server" and len(around.nodes) > 1:
            ring = _ring_rate(j, claimed, rules, shares, kinds, menu, ring, inside)
        for share in shares:
            true = _use(j, plan, graph, (rate, inside[share.kind], delay, ring), menu, stage, share)
            if share is shares[0]:
                check_stage(j, claimed, true)
            for figure in ("time_s", "in_flight", "held_bytes") if claimed.shares else ():
                said, is_so = getattr(share, figure), getattr(true, figure)
                if abs(said - is_so) > ROUNDING * max(said, is_so):
                    raise InvalidPlan(f"stage {j} on {share.kind!r}: {figure} is given as {said} but is {is_so}")
            device, t = kinds[share.kind].devices[0], claimed.tensor_parallel
            memory = max(0.0, device.memory_bytes - device.reserve_bytes - rules.workspace_bytes.get(str(t), 0.0))
            if true.held_bytes > memory * (1.0 + OVERFULL):
                raise InvalidPlan(
                    f"each device of stage {j} holds {true.held_bytes:,.0f} bytes; its memory has {memory:,.0f}"
                )
            values.append(true.time_s)
    return (max(values),)


def _shares(j: int, use: StageUse, rules: GroupRules, kind_of: Mapping[str, str]) -> tuple[ShareUse, ...]:
    """Return what the kinds of devices have of stage j, of which it may have several only with mixed replicas."""
    n, kinds = rules.microbatches, [kind_of[name] for name in use.devices]
    if not use.shares and len(set(kinds)) == 1:
        each = -(-n // use.replicas)
        return (ShareUse(kinds[0], use.replicas, each, use.time_s, use.in_flight, use.held_bytes, use.variants),)
    said = [share.kind for share in use.shares for _ in range(share.replicas * use.tensor_parallel)]
    sound = rules.mixed and said == kinds and len({share.kind for share in use.shares}) == len(use.shares) > 1
    if not sound or any(share.replicas < 1 or not 1 <= share.microbatches <= n for share in use.shares):
        raise InvalidPlan(f"stage {j} has devices of several kinds that its shares do not name, or may not have them")
    if sum(share.replicas * share.microbatches for share in use.shares) < n:
        raise InvalidPlan(f"the replicas of stage {j} take fewer than {n} micro-batches")
    return use.shares


def _check_devices(plan: Plan, rules: GroupRules, hardware: Hardware) -> None:
    node_of = {device.name: device.node for device in hardware.devices}
    used: set[str] = set()
    for j, use in enumerate(plan.stages):
        t, d = use.tensor_parallel, use.replicas
        if t < 1 or d < 1 or len(use.devices) != t * d or use.device not in use.devices:
            raise InvalidPlan(f"stage {j} has {len(use.devices)} devices for {d} replicas of {t}")
        for name in use.devices:
            if name not in node_of or name in used:
                raise InvalidPlan(f"stage {j} has device {name!r}, which is unknown or taken")
            used.add(name)
        groups = (use.devices[at : at + t] for at in range(0, t * d, t))
        if any(len({node_of[name] for name in group}) > 1 for group in groups):
            raise InvalidPlan(f"a tensor group of stage {j} has devices of two nodes")
        if rules.microbatches % d and not rules.mixed:
            raise InvalidPlan(f"stage {j} has {d} replicas, which do not divide {rules.microbatches} micro-batches")
        for what, asked, has in (("replicas", rules.replicas, d), ("tensor_parallel", rules.tensor_parallel, t)):
            if asked and asked != has:
                raise InvalidPlan(f"stage {j}: {what} is {has}; {asked} was asked for")
    if sum(use.replicas for use in plan.stages) > rules.microbatches:
        raise InvalidPlan("the stages have more replicas than there are micro-batches")
    if rules.uniform and len({(use.replicas, use.tensor_parallel) for use in plan.stages}) > 1:
        raise InvalidPlan("the stages differ in replicas or degree, but uniform ones were asked for")
    alike = {(d.kind, d.memory_bytes, d.reserve_bytes, d.slowdown) for d in hardware.devices}
    if len(alike) > len({kind for kind, *_ in alike}):
        raise InvalidPlan("stages of several devices need devices that are alike, those of a kind")


def _slowest(hardware: Hardware) -> float:
    """Return the bytes a second of the slowest way in or out of a device."""
    return min(min(hardware.io_bandwidth(i)) for i in range(hardware.num_devices))


def _use(
    j: int,
    plan: Plan,
    graph: Graph,
    rates: tuple[float, float, float, float],
    menu: Menu,
    stage: Mapping[str, int],
    share: ShareUse,
) -> StageUse:
    """Return what stage j does on a kind of devices, from the definitions alone; see `rlinit.stages.groups.problem`.

    Rates are bytes a second between stages and inside a group, seconds of latency between stages, and bytes a second of
    a ring of the stage's replicas.
    """
    rules, said = plan.groups, plan.stages[j]
    assert rules is not None
    inside = [op for op in graph.names if stage[op] == j]
    if not inside or set(share.variants) != set(inside):
        raise InvalidPlan(f"stage {j} does not give a variant for exactly its ops")
    chosen = {op: _variant(menu, op, said.tensor_parallel, share.variants[op], rules.recompute) for op in inside}
    d, passes, mixed = said.replicas, 2.0 if rules.training else 1.0, len(said.shares) > 1
    part = share.microbatches / rules.microbatches
    rate, group_rate, delay, ring = rates
    at_once = 1 if rules.exchange == "server" else said.tensor_parallel
    sizes = [size_of(value) for value in (*graph.out_bytes.tolist(), *graph.further.size_bytes.tolist())]
    enter, leave, syncs = set[int](), set[int](), list[float]()
    for (u, v), tensor in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        a, b = graph.names[u], graph.names[v]
        if stage[a] == j != stage[b]:
            leave.add(tensor)
            syncs.append(chosen[a].sync_bytes.get(b, 0.0))
        elif stage[b] == j != stage[a]:
            enter.add(tensor)
            syncs.append(chosen[b].sync_bytes.get(a, 0.0))
    behind = sum(use.replicas for use in plan.stages[j:])
    most = -(-behind * share.microbatches // rules.microbatches) + mixed
    flying = {"": 1, "1f1b": min(share.microbatches, most), "gpipe": share.microbatches}[rules.training]
    params = math.fsum(one.param_bytes for one in chosen.values())
    sent = [max(one.param_bytes for one in menu.ops[op][said.tensor_parallel]) for op in inside] if mixed else [params]
    return StageUse(
        device=said.device,
        num_ops=len(inside),
        work_s=math.fsum(_seconds(op, one, share.kind) for op, one in chosen.items()) * part,
        in_s=passes * math.fsum(sizes[t] / at_once / rate + delay for t in enter) * part,
        out_s=passes * math.fsum(sizes[t] / at_once / rate + delay for t in leave) * part,
        overflow_s=0.0,
        param_bytes=params,
        off_cache_bytes=0.0,
        out_bytes=math.fsum(sizes[t] for t in leave),
        replicas=d,
        tensor_parallel=said.tensor_parallel,
        devices=said.devices,
        variants=share.variants,
        sync_s=passes * math.fsum(syncs) / group_rate * part,
        gradient_s=_exchange(rules, d, ring) * math.fsum(sent) / d,
        in_flight=flying,
        held_bytes=math.fsum(
            one.held_bytes * flying + one.fixed_bytes + one.shared_bytes * max(part, 1 / d) for one in chosen.values()
        ),
    )


def _exchange(rules: GroupRules, d: int, ring: float) -> float:
    """Return the seconds in which d replicas send each other a byte of parameters, for each micro-batch of all."""
    n = rules.microbatches
    times = {"server": 4 / n, "ring": 2 / n, "zero2": 1 / d + 1 / n, "zero3": 3 / d}[rules.exchange]
    return (d - 1) * times / ring if rules.training else 0.0


def _variant(menu: Menu, op: str, degree: int, name: str, recompute: str) -> Variant:
    """Return a variant by its name, which must be of those that the rule for recomputing leaves of an op."""
    known = menu.ops.get(op, {}).get(degree, ())
    wanted = [one for one in known if is_recomputed(one.name) == (recompute == "all")]
    for one in known if recompute == "auto" else wanted or known:
        if one.name == name:
            return one
    raise InvalidPlan(f"op {op!r} has no variant {name!r} at degree {degree}")


def _seconds(op: str, variant: Variant, kind: str) -> float:
    """Return the seconds of a variant on a kind of devices, which must have it."""
    if not isinstance(variant.time_s, Mapping):
        return variant.time_s
    if kind not in variant.time_s:
        raise InvalidPlan(f"op {op!r} has no variant {variant.name!r} on {kind!r}")
    return variant.time_s[kind]


def _ring_rate(
    j: int, use: StageUse, rules: GroupRules, shares: tuple[ShareUse, ...], kinds: Mapping[str, Hardware], menu: Menu,
    between: float, inside: Mapping[str, float],
) -> float:  # fmt: skip
    """Return the bytes a second of a ring of stage j's replicas; check that blocks of each kind stand in nodes.

    Kind -> bytes a second inside a node, and those of the slowest link that a ring may take.
    """
    fastest, members, end = min(inside[share.kind] for share in shares), list[int](), 0
    for share in shares:
        own = use.devices[end : end + share.replicas * use.tensor_parallel]
        end += len(own)
        members.append(_block(j, own, kinds[share.kind], menu, rules.tensor_parallel))
    if members[0] == len(use.devices):
        return fastest
    return min(fastest, min(members) / use.tensor_parallel * between)


def _block(j: int, own: Sequence[str], alike: Hardware, menu: Menu, asked: int) -> int:
    """Return how many of stage j's devices of a kind stand together in one node; check that they do."""
    room = math.gcd(*(len(names) for names in alike.nodes.values()))
    degrees = [1]
    for t in [asked] if asked else menu.degrees:
        if room % t == 0 and t % degrees[-1] == 0:
            degrees.append(t)
    block, last = 1, 1
    for size in range(2, room + 1):
        if room % size == 0 and size % last == 0 and all(t % size == 0 for t in degrees if t > size):
            last = size
            if len(own) % size == 0:
                block = size
    node_of = {device.name: device.node for device in alike.devices}
    for at in range(0, len(own), block):
        if len({node_of[name] for name in own[at : at + block]}) > 1:
            raise InvalidPlan(f"devices {own[at]!r} to {own[at + block - 1]!r} of stage {j} are to stand in one node")
    return block


def _group_rate(hardware: Hardware, rate: float) -> float:
    """Return the bytes a second of the slowest link inside a node, of any link where there is one node."""
    nodes = [device.node for device in hardware.devices]
    if len(set(nodes)) < 2:
        return rate
    alike = [(i, j) for i, a in enumerate(nodes) for j, b in enumerate(nodes) if i != j and a == b]
    return min((float(hardware.bandwidth[i, j]) for i, j in alike), default=rate)
