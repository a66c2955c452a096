"""Features of stage problems in their Python form, against what they are said to be."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings

from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.batches import disjoint_union
from rlinit.kernels.stages import features as kernels
from rlinit.kernels.stages.arrays import Precedence
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from tests.draws import draws
from tests.exact.stages.cases import small_problems

near = partial(pytest.approx, rel=1e-12, abs=1e-12)


def paths_from(indptr: IntArray, adjacent: IntArray, v: int) -> list[list[int]]:
    """Return every path that begins at a node and cannot go on."""
    others = adjacent[indptr[v] : indptr[v + 1]].tolist()
    return [[v, *path] for u in others for path in paths_from(indptr, adjacent, u)] if others else [[v]]


def chain_before(problem: StageProblem, v: int) -> list[int]:
    """Return the nodes before v that nothing joins or leaves on the way."""
    pred = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
    if len(pred) != 1 or np.diff(problem.succ_indptr)[pred[0]] != 1:
        return []
    return [*chain_before(problem, int(pred[0])), int(pred[0])]


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_paths_and_chains(problem: StageProblem) -> None:
    """The longest of all paths that end in a node, and the chain before it, each enumerated."""
    order, load = problem.order, np.where(np.isfinite(problem.work_s[0]), problem.work_s[0], 1.0)
    longest, _ = kernels._longest_paths.py_func(order, load, problem.pred_indptr, problem.pred)
    _, edges = kernels._longest_paths.py_func(order[::-1], load, problem.succ_indptr, problem.succ)
    chains = np.column_stack(
        kernels._chains.py_func(order, load, problem.pred_indptr, problem.pred, problem.succ_indptr)
    )
    for v in range(problem.num_nodes):
        before = paths_from(problem.pred_indptr, problem.pred, v)
        assert longest[v] == near(max(load[path].sum() for path in before))
        assert edges[v] == max(len(path) - 1 for path in paths_from(problem.succ_indptr, problem.succ, v))
        chain = chain_before(problem, v)
        assert chains[v].tolist() == near([load[chain].sum(), len(chain)])


def joined(batch: StageBatch, ends: IntArray) -> kernels._Joined:
    """Return a graph as features look at it, its natural order in stages that end at `ends`."""
    near_nodes = Precedence(batch.succ_indptr, batch.succ, batch.pred_indptr, batch.pred)
    return kernels._Joined(batch.natural, ends, batch.slice_arrays, near_nodes)


def on_one_stage(batch: StageBatch) -> kernels._Joined:
    """Return a graph of which the first stage holds everything."""
    return joined(batch, np.full(int(batch.num_stages[0]), batch.num_nodes))


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_what_a_cut_moves(problem: StageProblem) -> None:
    """A cut moves the tensors made before it and read after it."""
    batch, position = StageBatch.of_problem(problem), np.argsort(problem.order)
    one = on_one_stage(batch)
    before, after = one.live_s()
    assert one.moved.tolist() == near([(batch.in_s + batch.out_s).sum()])
    for v, at in enumerate(position.tolist()):
        for place, live in ((at, before[v]), (at + 1, after[v])):
            crossing = 0.0
            for t in range(problem.num_tensors):
                readers = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]]
                if position[problem.tensor_src[t]] < place <= position[readers].max(initial=-1):
                    crossing += batch.in_s[t] + batch.out_s[t]
            assert live == pytest.approx(crossing, rel=1e-9, abs=1e-12 * one.moved[0])


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_neighbours_and_ready_nodes(problem: StageProblem) -> None:
    """Distances to the nearest neighbours in the order, and the nodes all of whose producers stand before a place."""
    order, n = problem.order, problem.num_nodes
    position, rows = np.argsort(order), np.full((n, kernels.NUM_STAGE_FEATURES), np.nan)
    kernels._fill_places(on_one_stage(StageBatch.of_problem(problem)), np.ones(n), np.ones(n), rows)
    pred = [problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]] for v in range(n)]
    succ = [problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]] for v in range(n)]
    for i, v in enumerate(order):
        ready = sum(position[w] >= i and (position[pred[w]] < i).all() for w in range(n))
        distance = [i - position[pred[v]].max(initial=-1), position[succ[v]].min(initial=n) - i]
        assert rows[v, 19:22].tolist() == near(
            [0.5 * np.log1p(distance[0]), 0.5 * np.log1p(distance[1]), np.log1p(ready)]
        )


def whole_features(batch: StageBatch, cost: FloatArray, stage: IntArray) -> dict[int, FloatArray]:
    """Return columns of features of one graph, from (k,) costs of stages and (n,) the stage of each node."""
    load, n, k = batch.load, batch.num_nodes, int(batch.num_stages[0])
    worst, target = cost.max(), load.sum() / k
    position = np.argsort(batch.natural)
    before = np.array([load[position < position[v]].sum() for v in range(n)])
    inside = np.array([load[(position < position[v]) & (stage == stage[v])].sum() for v in range(n)])
    middle = k * (before + load / 2) / load.sum()
    padded = np.concatenate([[worst], cost, [worst]])
    return {
        0: load / (load + target),
        4: np.log1p(np.diff(batch.pred_indptr)),
        5: np.log1p(np.diff(batch.succ_indptr)),
        6: (position + 0.5) / n,
        11: middle / k,
        12: np.sin(2 * np.pi * middle),
        13: np.cos(2 * np.pi * middle),
        22: (stage + 0.5) / k,
        23: (inside + load / 2) / np.maximum(np.bincount(stage, load, minlength=k)[stage], 1e-300),
        26: cost[stage] / worst,
        27: padded[stage] / worst,
        28: padded[stage + 2] / worst,
        30: load / worst,
        31: np.clip((worst - cost[stage]) / np.maximum(load, 1e-12 * worst), -3, 3),
        34: np.full(n, worst / target - 1.0),
        37: batch.memory.astype(float).repeat(n),
    }


@settings(max_examples=draws(40), deadline=None)
@given(problem=small_problems())
def test_features_of_joined_problems(problem: StageProblem) -> None:
    """Columns follow their definitions, and those of a graph are the same among other graphs as alone."""
    batch = StageBatch.of_problem(problem)
    values, ends = slice_orders(batch, batch.natural[None, :])
    rows = featurise(batch)[0].node
    twice = featurise(disjoint_union([batch, batch]))[0].node
    assert np.array_equal(twice, np.concatenate([rows, rows]))
    assert np.isfinite(rows).all()
    if not np.isfinite(values[0, 0]) or batch.load.sum() <= 0.0:
        return
    one = joined(batch, ends[0])
    stage, cost = one.stage, one.cost
    assert one.first.tolist() == [0, *ends[0][:-1]]
    assert cost.max() == near(values[0, 0])
    for column, expected in whole_features(batch, cost, stage).items():
        assert rows[:, column].tolist() == near(expected.tolist()), column
