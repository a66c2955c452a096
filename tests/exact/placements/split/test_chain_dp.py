"""Properties of the chain of blocks between separators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.split import chain_dp
from rlinit.exact.placements.split.chain_dp import BlockChain
from rlinit.exact.placements.split.search import search, transfer_times
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan
from tests.draws import draws
from tests.exact.placements.split.cases import any_placement_problem, brute_force, chain_of_blocks, make_problem


def _chain(problem: PlacementProblem) -> BlockChain:
    return BlockChain(problem, transfer_times(problem), 1, 1 << 62)


def _all_pairs(problem: PlacementProblem) -> tuple[float, int]:
    """Return the chain's optimum from every pair of every block, and the work."""
    chain = _chain(problem)
    work = 0
    best = np.zeros(1)
    for part in chain.segments:
        costs = []
        for start, lower in zip(part.starts, part.lower, strict=True):
            found = search(part.model, start, np.full(len(lower), np.inf), Budget())
            costs.append(np.maximum(found.value_s, lower))
            work += found.work
        best = (best[:, None] + np.array(costs)).min(axis=0)
    return float(best.min()), work


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_pairs_on_the_path_are_enough(seed: int, groups: bool) -> None:
    """Solving only what lies on shortest paths by bounds gives what solving every pair gives.

    That is the optimum, but where an op of a block has to be with the separator that ends it: then it is a bound.
    """
    problem = any_placement_problem(seed, max_ops=7, chain=True, groups=groups)
    full, _ = _all_pairs(problem)
    bound, placement = _chain(problem).solve(np.inf, Budget())
    assert bound == pytest.approx(full, rel=1e-9)
    best = brute_force(problem)
    assert bound <= best * (1 + 1e-12)
    if len(np.unique(problem.group)) == problem.num_ops:
        assert bound == pytest.approx(best, rel=1e-9)
        if placement is not None:
            assert makespan(problem, placement) == pytest.approx(full, rel=1e-9)


def test_separators_of_one_group_share_a_device() -> None:
    """Where two neighbouring separators belong together, no pair of different devices is considered."""
    times = np.array([[1.0, 4.0], [4.0, 1.0], [1.0, 4.0]])
    problem = make_problem(times, [(0, 1), (1, 2)], group=np.array([0, 0, 2]))
    bound, placement = _chain(problem).solve(np.inf, Budget())
    assert bound == 6.0
    assert placement is not None
    assert placement.device[:, 0].tolist() in ([0, 0, 0], [1, 1, 0])


@pytest.mark.parametrize("levels", [chain_dp._LEVELS, (1_000,)])
def test_copies_that_hold_more_are_no_copies(monkeypatch: pytest.MonkeyPatch, levels: tuple[int, ...]) -> None:
    """Two diamonds with equal times, the first of which fits no device: what that costs is not counted twice."""
    rate = np.where(np.eye(2, dtype=np.bool_), 0.0, 3.0)
    problem = make_problem(
        np.ones((7, 2)),
        [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)],
        s_per_byte=rate,
        weight_bytes=np.array([0.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0]),
        capacity_bytes=np.array([9.0, 9.0]),
    )
    monkeypatch.setattr(chain_dp, "_LEVELS", levels)
    bound, _ = _chain(problem).solve(np.inf, Budget())
    assert bound == brute_force(problem) == 9.0


def test_less_is_solved_than_all_pairs() -> None:
    """Six blocks of three devices are proven with less than half of the work of all pairs."""
    problem = chain_of_blocks(4, num_blocks=6, block_ops=8, num_devices=3)
    full, full_work = _all_pairs(problem)
    chain = _chain(problem)
    bound, _ = chain.solve(np.inf, Budget())
    assert bound == pytest.approx(full, rel=1e-9)
    assert chain.work < 0.5 * full_work
