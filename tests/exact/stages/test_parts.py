"""Pipelines of several components against every assignment, and against the dynamic program over all ideals."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.stages.ideals import parts
from rlinit.exact.stages.ideals.enumeration import MOST_PARTS, enumerate_ideals, enumerate_parts
from rlinit.exact.stages.ideals.parts import solve_parts
from rlinit.exact.stages.ideals.pipeline import solve_pipeline_ideals
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, evaluate
from tests.draws import draws
from tests.exact.stages.cases import any_problem
from tests.stage_cases import brute_force_pipeline, random_problem


def solved(problem: StageProblem, lower: float = 0.0, upper: float | None = None) -> StageResult[StageAssignment]:
    result = solve_parts(problem, 10**5, lower=lower, upper=upper, budget=Budget())
    assert result is not None
    return result


def joined(parts_of: list[StageProblem], **changes: Any) -> StageProblem:
    """Return problems side by side, on the devices of the first."""
    first = parts_of[0]
    starts = np.cumsum([0] + [each.num_nodes for each in parts_of])[:-1]
    reads = np.cumsum([0] + [len(each.tensor_dst) for each in parts_of])[:-1]
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts_of], axis=-1)
        for name in ("work_s", "param_bytes", "tensor_bytes", "in_s", "out_s")
    }
    shifted: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) + start for each, start in zip(parts_of, starts, strict=True)])
        for name in ("tensor_src", "tensor_dst", "order")
    }
    ends = [each.tensor_indptr[1:] + start for each, start in zip(parts_of, reads, strict=True)]
    indptr = np.concatenate([[0], *ends]).astype(np.int64)
    return dataclasses.replace(first, **rows, **shifted, tensor_indptr=indptr, **changes)


def line(problem: StageProblem, rng: np.random.Generator) -> StageProblem:
    """Return a problem whose nodes are one line, with tensors that differ much, and some that skip a node."""
    n, skips = problem.num_nodes, rng.random() < 0.5
    readers = [[v for v in (u + 1, u + 3) if v < n and (v == u + 1 or (skips and u % 3 == 0))] for u in range(n - 1)]
    size = (
        np.where(rng.random(n - 1) < 0.5, rng.random(n - 1), 0.01) * problem.work_s[np.isfinite(problem.work_s)].max()
    )
    links = size * np.exp(rng.normal(size=(2, problem.num_classes, 1)))
    links[1] *= rng.random() < 0.5
    return dataclasses.replace(
        problem,
        tensor_src=np.arange(n - 1),
        tensor_indptr=np.cumsum([0, *map(len, readers)]),
        tensor_dst=np.array([v for each in readers for v in each], np.int64),
        tensor_bytes=size,
        in_s=links[0],
        out_s=links[1],
    )


def several(seed: int, most_nodes: int) -> StageProblem:
    """Return two or three components: lines and others, ties, zeros, magnitudes, unlike devices, caches, capacities."""
    rng = np.random.default_rng(seed)
    classes, stages, scale = int(rng.integers(1, 4)), int(rng.integers(2, 6)), float(rng.choice([1e-9, 1.0, 1e12]))
    free, density = rng.random() < 0.1, float(rng.choice([0.3, 0.6, 1.0]))
    count = int(rng.integers(2, 4))
    found = [
        random_problem(
            seed * 8 + at,
            int(rng.integers(2, most_nodes // count + 1)),
            stages,
            num_classes=min(classes, stages),
            density=density,
            scale=scale,
            io=0.0 if free else float(rng.choice([0.05, 0.3, 2.0])),
            zero_fraction=float(rng.choice([0.0, 0.2, 0.6])),
            tensors_per_node=int(rng.integers(1, 3)),
            integer=bool(rng.integers(2)),
        )
        for at in range(count)
    ]
    found = [line(each, rng) if rng.random() < 0.6 else each for each in found]
    slow = [dataclasses.replace(each, work_s=each.work_s * rng.choice([1.0, 0.01, 30.0])) for each in found]
    total, kinds = sum(each.param_bytes.sum() for each in found), min(classes, stages)
    cache = np.where(rng.random(kinds) < 0.3, np.inf, total / stages * rng.choice([0.0, 0.3, 0.9, 1.1], kinds))
    memory = np.where(rng.random(kinds) < 0.7, np.inf, total / stages * rng.choice([0.8, 1.2, 2.0], kinds))
    rate = rng.choice([0.0, 0.1, 3.0], kinds)
    problem = joined(slow, cache_bytes=cache, memory_bytes=memory, overflow_s_per_byte=rate)
    if rng.random() < 0.2:
        work = problem.work_s.copy()
        work[rng.random(work.shape) < 0.1] = np.inf
        problem = dataclasses.replace(problem, work_s=work)
    return problem


@pytest.mark.parametrize("first", range(0, draws(120), 10))
def test_is_the_best_of_all_assignments(first: int) -> None:
    """Values and bounds are the optimum, with and without known ones; nothing is better than the optimum."""
    for seed in range(first, first + 10):
        problem = several(seed, 7)
        truth, result = brute_force_pipeline(problem), solved(problem)
        if np.isinf(truth):
            assert result.status == "infeasible"
            assert np.isinf(result.bound[0])
            continue
        assert result.status == "optimal"
        assert result.assignment is not None
        assert evaluate(problem, result.assignment)[0] == pytest.approx(truth, rel=1e-9)
        assert result.bound[0] <= truth * (1 + 1e-9)
        assert solved(problem, upper=truth).status == "infeasible"
        assert solved(problem, 0.9 * truth, 1.1 * truth + 1e-300).bound[0] == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("first", range(0, draws(100), 25))
def test_is_as_good_as_all_ideals(first: int) -> None:
    """Larger ones: the dynamic program over the ideals of all components together finds the same value."""
    for seed in range(first, first + 25):
        problem = several(seed + 1000, 16)
        ideals = enumerate_ideals(problem, 10**5)
        assert ideals is not None
        whole = solve_pipeline_ideals(problem, ideals, budget=Budget())
        assert whole is not None
        assert solved(problem).bound[0] == pytest.approx(whole.bound[0], rel=1e-9)


def test_any_problem_of_several_components() -> None:
    """Problems that fall apart by chance, isolated nodes among them, come out like all assignments."""
    told = 0
    for seed in range(150):
        problem = any_problem(seed, "pipeline")
        result = solve_parts(problem, 10**5, budget=Budget())
        if result is not None:
            told += 1
            assert result.bound[0] == pytest.approx(brute_force_pipeline(problem), rel=1e-9)
    assert told > 30


def test_components_are_joined_and_numbered() -> None:
    """Every ideal is closed under predecessors within its component; of many components the smallest are joined."""
    problem = joined([random_problem(seed, 3, 2, density=1.0) for seed in range(8)])
    found = enumerate_parts(problem, 10**5)
    assert found is not None
    ideals, label = found
    assert sorted(set(label.tolist())) == list(range(MOST_PARTS))
    members: list[set[int]] = [set()]
    for parent, node in itertools.islice(zip(ideals.parent.tolist(), ideals.node.tolist(), strict=True), 1, None):
        members.append(members[parent] | {node})
    merged = ideals.merged.problem
    for each in members[1:]:
        assert len({int(label[v]) for v in each}) == 1
        assert all(set(merged.pred[merged.pred_indptr[v] : merged.pred_indptr[v + 1]].tolist()) <= each for v in each)
    assert len({frozenset(each) for each in members}) == len(members)
    assert enumerate_parts(problem, len(members) - 1) is None
    assert enumerate_parts(problem, len(members)) is not None
    assert enumerate_parts(random_problem(0, 5, 2, density=1.0), 10**5) is None


def test_ends_early_with_what_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time, or beyond the rows that are kept, what was proven until then is a bound."""
    problem = several(1, 16)
    truth = solved(problem).bound[0]
    hurried = solve_parts(problem, 10**5, budget=Budget(0.0))
    assert hurried is not None
    assert (hurried.status, hurried.assignment) == ("no_solution", None)
    assert hurried.bound[0] <= truth
    monkeypatch.setattr(parts, "_MOST_ROWS", 0)
    assert solved(problem).bound[0] <= truth
    monkeypatch.setattr(parts, "_MOST_ROWS", 10**6)
    told: list[float] = []
    solve_parts(problem, 10**5, budget=Budget(), on_bound=lambda bound: told.append(bound[0]))
    assert told == sorted(told)
    assert not told or told[-1] <= truth
