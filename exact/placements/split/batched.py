"""MILP-SPLIT for `throughput`: which shards of a block's ops go where, block by block.

In place of a pair of devices a block has a *split*, how many shards each device takes. The restriction that keeps them
few: within a block every op is split alike, shards are assigned to
devices in order, and a split has only batch sizes that every op of the block allows there. Shards are alike, so
dealing them in another order only matters between blocks of different splits. Partial placements are carried from
block to block and compared by the timeline of the ops placed so far, hence blocks overlap. It is a heuristic with a
bound, that of :mod:`rlinit.exact.placements.split.bounds`.

References
----------
DIVIML section IV-B; thesis section 3.3.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from rlinit.arrays import SAFETY, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.split.bounds import split_bound
from rlinit.exact.placements.split.search_kernel import WIDTHS
from rlinit.exact.placements.split.separators import channel_cuts, induced
from rlinit.exact.placements.split.solve import LEAST_OPS, SplitResult
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority, shard_masks

_MAX_SPLITS = 256
"""Splits of a block that are tried at most."""


def splits(num_shards: int, num_devices: int, limit: int = _MAX_SPLITS) -> IntArray:
    """Return (k, num_devices) how many of the shards each device takes, in every way, those on fewest devices first.

    Parameters
    ----------
    limit
        Most ways returned.
    """
    found: list[tuple[int, ...]] = []
    for used in range(1, min(num_shards, num_devices) + 1):
        for devices in itertools.combinations(range(num_devices), used):
            for cuts in itertools.combinations(range(1, num_shards), used - 1):
                sizes = np.diff([0, *cuts, num_shards])
                row = np.zeros(num_devices, np.int64)
                row[list(devices)] = sizes
                found.append(tuple(row.tolist()))
                if len(found) == limit:
                    return np.array(found, np.int64)
    return np.array(found, np.int64)


def solve_split_batched(
    problem: PlacementProblem,
    *,
    budget: Budget,
    channels: int | Literal["auto"] = "auto",
) -> SplitResult:
    """Place a problem with any number of shards block by block.

    Parameters
    ----------
    problem
        n ops, s shards; transfers of any kind.
    budget
        Wall-clock limit. Once it is over, the best partial placement alone is carried on.
    channels
        Tensors that may pass between blocks; ``auto`` is 2.

    Returns
    -------
    The best placement met, by the timeline of the whole, and a proven bound. ``None`` where every way fails (memory,
    batch sizes that fit no split alike, groups across blocks): nothing is proven by that.
    """
    n, s, d = problem.num_ops, problem.num_shards, problem.num_devices
    blocks = channel_cuts(problem, 2 if channels == "auto" else channels, LEAST_OPS)
    ways = [np.repeat(np.arange(d), row) for row in splits(s, d)]
    order = np.concatenate(blocks)
    rank = inverse_of(order)
    carried: list[IntArray] = [np.full((n, s), -1, np.int64)]
    done, work = 0, 0
    for block in blocks:
        done += len(block)
        before = order[:done]
        part = induced(problem, before)
        scored: list[tuple[float, int, IntArray]] = []
        tried = [np.tile(way, (len(block), 1)) for way in ways]
        for base in carried[: 1 if budget.expired else WIDTHS[0]]:
            for device in tried:
                whole = base.copy()
                whole[block] = device
                placement = placement_from_priority(part, whole[before], rank[before])
                value = makespan(part, placement)
                work += 1
                if value < np.inf:
                    scored.append((value, len(scored), whole))
        scored.sort(key=lambda each: each[:2])
        carried = _distinct([whole for _, _, whole in scored], order[:done], d, WIDTHS[0])
        if not carried:
            break
    bound = split_bound(problem, blocks, budget=budget)
    if not carried:
        return SplitResult(None, None, bound, False, blocks, work)
    placement = placement_from_priority(problem, carried[0], rank)
    value = makespan(problem, placement)
    return SplitResult(placement, value, min(bound, value), value <= bound * (1.0 + SAFETY), blocks, work)


def _distinct(found: list[IntArray], ops: IntArray, num_devices: int, width: int) -> list[IntArray]:
    """Return the first `width` placements of which no two place the latest op alike."""
    kept: dict[bytes, IntArray] = {}
    for device in found:
        kept.setdefault(shard_masks(device[ops[-1:]], num_devices).tobytes(), device)
        if len(kept) == width:
            break
    return list(kept.values())
