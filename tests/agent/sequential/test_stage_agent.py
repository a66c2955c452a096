"""The pointer network on stages: exact probabilities, masks, symmetry, decoding."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.network.checkpoint import Card, load_checkpoint, save_checkpoint
from rlinit.agent.stages.decoding import Decoding
from rlinit.arrays import IntArray
from rlinit.errors import CheckpointError, RlinitError
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from tests.late import late_imports
from tests.stage_cases import random_problem

with late_imports():
    import torch

    from rlinit.agent.sequential.decoding import greedy, sample
    from rlinit.agent.sequential.pointer_network import (
        OrderDecoding,
        PointerBatch,
        PointerNetwork,
        cosine_reward,
        embedding,
        order_choices,
        packed,
        ready_counts,
    )
    from rlinit.agent.sequential.rollouts import OrderRollouts
    from rlinit.agent.sequential.stage_agent import PointerAgent


def network(seed: int = 0, hidden: int = 16) -> PointerNetwork:
    """Return a small network with every layer drawn at random, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PointerNetwork(hidden).double()


def joined(problems: list[StageProblem]) -> StageBatch:
    return StageBatch.join([StageBatch.of_problem(problem) for problem in problems])


def start(net: PointerNetwork, batch: StageBatch, copies: int = 1) -> OrderDecoding:
    return OrderDecoding(net.decoder, net(PointerBatch.of(batch)), OrderRollouts(packed(batch), copies))


def relabelled(problem: StageProblem, label: IntArray) -> StageProblem:
    """Return the same problem with node v called label[v]; the natural order is carried along."""
    old = np.argsort(label)
    return replace(
        problem,
        work_s=problem.work_s[:, old],
        param_bytes=problem.param_bytes[old],
        tensor_src=label[problem.tensor_src],
        tensor_dst=label[problem.tensor_dst],
        order=label[problem.order],
    )


def is_topological(problem: StageProblem, order: IntArray) -> bool:
    place = np.empty(problem.num_nodes, np.int64)
    place[order] = np.arange(problem.num_nodes)
    child = np.repeat(np.arange(problem.num_nodes), np.diff(problem.pred_indptr))
    return sorted(order.tolist()) == list(range(problem.num_nodes)) and bool((place[problem.pred] < place[child]).all())


@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@settings(max_examples=10, deadline=None)
def test_orders_are_topological_and_probabilities_exact(seed: int, sizes: list[int]) -> None:
    """Whatever is drawn is a topological order, and replaying it gives the log-probability that stepping gave."""
    problems = [random_problem(seed + i, n) for i, n in enumerate(sizes)]
    net, batch = network(seed), joined(problems)
    with torch.no_grad():
        drawn = start(net, batch, 3)
        stepped = sample(drawn, torch.Generator().manual_seed(seed))
        orders = drawn.rollouts.orders
        log_prob, entropy, row = order_choices(net.decoder, net(PointerBatch.of(batch)), packed(batch), orders)
    for i, order in enumerate(orders.numpy()):
        assert is_topological(problems[i // 3], order[order >= 0])
    total = torch.zeros(len(orders), dtype=torch.float64).index_add(0, row, log_prob)
    assert torch.allclose(total, stepped, atol=1e-5)
    assert bool((entropy >= -1e-12).all())
    alone = ready_counts(packed(batch), orders[::3])
    assert bool((entropy[: int((orders[0] >= 0).sum())][alone[: int((orders[0] >= 0).sum())] == 1] < 1e-9).all())


def test_probabilities_of_all_orders_sum_to_one() -> None:
    """The policy is a distribution over all topological orders."""
    problem = random_problem(5, 5, density=0.3)
    net, batch = network(1), joined([problem])
    orders = np.array([order for order in permutations(range(5)) if is_topological(problem, np.array(order))])
    assert len(orders) > 3
    with torch.no_grad():
        terms = order_choices(
            net.decoder, net(PointerBatch.of(batch)), packed(batch), torch.from_numpy(np.array(orders))
        )
    total = torch.zeros(len(orders), dtype=torch.float64).index_add(0, terms[2], terms[0])
    assert float(total.exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_gradients_reach_every_weight() -> None:
    """The log-probability and entropy of drawn orders have gradients in all weights."""
    batch = joined([random_problem(i, 8, density=0.2) for i in range(3)])
    net = network()
    with torch.no_grad():
        drawn = start(net, batch, 2)
        sample(drawn, torch.Generator().manual_seed(0))
    log_prob, entropy, _ = order_choices(net.decoder, net(PointerBatch.of(batch)), packed(batch), drawn.rollouts.orders)
    (log_prob.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    without = [name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not [name for name in without if "embed.bias" not in name]


@given(seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_relabelling_relabels_the_order(seed: int) -> None:
    """Calling nodes other names gives the same order under the new names (costs are distinct: no ties to break)."""
    problem = random_problem(seed, 9, zero_fraction=0.0, density=0.4)
    label = np.random.default_rng(seed).permutation(9)
    net = network(seed)
    if len(np.unique(embedding(joined([problem]))[1][:, [0, *range(2, 10)]], axis=0)) < 9:
        return
    with torch.no_grad():
        here, there = start(net, joined([problem])), start(net, joined([relabelled(problem, label)]))
        assert float(greedy(here)) == pytest.approx(float(greedy(there)), abs=1e-5)
    assert np.array_equal(label[here.rollouts.orders[0].numpy()], there.rollouts.orders[0].numpy())


def test_agent_proposes_greedy_first_and_repeats_itself() -> None:
    """Draws follow the greedy order, are as many as asked for, and are the same for the same seed."""
    problem = random_problem(2, 10, density=0.2)
    agent = PointerAgent(network())
    first = agent.propose(problem, Decoding(), 0)
    assert first.orders.shape == (1, 10)
    assert ((first.entropy >= 0) & (first.entropy <= 1 + 1e-12)).all()
    one, two = (agent.propose(problem, Decoding("sample", 5), 7) for _ in range(2))
    assert one.orders.shape == (5, 10)
    assert np.array_equal(one.orders, two.orders)
    assert np.array_equal(one.orders[0], first.orders[0])
    together = agent.propose_many([random_problem(9, 4), problem], Decoding(), 0)
    assert np.array_equal(together[1].orders, first.orders)


def test_checkpoint_round_trip_and_wrong_architecture(tmp_path: Path) -> None:
    """A saved agent decodes as before; a card of another width, or of another kind of network, is an error."""
    net = network().float()
    arrays = {name: weight.numpy() for name, weight in net.state_dict().items()}
    save_checkpoint(tmp_path / "a.safetensors", arrays, Card("pointer", "stages", {"units": net.units}))
    problem = random_problem(4, 9, density=0.2)
    agent = PointerAgent.load(tmp_path / "a.safetensors")
    mine = PointerAgent(net).propose(problem, Decoding("sample", 4), 3)
    assert np.array_equal(agent.propose(problem, Decoding("sample", 4), 3).orders, mine.orders)
    save_checkpoint(tmp_path / "b.safetensors", arrays, Card("pointer", "stages", {"units": 24}))
    with pytest.raises(CheckpointError, match="another architecture"):
        PointerAgent.load(tmp_path / "b.safetensors")
    card = replace(load_checkpoint(tmp_path / "a.safetensors").card, network="oneshot")
    save_checkpoint(tmp_path / "c.safetensors", arrays, card)
    with pytest.raises(CheckpointError, match="'oneshot'"):
        PointerAgent.load(tmp_path / "c.safetensors")


def test_embedding_is_the_papers() -> None:
    """A diamond is read level by level with levels, parents' levels, memory and outputs as shares."""
    problem = replace(
        random_problem(0, 4, density=1.0),
        tensor_src=np.array([0, 1, 2]),
        tensor_indptr=np.array([0, 2, 3, 4]),
        tensor_dst=np.array([1, 2, 3, 3]),
        tensor_bytes=np.array([8.0, 2.0, 4.0]),
        in_s=np.zeros((1, 3)),
        out_s=np.zeros((1, 3)),
        param_bytes=np.array([0.0, 6.0, 3.0, 12.0]),
    )
    order, x = embedding(StageBatch.of_problem(problem))
    assert order.tolist() == [0, 2, 1, 3]
    assert x[:, 0].tolist() == [0.25, 0.5, 0.5, 0.75]
    assert x[:, 2].tolist() == [0.0, 0.25, 0.5, 1.0]
    assert x[:, 3].tolist() == [1.0, 0.5, 0.25, 0.0]
    assert x[:, 4:6].tolist() == [[0, 0], [0.25, 0], [0.25, 0], [0.5, 0.5]]
    assert len(set(x[:, 1])) == 4


def test_cosine_reward_of_equation_one() -> None:
    """Equation 1: one for equal stages, the cosine otherwise, and zero, not an error, for zeros."""
    found, label = np.array([[1.0, 2, 2], [3, 0, 0], [0, 0, 0]]), np.array([[1.0, 2, 2], [0, 4, 0], [1, 1, 1]])
    assert cosine_reward(found, label) == pytest.approx([1.0, 0.0, 0.0])


def test_taking_an_unready_node_is_an_error() -> None:
    """A rollout refuses a node whose predecessors are not taken, and a pass of a row that is not done."""
    batch = joined([random_problem(1, 4, density=1.0)])
    rollouts = OrderRollouts(packed(batch))
    for node in (3, -1):
        with pytest.raises(RlinitError, match=f"row 0 may not take node {node}"):
            rollouts.take(torch.tensor([node]))
