"""Random stage problems over every feature and magnitude, and what the exact methods share in their tests."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlinit.stages.problem import StageAssignment, StageProblem, Value, stage_value
from tests.stage_cases import monotone_assignments, random_problem

__all__ = ["all_in_stage", "any_problem", "at_most", "best_pipeline_in_window", "small_problems", "with_magnitudes"]


def any_problem(seed: int, objective: Literal["pipeline", "memory"], max_nodes: int = 6) -> StageProblem:
    """Return a small problem: one or two classes, ties, zeros, no edges, forbidden nodes, capacities, k > n, n = 1."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 3))
    problem = random_problem(
        seed,
        int(rng.integers(1, max_nodes + 1)),
        int(rng.integers(1, 5)),
        objective=objective,
        num_classes=num_classes,
        density=float(rng.choice([0.0, 0.35, 0.8])),
        scale=float(rng.choice([1e-9, 1.0, 1e6, 1e12])),
        tensors_per_node=int(rng.integers(1, 3)),
        cache_fraction=float(rng.choice([np.inf, 0.5, 1.0])),
        integer=bool(rng.integers(2)),
    )
    if objective == "memory":
        problem = _with_exact_sums(problem)
    if rng.random() < 0.4:
        work = problem.work_s.copy()
        work[rng.random(work.shape) < 0.15] = np.inf
        memory = np.where(rng.random(num_classes) < 0.5, np.inf, problem.param_bytes.sum() * 0.5)
        problem = dataclasses.replace(problem, work_s=work, memory_bytes=memory)
    return problem


def _with_exact_sums(problem: StageProblem) -> StageProblem:
    """Round bytes to multiples of a power of two, so that ties on one level are ties and not a matter of rounding."""
    unit = 2.0 ** np.floor(np.log2(max(problem.param_bytes.max(), problem.tensor_bytes.max(initial=0.0), 1e-300)) - 10)
    return dataclasses.replace(
        problem,
        param_bytes=np.round(problem.param_bytes / unit) * unit,
        tensor_bytes=np.round(problem.tensor_bytes / unit) * unit,
        cache_bytes=np.round(problem.cache_bytes / unit) * unit,
    )


def all_in_stage(problem: StageProblem, stage: int) -> StageAssignment:
    """Return the assignment with every node in one stage."""
    return StageAssignment(np.full(problem.num_nodes, stage, np.int64), problem.stage_class)


def at_most(bound: Value, value: Value, relative: float = 1e-12) -> bool:
    """Return whether `bound` is lexicographically at most `value`, up to the rounding of sums."""
    for b, v in zip(bound, value, strict=True):
        if b < v:
            return True
        if b > v * (1 + relative):
            return False
    return True


def best_pipeline_in_window(problem: StageProblem, start: StageAssignment, free: NDArray[np.bool_]) -> float:
    """Return the optimal bottleneck over assignments that move only free nodes, by enumeration."""
    orders = sorted(set(itertools.permutations(problem.stage_class.tolist())))
    return min(
        stage_value(problem, stage, np.array(classes, np.int64))
        for stage in monotone_assignments(problem)
        if (stage == start.stage)[~free].all()
        for classes in orders
    )


def small_problems() -> st.SearchStrategy[StageProblem]:
    """Return a strategy over `any_problem` for both objectives."""
    return st.builds(any_problem, st.integers(0, 100_000), st.sampled_from(["pipeline", "memory"]))


def with_magnitudes(problem: StageProblem, seed: int) -> StageProblem:
    """Return the problem with work, each class's transfers and its overflow multiplied by powers of ten apart."""
    rng = np.random.default_rng(seed)
    classes = problem.num_classes
    transfers = 10.0 ** rng.integers(-8, 8, (classes, 1))
    return dataclasses.replace(
        problem,
        work_s=problem.work_s * 10.0 ** rng.integers(-8, 8) * 10.0 ** rng.integers(-6, 6, problem.num_nodes),
        in_s=problem.in_s * transfers,
        out_s=problem.out_s * transfers,
        overflow_s_per_byte=problem.overflow_s_per_byte * 10.0 ** rng.integers(-8, 8, classes),
    )
