"""Assignments out of levels of states, of which each has one stage more than the one before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlinit.heuristics.stages.beam.states import States
from rlinit.stages.problem import StageAssignment, StageProblem


def read_levels(problem: StageProblem, levels: Sequence[States], forward: bool) -> StageAssignment:
    """Return the assignment that led to the first state of the last level, which has placed everything.

    Parameters
    ----------
    problem
        The problem.
    levels
        Level j has states of j stages; parents are states of the level before.
    forward
        Stages are placed from the front, else from the back.
    """
    n, k, row = problem.num_nodes, problem.num_stages, 0
    stage, used = np.zeros(n, np.int64), []
    for j in range(len(levels) - 1, 0, -1):
        level, parent = levels[j], int(levels[j].parent[row])
        stage[_placed(level, row, n) & ~_placed(levels[j - 1], parent, n)] = j - 1 if forward else k - j
        used.append(int(level.last[row]))
        row = parent
    classes = problem.completed_classes(used[::-1])
    if problem.objective == "memory":
        return StageAssignment(stage, problem.stage_class)
    return StageAssignment(stage, classes if forward else np.ascontiguousarray(classes[::-1]))


def _placed(states: States, row: int, num_nodes: int) -> NDArray[np.bool_]:
    """Return (n,) whether a state has placed each op."""
    bits = np.unpackbits(states.bits[row].view(np.uint8), bitorder="little")
    return bits[:num_nodes].astype(np.bool_)
