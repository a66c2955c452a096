"""Random graphs by REGAL's recipe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.datasets.random import regal
from rlinit.errors import InvalidGraph
from tests.draws import draws


def test_sizes_and_costs_follow_the_recipe() -> None:
    """Tensors are N(50, 10); a cost is its tensors plus |N(0, 0.1)| of the total; sizes span 50..200 nodes."""
    graphs = list(regal.stream(0, 120))
    sizes = np.concatenate([graph.out_bytes for graph in graphs])
    assert sizes.mean() == pytest.approx(50, abs=0.5)
    assert sizes.std() == pytest.approx(10, abs=0.5)
    assert sizes.min() >= 1
    fractions = []
    for graph in graphs:
        own = graph.out_bytes.copy()
        for u, v in graph.edges:
            own[v] += graph.out_bytes[u]
        fractions.append((graph.times["*", 1] - own) / graph.out_bytes.sum())
    fraction = np.concatenate(fractions)
    assert fraction.min() >= -1e-12
    assert np.sqrt((fraction**2).mean()) == pytest.approx(0.1, abs=0.005)
    counts = [graph.num_ops for graph in graphs]
    assert min(counts) < 60
    assert max(counts) > 190
    assert all(50 <= count <= 200 for count in counts)
    assert {graph.name.removeprefix("regal-").rsplit("-", 2)[0] for graph in graphs} == set(regal.FAMILIES)


@pytest.mark.parametrize(
    ("family", "edges"),
    [
        ("erdos-renyi", 0.05 * 100 * 99 / 2),
        ("barabasi-albert", 2 * 98),
        ("watts-strogatz", 200),
        ("stochastic-block", 4 * 300 * 0.3 + 6 * 625 * 0.01),
        ("geometric", np.pi * 0.01 * 100 * 99 / 2 * 0.92),  # the border of the square costs some 8%
    ],
)
def test_families_have_their_density(family: str, edges: float) -> None:
    """The mean number of edges is that of the base graph's model."""
    counts = [regal.generate(1, index=i, num_nodes=100, family=family).num_edges for i in range(25)]
    assert np.mean(counts) == pytest.approx(edges, rel=0.06)


def test_the_order_is_random() -> None:
    """Numbers say nothing about a node: its degree, over many graphs, is that of any other."""
    degrees = np.zeros(50)
    for i in range(60):
        graph = regal.generate(3, index=i, num_nodes=50, family="barabasi-albert")
        degrees += np.bincount(graph.edges.ravel(), minlength=50)
    assert degrees.max() < 1.6 * degrees.mean()  # attachment order would give the first nodes several times the mean


@settings(max_examples=draws(50), deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(5, 60), st.sampled_from((None, *regal.FAMILIES)))
def test_same_seed_same_graph(seed: int, index: int, num_nodes: int, family: str | None) -> None:
    """Every size and family passes the graph's own checks, and is a function of its arguments."""
    graph = regal.generate(seed, index=index, num_nodes=num_nodes, family=family)
    assert graph.num_ops == num_nodes
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()  # ops are listed in the random order, and edges follow it
    assert graph == regal.generate(seed, index=index, num_nodes=num_nodes, family=family)
    assert graph != regal.generate(seed, index=index + 1, num_nodes=num_nodes, family=family)


def test_streams_are_what_generate_gives() -> None:
    """Graph i of a stream is generate(seed, index=i); other seeds give other graphs."""
    graphs = list(regal.stream(5, 4))
    assert graphs == [regal.generate(5, index=i) for i in range(4)]
    assert graphs[0] != regal.generate(6)
    assert list(regal.stream(5, 0)) == []


def test_refusals() -> None:
    """An unknown family, negative seeds, and fewer nodes than the base graphs need."""
    with pytest.raises(InvalidGraph, match=r"'star'.*watts-strogatz"):
        regal.generate(0, family="star")
    for seed, index in ((-1, 0), (0, -1)):
        with pytest.raises(InvalidGraph, match="seed and index"):
            regal.generate(seed, index=index)
    with pytest.raises(InvalidGraph, match="at least 5"):
        regal.generate(0, num_nodes=4)
