"""One op in place of each group of a graph. It knows of graphs alone, so that importers can use it."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.coarsening.paths import contracted_edges, groups_of
from rlinit.graph import Graph
from rlinit.tensors import contracted_shared


def group_sums(column: FloatArray, group_of_op: IntArray, count: int) -> FloatArray:
    """Return (count,) sums of a column over the ops of each group.

    Parameters
    ----------
    column
        (n,) a number of each op.
    group_of_op
        (n,) the group of each op, below `count`.
    count
        How many groups there are.
    """
    return np.bincount(group_of_op, weights=column, minlength=count).astype(np.float64, copy=False)


def contracted(graph: Graph, paths: list[list[int]]) -> Graph:
    """Return the graph with one op in place of each group; see `coarsen` for what it holds.

    Parameters
    ----------
    graph
        A graph whose ops have one output tensor each.
    paths
        The ops of each group, each op in one; only the last of a group feeds other groups.
    """
    count, group_of_op = len(paths), groups_of(graph.num_ops, paths)
    last = np.array([path[-1] for path in paths], np.int64)

    def total(column: FloatArray) -> FloatArray:
        return group_sums(column, group_of_op, count)

    param_bytes = total(np.nan_to_num(graph.param_bytes))
    shared = contracted_shared(graph.shared, group_of_op.tolist())
    for one, by_group in zip(graph.shared, shared, strict=True):
        for group in by_group.readers:
            inside = int((group_of_op[list(one.readers)] == group).sum())
            param_bytes[group] -= one.size_bytes * (inside - 1)
    param_bytes[total((~np.isnan(graph.param_bytes)).astype(np.float64)) == 0] = np.nan
    colocation = np.full(count, -1, np.int64)
    np.maximum.at(colocation, group_of_op, graph.colocation)
    forbidden = {device: total(mask.astype(np.float64)) > 0 for device, mask in graph.forbidden.items()}
    kinds = graph.kinds
    single = {group: path[0] for group, path in enumerate(paths) if len(path) == 1}
    return Graph(
        names=tuple(graph.names[v] for v in last.tolist()),
        kinds=tuple("+".join(kinds[v] for v in path if kinds[v]) for path in paths),
        edges=contracted_edges(graph.edges, group_of_op),
        param_bytes=param_bytes,
        out_bytes=graph.out_bytes[last],
        flops=total(graph.flops),
        times={key: total(column) for key, column in graph.times.items()},
        colocation=colocation,
        groups=graph.groups,
        forbidden=forbidden,
        name=graph.name,
        extras={group: graph.extras[v] for group, v in single.items() if v in graph.extras},
        int_names=graph.int_names,
        shared=shared,
    )
