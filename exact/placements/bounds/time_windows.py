"""Which batches a placement better than a known one can have, and when: what every placement bound starts from.

Reasoning is about the *batch of one shard*: any fixed shard of op v lies in exactly one batch (v, i), which takes at
least ``least_s[v, i]``, and shards of one input depend on each other along every edge. So all that holds for the ops
of a `latency` problem with times ``least_s`` holds for each shard of a `throughput` problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.exact.placements.bounds.heads_and_tails import device_heads, device_tails
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem

__all__ = ["Windows", "latest_end", "possible_batches", "windows"]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """What is left of the batches of a problem.

    Parameters
    ----------
    allowed
        (n, d, s + 1) whether a batch of c shards may run; false for c = 0.
    least_s
        (n, d) shortest allowed batch, ``inf`` where there is none.
    head_s, tail_s
        (n, d) earliest start of a batch, and least time from its end to the makespan.
    floor_s
        Lower bound on the makespan by the longest path: ``max_v min_i head + least + tail``.
    """

    allowed: NDArray[np.bool_]
    least_s: FloatArray
    head_s: FloatArray
    tail_s: FloatArray
    floor_s: float


def possible_batches(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return (n, d, s + 1) which batches can be part of a placement by times, groups, memory and number of shards."""
    s = problem.num_shards
    allowed = np.isfinite(problem.time_s)
    allowed[:, :, 0] = False
    _close_groups(problem, allowed)
    held = np.zeros(problem.time_s.shape)
    sizes = problem.weight_bytes[:, None] + problem.shard_bytes[:, None] * np.arange(s + 1.0)
    np.add.at(held, problem.group, sizes[:, None, :])
    allowed &= (held <= problem.capacity_bytes[:, None] * CAPACITY_SLACK)[problem.group]
    return _drop_incomplete(allowed)


def _close_groups(problem: PlacementProblem, allowed: NDArray[np.bool_]) -> None:
    """Forbid in place for all ops of a group what is forbidden for one of them."""
    banned = np.zeros(allowed.shape, np.int64)
    np.add.at(banned, problem.group, ~allowed)
    allowed &= (banned == 0)[problem.group]


def _drop_incomplete(allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Leave only batches that the other devices can complete to all shards (of one device: only all of them)."""
    n, d, width = allowed.shape
    if width == 2:
        return allowed
    options = allowed.copy()
    options[:, :, 0] = True
    before = np.zeros((d + 1, n, width), np.bool_)
    after = np.zeros((d + 1, n, width), np.bool_)
    before[0, :, 0] = after[d, :, 0] = True
    for i in range(d):
        before[i + 1] = _sums(before[i], options[:, i])
        after[d - 1 - i] = _sums(after[d - i], options[:, d - 1 - i])
    result = np.zeros_like(allowed)
    for i in range(d):
        others = _sums(before[i], after[i + 1])
        result[:, i] = allowed[:, i] & others[:, ::-1]
    return result


def _sums(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return (n, s + 1) which numbers of shards are a sum of one on the left and one on the right."""
    result = np.zeros_like(left)
    for c in range(left.shape[1]):
        result[:, c:] |= left[:, : left.shape[1] - c] & right[:, [c]]
    return result


def windows(
    problem: PlacementProblem,
    upper: float,
    allowed: NDArray[np.bool_],
    head_floor_s: FloatArray | None = None,
    tail_floor_s: FloatArray | None = None,
) -> Windows | None:
    """Return what is left of the batches in `allowed` when the makespan is below `upper`; None if that is impossible.

    Batches are taken away until all the others pass ``head + time + tail < upper``. The floors are (n,) lower bounds
    on heads and tails known from elsewhere.
    """
    floors = tuple(np.zeros(problem.num_ops) if floor is None else floor for floor in (head_floor_s, tail_floor_s))
    allowed = allowed.copy()
    time_s = np.where(allowed, problem.time_s, np.inf)
    while True:
        least = time_s.min(axis=2)
        head, tail = _heads_and_tails(problem, least, *floors)
        with np.errstate(invalid="ignore"):
            total = head[:, :, None] + time_s + tail[:, :, None]
        dead = allowed & ~(total < min(upper, np.finfo(np.float64).max))
        if not dead.any():
            break
        allowed &= ~dead
        _close_groups(problem, allowed)
        allowed = _drop_incomplete(allowed)
        time_s = np.where(allowed, problem.time_s, np.inf)
        if not allowed.any(axis=(1, 2)).all():
            return None
    if not allowed.any(axis=(1, 2)).all():
        return None
    floor = float((head + least + tail).min(axis=1).max()) if len(head) else 0.0
    return Windows(allowed, least, head, tail, floor)


def _heads_and_tails(
    problem: PlacementProblem, least: FloatArray, head_floor: FloatArray, tail_floor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    costs = (problem.tensor_bytes, problem.delay_s, problem.s_per_byte)
    head = device_heads(problem.order, problem.pred_indptr, problem.pred, problem.group, least, head_floor, *costs)
    tail = device_tails(problem.order, problem.succ_indptr, problem.succ, problem.group, least, tail_floor, *costs)
    return head, tail


def latest_end(problem: PlacementProblem, allowed: NDArray[np.bool_]) -> float:
    """Return a makespan that the best placement does not exceed: everything it may do, one after the other."""
    if not problem.num_ops:
        return 0.0
    batches = np.where(allowed, problem.time_s, 0.0).max(axis=2).sum()
    link = np.isfinite(problem.delay_s)
    delay = np.where(link, problem.delay_s, 0.0)
    moved = problem.tensor_bytes.sum() * problem.num_shards * np.where(link, problem.s_per_byte, 0.0).sum()
    # Each batch is sent to each device at most once a shard, whatever `transfers` is.
    return float(batches + problem.num_shards * problem.num_ops * delay.sum() + moved)
