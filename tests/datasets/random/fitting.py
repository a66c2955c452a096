"""The fit of `GraphStatistics` to graphs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, inverse_of
from rlinit.datasets.random.graph_statistics import GraphStatistics
from rlinit.graph import Graph

_SMALL = frozenset({"BatchNormalization", "Normalization"})


def fit(graphs: Iterable[Graph]) -> GraphStatistics:
    """Fit to the ops of all graphs together (moments and least squares), which must include all three sorts."""
    columns = [_columns(graph) for graph in graphs]
    position, param, out, flops, degree, nearest, same, small = (
        np.concatenate([column[i] for column in columns]) for i in range(8)
    )
    skips = np.concatenate([column[8] for column in columns])
    plain, small = param == 0, small & (param > 0)
    large = ~plain & ~small
    fed = degree > 0
    ones = np.ones(int(large.sum()))
    flop_fit = _line(np.stack([ones, np.log(param[large]), np.log(out[large])], axis=1), np.log(flops[large]))
    return GraphStatistics(
        merge_rate=float((degree > 1).mean()),
        previous_rate=float((nearest[fed] == 1).mean()),
        skip_mean=float(skips.mean()),
        plain_rate=float(plain.mean()),
        small_rate=float(small.mean()),
        **dict(zip(("small_intercept", "small_slope", "small_std"), _trend(position, param, small), strict=True)),
        **dict(zip(("large_intercept", "large_slope", "large_std"), _trend(position, param, large), strict=True)),
        same_out_rate=float(same[fed].mean()),
        **dict(zip(("out_intercept", "out_slope", "out_std"), _trend(position, out, out > 0), strict=True)),
        flops_intercept=flop_fit[0],
        flops_of_param=flop_fit[1],
        flops_of_out=flop_fit[2],
        flops_std=flop_fit[3],
        idle_rate=float((flops[plain] == 0).mean()),
    )


def _line(columns: FloatArray, target: FloatArray) -> tuple[float, ...]:
    """Return the least-squares coefficients and the residuals' deviation."""
    coefficients = np.linalg.lstsq(columns, target, rcond=None)[0]
    return (*coefficients.tolist(), float((target - columns @ coefficients).std()))


def _trend(position: FloatArray, values: FloatArray, which: NDArray[np.bool_]) -> tuple[float, ...]:
    return _line(np.stack([np.ones(int(which.sum())), position[which]], axis=1), np.log(values[which]))


def _columns(graph: Graph) -> tuple[NDArray[np.generic], ...]:
    """Return what `fit` needs of each op, and the distances to the further parents of merges."""
    n = graph.num_ops
    rank = inverse_of(graph.order)
    nearest, same = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    skips: list[int] = []
    for v in range(n):
        parents = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]]
        if len(parents):
            distances = np.sort(rank[v] - rank[parents])
            closest = parents[np.argmax(rank[parents])]
            nearest[v], same[v] = distances[0], graph.out_bytes[closest] == graph.out_bytes[v]
            skips.extend(distances[1:].tolist())
    degree = np.diff(graph.pred_indptr)
    small = np.array([kind in _SMALL for kind in graph.kinds])
    position = rank / n
    return position, graph.param_bytes, graph.out_bytes, graph.flops, degree, nearest, same, small, np.array(skips)
