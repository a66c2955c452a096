"""Properties of the blocks of a graph."""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.exact.placements.split.separators import channel_counts, channel_cuts, descendants, induced, separators
from rlinit.placements.problem import PlacementProblem
from tests.draws import draws
from tests.exact.placements.split.cases import any_placement_problem, chain_of_blocks


def _graph(problem: PlacementProblem) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(problem.num_ops))
    graph.add_edges_from(problem.edges.tolist())
    return graph


@settings(max_examples=draws(80), deadline=None)
@given(st.integers(0, 10**6))
def test_every_path_passes_a_separator(seed: int) -> None:
    """An op is a separator if and only if no path from a source to a sink avoids it (and no group reaches over it)."""
    problem = any_placement_problem(seed, max_ops=9)
    graph = _graph(problem)
    found = set(separators(problem).tolist())
    reach = descendants(problem)
    for v in range(problem.num_ops):
        rest = graph.subgraph(set(graph) - {v})
        sources = [u for u in rest if graph.in_degree(u) == 0]
        sinks = {u for u in rest if graph.out_degree(u) == 0}
        avoided = any(sinks & (nx.descendants(rest, u) | {u}) for u in sources)
        sides = {g: set() for g in problem.group.tolist()}  # type: dict[int, set[int]]
        for u in range(problem.num_ops):
            if u != v:
                sides[int(problem.group[u])].add(reach[u] >> v & 1)
        across = any(len(side) > 1 for side in sides.values())
        assert (v in found) == (not avoided and not across)


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_blocks_partition_the_ops_in_order(seed: int, channels: int, min_ops: int) -> None:
    """Blocks hold every op once, no edge goes back, few tensors pass between them, and none is too small."""
    problem = any_placement_problem(seed, max_ops=14)
    blocks = channel_cuts(problem, channels, min_ops)
    order = np.concatenate(blocks)
    assert sorted(order.tolist()) == list(range(problem.num_ops))
    position = np.argsort(order)
    assert (position[problem.edges[:, 0]] < position[problem.edges[:, 1]]).all()
    if len(blocks) > 1:
        assert min(len(block) for block in blocks) >= min_ops
    if channels > 1:
        ends = np.cumsum([len(block) for block in blocks])[:-1]
        assert (channel_counts(problem, order)[ends - 1] <= channels).all()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_stacked_blocks_are_found(channels: int) -> None:
    """Blocks stacked through c channels are cut at every junction."""
    problem = chain_of_blocks(3, num_blocks=6, block_ops=8, num_devices=2, channels=channels)
    blocks = channel_cuts(problem, channels, min_ops=4)
    assert len(blocks) >= 6


def test_large_graphs_do_not_hang() -> None:
    """A chain of 50,000 ops is cut within seconds."""
    problem = chain_of_blocks(1, num_blocks=500, block_ops=100, num_devices=2, channels=2)
    assert problem.num_ops == 50_000
    begin = time.monotonic()
    assert len(channel_cuts(problem, 1)) >= 1
    assert len(channel_cuts(problem, 2, 20)) >= 100
    assert time.monotonic() - begin < 60.0


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6))
def test_induced_problem_keeps_what_is_between_its_ops(seed: int) -> None:
    """The sub-problem has the edges, groups and times of its ops, and fewer shards never take longer."""
    problem = any_placement_problem(seed, max_ops=9, shards=3)
    rng = np.random.default_rng(seed)
    ops = np.sort(rng.permutation(problem.num_ops)[: rng.integers(1, problem.num_ops + 1)])
    part = induced(problem, ops, 2)
    inside = set(ops.tolist())
    assert {(int(ops[v]), int(ops[w])) for v, w in part.edges} == {
        (v, w) for v, w in problem.edges.tolist() if v in inside and w in inside
    }
    same = problem.group[ops][:, None] == problem.group[ops][None, :]
    assert ((part.group[:, None] == part.group[None, :]) == same).all()
    assert (part.group <= np.arange(len(ops))).all()
    assert part.num_shards == 2
    for c in (1, 2):
        assert (part.time_s[:, :, c] == problem.time_s[ops][:, :, c:].min(axis=2)).all()
    assert induced(problem, ops).time_s.tolist() == problem.time_s[ops].tolist()
