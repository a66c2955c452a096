"""Mean and maximum over neighbours, and their gradient, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.agent.network.message_passing import mean_max, mean_max_gradient


@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradient_follow_their_definition(seed: int) -> None:
    """Node by node; the gradient is that of differences, as the greatest neighbours stay the greatest."""
    rng = np.random.default_rng(seed)
    count = np.array([0, 1, 3, 2, 4])
    indptr = np.concatenate([[0], count.cumsum()])
    index, x = rng.integers(0, 5, indptr[-1]), rng.standard_normal((5, 3))
    mean, most, where = mean_max(x, indptr, index)
    for v in range(5):
        near = x[index[indptr[v] : indptr[v + 1]]]
        assert mean[v] == pytest.approx(near.mean(axis=0) if len(near) else np.zeros(3))
        assert most[v].tolist() == (near.max(axis=0).tolist() if len(near) else [0.0] * 3)
        assert (where[v] == -1).all() if not len(near) else (x[where[v], range(3)] == most[v]).all()
    mean_grad, most_grad = rng.standard_normal((2, 5, 3))
    grad = mean_max_gradient(mean_grad, most_grad, where, indptr, index)
    for u in range(5):
        for c in range(3):
            moved = x.copy()
            moved[u, c] += 1e-6
            new_mean, new_most, _ = mean_max(moved, indptr, index)
            change = ((new_mean - mean) * mean_grad + (new_most - most) * most_grad).sum() * 1e6
            assert grad[u, c] == pytest.approx(change, abs=1e-6)
