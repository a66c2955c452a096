"""Branch and bound over placements against enumeration and the program on SCIP."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements import branch_and_bound as module
from rlinit.exact.placements.branch_and_bound import branch_and_bound
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings
from rlinit.exact.placements.milp.solve import solve_placement_milp
from tests.exact.placements.test_milp import check, small_latency
from tests.placement_cases import brute_force_placement, random_placement_problem

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_equals_enumeration(seed: int) -> None:
    """The value is the best makespan over all placements and orders, with memory, groups and missing links."""
    problem = small_latency(seed)
    check(problem, branch_and_bound(problem), brute_force_placement(problem))


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_equals_the_program(seed: int) -> None:
    """Both exact methods agree where enumeration is out of reach."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        seed,
        9,
        3,
        memory_fraction=float(rng.choice([np.inf, 0.6])),
        group_fraction=float(rng.choice([0.0, 0.3])),
        missing_links=float(rng.choice([0.0, 0.1])),
        integer=bool(rng.random() < 0.5),
        identical=bool(rng.random() < 0.5),
    )
    tree = branch_and_bound(problem)
    program = solve_placement_milp(problem, budget=Budget(60))
    assert tree.status == program.status
    assert (tree.value is None) == (program.value is None)
    if tree.value is not None and program.value is not None:
        assert tree.value == pytest.approx(program.value, rel=1e-6)
        assert program.bound <= tree.value * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_order_of_alike_devices_keeps_the_best(seed: int) -> None:
    """Every order of alike devices and of alike nodes leaves a best placement in the program."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        seed,
        int(rng.integers(3, 7)),
        4,
        memory_fraction=float(rng.choice([np.inf, 0.5])),
        integer=bool(rng.random() < 0.5),
        identical=True,
        forbidden_fraction=0.0,
    )
    nodes = np.array([0, 1, 0, 1])
    problem.s_per_byte[nodes[:, None] != nodes] *= 3.0
    best = branch_and_bound(problem).value
    orders = ("none", "batches", "tasks", "time")
    form = PlacementMilpSettings(
        variables=str(rng.choice(["ops", "batches"])),  # type: ignore[arg-type]
        intra_symmetry=str(rng.choice(orders)),  # type: ignore[arg-type]
        inter_symmetry=str(rng.choice(orders)),  # type: ignore[arg-type]
        node_of_device=nodes,
    )
    result = solve_placement_milp(problem, budget=Budget(60), settings=form)
    check(problem, result, np.inf if best is None else best)


def test_what_ends_early_repeats_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ended after its first nodes gives the same result each time, with a bound of the whole."""
    problem = random_placement_problem(1, 16, 3, density=0.15)
    best = branch_and_bound(problem)
    assert best.status == "optimal"
    monkeypatch.setattr(module, "_CHUNK", 500)
    first, second = (branch_and_bound(problem, budget=_EndsAtTheSecondLook()) for _ in range(2))
    assert (first.value, first.bound, first.work, first.status) == (second.value, second.bound, second.work, "feasible")
    assert first.value is not None
    assert best.value is not None
    assert first.bound <= best.value <= first.value
    assert branch_and_bound(problem, budget=Budget(0.0)).status == "no_solution"


class _EndsAtTheSecondLook(Budget):
    """A budget that lasts for one part of a search."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    @property
    def expired(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_what_it_is_not_for_is_refused() -> None:
    """Shards, shared links and too many ops are errors."""
    with pytest.raises(ValueError, match="shard"):
        branch_and_bound(random_placement_problem(0, 3, 2, shards=2))
    with pytest.raises(ValueError, match="parallel"):
        branch_and_bound(random_placement_problem(0, 3, 2, transfers="exclusive"))
    with pytest.raises(ValueError, match="62"):
        branch_and_bound(random_placement_problem(0, 63, 2))
