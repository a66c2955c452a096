"""Terms of the choices of an order, and their gradient, against differences."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.kernels.stages.rollouts import choice_gradient, choice_terms
from tests.stage_cases import random_problem


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_the_terms(seed: int) -> None:
    """Weighted sums of log-probabilities and entropies change with each key as the gradient says."""
    problem, rng = random_problem(seed, 7, 3), np.random.default_rng(seed)
    ptr = np.array([0, problem.num_nodes])
    graph = (ptr, problem.succ_indptr, problem.succ, problem.pred_indptr)
    keys = rng.standard_normal(problem.num_nodes)
    orders = np.empty((2, problem.num_nodes), np.int64)
    for row in range(2):
        waiting, taken = set(range(problem.num_nodes)), list[int]()
        while waiting:
            free = [
                v for v in sorted(waiting) if not waiting & set(problem.pred[slice(*problem.pred_indptr[v : v + 2])])
            ]
            taken.append(int(rng.choice(free)))
            waiting.remove(taken[-1])
        orders[row] = taken
    weight, other = rng.standard_normal((2, *orders.shape))

    def total(at: np.ndarray) -> float:
        log_prob, entropy, _ = choice_terms(at, *graph, orders)
        return float((weight * log_prob + other * entropy).sum())

    grad = choice_gradient(keys, *graph, orders, weight, other)
    for v in range(problem.num_nodes):
        step = 1e-6 * (np.arange(problem.num_nodes) == v)
        assert grad[v] == pytest.approx((total(keys + step) - total(keys - step)) / 2e-6, abs=1e-5)
