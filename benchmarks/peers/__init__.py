"""Other solvers on the same placement problems: the rivals in the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.errors import RlinitError
from rlinit.placement import PlacementProblem
from rlinit.stages import FloatArray, IntArray
from rlinit.timeline import makespan, placement_of

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
    """Return the result with its value computed anew; a schedule that breaks a constraint counts as none."""
    if device is not None and start_s is not None:
        value_s = makespan(problem, placement_of(problem, device, start_s))
        if np.isfinite(value_s):
            return PeerResult(value_s, bound_s, status, seconds, device, start_s)
        status = "no_solution"
    nothing = np.zeros((0, 0))
    return PeerResult(float("inf"), bound_s, status, seconds, nothing.astype(np.int64), nothing)
