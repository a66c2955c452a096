"""Random computation graphs by the recipe of REGAL, as used to evaluate MTPP.

References
----------
Paliwal et al.: Reinforced genetic algorithm learning for optimizing computation graphs, ICLR 2020, Appendix A.1.4;
MTPP (maximum throughput pipeline partitioning), Appendix C.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph

__all__ = ["FAMILIES", "generate", "stream"]

FAMILIES = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "stochastic-block", "geometric")
"""The random graph models of the base graphs."""

_FEWEST, _MOST = 50, 200
"""Nodes."""
_SIZE_MEAN, _SIZE_STD, _SIZE_LEAST = 50.0, 10.0, 1.0
"""Bytes of a tensor, drawn from a normal distribution."""
_FRACTION_STD = 0.1
"""Of the random part of a node's cost, in parts of the bytes of all tensors."""


def generate(seed: int, *, index: int = 0, num_nodes: int | None = None, family: str | None = None) -> Graph:
    """Return random graph `index` of a seed.

    A base graph is drawn and its edges are directed along a random order of the nodes. Each node has one output
    tensor of size N(50, 10), no less than 1; its cost is the sum of its input tensors, its output tensor and ``|r|``
    times the total of all tensors, where r is N(0, 0.1), with 0.1 the standard deviation.

    Sizes are `out_bytes` and costs are `time_s` in the same unit: schedule these graphs on
    ``Hardware.pipeline(k, bandwidth=1.0)``, where moving a tensor takes as long as its size. Graphs may be
    disconnected. Every graph is kept: REGAL drops those that are easy for ITS objective (peak memory), and so the
    two populations differ.

    The parameters of the base graphs are this project's own choice, in the spirit of REGAL's: edge probability 0.05
    (erdos-renyi), 2 attachments (barabasi-albert), 4 neighbours rewired with probability 0.3 (watts-strogatz), 4
    blocks with 0.3 inside and 0.01 between (stochastic-block), radius 0.1 in the unit square (geometric).

    Parameters
    ----------
    seed, index
        Non-negative integers; the same pair gives the same graph.
    num_nodes
        Number of ops, at least 5; None: uniform in 50..200.
    family
        One of `FAMILIES`; None: each with the same probability.

    Raises
    ------
    InvalidGraph
        An unknown family, too few nodes for the base graphs, or a negative seed or index.
    """
    if seed < 0 or index < 0:
        raise InvalidGraph(f"seed and index are {seed} and {index}; expected integers >= 0")
    if family is not None and family not in FAMILIES:
        raise InvalidGraph(f"family is {family!r}; expected one of {', '.join(FAMILIES)}")
    if num_nodes is not None and num_nodes < 5:
        raise InvalidGraph(f"num_nodes is {num_nodes}; expected at least 5")
    rng = np.random.default_rng([seed, index])
    n = int(rng.integers(_FEWEST, _MOST + 1)) if num_nodes is None else num_nodes
    family = FAMILIES[int(rng.integers(len(FAMILIES)))] if family is None else family
    pairs = _base_edges(family, n, int(rng.integers(2**32)))
    rank = rng.permutation(n)
    edges = np.sort(rank[pairs], axis=1)
    size = np.maximum(rng.normal(_SIZE_MEAN, _SIZE_STD, n), _SIZE_LEAST)
    inputs = np.bincount(edges[:, 1], weights=size[edges[:, 0]], minlength=n)
    cost = inputs + size + np.abs(rng.normal(0.0, _FRACTION_STD, n)) * size.sum()
    return Graph(
        names=tuple(map(str, range(n))),
        kinds=("",) * n,
        edges=edges,
        param_bytes=np.zeros(n),
        out_bytes=size,
        flops=np.full(n, np.nan),
        times={("*", 1): cost},
        name=f"regal-{family}-{seed}-{index}",
    )


def stream(seed: int, count: int) -> Iterator[Graph]:
    """Yield random graphs 0, 1, ..., count - 1 of a seed.

    Parameters
    ----------
    seed
        Of the whole row; each graph depends on it and its own index only.
    count
        How many, at least 0.
    """
    for index in range(count):
        yield generate(seed, index=index)


def _base_edges(family: str, n: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the (m, 2) undirected edges of a base graph on nodes 0..n-1."""
    import networkx as nx

    if family == "erdos-renyi":
        base = nx.gnp_random_graph(n, 0.05, seed=seed)
    elif family == "barabasi-albert":
        base = nx.barabasi_albert_graph(n, 2, seed=seed)
    elif family == "watts-strogatz":
        base = nx.watts_strogatz_graph(n, 4, 0.3, seed=seed)
    elif family == "stochastic-block":
        sizes = [n // 4 + (block < n % 4) for block in range(4)]
        base = nx.stochastic_block_model(sizes, (0.01 + 0.29 * np.eye(4)).tolist(), seed=seed)
    else:
        base = nx.random_geometric_graph(n, 0.1, seed=seed)
    return np.array(sorted(base.edges), np.int64).reshape(-1, 2)
