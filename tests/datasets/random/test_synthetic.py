"""The stream of training graphs: structure, costs like real ones, reproducible and fast."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit import Graph
from rlinit.datasets.random.graph_statistics import IMAGENET
from rlinit.datasets.random.synthetic import GraphBatch, batches
from rlinit.datasets.zoo import imagenet
from rlinit.errors import InvalidGraph
from tests.datasets.random.fitting import fit
from tests.draws import draws

RECORDED_PARENTS = [
    [-1, -1, -1, -1, -1, -1],
    [0, -1, -1, -1, -1, -1],
    [1, 0, -1, -1, -1, -1],
    [2, 1, 0, -1, -1, -1],
    [3, -1, -1, -1, -1, -1],
    [4, 3, 2, 1, 0, -1],
]
RECORDED_COSTS = [
    [15509.0, 4435.0, 0.0, 0.0, 2387.0, 280643.0],
    [9494.0, 9494.0, 9494.0, 53682.0, 53682.0, 53682.0],
    [808882.0, 18988.0, 0.0, 53682.0, 107364.0, 27232616.0],
]


def take(seed: int, size: int, **options: Any) -> GraphBatch:
    """Return the first batch."""
    return next(batches(seed, size, **options))


def joined(seed: int, sizes: int, count: int) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of the first `count` graphs, generated in batches of one size."""
    parts = list(itertools.islice(batches(seed, sizes), count // sizes))
    columns = ("parents", "param_bytes", "out_bytes", "flops")
    return [np.concatenate([getattr(part, column) for part in parts]) for column in columns]


@settings(max_examples=draws(60), deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 40),
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.integers(0, 2**50),
)
def test_every_graph_is_valid(seed: int, num_nodes: int, limits: list[int], first: int) -> None:
    """Parents are distinct, earlier and within the limit, node 0 is the only source, costs are whole and finite."""
    batch = take(seed, 3, num_nodes=num_nodes, max_in_degrees=limits, first=first)
    assert batch.parents.shape == (3, num_nodes, max(limits))
    assert batch.parents.max(initial=-1) < num_nodes
    for i in range(3):
        for v, parents in enumerate(batch.parents[i]):
            real = parents[parents >= 0]
            assert len(set(real.tolist())) == len(real)
            assert (real < v).all()
            assert (parents[len(real) :] == -1).all()
            assert min(v, 1) <= len(real) <= max(limits)
        graph = batch.graph(i)
        assert graph.num_ops == num_nodes
        assert graph.order.tolist() == list(range(num_nodes))
    for column in (batch.param_bytes, batch.out_bytes, batch.flops):
        assert np.isfinite(column).all()
        assert (column >= 0).all()
        assert (column == np.floor(column)).all()
    assert (batch.out_bytes >= 1).all()


def test_merges_take_what_nothing_uses() -> None:
    """Each further parent of a merge is the youngest node nothing uses yet, where there is one."""
    batch = take(4, 300)
    joined_ends = 0
    for parents in batch.parents:
        unused = {0}
        for v in range(1, 30):
            for slot, u in enumerate(parents[v][parents[v] >= 0].tolist()):
                if slot > 0 and unused:
                    assert u == max(unused)
                    joined_ends += 1
                unused.discard(u)
            unused.add(v)
    assert joined_ends > 300


def test_a_graph_is_the_same_in_every_batch() -> None:
    """Batch size and start change nothing; another seed changes everything."""
    one = joined(7, 24, 24)
    for size in (1, 3, 8):
        for column, other in zip(one, joined(7, size, 24), strict=True):
            assert (column == other).all()
    later = take(7, 4, first=20)
    assert (later.out_bytes == one[2][20:]).all()
    assert later.graph(1).name == "synthetic-7-21"
    assert (take(8, 24).out_bytes != one[2]).mean() > 0.9


def test_streams_of_neighbouring_graphs_and_seeds_are_unrelated() -> None:
    """Outputs at one place in graphs i and i + 1, or of seeds s and s + 1, do not correlate."""
    logs = np.log(take(0, 20_000, num_nodes=1).out_bytes[:, 0])
    other = np.log(take(1, 20_000, num_nodes=1).out_bytes[:, 0])
    assert len(np.unique(logs)) > 5_000
    for a, b in ((logs[:-1], logs[1:]), (logs, other), (logs[1:], other[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


def test_known_values() -> None:
    """The first graph of seed 0 is recorded: a change of the generator changes trained agents' data."""
    batch = take(0, 1, num_nodes=6)
    assert batch.parents[0].tolist() == RECORDED_PARENTS
    assert [column[0].tolist() for column in (batch.param_bytes, batch.out_bytes, batch.flops)] == RECORDED_COSTS


@pytest.mark.parametrize("limit", [1, 2, 4, 6])
def test_limits_are_kept_and_reached(limit: int) -> None:
    """The largest in-degree of a graph is at most its limit, and most graphs reach it."""
    degree = (take(3, 500, max_in_degrees=(limit,)).parents >= 0).sum(axis=2)
    assert degree.max() == limit
    assert (degree.max(axis=1) == limit).mean() > 0.8


def test_statistics_are_those_of_the_networks() -> None:
    """The recorded numbers are a fit to every network, rounded."""
    fitted = fit(map(imagenet.load, imagenet.NAMES))
    assert IMAGENET.to_array() == pytest.approx(fitted.to_array(), rel=1e-3)


def test_synthetic_graphs_have_these_statistics() -> None:
    """Graphs with at most two parents match the real networks in merges, sizes and depth."""
    batch = take(5, 3000, max_in_degrees=(2,))
    degree = (batch.parents >= 0).sum(axis=2)
    assert (degree[:, 2:] == 2).mean() == pytest.approx(IMAGENET.merge_rate, rel=0.05)
    assert (batch.param_bytes == 0).mean() == pytest.approx(IMAGENET.plain_rate, rel=0.02)
    middle = IMAGENET.out_intercept + IMAGENET.out_slope * 0.5
    assert np.log(batch.out_bytes).mean() == pytest.approx(middle, abs=0.2)
    assert np.log(batch.out_bytes).std() == pytest.approx(IMAGENET.out_std, rel=0.05)
    nearest = np.arange(30)[None, :] - batch.parents.max(axis=2)
    assert (nearest[:, 1:] == 1).mean() == pytest.approx(IMAGENET.previous_rate, abs=0.02)
    depths = [batch.graph(i).depth for i in range(200)]
    assert np.mean(depths) > 24  # chain-like, as the networks: their depth is 51% to 100% of their ops


def test_large_ops_follow_their_trends() -> None:
    """Parameters grow along the graph and outputs shrink, as fitted."""
    batch = take(6, 5000)
    early, late = batch.param_bytes[:, 1:5], batch.param_bytes[:, -4:]
    assert np.log(late[late > 0]).mean() - np.log(early[early > 0]).mean() > 2
    assert np.log(batch.out_bytes[:, :5]).mean() - np.log(batch.out_bytes[:, -5:]).mean() > 0.8


def test_graph_at_the_boundary_equals_the_arrays() -> None:
    """`graph(i)` holds exactly the batch's numbers, and only such an i is taken."""
    batch = take(9, 2)
    graph = batch.graph(1)
    expected = {(int(u), v) for v in range(30) for u in batch.parents[1, v] if u >= 0}
    assert {(int(u), int(v)) for u, v in graph.edges} == expected
    assert graph.param_bytes.tolist() == batch.param_bytes[1].tolist()
    assert graph.out_bytes.tolist() == batch.out_bytes[1].tolist()
    assert graph.flops.tolist() == batch.flops[1].tolist()
    batch.out_bytes[1] = 5.0  # the graph has its own copy
    assert (graph.out_bytes != 5.0).any()
    for i in (-1, 2):
        with pytest.raises(IndexError):
            batch.graph(i)


def test_thousands_of_graphs_a_second() -> None:
    """One core makes some 20,000 graphs of 30 nodes a second; a tenth of that is asked here."""
    stream = batches(0, 1000)
    next(stream)  # compiles
    start = time.process_time()
    for _ in range(10):
        next(stream)
    assert 10_000 / (time.process_time() - start) > 2_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"first": -1}, "first is -1"),
        ({"first": 2**62}, "first is"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
        ({"max_in_degrees": ()}, "max_in_degrees"),
        ({"max_in_degrees": (2, 0)}, "max_in_degrees"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    """Arguments out of range are refused at the call, before anything is generated."""
    with pytest.raises(InvalidGraph, match=message):
        batches(**({"seed": 0, "batch_size": 1} | options))


@pytest.mark.parametrize(
    ("field", "value"),
    [("merge_rate", 1.5), ("idle_rate", -0.1), ("out_std", -1.0), ("skip_mean", 1.0), ("small_rate", 0.9)]
    + [("large_slope", np.nan)],
)
def test_impossible_statistics(field: str, value: float) -> None:
    """Rates outside [0, 1], negative deviations and NaN are refused."""
    with pytest.raises(InvalidGraph):
        dataclasses.replace(IMAGENET, **{field: value})


def test_fit_recovers_what_generated() -> None:
    """Fitting to generated graphs gives back the rates and trends they were drawn from."""
    batch = take(11, 300, max_in_degrees=(2,), num_nodes=60)
    graphs = []
    for i in range(len(batch)):
        graph = batch.graph(i)
        kinds = tuple(
            "BatchNormalization" if f == 2 * o else "" for f, o in zip(graph.flops, graph.out_bytes, strict=True)
        )
        graphs.append(Graph(graph.names, kinds, graph.edges, graph.param_bytes, graph.out_bytes, graph.flops))
    fitted = fit(graphs)
    for field, tolerance in (("plain_rate", 0.02), ("small_rate", 0.02), ("previous_rate", 0.02), ("idle_rate", 0.03)):
        assert getattr(fitted, field) == pytest.approx(getattr(IMAGENET, field), abs=tolerance)
    for field in ("large_slope", "small_slope", "large_std", "flops_of_param", "flops_of_out", "flops_std"):
        assert getattr(fitted, field) == pytest.approx(getattr(IMAGENET, field), rel=0.1)
