"""Carry partial schedules from block to block, as many as a width allows, so that blocks overlap in time.

A device runs what it runs of a block before what it runs of the next one.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.split.search import EXPANSIONS_PER_S, Target, advance, root_bound, search_model
from rlinit.exact.placements.split.separators import separators
from rlinit.exact.placements.split.state_layers import Frontier
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import placement_from_priority

SEARCHED_OPS = 40
"""Ops that are placed between looks at the clock; blocks up to this size are searched as one."""


class BlockBeam:
    """Carries partial schedules from block to block.

    Attributes
    ----------
    complete
        Whether the last run dropped nothing but what could not end below its cutoff.
    is_exact
        Whether every schedule is one that runs block after block on each device, up to transfers that exclude others:
        where each block but the last ends with a separator.
    work
        Partial schedules the last run extended.
    """

    def __init__(self, problem: PlacementProblem, comm: FloatArray, blocks: list[IntArray]) -> None:
        self.problem, self.comm = problem, comm
        self.tail = _tails(problem, comm)
        self.order = np.concatenate(blocks)
        self.chunks = [part for block in blocks for part in np.array_split(block, -(-len(block) // SEARCHED_OPS))]
        position = inverse_of(self.order)
        self.last_use = position.copy()
        np.maximum.at(self.last_use, problem.edges[:, 0], position[problem.edges[:, 1]])
        last_member = np.zeros(problem.num_ops, np.int64)
        np.maximum.at(last_member, problem.group, position)
        self.last_use = np.maximum(self.last_use, last_member[problem.group])
        between = set(separators(problem).tolist())
        self.is_exact = problem.transfers == "parallel" and all(int(ops[-1]) in between for ops in self.chunks[:-1])
        self.complete, self.work = False, 0

    def run(self, width: int, cutoff: float, max_work: int, budget: Budget) -> Placement | None:
        """Return the best schedule found below `cutoff`, keeping `width` of each layer, and 1 once over budget.

        Parameters
        ----------
        width
            At least 1.
        cutoff
            Seconds.
        max_work
            Partial schedules of one block.
        budget
            When to hurry.
        """
        n, d = self.problem.num_ops, self.problem.num_devices
        free, held = np.zeros((1, d)), np.zeros((1, d))
        end, device, rank = np.zeros((1, n)), np.full((1, n), -1, np.int8), np.zeros((1, n), np.int64)
        limit = np.array([cutoff])
        done, self.work, self.complete = 0, 0, True
        for ops in self.chunks:
            before = self.order[:done]
            externals = before[self.last_use[before] >= done]
            done += len(ops)
            rest = self.problem.op_time_s[self.order[done:]]
            model = search_model(self.problem, self.comm, externals, ops, [Target(-1, -1)], self.tail, rest)
            local = np.concatenate([externals, ops])
            empty = np.zeros((len(free), len(local)), np.int8)
            start = Frontier(free, end[:, local], device[:, local], held, empty, np.arange(len(free)))
            floor = root_bound(model, start)
            scale = np.where((floor > 0) & (floor < np.inf), floor, 1.0)
            keep = 1 if budget.expired else width
            affordable = min(max_work - self.work, budget.remaining_s * EXPANSIONS_PER_S, 1 << 62)
            after, dropped, extended = advance(model, start, limit, scale, keep, max(1, int(affordable)))
            self.work += extended
            self.complete = self.complete and bool(np.isinf(dropped).all())
            free, held = after.free_s, after.held_bytes
            end, device, rank = end[after.root], device[after.root], rank[after.root]
            end[:, local], device[:, local] = after.end_s, after.device
            rank[:, ops] = done + after.rank[:, len(externals) :].astype(np.int64)
            if len(free) == 0:
                return None
        best = int(free.max(axis=1).argmin())
        where = device[best][:, None].astype(np.int64)
        return placement_from_priority(self.problem, where, rank[best].astype(np.float64))


def _tails(problem: PlacementProblem, comm: FloatArray) -> FloatArray:
    """Return (n, d) seconds at least from the end of each op on each device to the end of everything."""
    tail = np.zeros((problem.num_ops, problem.num_devices))
    for v in problem.order[::-1]:
        for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]:
            tail[v] = np.maximum(tail[v], (comm[v] + problem.op_time_s[w] + tail[w]).min(axis=1))
    return tail
