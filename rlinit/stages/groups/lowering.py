"""From a graph with a menu and a cluster to the arrays of stages of several devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidGraph, InvalidHardware, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.menu import SIZES, Menu, Variant, is_recomputed
from rlinit.plan import GroupRules
from rlinit.stages.groups.problem import GroupProblem
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageProblem


@dataclass(frozen=True, slots=True, eq=False)
class LoweredGroups:
    """A problem, and of each of its r variants the name and the parameter bytes (r,)."""

    problem: GroupProblem
    variants: tuple[str, ...]
    param_bytes: FloatArray


def lower_groups(graph: Graph, hardware: Hardware, rules: GroupRules) -> LoweredGroups:
    """Build the array form of stages of several devices.

    Parameters
    ----------
    graph
        A graph whose ops have a menu.
    hardware
        Devices of which those of a kind are alike. Where they sit in several nodes, tensor groups stay inside one.
    rules
        What is asked for.

    Raises
    ------
    InvalidGraph
        An op without a menu or without a variant at a degree asked for, a neighbour that is none, colocated ops.
    InvalidHardware
        Devices of one kind that differ, too many of several kinds, or without a path between them.
    RlinitError
        Replicas that do not divide the micro-batches, or a degree that no node has room for.
    """
    menu = graph.menu
    missing = [name for name in graph.names if menu is None or name not in menu.ops]
    if missing or menu is None:
        raise InvalidGraph(f"op {missing[0]!r} has no menu, but stages of several devices need one for every op")
    if graph.groups or graph.forbidden:
        raise InvalidGraph("stages of several devices take neither colocated ops nor ops forbidden on some devices")
    kinds = kinds_of(hardware)
    forms = _forms(menu, kinds, rules.tensor_parallel)
    degrees, kind = (np.array(column, np.int64) for column in zip(*forms, strict=True))
    one = Hardware.mesh([replace(hardware.devices[0], name="stage", memory_bytes=np.inf)], np.inf)
    free = np.zeros(graph.num_ops)
    structure = lower_stages(graph, one, "pipeline", op_work=[free]).problem
    passes = 2.0 if rules.training else 1.0
    links, inner = links_of(hardware), [links_of(one) for one in kinds]
    columns, names, param_bytes = _rows(
        graph, menu, structure, rules, [(t, kinds[k].devices[0].kind, passes / inner[k].inside) for t, k in forms]
    )
    replicas, mixes = _replica_counts(rules, hardware.num_devices), _mixes(rules, kinds)
    whole = rules.exchange == "server"
    once, fastest = 4.0 if whole else 2.0, [one.between if whole else one.inside for one in inner]
    rows_of = np.diff(columns["row_indptr"]).reshape(len(forms), -1).sum(axis=1)
    rates = np.repeat(np.array(fastest)[kind], rows_of)
    at_once = np.ones(len(degrees)) if whole else degrees.astype(np.float64)
    gradient = param_bytes * (once / (rules.microbatches * rates) if rules.training else 0.0)
    blocks = [blocks_of([t for t, m in forms if m == k], kind) for k, kind in enumerate(kinds)]
    ringed = not whole and len(hardware.nodes) > 1
    problem = GroupProblem(
        structure=structure,
        degrees=degrees,
        kind=kind,
        kinds=tuple(one.devices[0].kind for one in kinds),
        counts=np.array([one.num_devices for one in kinds]),
        gradient_s=gradient,
        gradient_share=np.stack([_gradient_shares(rules, t, replicas, blocks[k], inner[k]) for t, k in forms]),
        transfer_s=passes * (structure.tensor_bytes / (at_once[:, None] * links.between) + links.between_s),
        replicas=replicas,
        microbatches=rules.microbatches,
        memory_bytes=np.array([room_of(kinds[k], rules, t) for t, k in forms]),
        mixes=mixes,
        mix_s=np.stack([_mix_seconds(rules, t, mixes, blocks, inner, links.between, ringed) for t, _ in forms]),
        most_param_bytes=np.array(
            [
                [max((one.param_bytes for one in menu.ops[v].get(t, ())), default=0.0) for v in graph.names]
                for t, _ in forms
            ]
        ),
        in_flight={"": "one", "gpipe": "batch"}.get(rules.training, "behind"),
        **columns,
    )
    return LoweredGroups(problem, names, param_bytes)


MOST_KINDS = 4
"""Kinds of devices at most, and"""

MOST_CELLS = 2_000_000
"""counts of devices of all kinds but one, and of replicas: what is behind a stage is told by these."""


MOST_MIXES = 40_000
"""Numbers of replicas of each kind that stages with mixed replicas may have: those of 256 and 128 devices."""


def kinds_of(hardware: Hardware) -> list[Hardware]:
    """Return the devices of each kind by themselves, those of which there are most first.

    Parameters
    ----------
    hardware
        The devices.

    Raises
    ------
    InvalidHardware
        Devices of one kind that differ, or too many, of several kinds.
    """
    places: dict[str, list[int]] = {}
    for i, device in enumerate(hardware.devices):
        places.setdefault(device.kind, []).append(i)
        first = hardware.devices[places[device.kind][0]]
        if replace(device, name=first.name, node=first.node) != first:
            raise InvalidHardware(
                f"devices {first.name!r} and {device.name!r} of kind {device.kind!r} differ; "
                "replicas and tensor groups need equal ones of a kind"
            )
    rows = sorted(places.values(), key=lambda row: -len(row))
    if len(rows) > MOST_KINDS or math.prod(len(row) + 1 for row in rows[1:]) * len(hardware) > MOST_CELLS:
        raise InvalidHardware(
            f"{len(hardware)} devices of {len(rows)} kinds are too many for stages of several devices; "
            f"expected at most {MOST_KINDS} kinds, and fewer devices of all but one of them"
        )
    if len(rows) == 1:
        return [hardware]
    return [hardware.part(row) for row in rows]


def room_of(hardware: Hardware, rules: GroupRules, degree: int) -> float:
    """Return the bytes of a device for the ops of a stage: its memory without reserve and workspace, above 0.

    Parameters
    ----------
    hardware, rules
        Devices of one kind, and what is asked for.
    degree
        The stage's tensor degree.
    """
    device = hardware.devices[0]
    room = device.memory_bytes - device.reserve_bytes - rules.workspace_bytes.get(str(degree), 0.0)
    return max(room, float(np.finfo(np.float64).tiny))


def blocks_of(degrees: Sequence[int], hardware: Hardware) -> list[int]:
    """Return numbers of devices that stand in one node: each divides the next, and all nodes; see `GroupProblem`.

    Parameters
    ----------
    degrees
        Tensor degrees, ascending, each of which divides the next and all nodes.
    hardware
        The devices.
    """
    room = math.gcd(*map(len, hardware.nodes.values()))
    sizes = [size for size in range(1, room + 1) if room % size == 0]
    return _chain([size for size in sizes if not any(t % size for t in degrees if t > size)])


def _gradient_shares(
    rules: GroupRules, degree: int, replicas: IntArray, blocks: Sequence[int], links: Links
) -> FloatArray:
    """Return (q,) e(t, d) over what it is per further replica at the best rate."""
    passes = _passes(rules, replicas)
    if rules.exchange == "server":
        return passes
    count = degree * replicas
    together = _together(count, blocks)
    between = links.between / links.inside if links.inside < np.inf else 1.0
    rate = np.where(together == count, 1.0, np.minimum(1.0, together // degree * between))
    return np.asarray(passes / rate)


def _passes(rules: GroupRules, replicas: IntArray) -> FloatArray:
    """Return how many times as much replicas exchange as two do in a ring once a batch."""
    n, d = rules.microbatches, replicas.astype(np.float64)
    each = {"zero2": 0.5 * (1.0 + n / d), "zero3": 1.5 * n / d}.get(rules.exchange, np.ones_like(d))
    return np.asarray(each * (d - 1.0))


def _together(count: IntArray, blocks: Sequence[int]) -> IntArray:
    """Return the largest block that divides each of some counts of devices."""
    return np.asarray(np.max([np.where(count % block == 0, block, 1) for block in blocks], axis=0))


def _mix_seconds(
    rules: GroupRules, degree: int, mixes: IntArray, blocks: Sequence[Sequence[int]], inner: Sequence[Links],
    between: float, ringed: bool,
) -> FloatArray:  # fmt: skip
    """Return (x,) seconds of a micro-batch for each byte of parameters that replicas of several kinds exchange.

    A ring by the blocks of the kinds (`blocks`, `inner`), or all at the rate `between` all devices.
    """
    d = mixes.sum(axis=1)
    if not rules.training:
        return np.zeros(len(mixes))
    rate = np.full(len(mixes), between)
    if ringed:
        members = np.stack([_together(degree * mixes[:, k], blocks[k]) for k in range(len(inner))], axis=1)
        inside = np.where(mixes > 0, [one.inside for one in inner], np.inf).min(axis=1)
        least = np.where(mixes > 0, members, np.iinfo(np.int64).max).min(axis=1)
        rate = np.minimum(inside, np.maximum(least // degree, 1) * between)  # 1: no such form
    once = 4.0 if rules.exchange == "server" else 2.0
    return np.asarray(once / (rules.microbatches * rate) * _passes(rules, d) / d)


def _forms(menu: Menu, kinds: Sequence[Hardware], asked: int) -> list[tuple[int, int]]:
    """Return degrees that fit a node of a kind, or the one that was asked for, each with the index of the kind."""
    known, rooms = menu.degrees, [math.gcd(*map(len, one.nodes.values())) for one in kinds]
    if asked and asked not in known:
        raise InvalidGraph(
            f"tensor_parallel is {asked}, a degree that no op has; the menu has {', '.join(map(str, known))}"
        )
    offered = [asked] if asked else known
    forms = [(t, k) for k, room in enumerate(rooms) for t in _chain([t for t in offered if room % t == 0])]
    if not forms and asked:
        raise RlinitError(
            f"tensor_parallel is {asked}, which does not divide a node of {rooms[0]} devices (--tensor-parallel)"
        )
    if not forms:
        raise RlinitError(f"no degree of the menu ({', '.join(map(str, known))}) divides a node of {rooms[0]} devices")
    return sorted(forms)


def _chain(sizes: list[int]) -> list[int]:
    """Return sizes each of which divides the next, so that groups of all of them fill nodes without a gap."""
    chain: list[int] = []
    for t in sizes:
        if not chain or t % chain[-1] == 0:
            chain.append(t)
    return chain


def _replica_counts(rules: GroupRules, num_devices: int) -> IntArray:
    most, asked, whole = min(rules.microbatches, num_devices), rules.replicas, rules.microbatches
    if not asked:
        return np.array([d for d in range(1, most + 1) if rules.mixed or whole % d == 0], np.int64)
    if whole % asked or asked > most:
        raise RlinitError(
            f"replicas is {asked}; expected a divisor of the {whole} micro-batches, at most {most} (--replicas)"
        )
    return np.array([asked], np.int64)


def _mixes(rules: GroupRules, kinds: Sequence[Hardware]) -> IntArray:
    """Return (x, k) replicas that a stage may have on several kinds of devices."""
    counts = [range(len(one) + 1) for one in kinds] if rules.mixed else [range(1) for _ in kinds]
    if math.prod(map(len, counts)) > MOST_MIXES:
        raise InvalidHardware(
            f"{' and '.join(str(len(one)) for one in kinds)} devices of several kinds are too many for mixed replicas; "
            "ask for replicas='auto' (--replicas auto)"
        )
    every = np.array(list(product(*counts)), np.int64)
    return np.asarray(every[((every > 0).sum(axis=1) > 1) & (every.sum(axis=1) <= rules.microbatches)])


class Links(NamedTuple):
    """Bytes a second and seconds of latency of the slowest links: of all, and of those inside nodes."""

    between: float
    between_s: float
    inside: float
    inside_s: float


def links_of(hardware: Hardware) -> Links:
    """Return the slowest links; those of all pairs where devices name no node, or one.

    Parameters
    ----------
    hardware
        The devices.

    Raises
    ------
    InvalidHardware
        Devices without a path between them.
    """
    rates = [hardware.io_bandwidth(i) for i in range(hardware.num_devices)]
    slowest = min(map(min, rates))
    if slowest <= 0.0:
        raise InvalidHardware(f"no path links every pair of devices of {hardware.name!r}")
    delay = float(hardware.latency_s.max(initial=0.0))
    nodes = np.unique([device.node for device in hardware.devices], return_inverse=True)[1]
    same = (nodes[:, None] == nodes[None, :]) & ~np.eye(len(nodes), dtype=np.bool_)
    if not same.any() or len(hardware.nodes) == 1:
        return Links(slowest, delay, slowest, delay)
    return Links(slowest, delay, float(hardware.bandwidth[same].min()), float(hardware.latency_s[same].max()))


def _rows(
    graph: Graph, menu: Menu, structure: StageProblem, rules: GroupRules, forms: Sequence[tuple[int, str, float]]
) -> tuple[dict[str, Any], tuple[str, ...], FloatArray]:
    """Return the columns of all variants that count, by form and op, their names, and their parameter bytes.

    Forms are degrees, names of kinds, and seconds of a byte that a group gathers.
    """
    rows: list[Variant] = []
    row_indptr, sync_indptr, syncs = [0], [0], list[float]()
    before = np.split(structure.pred, structure.pred_indptr[1:-1])
    after = np.split(structure.succ, structure.succ_indptr[1:-1])
    neighbours = [[graph.names[u] for u in (*before[v], *after[v])] for v in range(graph.num_ops)]
    for degree, kind, sync_s_per_byte in forms:
        for v, name in enumerate(graph.names):
            around = neighbours[v]
            for variant in _chosen(_timed(menu.ops[name].get(degree, ()), kind), rules.recompute):
                strange = sorted(set(variant.sync_bytes) - set(around))
                if strange:
                    raise InvalidGraph(
                        f"op {name!r}: variant {variant.name!r} syncs with {strange[0]!r}, which is no neighbour of it"
                    )
                rows.append(variant)
                syncs += [sync_s_per_byte * variant.sync_bytes.get(other, 0.0) for other in around]
                sync_indptr.append(len(syncs))
            row_indptr.append(len(rows))
    columns: dict[str, Any] = {what: np.array([getattr(row, what) for row in rows]) for what in SIZES}
    lacking = np.flatnonzero(np.diff(row_indptr).reshape(len(forms), -1).sum(axis=0) == 0)
    if len(lacking):
        what = f"at degree {forms[0][0]}" if len(forms) == 1 else "at a degree that fits a node"
        raise InvalidGraph(f"op {graph.names[lacking[0]]!r} has no variant {what}")
    param_bytes = columns.pop("param_bytes")
    columns |= {"row_indptr": np.array(row_indptr), "sync_indptr": np.array(sync_indptr)}
    return columns | {"sync_s": np.array(syncs, np.float64)}, tuple(row.name for row in rows), param_bytes


def _timed(variants: tuple[Variant, ...], kind: str) -> tuple[Variant, ...]:
    """Return the variants that there are on a kind of devices, with their seconds there."""
    seconds = [one.time_s.get(kind) if isinstance(one.time_s, Mapping) else one.time_s for one in variants]
    return tuple(replace(one, time_s=s) for one, s in zip(variants, seconds, strict=True) if s is not None)


def _chosen(variants: tuple[Variant, ...], recompute: str) -> list[Variant]:
    """Return the variants that recomputation, or none, leaves; all of an op's where it has none of that kind."""
    wanted = [one for one in variants if is_recomputed(one.name) == (recompute == "all")]
    return list(variants) if recompute == "auto" or not wanted else wanted
