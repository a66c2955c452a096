"""Which devices, and which nodes of devices, may be exchanged without changing a placement problem."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlinit.arrays import IntArray
from rlinit.placements.problem import PlacementProblem

Symmetry = Literal["none", "batches", "tasks", "time"]
"""What alike devices are put in order of: batches, (op, shard) tasks, or busy seconds."""


def _keeps(problem: PlacementProblem, order: IntArray) -> bool:
    """Return whether putting device order[i] in the place of i leaves the problem as it is."""
    moved = np.flatnonzero(order != np.arange(len(order)))
    return bool(
        np.array_equal(problem.capacity_bytes[order], problem.capacity_bytes)
        and np.array_equal(problem.s_per_byte[np.ix_(order, order)], problem.s_per_byte)
        and np.array_equal(problem.delay_s[np.ix_(order, order)], problem.delay_s)
        and np.array_equal(problem.time_s[:, order[moved]], problem.time_s[:, moved])
    )


def _exchange(problem: PlacementProblem, first: list[int], second: list[int]) -> IntArray:
    order = np.arange(problem.num_devices)
    order[first], order[second] = second, first
    return order


def _classes(problem: PlacementProblem, groups: list[list[int]]) -> list[list[list[int]]]:
    """Gather groups of devices that may be exchanged in pairs, device by device; it is an equivalence."""
    times = [hash(problem.time_s[:, i].tobytes()) for i in range(problem.num_devices)]
    classes: list[list[list[int]]] = []
    for group in groups:
        for members in classes:
            alike = [times[i] for i in members[0]] == [times[i] for i in group]
            if alike and _keeps(problem, _exchange(problem, members[0], group)):
                members.append(group)
                break
        else:
            classes.append([group])
    return [members for members in classes if len(members) > 1]


def alike_devices(problem: PlacementProblem, node_of_device: IntArray | None = None) -> list[list[list[int]]]:
    """Return classes of two or more devices of one node that may be exchanged in pairs, each as a list of itself.

    Parameters
    ----------
    node_of_device
        (d,) node of each device; None: all are in one.
    """
    nodes = np.zeros(problem.num_devices, np.int64) if node_of_device is None else node_of_device
    return [
        members
        for node in np.unique(nodes)
        for members in _classes(problem, [[i] for i in np.flatnonzero(nodes == node).tolist()])
    ]


def alike_nodes(problem: PlacementProblem, node_of_device: IntArray | None = None) -> list[list[list[int]]]:
    """Return classes of two or more nodes, as lists of devices, that may be exchanged in pairs.

    Devices of two nodes are matched in order of their times and capacities, then of their indices, so that an exchange
    keeps the order of alike devices within a node.

    Parameters
    ----------
    problem
        On d devices.
    node_of_device
        (d,) node of each device; None: all are in one, which leaves nothing to exchange.
    """
    if node_of_device is None:
        return []

    def look(i: int) -> tuple[bytes, bytes, int]:
        return problem.time_s[:, i].tobytes(), problem.capacity_bytes[i].tobytes(), i

    groups = [sorted(np.flatnonzero(node_of_device == node).tolist(), key=look) for node in np.unique(node_of_device)]
    return _classes(problem, groups)
