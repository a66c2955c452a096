"""Loads of the devices alone: which device runs each op where work decides, and neither precedence nor transfers."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import placed_in_order
from rlinit.heuristics.stages.excess.slots import anneal_loose, packed
from rlinit.placements.arrays import upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.stages.problem import StageProblem

_FEWEST_MOVES, _MOVES_AN_OP, _MOST_MOVES = 20_000, 1_000, 1_000_000
"""Moves of annealing by default."""


def balance(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Minimise the largest load of a device by annealing, then run ops in the order of their upward ranks.

    Every batch is whole. Ops that share a device move together, and device memories hold. None where ops find no room.

    For the parameters see `PlacementHeuristic.__call__`.
    """
    loads, group = _loads(problem)
    start = packed(loads)
    if start is None:
        return None
    nodes = loads.num_nodes
    moves = evaluations or min(_MOST_MOVES, max(_FEWEST_MOVES, _MOVES_AN_OP * nodes))
    found = anneal_loose(loads, start, seed=seed, moves=moves, budget=budget) if nodes else start
    device = found.classes[found.stage][group]
    mask = np.zeros((problem.num_ops, problem.num_devices), np.int64)
    mask[np.arange(problem.num_ops), device] = (1 << problem.num_shards) - 1
    rank = inverse_of(problem.order)
    return placed_in_order(problem, mask, np.lexsort((rank, -upward_ranks(problem))))


def _loads(problem: PlacementProblem) -> tuple[StageProblem, IntArray]:
    """Return the groups of ops as nodes of stages without tensors, and the node of each op.

    Each device is a stage and a class of its own; annealing may exchange the devices of two stages.
    """
    leaders, group = np.unique(problem.group, return_inverse=True)
    n, d = len(leaders), problem.num_devices
    work = np.zeros((d, n))
    held = np.zeros(n)
    for i in range(d):
        np.add.at(work[i], group, problem.op_time_s[:, i])
    np.add.at(held, group, problem.weight_bytes + problem.num_shards * problem.shard_bytes)
    none = np.zeros(0, np.int64)
    nothing = np.zeros((d, 0))
    loads = StageProblem(
        "pipeline",
        work,
        held,
        none,
        np.zeros(1, np.int64),
        none,
        np.zeros(0),
        nothing,
        nothing,
        np.arange(d),
        problem.capacity_bytes,
        np.full(d, np.inf),
        np.zeros(d),
        np.arange(n),
    )
    return loads, group
