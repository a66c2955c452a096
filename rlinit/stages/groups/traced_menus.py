"""Menus of traced models: what each op, or layer kept whole, takes on a tensor group, by how its ops lie there.

=================  ====================================================================================================
variant            what a device does
=================  ====================================================================================================
``plain``          all of the op
``tensor``         its share of the op (`rlinit.stages.groups.layouts`), and what the group exchanges for it
``sequence``       the same with sequence parallelism
``... recomputed`` of ops kept whole: the forward pass once more before the backward one; what comes in alone is kept
=================  ====================================================================================================

At each degree all ops have one layout, of these two the one of fewer seconds: edges inside a stage cannot say what it
takes to go from one to the other. Seconds are those of the cost model, or given, for what one device does; a backward
pass takes what it is given, else twice its forward. Given seconds shrink with the degree as those of the roofline model
do. In training every tensor is kept from where it is read first, views of it once; what a border of stages brings is
counted there as well. A tensor that a group needs whole is gathered by each op that reads it from another stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.costs.measured_graph import with_costs
from rlinit.costs.roofline import held_tensors, known_bytes, op_times, roofline
from rlinit.costs.sources import COST_SOURCES
from rlinit.costs.table import CostTable
from rlinit.costs.tables import by_kind
from rlinit.errors import InvalidGraph
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Hardware
from rlinit.stages.groups.collectives import Group, groups_of
from rlinit.stages.groups.layouts import Layout, layouts_of, local_graph
from rlinit.stages.groups.lowering import kinds_of
from rlinit.stages.lowering import merged_ops
from rlinit.stages.training.lowering import backward_times, has_backward
from rlinit.stages.training.rules import Training, optimizer_factor

_SAID = 0.01
"""Share of the operations from which on it is said that all devices of a group do them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Traced:
    """A graph, the node that each op is of, and what is asked for."""

    graph: Graph
    node_of_op: IntArray
    names: list[str]
    training: bool
    recompute: bool
    state_factor: float
    costs: Any

    @property
    def num_nodes(self) -> int:
        return len(self.names)

    def total(self, column: FloatArray) -> FloatArray:
        """Return the sums over the ops of nodes."""
        return np.bincount(self.node_of_op, column, self.num_nodes).astype(np.float64, copy=False)


def with_traced_menu(
    graph: Graph,
    hardware: Hardware,
    *,
    training: Training | None = None,
    recompute: bool = True,
    optimizer: str | float = "adam",
    costs: Any = None,
    degrees: Sequence[int] | None = None,
) -> Graph:
    """Return the graph that `schedule` plans stages of several devices for, where ops have no menu: see above.

    Ops that are colocated, such as the layers of ``granularity="layer"``, become one op, with what lies between them.

    Parameters
    ----------
    graph
        From `rlinit.load_graph` or `Graph.from_torch`, whose ops have times, or FLOPs and devices with rates. Ops of
        which importers note no axes are done as a whole by every device of a group.
    hardware
        Devices of which those of a kind are alike.
    training
        The schedule of a pipeline that trains; None: it answers.
    recompute
        Whether ops kept whole have variants that run forward a second time.
    optimizer
        As for `schedule`.
    costs
        Measured tables, as for `schedule`; given times win.
    degrees
        Tensor degrees; by default 1, 2, 4, ... as long as they divide a node.

    Returns
    -------
    Graph
        The note of the first op has ``training``, ``workspace_bytes`` by degree (operands and output of the largest op
        at work, and what the largest recomputed one makes anew), and ``replicated``: what no rule splits.

    Raises
    ------
    InvalidGraph
        An op without a time on a device, backward ops, or ops forbidden on some devices.
    InvalidHardware
        As for `kinds_of`.
    RlinitError
        An unknown optimiser.
    """
    if graph.forbidden or has_backward(graph):
        what = "backward ops" if has_backward(graph) else "ops forbidden on some devices"
        raise InvalidGraph(f"{graph.name!r} has {what}, which menus of traced models do not take; give ops a menu")
    node_of_op = merged_ops(graph)
    names = _names(graph, node_of_op)
    traced = _Traced(graph, node_of_op, names, training is not None, recompute, optimizer_factor(optimizer), costs)
    tables = {} if costs is None or isinstance(costs, CostTable) else by_kind(costs)
    kinds = kinds_of(hardware)
    timed = [_Timed.of(traced, one, groups_of(one, tables.get(one.devices[0].kind), degrees)) for one in kinds]
    offered = sorted({t for one in timed for t in one.groups})
    menus: list[dict[int, list[dict[str, Any]]]] = [{} for _ in range(traced.num_nodes)]
    note: dict[str, Any] = {"training": training or "", "workspace_bytes": {}, "optimizer": str(optimizer)}
    layouts: list[Layout] = []
    for t in offered:
        ways = [(layout, local_graph(graph, layout)) for layout in reversed(layouts_of(graph, t))]
        here = [one for one in timed if t in one.groups]
        found = [(*way, {one.kind: one.seconds(traced, *way) for one in here}) for way in ways]
        layout, local, seconds = min(found, key=lambda way: sum(float(np.sum(column)) for column in way[2].values()))
        note["workspace_bytes"][str(t)] = _variants(traced, local, layout, seconds, menus, alone=len(timed) == 1)
        layouts.append(layout)
    note["replicated"] = _replicated(graph, layouts)
    return _joined(traced, menus, note)


class _Timed(NamedTuple):
    """Ops on one device of a kind: (n,) seconds of forward and backward passes, and those of the roofline model."""

    of_kind: Hardware
    groups: Mapping[int, Group]
    whole: Graph
    forward: FloatArray
    backward: FloatArray
    modelled: FloatArray

    @classmethod
    def of(cls, traced: _Traced, of_kind: Hardware, groups: Sequence[Group]) -> _Timed:
        whole, device = traced.graph, replace(of_kind.devices[0], slowdown=1.0)
        if traced.costs is not None:
            whole = with_costs(whole, of_kind, traced.costs)
        forward = op_times(whole, device)
        backward = backward_times(traced.graph, device, forward) if traced.training else np.zeros_like(forward)
        modelled = roofline(replace(whole, times={}), device)
        return cls(of_kind, {group.t: group for group in groups}, whole, forward, backward, modelled)

    @property
    def kind(self) -> str:
        return self.of_kind.devices[0].kind

    def seconds(self, traced: _Traced, layout: Layout, local: Graph) -> tuple[FloatArray, FloatArray]:
        """Return (nodes,) seconds of forward and of backward passes of a layout, exchanges counted."""
        forward, backward, rows = self.forward, self.backward, layout.exchanged_bytes
        if layout.degree > 1:
            group, share = self.groups[layout.degree], self.shares(layout, local, traced.costs)
            forward = forward * share + group.seconds(rows["all_reduce"], rows["all_gather"])
            backward = backward * share
            if traced.training:
                backward = backward + group.seconds(rows["all_reduce_back"], rows["all_gather_back"])
        slowdown = self.of_kind.devices[0].slowdown
        return slowdown * traced.total(forward), slowdown * traced.total(backward)

    def shares(self, layout: Layout, local: Graph, costs: Any) -> FloatArray:
        """Return (n,) the part of an op's seconds that what one device of a group does takes."""
        device = replace(self.of_kind.devices[0], slowdown=1.0)
        again, before = roofline(replace(local, times={}), device), self.modelled
        share = np.where(np.isnan(again) | np.isnan(before), layout.work, 0.0)
        np.divide(again, before, out=share, where=(before > 0.0) & ~np.isnan(again))
        plain = costs is None or isinstance(costs, CostTable)
        measured = None if plain else with_costs(replace(local, times={}), self.of_kind, costs)
        if measured is not None and (device.kind, 1) in measured.times:
            given = np.zeros(local.num_ops, np.bool_)
            for key in (device.name, ANY_DEVICE, device.kind):
                given |= ~np.isnan(self.whole.times.get((key, 1), np.full(local.num_ops, np.nan)))
            given[[v for v, row in self.whole.extras.items() if device.kind in row.get(COST_SOURCES, {})]] = False
            found = measured.times[device.kind, 1]
            here = ~np.isnan(found) & ~given & (self.forward > 0.0)
            share[here] = found[here] / self.forward[here]
        return np.asarray(share)


def _variants(
    traced: _Traced,
    local: Graph,
    layout: Layout,
    seconds: Mapping[str, tuple[FloatArray, FloatArray]],
    menus: list[dict[int, list[dict[str, Any]]]],
    *,
    alone: bool,
) -> float:
    """Add the variants of a degree to the menus of nodes; return the bytes beside what they hold."""
    params = _held_once(traced, layout, known_bytes(traced.graph.param_bytes))
    trained = params - _held_once(traced, layout, traced.graph.constant_bytes) if traced.training else params
    fixed = params + (traced.state_factor - 1.0) * trained if traced.training else params
    held, entering = _held(traced, layout)
    size = np.bincount(traced.node_of_op)
    t, name = layout.degree, "sequence" if layout.scatters else "tensor" if layout.degree > 1 else "plain"
    syncs = _syncs(traced, layout)
    again = traced.training and traced.recompute
    for node in range(traced.num_nodes):
        sizes = {"param_bytes": trained[node], "fixed_bytes": fixed[node], "sync_bytes": syncs[node]}
        for recomputed in (False, True) if again and size[node] > 1 and entering[node] < held[node] else (False,):
            by_kind = {
                kind: float(ahead[node] * (1 + recomputed) + back[node]) for kind, (ahead, back) in seconds.items()
            }
            row = {
                "name": name + " recomputed" * recomputed,
                "time_s": next(iter(by_kind.values())) if alone else by_kind,
            }
            if traced.training:
                row["held_bytes"] = float((entering if recomputed else held)[node])
            menus[node].setdefault(t, []).append(row | sizes)
    width = float(held_tensors(local).max(initial=0.0))
    more = float((held - entering)[size > 1].max(initial=0.0)) if again else 0.0
    return width + more


def _held_once(traced: _Traced, layout: Layout, column: FloatArray) -> FloatArray:
    """Return (nodes,) bytes that a device has of what ops hold (n,), parameters that ops of a node share once."""
    params = traced.total(column * layout.params)
    for one in traced.graph.shared:
        readers = np.array(one.readers, np.int64)
        if (column[readers] < one.size_bytes).any():
            continue
        for node in np.unique(traced.node_of_op[readers]).tolist():
            inside = readers[traced.node_of_op[readers] == node]
            shares = layout.params[inside]
            params[node] -= one.size_bytes * float(shares.sum() - shares.max())
    return np.maximum(params, 0.0)


def _held(traced: _Traced, layout: Layout) -> tuple[FloatArray, FloatArray]:
    """Return (nodes,) bytes that a micro-batch leaves until its backward pass: all that is read, and what comes in."""
    graph, node_of_op = traced.graph, traced.node_of_op
    held, entering = np.zeros(traced.num_nodes), np.zeros(traced.num_nodes)
    place = inverse_of(graph.order)
    views = np.array([bool(graph.extras.get(v, {}).get("view")) for v in range(graph.num_ops)])
    root = np.arange(graph.num_ops)
    for v in graph.order[views[graph.order]].tolist():
        before = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]
        root[v] = root[before[0]] if len(before) else v
    first: dict[int, int] = {}
    for u, v in graph.edges[np.argsort(place[graph.edges[:, 1]], kind="stable")].tolist():
        if not views[v]:
            first.setdefault(int(root[u]), v)
    made = known_bytes(graph.made_bytes)
    for u in np.flatnonzero(root == np.arange(graph.num_ops)).tolist():
        v = first.get(u, u)
        size = made[u] / (layout.degree if layout.pieces[u] is not None and layout.work[v] < 1.0 else 1)
        held[node_of_op[v]] += size
        if node_of_op[u] != node_of_op[v] or u == v:
            entering[node_of_op[v]] += size
    return held, entering


def _syncs(traced: _Traced, layout: Layout) -> list[dict[str, float]]:
    """Return of each node which bytes it gathers from which other, where that is in another stage."""
    graph, t, names = traced.graph, layout.degree, traced.names
    rows: list[dict[str, float]] = [{} for _ in range(traced.num_nodes)]
    edges = zip(graph.edges.tolist(), graph.edge_tensor.tolist(), known_bytes(graph.edge_bytes).tolist(), strict=True)
    seen = set()
    for (u, v), tensor, size in edges:
        one, other = int(traced.node_of_op[u]), int(traced.node_of_op[v])
        if (u, v) in layout.needed and one != other and (tensor, other) not in seen:
            seen.add((tensor, other))
            rows[other][names[one]] = rows[other].get(names[one], 0.0) + (t - 1) / t * size
    return rows


def _replicated(graph: Graph, layouts: Sequence[Layout]) -> list[str]:
    """Return what to say of the operations that every device of a group does, at the degrees where they are most."""
    flops = np.nan_to_num(graph.flops)
    shares = [float(flops[one.work == 1.0].sum() / max(flops.sum(), 1.0)) if one.degree > 1 else 0.0 for one in layouts]
    most = max(shares)
    if most < _SAID:
        return []
    layout = layouts[shares.index(most)]
    whole = np.flatnonzero((layout.work == 1.0) & (flops > 0.0))
    kinds = list(dict.fromkeys(graph.kinds[v] for v in whole[np.argsort(-flops[whole])].tolist()))
    degrees = " or ".join(str(one.degree) for one, share in zip(layouts, shares, strict=True) if share == most)
    return [
        f"every device of a group of {degrees} does all of {len(whole)} ops with {most:.0%} of the operations, which "
        f"no rule splits: {', '.join(kinds[:3])}"
    ]


def _names(graph: Graph, node_of_op: IntArray) -> list[str]:
    """Return the names of nodes: those of groups, else of their first ops."""
    names = list[str]()
    for ops in np.split(np.argsort(node_of_op, kind="stable"), np.cumsum(np.bincount(node_of_op))[:-1]):
        groups = [str(graph.groups[g]) for g in graph.colocation[ops].tolist() if g >= 0] if len(ops) > 1 else []
        names.append(groups[0] if groups and groups[0] not in names else graph.names[ops[0]])
    return names


def _joined(traced: _Traced, menus: list[dict[int, list[dict[str, Any]]]], note: dict[str, Any]) -> Graph:
    """Return the graph of nodes with their menus; tensors that the same or overlapping nodes read go together."""
    graph, node_of_op, names = traced.graph, traced.node_of_op, traced.names
    readers: dict[int, set[int]] = {}
    for (u, v), tensor in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        if node_of_op[u] != node_of_op[v]:
            readers.setdefault(tensor, set()).add(int(node_of_op[v]))
    tensors, sent = graph.tensors, [list[tuple[set[int], float]]() for _ in names]
    for tensor, nodes in readers.items():
        row, size = sent[int(node_of_op[tensors.op[tensor]])], float(np.nan_to_num(tensors.size_bytes[tensor]))
        for other in [one for one in row if one[0] & nodes]:
            row.remove(other)
            nodes, size = nodes | other[0], size + other[1]
        row.append((nodes, size))
    _, first, count = np.unique(node_of_op, return_index=True, return_counts=True)
    rows, edges = [], list[tuple[str, str, str]]()
    for node, (name, menu) in enumerate(zip(names, menus, strict=True)):
        ports = {str(i): size for i, (_, size) in enumerate(sent[node])}
        edges += [(name, names[v], str(i)) for i, (nodes, _) in enumerate(sent[node]) for v in sorted(nodes)]
        made = {"op": graph.kinds[first[node]] if count[node] == 1 else "layer", "menu": menu, "outputs": ports}
        rows.append((name, made if node else made | {"note": note}))
    return Graph.build(rows, edges, name=graph.name)
