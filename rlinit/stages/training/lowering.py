"""From a graph and hardware to a training pipeline: what runs backward, what is kept for it, what flows back.

A graph is a model, or a workload that has its backward ops, too:

======================  =======================================================================================
``backward_of``         name of the forward op whose backward this op is; both go to one stage, and what it holds
                        and how long it takes is added to the stage. Edges between backward ops cost as given;
                        they may point as gradients flow or, as in dnn-partitioning's files, as the forward edges do
``backward_time_s``     seconds of the backward of a model's op (a number, or device name or kind -> number);
                        where it is not given, twice its forward time
======================  =======================================================================================

In a model, the gradient of a tensor has its bytes, and goes the same way back: a stage that takes a tensor in sends one
gradient out, the sum over its readers there, and one that sends it takes one in.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.costs.roofline import known_bytes, times_on
from rlinit.errors import InvalidGraph
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import CAPACITY_SLACK, Device, Hardware
from rlinit.importers.common.blocks import blocks_of
from rlinit.stages.lowering import LoweredStages, lower_stages, tensors_between, transfer_seconds
from rlinit.stages.problem import StageProblem
from rlinit.stages.training.problem import Blocks, Links, StageTraining
from rlinit.stages.training.rules import TrainingRules, in_flight
from rlinit.units import format_bytes

_BACKWARD = 2.0
"""Backward time over forward time where none is given: gradients of a product are two products of its size."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredTraining:
    """A training pipeline, and the way back to ops and devices; `stages.problem` is the relaxation."""

    stages: LoweredStages
    training: StageTraining


def has_backward(graph: Graph) -> bool:
    """Return whether a graph has backward ops."""
    return any("backward_of" in row for row in graph.extras.values())


def lower_training(graph: Graph, hardware: Hardware, rules: TrainingRules) -> LoweredTraining:
    """Build the array form of a training pipeline.

    Parameters
    ----------
    graph
        A model, or a workload with backward ops.
    hardware
        The devices, one a stage.
    rules
        Schedule, micro-batches, recomputation and optimiser.

    Raises
    ------
    InvalidGraph
        As `lower_stages`; also a backward op without its forward op, or whose edges contradict those of forward ops.
    InvalidHardware
        No path between two devices.
    RlinitError
        More stages than the schedule can use.
    """
    rules.check_stages(hardware.num_devices)
    partner = _partners(graph)
    forward = graph if partner is None else _forward_graph(graph, partner)
    seconds = times_on(graph, hardware.devices)
    work = [_op_work(graph, *pair, partner) for pair in zip(hardware.devices, seconds, strict=True)]
    lowered = lower_stages(forward, hardware, "pipeline", op_work=work)
    node_of_op = lowered.node_of_op
    if partner is not None:
        at = {name: i for i, name in enumerate(forward.names)}
        node_of_op = lowered.node_of_op[[at[graph.names[u]] for u in partner.tolist()]]
    plain, first = lowered.problem, [devices[0] for devices in lowered.class_devices]
    src, indptr, dst, size = tensors_between(graph, node_of_op, warn=False)
    in_s, out_s = transfer_seconds(hardware, first, size)
    if partner is None:
        in_s, out_s = in_s + out_s, in_s + out_s
        problem_in, problem_out = in_s, out_s
    else:
        problem_in, problem_out = _one_way(plain, forward)
    forward_s = np.zeros_like(plain.work_s)
    ahead = (np.arange(graph.num_ops) if partner is None else partner) == np.arange(graph.num_ops)
    for row, i in zip(forward_s, first, strict=True):
        np.add.at(row, node_of_op[ahead], seconds[i][ahead])
    problem = dataclasses.replace(
        plain,
        in_s=problem_in,
        out_s=problem_out,
        memory_bytes=plain.memory_bytes / rules.state_factor,
        overflow_s_per_byte=2.0 * plain.overflow_s_per_byte,
    )
    names = [name for name, one in zip(blocks_of(graph), ahead.tolist(), strict=True) if one]
    blocks, kept = _blocks(forward, names, lowered.node_of_op, np.stack([seconds[i][ahead] for i in first]))
    training = StageTraining(
        problem=problem,
        links=Links(src, indptr, dst, size, in_s, out_s),
        rules=rules,
        memory_bytes=plain.memory_bytes,
        forward_s=forward_s,
        made_bytes=_summed(known_bytes(forward.made_bytes), lowered.node_of_op, plain.num_nodes),
        width_bytes=_widths(forward, lowered.node_of_op, plain.num_nodes),
        blocks=blocks,
    )
    obstacle = _obstacle(training, kept, forward.names, lowered.node_of_op, hardware) or lowered.infeasible
    return LoweredTraining(LoweredStages(problem, node_of_op, lowered.class_devices, obstacle), training)


# -- workloads with backward ops -------------------------------------------------------------------------------


def _partners(graph: Graph) -> IntArray | None:
    """Return (n_ops,) the forward op of each op, itself for those; None for a graph without backward ops."""
    if not has_backward(graph):
        return None
    graph.require_main_outputs("training with backward ops")
    partner = np.arange(graph.num_ops, dtype=np.int64)
    known = {name: i for i, name in enumerate(graph.names)}
    for i, row in graph.extras.items():
        if "backward_of" in row:
            name = row["backward_of"]
            at = known.get(name, i)
            if at == i or "backward_of" in graph.extras.get(at, {}):
                raise InvalidGraph(
                    f"op {graph.names[i]!r} is the backward of {name!r}, which is no forward op of the graph"
                )
            partner[i] = at
    for u, v in graph.edges.tolist():
        if partner[u] != u and partner[v] == v:
            raise InvalidGraph(f"forward op {graph.names[v]!r} reads backward op {graph.names[u]!r}")
    return partner


def _forward_graph(graph: Graph, partner: IntArray) -> Graph:
    """Return the forward ops, with what their backward ops hold, and edges where only gradients tell the order."""
    rows = graph.to_dict()["ops"]
    held = _summed(known_bytes(graph.param_bytes), partner, graph.num_ops)
    backward, label = partner != np.arange(graph.num_ops), _forward_groups(graph, partner)
    ops = []
    for i in np.flatnonzero(~backward).tolist():
        row = {key: value for key, value in rows[i].items() if key not in ("name", "colocate")}
        ops.append((graph.names[i], row | {"param_bytes": held[i]} | ({"colocate": label[i]} if i in label else {})))
    pairs = {(u, v) for u, v in graph.edges.tolist() if not backward[u] and not backward[v]}
    edges: list[tuple[str, str] | tuple[str, str, float | str]] = [(graph.names[u], graph.names[v]) for u, v in pairs]
    back = {(int(partner[v]), int(partner[u])) for u, v in graph.edges.tolist() if backward[u] and backward[v]}
    alone = sorted((u, v) for u, v in back - pairs if (v, u) not in pairs and u != v)
    edges += [(graph.names[u], graph.names[v], 0.0) for u, v in alone]
    try:
        return Graph.build(ops, edges, name=graph.name)
    except InvalidGraph as problem:
        raise InvalidGraph(f"the forward ops, in the order that gradients flow back to them: {problem}") from None


def _forward_groups(graph: Graph, partner: IntArray) -> dict[int, int]:
    """Return forward op -> group; those are one whose ops, or backward ops, are colocated, also by way of others."""
    grouped = np.flatnonzero(graph.colocation >= 0)
    groups, nodes = len(graph.groups), len(graph.groups) + graph.num_ops
    links = coo_array((np.ones(len(grouped)), (graph.colocation[grouped], groups + partner[grouped])), (nodes, nodes))
    _, found = connected_components(links, directed=False)
    return {v: int(found[groups + v]) for v in np.unique(partner[grouped]).tolist()}


def _one_way(plain: StageProblem, forward: Graph) -> tuple[FloatArray, FloatArray]:
    """Return (in, out) seconds of the tensors of forward ops, without those that only stand for an order.

    Their gradients are left out of the relaxation.
    """
    free = np.zeros(plain.num_tensors, np.bool_)
    if len(forward.further):
        free[-len(forward.further) :] = plain.tensor_bytes[-len(forward.further) :] == 0.0
    return np.where(free, 0.0, plain.in_s), np.where(free, 0.0, plain.out_s)


# -- costs -----------------------------------------------------------------------------------------------------


def _op_work(graph: Graph, device: Device, seconds: FloatArray, partner: IntArray | None) -> FloatArray:
    """Return the seconds of each forward op and its backward on a device, from those of the graph's ops."""
    if partner is None:
        return seconds + backward_times(graph, device, seconds)
    both = _summed(seconds, partner, graph.num_ops)
    return np.asarray(both[partner == np.arange(graph.num_ops)])


def backward_times(graph: Graph, device: Device, forward_s: FloatArray) -> FloatArray:
    """Return (n_ops,) seconds of each op's backward: as given, else `_BACKWARD` times its forward's.

    Parameters
    ----------
    graph, device
        What gives them.
    forward_s
        (n_ops,) seconds of the forward.
    """
    seconds = _BACKWARD * forward_s
    for i, row in graph.extras.items():
        given = row.get("backward_time_s")
        if isinstance(given, dict):
            found = [given[key] for key in (device.name, device.kind, ANY_DEVICE) if key in given]
            given = found[0] if found else None
        if given is not None and np.isfinite(forward_s[i]):
            seconds[i] = given * device.slowdown
    return seconds


def _summed(values: FloatArray, group: IntArray, count: int) -> FloatArray:
    """Return (count,) the sum of values of each group."""
    return np.asarray(np.bincount(group, values, count), np.float64)


# -- bytes -----------------------------------------------------------------------------------------------------


def _widths(graph: Graph, node_of_op: IntArray, n: int) -> FloatArray:
    """Return (n,) the most bytes of tensors alive around an op of a node in the natural order.

    A tensor is alive from its producer to its last reader, to the end if nobody reads it.
    """
    tensors = graph.tensors
    place = inverse_of(graph.order)
    size = known_bytes(tensors.size_bytes)
    last = np.full(len(size), -1, np.int64)
    np.maximum.at(last, graph.edge_tensor, place[graph.edges[:, 1]])
    last[last < 0] = graph.num_ops - 1
    # In fractions, since sums that rise and fall leave the rounding of the largest tensors in the smallest.
    exact = (int(each) if each.is_integer() else Fraction(each) for each in size.tolist())
    change: list[int | Fraction] = [0] * (graph.num_ops + 1)
    for begin, end, amount in zip(place[tensors.op].tolist(), (last + 1).tolist(), exact, strict=True):
        change[begin] += amount
        change[end] -= amount
    alive = np.array(list(map(float, itertools.accumulate(change))))
    width = np.zeros(n)
    np.maximum.at(width, node_of_op, alive[place])
    return width


def _blocks(
    graph: Graph, names: Sequence[str | None], node_of_op: IntArray, forward_s: FloatArray
) -> tuple[Blocks, FloatArray]:
    """Return the repeated layers and modules of a model that save something when they are recomputed.

    `names` are the blocks of the forward ops, `forward_s` (c, n_ops) their seconds. One that a path leaves and enters
    again cannot run as a whole. Also returns (n,) the bytes made in each node that no recomputation saves.
    """
    titles = list(dict.fromkeys(name for name in names if name is not None))
    number = {name: b for b, name in enumerate(titles)}
    of_op = np.array([-1 if name is None else number[name] for name in names], np.int64)
    of_op[np.isin(of_op, _broken(graph, of_op))] = -1
    tensors, size = graph.tensors, known_bytes(graph.tensors.size_bytes)
    inside = np.zeros(len(tensors.op), np.bool_)
    inside[graph.edge_tensor] = True
    inside[graph.edge_tensor[of_op[graph.edges[:, 1]] != of_op[graph.edges[:, 0]]]] = False
    inside &= of_op[tensors.op] >= 0
    saved = _summed(size[inside], of_op[tensors.op[inside]], len(titles))
    useful = np.flatnonzero(saved > 0)
    renumbered = np.full(len(titles) + 1, -1, np.int64)
    renumbered[useful] = np.arange(len(useful))
    of_op, count, n = renumbered[of_op], len(useful), int(node_of_op.max(initial=-1)) + 1
    held = of_op >= 0
    pairs = np.unique(of_op[held] * n + node_of_op[held])
    blocks = Blocks(
        indptr=np.searchsorted(pairs, n * np.arange(count + 1)),
        node=pairs % max(n, 1),
        saved_bytes=saved[useful],
        seconds=np.stack([_summed(row[held], of_op[held], count) for row in forward_s]),
        names=tuple(titles[b] for b in useful.tolist()),
    )
    return blocks, _summed(size[~inside], node_of_op[tensors.op[~inside]], n)


def _broken(graph: Graph, of_op: IntArray) -> list[int]:
    """Return the blocks with a path that leaves and comes back, which cannot be run as a whole."""
    left = [0] * graph.num_ops  # bits of the blocks that a path to the op has left
    block, edges = of_op.tolist(), graph.edges[np.argsort(inverse_of(graph.order)[graph.edges[:, 0]], kind="stable")]
    for u, v in edges.tolist():
        one, other = block[u], block[v]
        left[v] |= left[u] | (1 << one if one >= 0 and one != other else 0)
    return sorted({b for b, gone in zip(block, left, strict=True) if b >= 0 and gone >> b & 1})


def _obstacle(
    training: StageTraining, unsaved_bytes: FloatArray, names: Sequence[str], node_of_op: IntArray, hardware: Hardware
) -> str:
    """Return why no assignment can be feasible, as far as single nodes and totals tell; "" if they do not."""
    problem, rules = training.problem, training.rules
    flying = min(in_flight(rules, problem.num_stages, remaining) for remaining in range(1, problem.num_stages + 1))
    state = rules.state_factor * problem.param_bytes
    kept = training.made_bytes if rules.recompute == "none" else unsaved_bytes
    alone = state + training.width_bytes + flying * kept
    largest = float(training.memory_bytes[problem.stage_class].max())
    stuck = int(np.argmax(alone))
    if alone[stuck] > largest * CAPACITY_SLACK:
        name = names[int(np.flatnonzero(node_of_op == stuck)[0])]
        return (
            f"training op {name!r} alone needs {alone[stuck]:,.0f} bytes ({format_bytes(float(state[stuck]))} for "
            f"parameters, gradients and optimiser); the largest memory lacks {alone[stuck] - largest:,.0f} bytes"
        )
    total, room = float(state.sum()), float(training.memory_bytes[problem.stage_class].sum())
    if total * (1 - 1e-9) > room:
        name = names[int(np.flatnonzero(node_of_op == int(np.argmax(state)))[0])]
        return (
            f"parameters, gradients and optimiser need {total:,.0f} bytes (most of them op {name!r}: "
            f"{state.max():,.0f}); all devices of {hardware.name!r} together lack {total - room:,.0f} bytes"
        )
    return ""
