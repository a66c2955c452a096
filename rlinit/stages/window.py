"""The relaxation window: which nodes an exact solver may move away from a coarse schedule (Inc-ILP, section III.C)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.stages.problem import StageProblem


def boundary_spans(problem: StageProblem, stage: IntArray) -> list[tuple[int, int]]:
    """Return, for each boundary between consecutive stages that an edge crosses, the level span of its ends.

    Boundary b lies between stages b and b + 1; an edge (u, v) crosses it if stage(u) <= b < stage(v). The span runs
    from the smallest level of such a u to the largest of such a v.

    Parameters
    ----------
    problem
        The stage problem; `problem.level` are ASAP topological levels.
    stage
        (n,) the coarse assignment.
    """
    u = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    v = problem.succ
    spans = []
    for b in range(problem.num_stages - 1):
        crossing = (stage[u] <= b) & (stage[v] > b)
        if crossing.any():
            spans.append((int(problem.level[u[crossing]].min()), int(problem.level[v[crossing]].max())))
    return spans


def free_nodes(
    problem: StageProblem, stage: IntArray, gamma: float, doubt: FloatArray | None = None
) -> NDArray[np.bool_]:
    """Return (n,) bool: the nodes within `gamma` levels of a boundary's level span; none for gamma = 0.

    With gamma = inf every node is free, also where no edge is cut.

    Parameters
    ----------
    problem, stage
        The stage problem, and (n,) the coarse assignment.
    gamma
        Half-width of the window.
    doubt
        (n,) from 0 to 1: how undecided an agent was about each node. A node is free from as far as
        ``gamma * (1 + doubt)`` levels. None: no doubt.
    """
    free = np.zeros(problem.num_nodes, np.bool_)
    if gamma == np.inf:
        return ~free
    if gamma <= 0:
        return free
    reach = gamma if doubt is None else gamma * (1.0 + doubt)
    for low, high in boundary_spans(problem, stage):
        free |= (problem.level >= low - reach) & (problem.level <= high + reach)
    return free
