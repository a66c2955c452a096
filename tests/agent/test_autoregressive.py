"""The autoregressive agent on placements: exact probabilities, symmetry, any number of devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.encoder import FeatureTensors
from rlinit.agent.network.graph_features import join
from rlinit.agent.placements.features import DEVICE_FEATURES, NODE_FEATURES, PAIR_FEATURES, see
from rlinit.agent.sequential.autoregressive import AutoregressiveNetwork, PlacementDecoding
from rlinit.agent.sequential.decoding import beam, greedy, sample
from rlinit.agent.sequential.rollouts import PlacementRollouts, placements
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan
from tests.placement_cases import random_placement_problem


def network(seed: int, *, trained: bool = True) -> AutoregressiveNetwork:
    """Return a small network in double precision, with every layer drawn at random unless untrained."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = OneShotConfig("latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES, hidden=12, layers=2)
        net = AutoregressiveNetwork(config)
        if trained:
            for layer in (net.decoder.score, net.device_query, net.scores.out):
                torch.nn.init.normal_(layer.weight)
        return net.double()


def start(net: AutoregressiveNetwork, problems: list[PlacementProblem], copies: int = 1) -> PlacementDecoding:
    seen = [see(problem) for problem in problems]
    features = FeatureTensors.of(join([one.features for one in seen]))
    scale = torch.tensor([float(one.arrays.scale[0]) for one in seen], dtype=torch.float64)
    encoded = net.encode_placements(features)
    return PlacementDecoding(net, encoded, PlacementRollouts(problems, copies), scale)


@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=3),
    memory=st.sampled_from([0.7, np.inf]),
)
@settings(max_examples=15, deadline=None)
def test_drawn_placements_are_feasible_and_probabilities_exact(
    seed: int, sizes: list[tuple[int, int]], memory: float
) -> None:
    """What is drawn is feasible or known to have failed; replaying it gives the log-probability stepping gave."""
    problems = [random_placement_problem(seed + i, n, d, memory_fraction=memory) for i, (n, d) in enumerate(sizes)]
    net = network(seed)
    with torch.no_grad():
        drawn = start(net, problems, 3)
        stepped = sample(drawn, torch.Generator().manual_seed(seed))
        log_prob, entropy, row = net.placement_choices(drawn.encoded, drawn.placing, drawn.played())
    total = torch.zeros(len(stepped), dtype=torch.float64).index_add(0, row, log_prob)
    assert torch.allclose(total[~drawn.failed], stepped[~drawn.failed], atol=1e-5)
    assert bool((entropy >= -1e-12).all())
    for i, found in enumerate(placements(problems, drawn.placing)):
        assert (found is None) == bool(drawn.failed[i])
        if found is not None:
            assert makespan(problems[i // 3], found) == float(drawn.placing.makespan_s[i])


@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_relabelling_ops_and_devices_relabels_the_placement(seed: int) -> None:
    """Other names for ops and devices give the same placement under the new names."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(seed, 8, 3, zero_fraction=0.0, forbidden_fraction=0.0)
    label, lane = rng.permutation(8), rng.permutation(3)
    old, old_lane = np.argsort(label), np.argsort(lane)
    edges = label[problem.edges]
    other = replace(
        problem,
        time_s=np.ascontiguousarray(problem.time_s[old][:, old_lane]),
        tensor_bytes=problem.tensor_bytes[old],
        weight_bytes=problem.weight_bytes[old],
        shard_bytes=problem.shard_bytes[old],
        capacity_bytes=problem.capacity_bytes[old_lane],
        s_per_byte=np.ascontiguousarray(problem.s_per_byte[np.ix_(old_lane, old_lane)]),
        delay_s=np.ascontiguousarray(problem.delay_s[np.ix_(old_lane, old_lane)]),
        edges=edges[np.lexsort((edges[:, 1], edges[:, 0]))],
        order=label[problem.order],
    )
    net = network(seed)
    with torch.no_grad():
        here, there = start(net, [problem]), start(net, [other])
        greedy(here)
        greedy(there)
    assert np.array_equal(label[here.rollouts.orders[0].numpy()], there.rollouts.orders[0].numpy())
    devices = here.placing.device_of_op[0].numpy()
    assert np.array_equal(lane[devices][old], there.placing.device_of_op[0].numpy())


def test_untrained_agent_places_where_ops_end_first() -> None:
    """Without training, ops go by the heuristic's key, each to the device where it ends first."""
    problem = random_placement_problem(4, 10, forbidden_fraction=0.0)
    with torch.no_grad():
        decoding = start(network(0, trained=False), [problem])
        greedy(decoding)
    key = see(problem).features.base_key
    order = decoding.rollouts.orders[0].tolist()
    taken: set[int] = set()
    for v in order:
        ready = [u for u in range(10) if u not in taken and set(problem.pred_of(u).tolist()) <= taken]
        assert key[v] == pytest.approx(max(key[u] for u in ready))
        taken.add(v)
    late = decoding.played().lateness[0]
    assert all(float(late[at, decoding.placing.device_of_op[0, v]]) == 0.0 for at, v in enumerate(order))


def test_beam_holds_the_likeliest_placements() -> None:
    """A beam as wide as there are placements holds each once; its probabilities sum to one."""
    problem = random_placement_problem(1, 3, 2, forbidden_fraction=0.0, density=1.0)
    with torch.no_grad():
        beams, total = beam(start(network(2), [problem]), 10)
    real = torch.isfinite(total)
    assert int(real.sum()) == 8
    assert float(total[real].exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert len({tuple(row) for row in beams.placing.device_of_op[real].tolist()}) == 8


def test_gradients_reach_every_weight() -> None:
    """The log-probability and entropy of drawn placements have gradients in all weights."""
    problems = [random_placement_problem(i, 8, 2 + i, density=0.2) for i in range(3)]
    net = network(0)
    with torch.no_grad():
        drawn = start(net, problems, 2)
        sample(drawn, torch.Generator().manual_seed(0))
    encoded = start(net, problems).encoded
    log_prob, entropy, _ = net.placement_choices(encoded, drawn.placing, drawn.played())
    (log_prob.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    without = [name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not without
    assert all(torch.isfinite(weight.grad).all() for weight in net.parameters() if weight.grad is not None)
