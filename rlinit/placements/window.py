"""Windows of a placement: the ops near its cut edges, or along its critical path, that the exact solver may move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import timeline

_SLACK = 1e-9
"""Part of the makespan by which a batch may wait and be critical all the same: rounding."""


def boundary_ops(problem: PlacementProblem, placement: Placement) -> IntArray:
    """Return the ends of cut edges, whose producer and consumer are not on the same devices, by start.

    Parameters
    ----------
    problem
        The problem.
    placement
        A placement with a finite makespan.
    """
    u, v = problem.edges[:, 0], problem.edges[:, 1]
    cut = (placement.device[u] != placement.device[v]).any(axis=1)
    return _by_start(problem, placement, np.unique(problem.edges[cut]))


def critical_ops(problem: PlacementProblem, placement: Placement) -> IntArray:
    """Return the ops of which a batch cannot start later without a later end, by start.

    A batch is critical if nothing separates its end from the makespan: neither its consumers (with transfers as they
    are in ``parallel``), nor the next batch on its device leave it slack.

    Parameters
    ----------
    problem
        The problem.
    placement
        A placement with a finite makespan.
    """
    run = timeline(problem, placement)
    d = problem.num_devices
    latest = np.full((problem.num_ops, d), run.makespan_s)
    following = np.full(d, run.makespan_s)
    for code in placement.sequence[::-1].tolist():
        v, i = code // d, code % d
        at = following[i]
        mine = placement.device[v] == i
        for w in problem.succ_of(v).tolist():
            for j in np.unique(placement.device[w][mine]).tolist():
                shared = int((mine & (placement.device[w] == j)).sum())
                at = min(at, latest[w, j] - problem.transfer_s(v, i, j, shared))
        latest[v, i] = at - (run.end_s[v, i] - run.start_s[v, i])
        following[i] = latest[v, i]
    with np.errstate(invalid="ignore"):
        tight = latest - run.start_s <= _SLACK * run.makespan_s
    return _by_start(problem, placement, np.flatnonzero(tight.any(axis=1)))


def placement_windows(problem: PlacementProblem, placement: Placement, size: int) -> Iterator[NDArray[np.bool_]]:
    """Yield masks ((n,) bool) of about `size` free ops each: around cut edges first, then along the critical path.

    A window holds consecutive seeds and, to fill it up, the ops that run nearest to them in time. Ops of a colocation
    group are free together.

    Parameters
    ----------
    problem
        The problem.
    placement
        A placement with a finite makespan.
    size
        Ops to free at once, at least 1; colocation groups may make a window larger.
    """
    run = timeline(problem, placement)
    with np.errstate(invalid="ignore"):
        middle = np.nanmean((run.start_s + run.end_s) / 2, axis=1)
    for seeds in (boundary_ops(problem, placement), critical_ops(problem, placement)):
        step = max(1, size // 2)
        for first in range(0, len(seeds), step):
            chosen = seeds[first : first + step]
            near = np.abs(middle - middle[chosen].mean())
            near[chosen] = -1.0
            free = np.zeros(problem.num_ops, np.bool_)
            free[np.argsort(near, kind="stable")[:size]] = True
            grouped = np.zeros(problem.num_ops, np.bool_)
            grouped[problem.group[free]] = True
            yield free | grouped[problem.group]


def _by_start(problem: PlacementProblem, placement: Placement, ops: IntArray) -> IntArray:
    first = np.nanmin(timeline(problem, placement).start_s, axis=1)
    return ops[np.argsort(first[ops], kind="stable")]
