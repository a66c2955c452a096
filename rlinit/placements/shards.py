"""The same placement problem with its inputs dealt in fewer, larger shards: coarser, and quicker to search."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.placements.problem import Placement, PlacementProblem


def in_larger_shards(problem: PlacementProblem, factor: int) -> PlacementProblem:
    """Return the problem with every `factor` shards tied together; each of its placements is one of the problem.

    Parameters
    ----------
    problem
        The problem, of s shards.
    factor
        A divisor of s.
    """
    return dataclasses.replace(
        problem,
        shard_inputs=factor * problem.shard_inputs,
        time_s=np.ascontiguousarray(problem.time_s[:, :, ::factor]),
        tensor_bytes=factor * problem.tensor_bytes,
        shard_bytes=factor * problem.shard_bytes,
    )


def in_smaller_shards(placement: Placement, factor: int) -> Placement:
    """Return a placement of `in_larger_shards` as one of the problem it was made of.

    Parameters
    ----------
    placement
        Of a problem whose shards are each `factor` of the other's.
    factor
        As there.
    """
    return Placement(np.repeat(placement.device, factor, axis=1), placement.sequence)
