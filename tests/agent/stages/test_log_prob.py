"""The policy of stage agents: draws, log-probabilities, gradients, beams and slices, held against plain references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.arrays import FloatArray, IntArray
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from rlinit.stages.slicing import slice_order
from tests.draws import draws
from tests.late import late_imports
from tests.stage_cases import random_problem

with late_imports():
    import torch

    from rlinit.agent.stages.log_prob import draw_orders, order_terms
    from tests.agent.networks import joined, some_problems


def ready_nodes(problem: StageProblem, taken: set[int]) -> list[int]:
    """Return the nodes that may come next."""
    return [
        v
        for v in range(problem.num_nodes)
        if v not in taken and set(problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]) <= taken
    ]


def reference_terms(problem: StageProblem, keys: torch.Tensor, order: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n,) log-probabilities and entropies of an order's choices, step by step in torch."""
    log_probs, entropies, taken = [], [], set[int]()
    for v in order.tolist():
        ready = ready_nodes(problem, taken)
        log_p = torch.log_softmax(keys[ready], dim=0)
        log_probs.append(log_p[ready.index(v)])
        entropies.append(-(log_p.exp() * log_p).sum())
        taken.add(v)
    return torch.stack(log_probs), torch.stack(entropies)


@pytest.mark.parametrize("seed", range(4))
def test_terms_and_gradients_equal_the_step_by_step_reference(seed: int) -> None:
    """Log-probabilities, entropies and their gradients are those of a masked softmax taken one step at a time."""
    problems = some_problems(5)
    batch = joined(problems)
    rng = np.random.default_rng(seed)
    keys = torch.tensor(3.0 * rng.standard_normal(batch.num_nodes), requires_grad=True)
    orders = draw_orders(keys, batch, 3, seed)
    log_prob, entropy, _ = order_terms(keys, batch, orders)
    weight, other = rng.standard_normal(orders.shape), rng.standard_normal(orders.shape)
    (torch.from_numpy(weight) * log_prob + torch.from_numpy(other) * entropy).sum().backward()  # type: ignore[no-untyped-call]
    assert keys.grad is not None
    again = keys.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for g, problem in enumerate(problems):
        part = slice(int(batch.node_ptr[g]), int(batch.node_ptr[g + 1]))
        for s in range(len(orders)):
            expected = reference_terms(problem, again[part], orders[s, part])
            assert torch.allclose(log_prob[s, part], expected[0], atol=1e-12)
            assert torch.allclose(entropy[s, part], expected[1], atol=1e-12)
            total = total + (torch.from_numpy(weight[s, part]) * expected[0]).sum()
            total = total + (torch.from_numpy(other[s, part]) * expected[1]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert again.grad is not None
    assert torch.allclose(keys.grad, again.grad, atol=1e-10)


@settings(deadline=None, max_examples=draws(40))
@given(st.integers(0, 10**6), st.floats(0.01, 500.0), st.integers(1, 12))
def test_draws_never_take_an_unready_node(seed: int, scale: float, num_nodes: int) -> None:
    """Whatever the keys, every draw is a topological order."""
    problem = random_problem(seed, num_nodes)
    keys = torch.from_numpy(scale * np.random.default_rng(seed).standard_normal(num_nodes))
    for order in draw_orders(keys, StageBatch.of_problem(problem), 4, seed):
        taken: set[int] = set()
        for v in order.tolist():
            assert v in ready_nodes(problem, taken)
            taken.add(v)


def test_draws_are_as_frequent_as_their_probability() -> None:
    """Orders of a small graph come out as often as the product of their choices' probabilities says."""
    problem = random_problem(3, 4, density=0.2)
    batch = StageBatch.of_problem(problem)
    keys = torch.tensor([0.5, -0.3, 1.0, 0.0], dtype=torch.float64)
    count = 20_000
    orders, times = np.unique(draw_orders(keys, batch, count, 7), axis=0, return_counts=True)
    assert len(orders) > 2
    probability = order_terms(keys, batch, np.ascontiguousarray(orders))[0].sum(1).exp().numpy()
    assert probability.sum() == pytest.approx(1.0, abs=1e-3)
    spread = np.sqrt(count * probability * (1.0 - probability)) + 1.0
    assert (np.abs(times - count * probability) < 5.0 * spread).all()


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_slices_are_those_of_the_exact_program(objective: str) -> None:
    """Values of sliced orders, whatever the first guess, and the slices themselves are those of `slice_order`."""
    problems = [
        random_problem(i, 3 + i % 9, 1 + i % 4, objective=objective, cache_fraction=0.8)  # type: ignore[arg-type]
        for i in range(12)
    ]
    batch = joined(problems)
    orders = draw_orders(torch.zeros(batch.num_nodes), batch, 3, 1)
    for guess in (None, np.zeros(12), np.full(12, 1e12)):
        values, ends = slice_orders(batch, orders, guess)
        for g, problem in enumerate(problems):
            for s in range(3):
                found = slice_order(problem, orders[s, batch.node_ptr[g] : batch.node_ptr[g + 1]])
                assert found is not None
                assert values[g, s] == pytest.approx(found[1][0], rel=1e-12)
        assert (np.diff(ends[:, : problems[0].num_stages], axis=1) >= 0).all()


def test_orders_that_no_stage_can_hold_are_infinite() -> None:
    """Where an op exceeds every stage's memory, no slicing is found, and features are still finite."""
    problem = random_problem(1, 6)
    problem.memory_bytes[:] = problem.param_bytes.max() / 2
    batch = StageBatch.of_problem(problem)
    values, _ = slice_orders(batch, batch.natural[None, :])
    assert np.isinf(values).all()
    assert np.isfinite(featurise(batch)[0].node).all()


@settings(deadline=None, max_examples=draws(30))
@given(st.integers(0, 10**6), st.sampled_from([1e-9, 1.0, 1e12]), st.sampled_from([0.0, 0.3, 1e6]))
def test_features_are_finite_and_free_of_units(seed: int, scale: float, io: float) -> None:
    """Costs of any size, zeros among them, give finite features; seconds in another unit give the same ones."""
    problem = random_problem(seed, 1 + seed % 9, 1 + seed % 5, io=io)
    scaled = random_problem(seed, 1 + seed % 9, 1 + seed % 5, io=io, scale=scale)
    scaled.param_bytes[:] = problem.param_bytes
    scaled.overflow_s_per_byte[:] *= scale

    def features(one: StageProblem) -> FloatArray:
        return featurise(StageBatch.of_problem(one))[0].node

    assert np.isfinite(features(scaled)).all()
    assert np.allclose(features(problem), features(scaled), atol=1e-5)
