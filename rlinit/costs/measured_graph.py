"""Seconds of a graph's ops from measured tables: products are known by their operations and the bytes around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.products import number_type, products
from rlinit.costs.roofline import op_times
from rlinit.costs.sources import COST_SOURCES
from rlinit.costs.table import CostTable
from rlinit.costs.tables import SOURCES, Attention, MeasuredTables, by_kind
from rlinit.devices.efficiency import op_class
from rlinit.graph import ANY_DEVICE, Graph
from rlinit.hardware import Hardware

__all__ = ["cost_shares", "with_costs"]

Shape = tuple[str, Literal["products", "prompts", "generation"], tuple[float, ...]]
Shapes = dict[int, Shape]
"""Op -> type of numbers, kind of table, and sizes for one input, those that grow with the batch first."""


def with_costs(graph: Graph, hardware: Hardware, costs: Any, batches: Sequence[int] = (1,)) -> Graph:
    """Return the graph with seconds from a cost table, or from measured tables on the devices that there are some of.

    Measured tables time products with parameters, whose shape follows from operations and bytes, and attention, whose
    tensors' shapes importers note. Ops with given times on a device's kind keep those, and all others the roofline.
    Tables are of ops that follow each other on the device; a ``host_s`` of the kind's devices is the least of each.

    Parameters
    ----------
    graph, hardware
        The problem.
    costs
        A `CostTable`, or measured tables as `rlinit.costs.tables.by_kind` takes them.
    batches
        Batch sizes that ops may run at.

    Raises
    ------
    InvalidCostTable
        As for `CostTable.apply` and `rlinit.costs.tables.load`.
    """
    if isinstance(costs, CostTable):
        return costs.apply(graph, partial=True)
    tables = by_kind(costs)
    kinds = {device.kind: tables[device.kind] for device in hardware.devices if device.kind in tables}
    shapes = _shapes(graph) if kinds else {}
    if not shapes:
        return graph
    times, extras = dict(graph.times), {v: dict(row) for v, row in graph.extras.items()}
    for kind, table in kinds.items():
        host_s = max(device.host_s for device in hardware.devices if device.kind == kind)
        for batch in sorted(set(batches)):
            column = times.get((kind, batch), np.full(graph.num_ops, np.nan)).copy()
            for v, source in _fill(column, shapes, table, batch).items():
                column[v] = max(column[v], host_s)
                extras.setdefault(v, {})[COST_SOURCES] = {**extras.get(v, {}).get(COST_SOURCES, {}), kind: source}
            if not np.isnan(column).all():
                times[kind, batch] = column
    return dataclasses.replace(graph, times=times, extras=extras)


def _fill(column: FloatArray, shapes: Shapes, table: MeasuredTables, batch: int) -> dict[int, str]:
    """Write the seconds of ops at a batch size into a column of times, where there are none; return their sources."""
    groups: dict[tuple[str, Literal["products", "prompts", "generation"]], list[int]] = {}
    for v, (dtype, kind, _) in shapes.items():
        if np.isnan(column[v]):
            groups.setdefault((dtype, kind), []).append(v)
    sources: dict[int, str] = {}
    for (dtype, kind), ops in groups.items():
        sizes = np.array([shapes[v][2] for v in ops], np.float64).T
        sizes[0] *= batch
        if kind == "products":
            found = table.product(sizes[0], sizes[1], sizes[2], dtype)
        else:
            found = table.attention(kind, *sizes, dtype=dtype)
        if found is not None:
            column[ops] = found.seconds
            sources |= dict(zip(ops, (SOURCES[at] for at in found.source.tolist()), strict=True))
    return sources


def _shapes(graph: Graph) -> Shapes:
    """Return the ops that tables may have."""
    found: Shapes = {
        int(v): (number_type(graph, int(v)), "products", (float(m), float(n), float(k)))
        for v, m, n, k in zip(*products(graph), strict=True)
    }
    for v in range(graph.num_ops):
        if op_class(graph.kinds[v]) == "attention" and (shape := _attention(graph, v)) is not None:
            found[v] = shape
    return found


def _attention(graph: Graph, v: int) -> Shape | None:
    """Return the shape of attention of queries (batch, heads, length, width); None where importers do not say it."""
    made = _tensors(graph, v)
    before = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()
    read = [shape for u in before for shape in _tensors(graph, u) if len(shape) == 4]
    if not made or len(made[0]) != 4 or not read:
        return None
    batch, heads, length, width = made[0]
    kept = max(shape[2] for shape in read)
    kv_heads = min(shape[1] for shape in read if shape[2] == kept)
    if length not in (1, kept) or not min(batch, heads, kept, kv_heads, width) > 0:
        return None
    kind: Attention = "generation" if length == 1 and kept > 1 else "prompts"
    return number_type(graph, v), kind, (batch, kept, heads, kv_heads, width)


def _tensors(graph: Graph, v: int) -> list[list[int]]:
    """Return the shapes of an op's tensors, as far as importers note them."""
    return [list(row[1:]) for row in graph.extras.get(v, {}).get("outputs", ()) if isinstance(row, (list, tuple))]


def cost_shares(graph: Graph, hardware: Hardware, places: Mapping[str, str]) -> dict[str, float]:
    """Return the share of ops' seconds by where they come from: given, a source of measured tables, or modelled.

    Parameters
    ----------
    graph, hardware
        The problem.
    places
        Op -> the name of its device, for ops that have one.
    """
    sums: dict[str, float] = {}
    for device in hardware.devices:
        ops = [v for v, name in enumerate(graph.names) if places.get(name) == device.name]
        if not ops:
            continue
        keys = (device.name, device.kind, ANY_DEVICE)
        batch = min((size for key, size in graph.times if key in keys), default=1)
        seconds = op_times(graph, device, batch)
        given = [column for (key, size), column in graph.times.items() if key in keys and size == batch]
        for v in ops:
            source = graph.extras.get(v, {}).get(COST_SOURCES, {}).get(device.kind)
            source = source or ("given" if any(not np.isnan(column[v]) for column in given) else "modelled")
            sums[source] = sums.get(source, 0.0) + float(seconds[v])
    total = sum(sums.values())
    return {source: part / total for source, part in sorted(sums.items()) if part > 0} if 0 < total < np.inf else {}
