"""Heuristics over topological orders: sort by node priorities (Kahn), then slice optimally."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.kernels.orders import kahn
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate
from rlinit.stages.slicing import slice_order

Found = tuple[StageAssignment, Value] | None

_ELITE, _MUTANT, _BIAS = 0.2, 0.1, 0.7
"""Shares of elite and mutant chromosomes, and the chance of inheriting a gene from the elite parent."""


class StageHeuristic(Protocol):
    """A heuristic for stage problems."""

    def __call__(
        self, problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None
    ) -> Found:
        """Return a feasible assignment and its value, or None.

        Parameters
        ----------
        problem
            The problem.
        seed
            Seed of everything random.
        evaluations
            Orders to try (moves, for annealing); None: the method's default.
        budget
            When to stop.
        """


def sort_by_priority(problem: StageProblem, priority: FloatArray) -> IntArray:
    """Return Kahn's topological order by descending priority.

    Parameters
    ----------
    problem
        The stage problem.
    priority
        (n,) of each node, in any unit; ties go to the smaller index.
    """
    order: IntArray = kahn(priority, problem.succ_indptr, problem.succ, problem.pred_indptr)
    return order


def natural(
    problem: StageProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Found:
    """Slice the graph's natural order, or, where no cut of that is allowed, the one that `allowed_stages` lead to.

    For the parameters see `StageHeuristic.__call__`.
    """
    found = slice_order(problem, problem.order, budget=budget)
    if found is not None:
        return found
    stage = allowed_stages(problem)
    if stage is None:
        return None
    assignment = StageAssignment(stage, problem.stage_class)
    value = evaluate(problem, assignment)
    alone = (assignment, value) if np.isfinite(value[0]) else None
    return _better(alone, slice_order(problem, staged_order(problem, stage), budget=budget))


def staged_order(problem: StageProblem, stage: IntArray) -> IntArray:
    """Return the topological order with one stage after the other, each in the natural order.

    Parameters
    ----------
    problem
        The problem.
    stage
        (n,) stage of each node; no edge leads to a smaller one.
    """
    place = inverse_of(problem.order).astype(np.float64)
    return sort_by_priority(problem, -(stage * float(problem.num_nodes) + place))


def allowed_stages(problem: StageProblem) -> IntArray | None:
    """Return (n,) a stage for each node that its class allows, none before a predecessor's; None where there is none.

    Classes are in the order of `stage_class`, and memory is not looked at. Each node goes where its share of the work
    before it would have it, or to the next stage that is allowed, but not so far that a successor has none left.

    Parameters
    ----------
    problem
        The problem.
    """
    n, k = problem.num_nodes, problem.num_stages
    able = np.isfinite(problem.work_s[problem.stage_class])
    last = np.full(n, k - 1)
    for v in problem.order[::-1].tolist():
        after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        stages = np.flatnonzero(able[: 1 + int(last[after].min(initial=k - 1)), v])
        if not len(stages):
            return None
        last[v] = stages[-1]
    weight = np.maximum(problem.work_s.min(axis=0), 0.0)[problem.order]
    wanted = np.cumsum(weight) * k / max(float(weight.sum()), 1e-300)
    stage = np.zeros(n, np.int64)
    for at, v in enumerate(problem.order.tolist()):
        before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        first = int(stage[before].max(initial=0))
        stages = first + np.flatnonzero(able[first : last[v] + 1, v])
        stage[v] = stages[min(int(np.searchsorted(stages, min(int(wanted[at]), k - 1))), len(stages) - 1)]
    return stage


def random_orders(
    problem: StageProblem, *, seed: int, evaluations: int | None = 100, budget: Budget | None = None
) -> Found:
    """Slice orders by uniformly random priorities and keep the best (MTPP, C.1, random-T; T = 100 by default).

    For the parameters see `StageHeuristic.__call__`.
    """
    rng = np.random.default_rng(seed)
    best: Found = None
    for _ in range(evaluations or 100):
        best = _better(
            best, slice_order(problem, sort_by_priority(problem, rng.random(problem.num_nodes)), budget=budget)
        )
        if budget is not None and budget.expired:
            break
    return best


def brkga(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Evolve node priorities by a biased random-key genetic algorithm whose fitness is the sliced value.

    100 generations of 100 chromosomes by default; otherwise as many generations as `evaluations` allow.

    For the parameters see `StageHeuristic.__call__`.

    References
    ----------
    MTPP, Algorithm 2; Goncalves and Resende, Journal of Heuristics 17, 2011: 20% elite, 10% mutants, 70% elite genes.
    """
    best: Found = None
    known: dict[bytes, Value] = {}

    def fitness(priority: FloatArray) -> Value:
        nonlocal best
        order = sort_by_priority(problem, priority)
        # Most children sort the nodes as one before them did: a digest of the order saves slicing it again.
        key = hashlib.blake2b(order.tobytes(), digest_size=16).digest()
        if key not in known:
            found = slice_order(problem, order, budget=budget)
            best = _better(best, found)
            known[key] = (np.inf,) if found is None else found[1]
        return known[key]

    _evolve(problem.num_nodes, fitness, seed, evaluations or 10_000, budget)
    return best


def _evolve(
    num_genes: int,
    fitness: Callable[[FloatArray], Value],
    seed: int,
    evaluations: int,
    budget: Budget | None,
) -> FloatArray:
    """Return the fittest chromosome in [0, 1)^n after `evaluations` evaluations."""
    rng = np.random.default_rng(seed)
    size = min(100, max(2, int(np.sqrt(evaluations))))
    elite, mutants = max(1, int(_ELITE * size)), max(1, int(_MUTANT * size))
    population = rng.random((size, num_genes))
    values = _fitnesses(fitness, population, budget)
    spent = size
    while spent < evaluations and not (budget is not None and budget.expired):
        rank = sorted(range(size), key=lambda i: (values[i], i))
        population, values = population[rank], [values[i] for i in rank]
        children = size - elite - mutants
        mother = population[rng.integers(0, elite, children)]
        father = population[rng.integers(elite, size, children)] if size > elite else mother
        crossed = np.where(rng.random((children, num_genes)) < _BIAS, mother, father)
        population = np.concatenate([population[:elite], crossed, rng.random((mutants, num_genes))])
        values = values[:elite] + _fitnesses(fitness, population[elite:], budget)
        spent += size - elite
    best: FloatArray = population[min(range(size), key=lambda i: (values[i], i))]
    return best


def _fitnesses(fitness: Callable[[FloatArray], Value], population: FloatArray, budget: Budget | None) -> list[Value]:
    """Return the fitness of each chromosome, the worst there is for those that the budget leaves no time for."""
    values: list[Value] = []
    for row in population:
        late = bool(values) and budget is not None and budget.expired
        values.append((np.inf,) if late else fitness(row))
    return values


def _better(one: Found, other: Found) -> Found:
    if one is None or (other is not None and other[1] < one[1]):
        return other
    return one
