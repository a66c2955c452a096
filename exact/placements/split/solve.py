"""MILP-SPLIT: schedule a modular graph block by block, exactly where single ops join the blocks.

With one channel (separators, :mod:`rlinit.exact.placements.split.separators`) the part from one separator to the next
depends on the rest through the two devices alone, with transfers of any kind: everything before a separator ended, and
arrived, when it starts. Thus, with c(t, u, v) the least time from the end of separator t on device u to that of
separator t+1 on v,

``dp(t+1, v) = min over u of dp(t, u) + c(t, u, v)``

is the optimum of `latency` where memory does not bind (DIVIML section IV-B, with com(t, v', u) inside c). The same sum
over lower bounds of c is a lower bound of the optimum, and memory, exclusive links or blocking transfers only raise
that, so `bound` holds for those too. Only the pairs on the shortest path by lower bounds are solved, the others stay as
they are: they cannot lead to anything better. Blocks alike share their solutions.

With more channels, and where memory binds, a few partial schedules are carried from block to block
(:mod:`rlinit.exact.placements.split.beam`). The bound is that of :mod:`rlinit.exact.placements.split.bounds`, or of the
longest path and the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import MOST_CELLS, SAFETY, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.split.beam import SEARCHED_OPS, BlockBeam
from rlinit.exact.placements.split.bounds import split_bound
from rlinit.exact.placements.split.chain_dp import BlockChain
from rlinit.exact.placements.split.search import transfer_times
from rlinit.exact.placements.split.search_kernel import WIDTHS
from rlinit.exact.placements.split.separators import channel_cuts, induced, with_side_outputs, without_side_outputs
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan

LEAST_OPS = 4
"""Least size of a block with more than one channel."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitResult:
    """What the blocks gave.

    Parameters
    ----------
    placement, value
        The best placement and its makespan in seconds, by the timeline of the whole problem; None where none was found.
    bound
        A proven lower bound in seconds on the optimum of the whole problem, whatever the blocks.
    exact
        Whether value is the optimum.
    blocks
        The ops of each block; side outputs are in none (`without_side_outputs`).
    work
        Deterministic count of the effort spent.
    """

    placement: Placement | None
    value: float | None
    bound: float
    exact: bool
    blocks: list[IntArray]
    work: int


def solve_split(
    problem: PlacementProblem,
    *,
    budget: Budget,
    channels: int | Literal["auto"] = "auto",
    jobs: int = 1,
    upper: float = np.inf,
    max_work: int = 1 << 62,
) -> SplitResult:
    """Schedule a `latency` problem block by block.

    Parameters
    ----------
    problem
        With one shard.
    budget
        Wall-clock limit.
    channels
        Tensors that may pass between blocks; ``auto`` takes one where that gives blocks that can be searched, else
        the fewest of 2 to 8 that do.
    jobs
        Blocks solved at once.
    upper
        A known makespan in seconds; pairs that cannot beat it are not solved.
    max_work
        Partial schedules extended at most, as a limit that does not depend on the machine.

    Returns
    -------
    The best schedule and bound. `value` may be above `upper`, if nothing better exists or was found.

    Raises
    ------
    ValueError
        If the problem has more than one shard.

    References
    ----------
    DIVIML section IV-B; thesis section 3.3.
    """
    if problem.num_shards != 1:
        raise ValueError(
            f"expected a latency problem (1 shard), got {problem.num_shards} shards; use solve_split_batched"
        )
    whole, kept = problem, without_side_outputs(problem)
    if len(kept) < problem.num_ops:
        problem = induced(problem, kept)
    blocks = _blocks(problem, channels)
    best = _Best(problem, upper, max_work, budget)
    beam = BlockBeam(problem, best.comm_s, blocks)
    # Where the chain of blocks is exact and knows what to beat, it needs no schedule to begin with.
    first = channels == 1 and upper < np.inf and problem.transfers == "parallel"
    if not first:
        best.carry(beam, WIDTHS[0])
    chain = BlockChain(problem, best.comm_s, jobs, max_work - best.work)
    if best.placement is not None:
        chain.adopt(best.placement)
    best.bound, found = chain.solve(best.limit, budget)
    best.work += chain.work
    best.offer(found)
    if first and not best.closed:
        best.carry(beam, WIDTHS[0])
    if not best.closed and len(blocks) > 1 and problem.num_ops**2 <= MOST_CELLS and not beam.is_exact:
        share = budget.share(0.5 * min(budget.remaining_s, 1e9))
        best.bound = max(best.bound, split_bound(problem, blocks, budget=share))
    if beam.is_exact or problem.transfers != "parallel" or best.placement is None:
        for width in WIDTHS[1:-1]:  # the widest takes too long for whole problems
            if not beam.complete:
                best.carry(beam, width)
    if beam.complete and beam.is_exact:
        best.bound = max(best.bound, best.limit)
    if whole is not problem:
        blocks = [kept[block] for block in blocks]
        if best.placement is not None:
            best.placement = with_side_outputs(whole, kept, best.placement, budget)
            best.value = makespan(whole, best.placement)
    if best.placement is None or best.value == np.inf:
        return SplitResult(None, None, best.bound, False, blocks, best.work)
    exact = best.value <= best.bound * (1.0 + SAFETY)
    return SplitResult(best.placement, best.value, min(best.bound, best.value), exact, blocks, best.work)


class _Best:
    """The best placement met, what is proven, and the work done.

    Attributes
    ----------
    value, bound
        Makespan in seconds, ``inf`` before there is one, and a lower bound.
    """

    def __init__(self, problem: PlacementProblem, upper: float, max_work: int, budget: Budget) -> None:
        self.problem, self.comm_s = problem, transfer_times(problem)
        self.upper, self.max_work, self.budget = upper, max_work, budget
        self.placement: Placement | None = None
        self.value, self.bound, self.work = np.inf, 0.0, 0

    @property
    def limit(self) -> float:
        """Only what is below it is of interest."""
        return min(self.value, self.upper)

    @property
    def closed(self) -> bool:
        """Whether nothing better exists."""
        return self.limit <= self.bound * (1.0 + SAFETY)

    def offer(self, found: Placement | None) -> None:
        """Keep a placement if it is better."""
        value = np.inf if found is None else makespan(self.problem, found)
        if value < self.value:
            self.placement, self.value = found, value

    def carry(self, beam: BlockBeam, width: int) -> None:
        """Run a beam, the narrowest one in any case."""
        if width > WIDTHS[0] and (self.closed or self.budget.expired or self.work >= self.max_work):
            return
        self.offer(beam.run(width, self.limit, self.max_work - self.work, self.budget))
        self.work += beam.work


def _blocks(problem: PlacementProblem, channels: int | Literal["auto"]) -> list[IntArray]:
    if channels != "auto":
        return channel_cuts(problem, channels, LEAST_OPS if channels > 1 else 1)
    best = channel_cuts(problem, 1)
    for count in range(2, 9):
        if max(len(block) for block in best) <= SEARCHED_OPS:  # larger ones are cut at more channels
            break
        best = channel_cuts(problem, count, LEAST_OPS)
    return best
