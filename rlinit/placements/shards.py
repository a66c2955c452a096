"""The same placement problem, coarser: on groups of devices that share all shards of an op."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import placement_from_priority


def on_groups(problem: PlacementProblem, parts: int) -> tuple[PlacementProblem, IntArray]:
    """Return the problem with groups of devices in place of devices, each of which takes all of an op's shards.

    The shards are shared out evenly over the members of a group, the same ones to the same member; a group is as slow
    as its slowest member, and has the memory of the smallest.

    Parameters
    ----------
    problem
        The problem, of s shards.
    parts
        Devices of a group, a divisor of s.

    Returns
    -------
    problem, members
        The problem of one shard, and (groups, parts) the devices of each group: those of like speed together.
    """
    each = problem.num_shards // parts
    able = np.isfinite(problem.time_s[:, :, each])
    seconds = np.where(able, problem.time_s[:, :, each], 0.0).sum(axis=0)
    count = problem.num_devices // parts
    members = np.lexsort((seconds, (~able).sum(axis=0)))[: count * parts].reshape(count, parts)
    time = np.zeros((problem.num_ops, count, 2))
    time[:, :, 1] = problem.time_s[:, members, each].max(axis=2)
    sources, targets = members[:, None, :], members[None, :, :]
    return dataclasses.replace(
        problem,
        shard_inputs=problem.num_shards * problem.shard_inputs,
        time_s=time,
        tensor_bytes=each * problem.tensor_bytes,
        shard_bytes=each * problem.shard_bytes,
        capacity_bytes=problem.capacity_bytes[members].min(axis=1),
        s_per_byte=problem.s_per_byte[sources, targets].max(axis=2),
        delay_s=problem.delay_s[sources, targets].max(axis=2),
    ), members


def on_members(problem: PlacementProblem, members: IntArray, placement: Placement) -> Placement:
    """Return a placement of `on_groups` as one of the problem it was made of.

    Parameters
    ----------
    problem
        That problem.
    members
        (groups, parts) devices of each group.
    placement
        Of whole ops on groups.
    """
    each = problem.num_shards // members.shape[1]
    device = np.repeat(members[placement.device[:, 0]], each, axis=1)
    place = inverse_of(placement.sequence // len(members)).astype(np.float64)
    return placement_from_priority(problem, device, place)
