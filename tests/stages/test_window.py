"""The relaxation window frees what the definition says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageProblem
from rlinit.stages.window import boundary_spans, free_nodes
from tests.stage_cases import monotone_assignments, random_problem


def branches() -> StageProblem:
    """Return the shape of Inc-ILP's Figure 5 as levels: 0 -> 1 -> (2, 2) -> 3 -> 4 -> 5 with a skip from 1 to 4."""
    edges = ["ab", "bc", "bd", "ce", "de", "ef", "bf", "fg"]
    graph = Graph.build([(name, {"out_bytes": 1.0}) for name in "abcdefg"], [(e[0], e[1]) for e in edges])
    return lower_stages(graph, Hardware.pipeline(2), "memory").problem


def test_the_span_reaches_over_all_crossing_edges() -> None:
    """With a, b, c, d before the cut, edges (c,e), (d,e), (b,f) cross: levels 1 (of b) to 4 (of f)."""
    problem = branches()
    stage = np.array([0, 0, 0, 0, 1, 1, 1])
    assert problem.level.tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert boundary_spans(problem, stage) == [(1, 4)]
    assert free_nodes(problem, stage, 0).sum() == 0
    assert free_nodes(problem, stage, 1).all()


def test_a_narrow_cut_frees_a_narrow_window() -> None:
    """A cut through the chain's end frees only the levels around it."""
    problem = branches()
    stage = np.array([0, 0, 0, 0, 0, 0, 1])
    assert boundary_spans(problem, stage) == [(4, 5)]
    assert free_nodes(problem, stage, 1).tolist() == [False] * 4 + [True] * 3


@given(st.integers(0, 500))
def test_windows_grow_with_gamma_and_end_in_everything(seed: int) -> None:
    """A larger gamma frees a superset; an infinite one frees all; every boundary node is free from gamma 1 on."""
    problem = random_problem(seed, 7, 3)
    for i, stage in enumerate(monotone_assignments(problem)):
        if i % 17:
            continue
        inner = free_nodes(problem, stage, 0)
        for gamma in (1, 2, 4):
            outer = free_nodes(problem, stage, gamma)
            assert (outer | ~inner).all()
            inner = outer
        u = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
        cut = stage[u] != stage[problem.succ]
        assert free_nodes(problem, stage, 1)[np.union1d(u[cut], problem.succ[cut])].all()
        assert free_nodes(problem, stage, np.inf).all()
