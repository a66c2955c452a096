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
from rlinit.agent.selection import load_stage_agent
from rlinit.arrays import IntArray
from rlinit.errors import CheckpointError
from rlinit.kernels.batches import disjoint_union
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from tests.late import late_imports
from tests.stage_cases import random_problem

with late_imports():
    import torch

    from rlinit.agent.sequential.decoding import decode, order_choices, ready_steps
    from rlinit.agent.sequential.pointer_network import (
        PackedGraphs,
        PointerBatch,
        PointerNetwork,
        cosine_reward,
        embedding,
    )
    from rlinit.agent.sequential.stage_agent import PointerAgent


def network(seed: int = 0, hidden: int = 16) -> PointerNetwork:
    """Return a small network with every layer drawn at random, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PointerNetwork(hidden).double()


def joined(problems: list[StageProblem]) -> StageBatch:
    return disjoint_union([StageBatch.of_problem(problem) for problem in problems])


def orders_of(net: PointerNetwork, batch: StageBatch, copies: int = 1, seed: int | None = None) -> torch.Tensor:
    """Return orders that a network takes, greedily without a seed."""
    with torch.no_grad():
        return decode(net.decoder, net(PointerBatch.of(batch)), PackedGraphs(batch), copies, seed)


def choices_of(net: PointerNetwork, batch: StageBatch, orders: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return log-probabilities, entropies, rows and numbers of ready nodes of the choices of orders."""
    return order_choices(net.decoder, net(PointerBatch.of(batch)), PackedGraphs(batch), orders)


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
def test_orders_are_topological_and_choices_those_that_were_open(seed: int, sizes: list[int]) -> None:
    """Whatever is drawn is a topological order; what was ready at each step is what has no producer left."""
    problems = [random_problem(seed + i, n) for i, n in enumerate(sizes)]
    net, batch = network(seed), joined(problems)
    orders = orders_of(net, batch, 3, seed)
    with torch.no_grad():
        _, entropy, row, count = choices_of(net, batch, orders)
    graph = torch.arange(len(problems)).repeat_interleave(3)
    first = ready_steps(PackedGraphs(batch), graph, orders).numpy()
    for i, whole in enumerate(orders.numpy()):
        problem, order = problems[i // 3], whole[whole >= 0]
        assert is_topological(problem, order)
        place = np.argsort(order)
        for v in range(problem.num_nodes):
            before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
            assert first[i, v] == max((place[u] + 1 for u in before), default=0)
        steps = np.arange(len(order))
        ready = (first[i, : len(order), None] <= steps) & (steps <= place[:, None])
        assert count[row == i].tolist() == ready.sum(axis=0).tolist()
    assert bool((entropy >= -1e-12).all())
    assert bool((entropy[count == 1] < 1e-9).all())


def test_draws_are_as_frequent_as_their_probabilities() -> None:
    """Of thousands of orders drawn step by step each is as frequent as replaying it says, within four deviations."""
    net, batch, draws = network(1), joined([random_problem(5, 5, density=0.3)]), 4000
    found, count = torch.unique(orders_of(net, batch, draws, 0), dim=0, return_counts=True)
    with torch.no_grad():
        log_prob, _, row, _ = choices_of(net, batch, found)
    share = torch.zeros(len(found), dtype=torch.float64).index_add(0, row, log_prob).exp()
    assert len(found) > 3
    deviation = torch.sqrt(draws * share * (1 - share))
    assert bool(((count - draws * share).abs() <= 4 * deviation + 1).all())


def test_greedy_orders_take_the_likeliest_node() -> None:
    """Replaying a greedy order up to any step, no other ready node is more probable there."""
    problem = random_problem(6, 6, density=0.3)
    net, batch = network(3), joined([problem])
    greedy = orders_of(net, batch)
    rivals = [order for order in permutations(range(6)) if is_topological(problem, np.array(order))]
    with torch.no_grad():
        orders = torch.cat([greedy, torch.tensor(rivals)])
        log_prob = choices_of(net, batch, orders)[0].view(len(orders), 6)
    for step in range(6):
        same = (orders[1:, :step] == greedy[0, :step]).all(dim=1)
        assert bool((log_prob[1:][same, step] <= log_prob[0, step] + 1e-5).all())


def test_probabilities_of_all_orders_sum_to_one() -> None:
    """The policy is a distribution over all topological orders."""
    problem = random_problem(5, 5, density=0.3)
    net, batch = network(1), joined([problem])
    orders = np.array([order for order in permutations(range(5)) if is_topological(problem, np.array(order))])
    assert len(orders) > 3
    with torch.no_grad():
        terms = choices_of(net, batch, torch.from_numpy(orders))
    total = torch.zeros(len(orders), dtype=torch.float64).index_add(0, terms[2], terms[0])
    assert float(total.exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_gradients_reach_every_weight() -> None:
    """The log-probability and entropy of drawn orders have gradients in all weights."""
    batch = joined([random_problem(i, 8, density=0.2) for i in range(3)])
    net = network()
    log_prob, entropy, _, _ = choices_of(net, batch, orders_of(net, batch, 2, 0))
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
    here, there = orders_of(net, joined([problem])), orders_of(net, joined([relabelled(problem, label)]))
    assert np.array_equal(label[here[0].numpy()], there[0].numpy())


def test_agent_proposes_greedy_first_and_repeats_itself() -> None:
    """Draws follow the greedy order, are as many as asked for, and are the same for the same seed."""
    problem = random_problem(2, 10, density=0.2)
    agent = PointerAgent(network())
    first = agent.propose(problem, 1, 0)
    assert first.orders.shape == (1, 10)
    assert ((first.entropy >= 0) & (first.entropy <= 1 + 1e-12)).all()
    one, two = (agent.propose(problem, 5, 7) for _ in range(2))
    assert one.orders.shape == (5, 10)
    assert np.array_equal(one.orders, two.orders)
    assert np.array_equal(one.orders[0], first.orders[0])


def test_checkpoint_round_trip_and_wrong_architecture(tmp_path: Path) -> None:
    """A saved agent decodes as before; a card of another width, or of another kind of network, is an error."""
    net = network().float()
    arrays = {name: weight.numpy() for name, weight in net.state_dict().items()}
    save_checkpoint(tmp_path / "a.safetensors", arrays, Card("pointer", "stages", {"units": net.units}))
    problem = random_problem(4, 9, density=0.2)
    agent = load_stage_agent(tmp_path / "a.safetensors")
    mine = PointerAgent(net).propose(problem, 4, 3)
    assert np.array_equal(agent.propose(problem, 4, 3).orders, mine.orders)
    save_checkpoint(tmp_path / "b.safetensors", arrays, Card("pointer", "stages", {"units": 24}))
    with pytest.raises(CheckpointError, match="another architecture"):
        load_stage_agent(tmp_path / "b.safetensors")
    card = replace(load_checkpoint(tmp_path / "a.safetensors").card, network="oneshot")
    save_checkpoint(tmp_path / "c.safetensors", arrays, card)
    with pytest.raises(CheckpointError, match=r"configuration of a one-shot agent: .* 'units'"):
        load_stage_agent(tmp_path / "c.safetensors")


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
