"""A learned correction of the roofline: boosted trees over what an op is and how it lies to the device's data sheet.

The seconds of an op are those of the roofline (a launch, for an op that only views its input) times the exponential of
a sum of small trees. Their features are ratios to the device's rates and launch, and sizes in bytes and operations, so
that the correction may be asked for a device it has never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.roofline import known_bytes, moved_bytes, roofline
from rlinit.devices.efficiency import OP_CLASSES, op_class
from rlinit.graph import Graph
from rlinit.hardware import Device

__all__ = ["CostModel", "base_seconds", "fit_cost_model", "op_features"]

_TINY = 1e-12
_LEAVES = 6.0
"""Added to the weight of a leaf or of a kind of op, which draws it to 0 where little was seen of it."""

_CUTS = 24
"""Thresholds that are tried of a feature."""


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """What is learned.

    Parameters
    ----------
    kinds
        Kind of op -> what is added to the logarithm of its seconds.
    feature, threshold
        (trees, 2^depth - 1) of each inner node, children of node i at 2 i + 1 (at most the threshold) and 2 i + 2.
    value
        (trees, 2^depth) of each leaf.
    """

    kinds: Mapping[str, float]
    feature: np.ndarray[Any, np.dtype[np.int64]]
    threshold: FloatArray
    value: FloatArray

    def seconds(self, graph: Graph, device: Device, batch: int = 1) -> FloatArray:
        """Return (n,) seconds; NaN where the roofline has none.

        Parameters
        ----------
        graph
            Its ops.
        device
            With the rates that the roofline needs.
        batch
            Inputs at once.
        """
        base = base_seconds(graph, device, batch)
        log = np.array([self.kinds.get(kind, 0.0) for kind in graph.kinds])
        log += _answers(self, op_features(graph, device, batch))
        idle = np.array([kind == "input" for kind in graph.kinds])
        return np.asarray(np.where(idle, base, base * np.exp(log)), np.float64)


def base_seconds(graph: Graph, device: Device, batch: int = 1) -> FloatArray:
    """Return (n,) what is corrected: the roofline, and a launch for views.

    Parameters
    ----------
    graph, device, batch
        As for `rlinit.costs.roofline.roofline`.
    """
    seconds = roofline(graph, device, batch)
    views = [v for v, row in graph.extras.items() if row.get("view") and graph.kinds[v] != "input"]
    seconds[views] = device.launch_s
    return seconds


def op_features(graph: Graph, device: Device, batch: int = 1) -> FloatArray:
    """Return (n, features) of each op.

    Parameters
    ----------
    graph, device, batch
        As for `rlinit.costs.roofline.roofline`.
    """
    flops = batch * np.nan_to_num(graph.flops)
    moved = moved_bytes(graph, batch)
    made = batch * known_bytes(graph.made_bytes)
    launch = max(device.launch_s, _TINY)
    peak = replace(device, bytes_per_s=None, launch_s=0.0, efficiency={})
    compute_s, memory_s = np.nan_to_num(roofline(graph, peak, batch)), moved / (device.bytes_per_s or 1.0)
    classes = np.array([op_class(kind) for kind in graph.kinds])
    view = np.zeros(graph.num_ops)
    view[[v for v, row in graph.extras.items() if row.get("view")]] = 1.0
    columns = [
        *(classes == name for name in OP_CLASSES),
        view,
        np.log10(compute_s / launch + 1e-4),
        np.log10(memory_s / launch + 1e-4),
        np.log10((compute_s + _TINY) / (memory_s + _TINY)),
        known_bytes(graph.param_bytes) / np.maximum(moved, 1.0),
        made / np.maximum(moved, 1.0),
        np.bincount(graph.edges[:, 1], minlength=graph.num_ops),
        np.log10(flops + 1.0),
        np.log10(moved + 1.0),
    ]
    return np.column_stack([np.asarray(column, np.float64) for column in columns])


def _answers(model: CostModel, x: FloatArray) -> FloatArray:
    """Return (n,) the sum of the trees."""
    total = np.zeros(len(x))
    inner = model.feature.shape[1]
    rows = np.arange(len(x))
    for feature, threshold, value in zip(model.feature, model.threshold, model.value, strict=True):
        at = np.zeros(len(x), np.int64)
        while at.size and at[0] < inner:
            at = 2 * at + 1 + (x[rows, feature[at]] > threshold[at])
        total += value[at - inner]
    return total


def fit_cost_model(
    samples: Sequence[tuple[Graph, Device, FloatArray]], *, trees: int = 150, depth: int = 3, rate: float = 0.1
) -> CostModel:
    """Return the model that is fitted to measured seconds by gradient boosting of squared logarithmic errors.

    An op counts by the square root of its share of its model's seconds; every model counts the same.

    Parameters
    ----------
    samples
        Graph, device, and (n,) measured seconds, NaN or 0 where there are none.
    trees, depth, rate
        How many, their depth, and what share of each is added.
    """
    xs, ys, ws, names = [], [], [], []
    for graph, device, seconds in samples:
        base = base_seconds(graph, device)
        good = np.array([kind != "input" for kind in graph.kinds]) & (seconds > 0) & (base > 0)
        weight = np.sqrt(seconds[good] / seconds[good].sum())
        xs.append(op_features(graph, device)[good])
        ys.append(np.log(seconds[good] / base[good]))
        ws.append(100.0 * weight / weight.sum())
        names += [kind for kind, use in zip(graph.kinds, good.tolist(), strict=True) if use]
    x, y, w, kind = np.concatenate(xs), np.concatenate(ys), np.concatenate(ws), np.array(names)
    kinds = {}
    for name in np.unique(kind).tolist():
        own = kind == name
        kinds[name] = float((w[own] * y[own]).sum() / (w[own].sum() + _LEAVES))
    y = y - np.array([kinds[name] for name in kind.tolist()])
    inner = 2**depth - 1
    feature, threshold = np.zeros((trees, inner), np.int64), np.full((trees, inner), np.inf)
    value = np.zeros((trees, inner + 1))
    cuts = [np.unique(np.quantile(column, np.linspace(0.02, 0.98, _CUTS))) for column in x.T]
    for t in range(trees):
        at = _grow(x, y, w, cuts, feature[t], threshold[t])
        for leaf in range(inner + 1):
            own = at == inner + leaf
            value[t, leaf] = rate * (w[own] * y[own]).sum() / (w[own].sum() + _LEAVES)
        y = y - value[t, at - inner]
    return CostModel(kinds, feature, threshold, value)


def _grow(
    x: FloatArray,
    y: FloatArray,
    w: FloatArray,
    cuts: Sequence[FloatArray],
    feature: np.ndarray[Any, np.dtype[np.int64]],
    threshold: FloatArray,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Set the inner nodes of one tree, greedily; return (n,) the node number of each row's leaf."""
    at = np.zeros(len(y), np.int64)
    for node in range(len(feature)):
        own = np.flatnonzero(at == node)
        best = 0.0
        pull, weight = w[own] * y[own], w[own]
        total, mass = pull.sum(), weight.sum()
        for j, points in enumerate(cuts):
            bins = np.searchsorted(points, x[own, j], side="left")
            left = np.cumsum(np.bincount(bins, weights=pull, minlength=len(points) + 1))[:-1]
            held = np.cumsum(np.bincount(bins, weights=weight, minlength=len(points) + 1))[:-1]
            gain = left**2 / (held + _LEAVES) + (total - left) ** 2 / (mass - held + _LEAVES)
            gain -= total**2 / (mass + _LEAVES)
            if len(gain) and gain.max() > best:
                best = float(gain.max())
                feature[node], threshold[node] = j, points[int(gain.argmax())]
        at[own] = 2 * node + 1 + (x[own, feature[node]] > threshold[node])
    return at
