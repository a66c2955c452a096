"""Placement problems joined into the arrays that rollouts and networks work on."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, inverse_of
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.placements.list_scheduling import PlacementArrays, upward_rank
from rlinit.kernels.placements.rollout_arrays import RolloutArrays
from rlinit.placements.problem import PlacementProblem


def rollout_arrays(problem: PlacementProblem) -> tuple[RolloutArrays, FloatArray]:
    """Return one problem's arrays and (n,) its upward ranks over the mean of the ops' own part of them.

    Raises
    ------
    ValueError
        Ops are split into shards: the agent places whole ops.
    """
    if problem.num_shards != 1:
        raise ValueError(f"expected a latency problem with whole ops, got {problem.num_shards} shards")
    n, d, group = problem.num_ops, problem.num_devices, problem.group
    seconds = problem.op_time_s
    allowed = problem.over_groups(np.isfinite(seconds), np.logical_and)
    scale = _typical_s(problem)
    work = mean_work_s(problem)
    rank = upward_ranks(problem, work)
    place = inverse_of(np.lexsort((inverse_of(problem.order), -rank)))
    arrays = RolloutArrays(
        ptr=np.array([0, n]),
        device_ptr=np.array([0, d]),
        pair_ptr=np.array([0, n * d]),
        link_ptr=np.array([0, d * d]),
        pred_indptr=problem.pred_indptr,
        pred=problem.pred,
        succ_indptr=problem.succ_indptr,
        succ=problem.succ,
        time=seconds.ravel(),
        allowed=allowed.ravel(),
        tensor=problem.tensor_bytes,
        need=np.bincount(group, weights=problem.weight_bytes + problem.shard_bytes, minlength=n).astype(np.float64),
        group=group,
        capacity=problem.capacity_bytes * CAPACITY_SLACK,
        s_per_byte=problem.s_per_byte.ravel(),
        delay=problem.delay_s.ravel(),
        place=place,
        scale=np.array([scale]),
    )
    mean = float(work.mean()) if n else 0.0
    return arrays, rank / (mean if mean > 0 else scale)


def _typical_s(problem: PlacementProblem) -> float:
    """Return the mean over ops of the least seconds, else of a transfer, else 1: what other times are measured in."""
    least = problem.op_time_s.min(axis=1)
    least = least[np.isfinite(least)]
    if len(least) and least.mean() > 0:
        return float(least.mean())
    links = problem.s_per_byte[~np.eye(problem.num_devices, dtype=bool)]
    moved = problem.tensor_bytes.mean() * links.mean() if len(links) else 0.0
    return float(moved) if moved > 0 else 1.0


def kernel_arrays(problem: PlacementProblem) -> PlacementArrays:
    """Return the problem as the kernels take it: memory of a group at its leader, permissions at each of its ops."""
    n, group = problem.num_ops, problem.group
    return PlacementArrays(
        np.ascontiguousarray(problem.time_s),
        problem.tensor_bytes,
        np.bincount(group, weights=problem.weight_bytes, minlength=n).astype(np.float64),
        np.bincount(group, weights=problem.shard_bytes, minlength=n).astype(np.float64),
        problem.capacity_bytes * CAPACITY_SLACK,
        problem.s_per_byte,
        problem.delay_s,
        problem.pred_indptr,
        problem.pred,
        problem.succ_indptr,
        problem.succ,
        group,
        problem.over_groups(np.isfinite(problem.time_s), np.logical_and),
        _lost_by_others(problem),
    )


def _lost_by_others(problem: PlacementProblem) -> FloatArray:
    """Return (n, d, s + 1) seconds that the other members of an op's group take more in a batch than at best."""
    if np.array_equal(problem.group, np.arange(problem.num_ops)):
        return np.zeros(problem.time_s.shape)
    able = np.isfinite(problem.time_s)
    best = problem.time_s.min(axis=1, keepdims=True)
    own = np.subtract(problem.time_s, best, out=np.zeros(problem.time_s.shape), where=able)
    others = np.maximum(problem.over_groups(own, np.add) - own, 0.0)
    return np.where(problem.over_groups((~able).astype(np.int64), np.add) > ~able, np.inf, others)


def mean_work_s(problem: PlacementProblem) -> FloatArray:
    """Return (n,) seconds of all shards of an op, each in its best batch, averaged over the devices that may run it."""
    shards = np.arange(1, problem.num_shards + 1)
    best = (problem.time_s[:, :, 1:] / shards).min(axis=2) * problem.num_shards
    able = np.isfinite(best)
    total = np.where(able, best, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(able.sum(axis=1), 1), np.float64)


def mean_transfer_s(problem: PlacementProblem) -> FloatArray:
    """Return (n,) seconds to move all shards of an op, averaged over the ordered pairs of linked, distinct devices."""
    linked = np.isfinite(problem.delay_s) & ~np.eye(problem.num_devices, dtype=np.bool_)
    if not linked.any():
        return np.zeros(problem.num_ops)
    volume = problem.num_shards * problem.tensor_bytes
    return np.asarray(problem.delay_s[linked].mean() + volume * problem.s_per_byte[linked].mean(), np.float64)


def upward_ranks(problem: PlacementProblem, work_s: FloatArray | None = None) -> FloatArray:
    """Return (n,) upward ranks with mean times and mean transfers (Topcuoglu et al., eq. 8).

    An op's time for all shards, each in its best batch, is averaged over the devices that may run it; a transfer over
    the ordered pairs of linked devices.

    Parameters
    ----------
    problem
        Of n ops.
    work_s
        (n,) `mean_work_s` of it, where that is known.
    """
    work_s = mean_work_s(problem) if work_s is None else work_s
    ranks: FloatArray = upward_rank(problem.order, work_s, mean_transfer_s(problem), problem.succ_indptr, problem.succ)
    return ranks
