"""Pools of ideals against all assignments that can be put together from them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.intervals import pool
from rlinit.stages.problem import StageProblem, evaluate, stage_value
from tests.exact.stages.cases import any_problem
from tests.stage_cases import monotone_assignments, random_problem


def _filled(problem: StageProblem, chosen: list[np.ndarray]) -> pool.IdealPool:
    found = pool.IdealPool(problem)
    for stage in chosen:
        found.add(stage)
    return found


def _boundaries(problem: StageProblem, stage: np.ndarray) -> set[bytes]:
    return {(stage <= at).tobytes() for at in range(problem.num_stages - 1)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 5))
def test_the_best_of_what_can_be_put_together_is_found(seed: int, count: int) -> None:
    """The assignment is the best of those whose stages all end with pooled ideals, in any order of the devices."""
    problem = any_problem(seed, "pipeline", 5)
    every = [np.asarray(stage) for stage in monotone_assignments(problem)]
    rng = np.random.default_rng(seed)
    chosen = [every[at] for at in rng.integers(0, len(every), count)]
    ends = {np.zeros(problem.num_nodes, np.bool_).tobytes(), np.ones(problem.num_nodes, np.bool_).tobytes()}
    known = ends.union(*(_boundaries(problem, stage) for stage in chosen))
    orders = sorted(set(itertools.permutations(problem.stage_class.tolist())))
    best = min(
        (
            stage_value(problem, stage, np.array(order))
            for stage in every
            if _boundaries(problem, stage) <= known
            for order in orders
        ),
        default=np.inf,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_LEAST_IDEALS", 0)
        found = _filled(problem, chosen).better(np.inf, Budget())
        assert (np.inf if found is None else evaluate(problem, found)[0]) == pytest.approx(best, rel=1e-9)
        if found is not None and best > 0.0:
            assert _filled(problem, chosen).better(best, Budget()) is None
            assert _filled(problem, chosen).better(best * (1 + 1e-6), Budget()) is not None


def test_old_ideals_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pool drops what was added longest ago, and is searched only where enough is new to it."""
    monkeypatch.setattr(pool, "_LEAST_IDEALS", 2)
    monkeypatch.setattr(pool, "_MOST_IDEALS", 6)
    problem = random_problem(3, 12, 4, density=0.2)
    first, second = np.minimum(problem.level, 3), np.maximum(problem.level - problem.level.max() + 3, 0)
    found = _filled(problem, [first])
    assert found.better(np.inf, Budget()) is not None
    found.add(first)
    assert found.better(np.inf, Budget()) is None
    for size in range(1, 5):
        ranked = np.argsort(np.argsort(problem.order)) // size
        found.add(np.minimum(ranked, 3))
    assert len(found._rows) <= 6
    found.add(second)
    best = found.better(np.inf, Budget())
    assert best is not None
    assert evaluate(problem, best)[0] <= stage_value(problem, second, problem.stage_class)
    found.add(first)
    assert found.better(np.inf, Budget(0.0)) is None
