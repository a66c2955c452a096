"""GETF: earliest time first within the group of devices that a linear program assigns to each op."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.published.baechi import earliest_start
from rlinit.heuristics.placements.published.m_sct import run_linear_program
from rlinit.placements.problem import Placement, PlacementProblem


def getf(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Assign each op to a group of devices of like speed, then schedule earliest time first within the groups.

    The method is made for related machines (an op takes its size over the device's speed). Here a device's speed is the
    average over the ops of the least time on any device over the time on this one; the linear program has the true
    times. Devices slower than 1/d of the fastest are left out, as there, unless an op can run on no other. An op that
    fits no device of its group (any more) goes where it ends first. Where the linear program does not end within the
    budget (or `evaluations` iterations; by default as for
    :func:`~rlinit.heuristics.placements.published.m_sct.m_sct`), each op goes to the group of its fastest device.
    For `throughput` all shards of an op stay together, unless no device takes them all.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    Su, Ren, Vardi, Wierman: Communication-aware scheduling of precedence-constrained tasks on related machines.
    arXiv 2004.14639, Algorithms 1 and 2; the linear program and its rounding after Chudak and Shmoys, J. Algorithms 30,
    1999.
    """
    speed = device_speeds(problem)
    group = speed_groups(speed)
    usable = np.isfinite(problem.op_time_s) & (group >= 0)
    alone = ~usable.any(axis=1)
    usable[alone] = np.isfinite(problem.op_time_s[alone])
    # Devices that were left out come back, as the slowest group, for ops that have nothing else.
    group = np.where(group >= 0, group, 0)
    share = _shares(problem, usable, evaluations, budget)
    if share is None:
        chosen = np.where(usable, problem.op_time_s, np.inf).argmin(axis=1)
        return _within(problem, usable, group, group[chosen])
    return _within(problem, usable, group, assign_groups(share, usable, speed, group))


def device_speeds(problem: PlacementProblem) -> FloatArray:
    """Return (d,) speeds: the average over ops of the least time of the op over its time on the device, 0 if forbidden.

    Ops that take no time anywhere tell nothing and are left out; without others every speed is 1.
    """
    time = problem.op_time_s
    least = time.min(axis=1, initial=np.inf)
    known = np.isfinite(least) & (np.where(np.isfinite(time), time, 0.0).max(axis=1, initial=0.0) > 0)
    if not known.any():
        return np.ones(problem.num_devices)
    time, least = time[known], least[known]
    ratio = np.divide(least[:, None], time, out=np.ones_like(time), where=time > 0)
    return np.asarray(ratio.mean(axis=0), np.float64)


def speed_groups(speed: FloatArray) -> IntArray:
    """Return (d,) the group of each device, 0 the slowest, -1 for those left out.

    Speeds are scaled so that the fastest is d; those of at most 1 are left out (but for the fastest), and group k holds
    the speeds in [g^k, g^(k+1)) with g = log d / log log d, but at least 2: for few devices the quotient means nothing.
    """
    d = len(speed)
    fastest = float(speed.max(initial=0.0))
    if fastest <= 0:
        return np.zeros(d, np.int64)
    scaled = speed / fastest * d
    base = max(2.0, np.log(d) / np.log(np.log(d))) if d > 15 else 2.0
    # The factor keeps speeds that are a power of the base, but for rounding, out of the group below.
    group = np.floor(np.log(np.maximum(scaled, 1.0)) / np.log(base) * (1 + 1e-12)).astype(np.int64)
    return np.where((scaled > 1.0) | (scaled >= d), group, -1)


def assign_groups(share: FloatArray, usable: NDArray[np.bool_], speed: FloatArray, group: IntArray) -> IntArray:
    """Round fractions to one group for each op.

    Let l be the largest index such that the groups l, l + 1, ... hold at least half of the op; of these the op goes to
    the one with the largest sum of speeds, among those that have a device for it.

    Parameters
    ----------
    share
        (n, d) fractions of each op on each device.
    usable
        (n, d) devices an op may go to.
    speed, group
        (d,) of the devices.
    """
    count = int(group.max(initial=0)) + 1
    member = group[:, None] == np.arange(count)
    held = share @ member
    from_here = np.cumsum(held[:, ::-1], axis=1)[:, ::-1]
    lowest = (from_here >= 0.5 * from_here[:, :1] - 1e-9).sum(axis=1) - 1
    total = speed @ member
    able = (usable @ member) & (np.arange(count) >= lowest[:, None])
    best: IntArray = np.where(able, total, -1.0).argmax(axis=1)
    return best


def _within(
    problem: PlacementProblem, usable: NDArray[np.bool_], group: IntArray, chosen: IntArray
) -> Placement | None:
    favourite = np.full(problem.num_ops, -1, np.int64)
    return earliest_start(problem, usable & (group == chosen[:, None]), favourite)


def _shares(
    problem: PlacementProblem, usable: NDArray[np.bool_], evaluations: int | None, budget: Budget | None
) -> FloatArray | None:
    """Return (n, d) fractions of the relaxed assignment, or None where the linear program takes too long.

    ::

        min T   sum over i of x_vi = 1              for ops v
                sum over i of t_vi x_vi <= C_v
                C_u + sum over i of t_vi x_vi <= C_v  for edges u -> v
                sum over v of t_vi x_vi <= T        for devices i
                C_v <= T

    Ops that no device takes whole are left out of the first family: their x is empty.
    """
    n, d = problem.num_ops, problem.num_devices
    ops, devices = np.nonzero(usable)
    k, m = len(ops), len(problem.edges)
    seconds = problem.op_time_s[ops, devices]
    unit = float(seconds.max(initial=0.0))
    seconds = seconds / unit if unit > 0 else seconds
    by_op = scipy.sparse.csr_matrix((seconds, (ops, np.arange(k))), shape=(n, k))
    some = usable.any(axis=1)
    covered = -scipy.sparse.csr_matrix((np.ones(k), (ops, np.arange(k))), shape=(n, k))
    by_device = scipy.sparse.csr_matrix((seconds, (devices, np.arange(k))), shape=(d, k))
    eye, last = scipy.sparse.identity(n, format="csr"), scipy.sparse.csr_matrix
    tail, head = problem.edges[:, 0], problem.edges[:, 1]
    rows = [[by_op, -eye, last((n, 1))]]
    if m:
        both = last((np.repeat([1.0, -1.0], m), (np.tile(np.arange(m), 2), np.concatenate([tail, head]))), shape=(m, n))
        rows.append([by_op[head], both, last((m, 1))])
    rows.append([by_device, last((d, n)), last(-np.ones((d, 1)))])
    rows.append([last((n, k)), eye, last(-np.ones((n, 1)))])
    rows.append([covered, last((n, n)), last((n, 1))])
    matrix = scipy.sparse.csr_matrix(scipy.sparse.bmat(rows))
    limit = np.concatenate([np.zeros(matrix.shape[0] - n), np.where(some, -1.0, 0.0)])
    point = run_linear_program(matrix, limit, np.full(k + n + 1, np.inf), n + m, evaluations=evaluations, budget=budget)
    if point is None:
        return None
    share = np.zeros((n, d))
    share[ops, devices] = point[:k]
    return share
