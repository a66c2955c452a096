"""Maximum flows against networkx, and what a stopped flow still certifies."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.solvers.max_flow import FlowNetwork, max_flow
from tests.draws import draws


def _random_network(seed: int) -> tuple[int, IntArray, IntArray, FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    n, pairs = int(rng.integers(2, 12)), int(rng.integers(0, 40))
    tail = rng.integers(0, n, pairs)
    head = (tail + rng.integers(1, n, pairs)) % n
    scale = 10.0 ** rng.integers(-9, 13)
    forward, backward = rng.integers(0, 6, pairs) * scale, rng.integers(0, 3, pairs) * scale
    if rng.random() < 0.5:
        forward = forward * rng.random(pairs)
    return n, tail.astype(np.int64), head.astype(np.int64), forward.astype(float), backward.astype(float)


def minimum_cut(
    network: FlowNetwork, forward: FloatArray, backward: FloatArray, source: int, sink: int
) -> tuple[float, FloatArray]:
    """Return the value of a minimum cut between two nodes and the (N,) 0/1 indicator of the source's side."""
    num_nodes = len(network.first) - 1
    level, cursor, path = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    residual = network.capacities(np.asarray(forward, np.float64), np.asarray(backward, np.float64))
    value = max_flow(network.first, network.head, network.twin, residual, source, sink, np.inf, level, cursor, path)
    return float(value), (level >= 0).astype(np.float64)


@settings(deadline=None, max_examples=draws(150))
@given(st.integers(0, 10**6))
def test_value_equals_networkx_and_the_cut_found(seed: int) -> None:
    """The flow's value is networkx's, and the capacity that leaves the source's side is the same."""
    n, tail, head, forward, backward = _random_network(seed)
    network = FlowNetwork.from_pairs(n, tail, head)
    value, side = minimum_cut(network, forward, backward, 0, n - 1)
    reference: nx.DiGraph[int] = nx.DiGraph()
    reference.add_nodes_from(range(n))
    for u, v, ahead, back in zip(tail, head, forward, backward, strict=True):
        for a, b, capacity in ((u, v, ahead), (v, u, back)):
            before = reference[a][b]["capacity"] if reference.has_edge(a, b) else 0.0
            reference.add_edge(a, b, capacity=before + capacity)
    expected = nx.maximum_flow_value(reference, 0, n - 1)
    assert value == pytest.approx(expected, rel=1e-9)
    leaving = (
        forward[(side[tail] == 1) & (side[head] == 0)].sum() + backward[(side[head] == 1) & (side[tail] == 0)].sum()
    )
    assert leaving == pytest.approx(value, rel=1e-9)
    assert side[0] == 1
    assert side[n - 1] == 0


def test_unbounded_flow_is_infinite() -> None:
    """A path of infinite capacities means that there is no finite cut."""
    network = FlowNetwork.from_pairs(3, np.array([0, 1]), np.array([1, 2]))
    assert minimum_cut(network, np.full(2, np.inf), np.zeros(2), 0, 2)[0] == np.inf


def test_infinite_arcs_are_never_cut() -> None:
    """An infinite arc moves the cut to the finite one behind it."""
    network = FlowNetwork.from_pairs(3, np.array([0, 1]), np.array([1, 2]))
    value, side = minimum_cut(network, np.array([np.inf, 3.0]), np.zeros(2), 0, 2)
    assert value == 3.0
    assert side.tolist() == [1.0, 1.0, 0.0]


@settings(deadline=None, max_examples=draws(50))
@given(st.integers(0, 10**6))
def test_a_stopped_flow_is_a_lower_bound(seed: int) -> None:
    """A flow that stops above a limit is between the limit and the maximum."""
    n, tail, head, forward, backward = _random_network(seed)
    network = FlowNetwork.from_pairs(n, tail, head)
    full = minimum_cut(network, forward, backward, 0, n - 1)[0]
    scratch = [np.zeros(n, np.int64) for _ in range(3)]
    part = max_flow(
        network.first, network.head, network.twin, network.capacities(forward, backward), 0, n - 1, 0.4 * full, *scratch
    )
    assert min(full, 0.4 * full) * (1 - 1e-9) <= part <= full * (1 + 1e-9)
