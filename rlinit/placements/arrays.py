"""Placement problems joined into the arrays that rollouts and networks work on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.heuristics.placements.common import mean_work_s
from rlinit.heuristics.placements.list_scheduling import upward_ranks
from rlinit.kernels.policy.rollouts import RolloutArrays
from rlinit.placements.problem import PlacementProblem
from rlinit.stages.problem import CAPACITY_SLACK

__all__ = ["join_problems", "rollout_arrays"]


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
    allowed = np.isfinite(seconds)
    members = np.flatnonzero(group != np.arange(n))
    np.logical_and.at(allowed, group[members], allowed[members])
    allowed[members] = allowed[group[members]]
    scale = _typical_s(problem)
    rank, natural = upward_ranks(problem), np.empty(n, np.int64)
    natural[problem.order] = np.arange(n)
    place = np.empty(n, np.int64)
    place[np.lexsort((natural, -rank))] = np.arange(n)
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
    work = float(mean_work_s(problem).mean()) if n else 0.0
    return arrays, rank / (work if work > 0 else scale)


def _typical_s(problem: PlacementProblem) -> float:
    """Return the mean over ops of the least seconds, else of a transfer, else 1: what other times are measured in."""
    least = problem.op_time_s.min(axis=1)
    least = least[np.isfinite(least)]
    if len(least) and least.mean() > 0:
        return float(least.mean())
    links = problem.s_per_byte[~np.eye(problem.num_devices, dtype=bool)]
    moved = problem.tensor_bytes.mean() * links.mean() if len(links) else 0.0
    return float(moved) if moved > 0 else 1.0


def join_problems(problems: Sequence[RolloutArrays]) -> RolloutArrays:
    """Return the disjoint union of problems, in their order; at least one."""
    shift = np.concatenate([[0], np.cumsum([len(p.tensor) for p in problems])])[:-1].astype(np.int64)

    def moved(name: str) -> np.ndarray:
        return np.concatenate([getattr(p, name) + by for p, by in zip(problems, shift, strict=True)])

    def ends(name: str) -> np.ndarray:
        sizes = np.concatenate([np.diff(getattr(p, name)) for p in problems])
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def plain(name: str) -> np.ndarray:
        return np.concatenate([getattr(p, name) for p in problems])

    pointers = ("ptr", "device_ptr", "pair_ptr", "link_ptr", "pred_indptr", "succ_indptr")
    return RolloutArrays(
        *(
            ends(name) if name in pointers else moved(name) if name in ("pred", "succ", "group") else plain(name)
            for name in RolloutArrays._fields
        )
    )
