"""Kahn's algorithm with priorities, and the arrangement cost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinit.kernels.orders import kahn
from tests.stage_cases import random_problem


def reference_kahn(priority: np.ndarray, pred: list[set[int]]) -> list[int]:
    """Return the order by the definition: of all ready nodes the one of highest priority, smallest index first."""
    done: list[int] = []
    while len(done) < len(pred):
        ready = [v for v in range(len(pred)) if v not in done and pred[v] <= set(done)]
        done.append(min(ready, key=lambda v: (-priority[v], v)))
    return done


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.2, 0.8]), st.booleans())
def test_kahn_takes_the_best_ready_node(seed: int, density: float, ties: bool) -> None:
    """The compiled order equals the definition's, ties included."""
    problem = random_problem(seed, 12, 2, density=density)
    rng = np.random.default_rng(seed)
    priority = rng.integers(0, 3, 12).astype(float) if ties else rng.random(12)
    pred = [set(problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]].tolist()) for v in range(12)]
    order = kahn(priority, problem.succ_indptr, problem.succ, problem.pred_indptr)
    assert order.tolist() == reference_kahn(priority, pred)
