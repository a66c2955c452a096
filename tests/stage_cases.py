"""Random stage problems and brute force over them: the ground truth the solvers are held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from rlinit.arrays import IntArray
from rlinit.stages.problem import MemoryValue, StageAssignment, StageProblem, memory_value, stage_costs

__all__ = ["brute_force_memory", "brute_force_pipeline", "monotone_assignments", "random_problem"]


def random_problem(
    seed: int,
    num_nodes: int = 7,
    num_stages: int = 3,
    *,
    objective: Literal["pipeline", "memory"] = "pipeline",
    num_classes: int = 1,
    density: float = 0.35,
    scale: float = 1.0,
    io: float = 0.3,
    zero_fraction: float = 0.2,
    tensors_per_node: int = 1,
    cache_fraction: float = np.inf,
    integer: bool = False,
) -> StageProblem:
    """Return a random problem; `scale` multiplies every cost, `zero_fraction` of the nodes cost nothing.

    With `integer` costs are small integers times `scale`, so that ties are common.
    """
    rng = np.random.default_rng(seed)
    n = num_nodes
    src, indptr, dst = [], [0], []
    for u in rng.permutation(n) if tensors_per_node > 1 else range(n):
        for _ in range(int(rng.integers(1, tensors_per_node + 1))):
            consumers = [v for v in range(u + 1, n) if rng.random() < density]
            if consumers:
                src.append(u)
                dst.extend(consumers)
                indptr.append(len(dst))
    m = len(src)

    def draw(*shape: int) -> np.ndarray:
        values = rng.integers(1, 6, shape).astype(float) if integer else rng.random(shape) + 0.05
        return np.where(rng.random(shape) < zero_fraction, 0.0, values) * scale

    tensor_bytes = draw(m)
    speed = 1.0 + rng.integers(0, 3, num_classes)
    work = (draw(n)[None, :] * speed[:, None]) if objective == "pipeline" else np.zeros((num_classes, n))
    link = io * (1.0 + rng.integers(0, 3, num_classes))
    if integer:
        link = np.ceil(link)
    param = draw(n)
    stage_class = np.sort(np.arange(num_stages) % num_classes).astype(np.int64)
    cache = np.full(num_classes, cache_fraction * param.sum() / num_stages if np.isfinite(cache_fraction) else np.inf)
    return StageProblem(
        objective=objective,
        work_s=work,
        param_bytes=param,
        tensor_src=np.array(src, np.int64),
        tensor_indptr=np.array(indptr, np.int64),
        tensor_dst=np.array(dst, np.int64),
        tensor_bytes=tensor_bytes,
        in_s=tensor_bytes[None, :] * link[:, None],
        out_s=tensor_bytes[None, :] * link[:, None],
        stage_class=stage_class,
        memory_bytes=np.full(num_classes, np.inf),
        cache_bytes=cache,
        overflow_s_per_byte=np.full(num_classes, 0.5 if objective == "pipeline" else 0.0),
        order=np.arange(n, dtype=np.int64),
    )


def monotone_assignments(problem: StageProblem) -> Iterator[IntArray]:
    """Yield every monotone assignment of nodes to stage positions."""
    n, k = problem.num_nodes, problem.num_stages
    stage = np.zeros(n, np.int64)

    def extend(i: int) -> Iterator[IntArray]:
        if i == n:
            yield stage
            return
        v = problem.order[i]
        before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        for s in range(int(stage[before].max()) if len(before) else 0, k):
            stage[v] = s
            yield from extend(i + 1)

    yield from extend(0)


def brute_force_pipeline(problem: StageProblem) -> float:
    """Return the optimal bottleneck over every monotone assignment and every order of the stage classes."""
    k, classes = problem.num_stages, sorted(set(problem.stage_class.tolist()))
    orders = np.array(sorted(set(itertools.permutations(problem.stage_class.tolist()))))
    best = np.inf
    for stage in monotone_assignments(problem):
        cost = np.full((problem.num_classes, k), np.inf)
        for c in classes:
            cost[c] = stage_costs(problem, StageAssignment(stage, np.full(k, c)))
        best = min(best, cost[orders, np.arange(k)].max(axis=1).min())
    return float(best)


def brute_force_memory(problem: StageProblem) -> MemoryValue:
    """Return the lexicographically smallest value over every monotone assignment."""
    return min(memory_value(problem, stage) for stage in monotone_assignments(problem))
