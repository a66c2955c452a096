"""Other solvers on the same placement problems: the rivals in the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import RlinitError
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_of

__all__ = ["PeerResult", "horizon_s", "judged", "require_parallel"]

Status = Literal["optimal", "feasible", "infeasible", "no_solution"]


@dataclass(frozen=True, slots=True, eq=False)
class PeerResult:
    """What a peer found and claims about a placement problem.

    Parameters
    ----------
    value_s
        Makespan of the schedule found, computed from its devices and order and not taken from the peer; inf: none.
    bound_s
        The lower bound the peer claims, less what rounding its input may have added.
    status
        How the peer ended: ``optimal`` is its own claim, within its tolerances.
    seconds
        Wall-clock time with building the model.
    device
        (n, s) device of each shard; (0, 0) without a schedule.
    start_s
        (n, d) start of each batch as the peer gave it, NaN where there is none; (0, 0) without a schedule.
    """

    value_s: float
    bound_s: float
    status: Status
    seconds: float
    device: IntArray
    start_s: FloatArray


def require_parallel(problem: PlacementProblem, peer: str) -> None:
    """Refuse a way of transferring that the peer's model does not have.

    Raises
    ------
    RlinitError
        `transfers` is not ``parallel``.
    """
    if problem.transfers != "parallel":
        raise RlinitError(f"{peer} models parallel transfers; the problem's are {problem.transfers!r}")


def _longest_transfers(problem: PlacementProblem) -> FloatArray:
    """Return (n,) the most seconds it takes to move all of an op's output over any link."""
    linked = np.isfinite(problem.delay_s)
    whole = problem.num_shards * problem.tensor_bytes
    delay, rate = problem.delay_s[linked], problem.s_per_byte[linked]
    return np.array([(delay + rate * size).max() for size in whole])


def horizon_s(problem: PlacementProblem) -> float:
    """Return seconds that no schedule without idling can exceed, whatever its devices and its order.

    The makespan is the length of a path on which every batch comes once, with one transfer after each at most.
    """
    s = problem.num_shards
    time_s = np.where(np.isfinite(problem.time_s), problem.time_s, 0.0)
    longest = np.sort(time_s.max(axis=2), axis=1)[:, -min(s, problem.num_devices) :]
    batches = min(s, problem.num_devices)
    return float(longest.sum() + batches * _longest_transfers(problem).sum())


def judged(
    problem: PlacementProblem,
    device: IntArray | None,
    start_s: FloatArray | None,
    bound_s: float,
    status: Status,
    seconds: float,
) -> PeerResult:
    """Return the result with its value computed anew; a schedule that breaks a constraint counts as none.

    Starts that differ by less than a peer's tolerance are taken for equal in one of the attempts.
    """
    nothing = np.zeros((0, 0))
    if device is None or start_s is None:
        return PeerResult(float("inf"), bound_s, status, seconds, nothing.astype(np.int64), nothing)
    steps = [horizon_s(problem) * tolerance for tolerance in (0.0, 1e-9, 1e-7, 1e-6)]
    value_s = min(makespan(problem, _in_order(problem, device, start_s, step)) for step in steps)
    if np.isinf(value_s):
        return PeerResult(value_s, bound_s, "no_solution", seconds, nothing.astype(np.int64), nothing)
    return PeerResult(value_s, bound_s, status, seconds, device, start_s)


def _in_order(problem: PlacementProblem, device: IntArray, start_s: FloatArray, step_s: float) -> Placement:
    """Return the placement in the order of starts (to a step); of batches that start together the shorter run first.

    A batch that takes no time may start with another one, and what waits for it need not wait for that one.
    """
    size = (device[:, :, None] == np.arange(problem.num_devices)).sum(axis=1)
    spent_s = np.take_along_axis(problem.time_s, size[:, :, None], axis=2)[:, :, 0]
    begin = start_s if step_s == 0.0 else np.round(start_s / step_s)
    position = np.empty(problem.num_ops, np.int64)
    position[problem.order] = np.arange(problem.num_ops)
    by_time = np.lexsort((np.repeat(position, problem.num_devices), spent_s.ravel(), begin.ravel()))
    rank = np.empty(len(by_time))
    rank[by_time] = np.arange(len(by_time))
    return placement_of(problem, device, rank.reshape(start_s.shape))
