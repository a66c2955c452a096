"""Large neighbourhoods: the ops in a window of time are placed anew by CP-SAT, all others stay as they are.

Ops before the window keep their devices and starts, those after it their devices and order. What is before enters as
the first moment at which a free op may start on each device, what is after as the time from its end to the makespan.

References
----------
Shaw, "Using constraint programming and local search methods to solve vehicle routing problems" (CP 1998), for large
neighbourhoods.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.chains import restricted
from rlinit.exact.placements.constraint.integer_times import IntegerTimes
from rlinit.exact.placements.constraint.model import ConstraintModel
from rlinit.exact.solvers.cp_sat import ConstraintSearch, ConstraintSettings
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, placement_of, timeline

_BETTER = 1.0 - 1e-6
"""Part of the makespan that a window has to reach."""

_FIRST_OPS, _LEAST_OPS, _MOST_OPS = 60, 12, 200
"""Ops of a window at first, at least and at most."""

_CLAUSES, _CLAUSE_S = 30_000, 2e-5
"""Most ops of a window times pairs of devices, and seconds in which one of them is written down."""

_LARGER, _SMALLER = 1.1, 0.85
"""What the ops of a window are multiplied by where nothing better was to be found, and where its work ended first."""

_WORK = 0.1
"""Deterministic work in a window: 0.6 s for some 100 ops on four devices."""


class _Around(NamedTuple):
    """What surrounds a window: ``head`` and ``tail`` (n, d) of its ops, and a makespan that it cannot go below."""

    head: FloatArray
    tail: FloatArray
    least_s: float


class WindowSearch:
    """Windows at random places of a placement, of as many ops as CP-SAT can do with.

    :attr:`affordable` is False where devices are so many that windows would be too small to be worth it.

    Parameters
    ----------
    problem
        A latency problem.
    seed
        Of everything random.
    """

    def __init__(self, problem: PlacementProblem, seed: int) -> None:
        self._problem, self._rng = problem, np.random.default_rng(seed)
        self._most = min(_MOST_OPS, _CLAUSES // problem.num_devices**2)
        self._size = float(min(_FIRST_OPS, self._most))
        self.affordable, self._exhausted = self._most >= _LEAST_OPS, False

    def goes_on(self, budget: Budget) -> bool:
        """Return whether there is time for a window, and the whole is not known to be the best.

        Parameters
        ----------
        budget
            Of the search.
        """
        return not self._exhausted and budget.remaining_s > _CLAUSE_S * self._size * self._problem.num_devices**2

    def improve(self, placement: Placement, budget: Budget) -> Placement | None:
        """Place one window anew and return the result where it should be better.

        Parameters
        ----------
        placement
            A feasible placement.
        budget
            Ends the search.
        """
        n = self._problem.num_ops
        size = min(n, int(self._size))
        # Windows at both ends are as likely as others.
        first = int(np.clip(self._rng.integers(-(size // 2), n - size // 2), 0, n - size))
        settings = ConstraintSettings(_WORK, int(self._rng.integers(1 << 30)), relaxations=False)
        found, ended = solve_window(self._problem, placement, (first, first + size), budget=budget, settings=settings)
        factor = {"infeasible": _LARGER, "stopped": _SMALLER}.get(ended, 1.0)
        self._size = min(max(self._size * factor, _LEAST_OPS), self._most)
        self._exhausted = size == n and ended != "stopped"
        return found


def solve_window(
    problem: PlacementProblem,
    placement: Placement,
    window: tuple[int, int],
    *,
    budget: Budget,
    settings: ConstraintSettings,
) -> tuple[Placement | None, str]:
    """Place the ops of a window anew; return the better placement, if one was found, and how the search ended.

    Parameters
    ----------
    problem
        A latency problem; its transfers are taken as parallel.
    placement
        A feasible placement of it.
    window
        First and last place, this excluded, in its sequence.
    budget
        Ends the search.
    settings
        Of CP-SAT.

    Returns
    -------
    The placement, whose value the receiver computes, or None; ``optimal`` (the best of the window), ``infeasible``
    (nothing better), or ``stopped``.
    """
    n, d = problem.num_ops, problem.num_devices
    sequence, device = placement.sequence // d, placement.device[:, 0]
    run = timeline(problem, placement)
    horizon = run.makespan_s * _BETTER
    around = _surroundings(problem, sequence, device, run.end_s, window)
    if around.least_s >= horizon or horizon <= 0.0:
        return None, "infeasible"
    inside = np.zeros(n, np.bool_)
    inside[sequence[window[0] : window[1]]] = True
    ops = np.flatnonzero(inside)
    time_s = problem.time_s[ops].copy()
    fixed = np.full(n, -1)
    fixed[problem.group[~inside]] = device[~inside]  # Members of a group that are outside decide for those inside.
    for k, v in enumerate(ops.tolist()):
        if (only := fixed[problem.group[v]]) >= 0:
            time_s[k, np.arange(d) != only, 1] = np.inf
    alone = restricted(problem, inside, time_s)
    outside = held_bytes(problem, placement.device) - held_bytes(alone, device[ops, None])
    alone = dataclasses.replace(alone, capacity_bytes=np.maximum(problem.capacity_bytes - outside, 0.0))
    times = IntegerTimes.of(alone, horizon)
    model = ConstraintModel(alone, times, times.below(horizon), around=(around.head[ops], around.tail[ops]))
    search = ConstraintSearch(model, budget, settings)
    ended = search.run(lambda _: None, lambda _: None)
    if search.last is None:
        return None, ended
    chosen, steps = search.last
    start = np.where(np.isnan(run.start_s), 0.0, run.start_s).max(axis=1)
    start[ops] = np.nanmax(steps, axis=1) * times.unit_s
    devices = placement.device.copy()
    devices[ops] = chosen
    # Windows come one after another, whatever the seconds say, as long as nothing before or after moves.
    place = inverse_of(sequence)
    part = np.where(place < window[0], 0.0, np.where(place < window[1], 1.0, 2.0)) * 2.0 * run.makespan_s
    return placement_of(problem, devices, np.repeat((start + part)[:, None], d, axis=1)), ended


def _surroundings(
    problem: PlacementProblem, sequence: IntArray, device: IntArray, end_s: FloatArray, window: tuple[int, int]
) -> _Around:
    """Return what ops before and after a window leave to those in it, all transfers in parallel."""
    n, d = problem.num_ops, problem.num_devices
    place = inverse_of(sequence)
    end = end_s[np.arange(n), device]
    free, rest = np.zeros(d), np.zeros(d)
    before, after = sequence[: window[0]], sequence[window[1] :]
    np.maximum.at(free, device[before], end[before])
    # From the start of each op after the window to the makespan.
    left = np.zeros(n)
    for v in after[::-1].tolist():
        following = problem.succ_of(v)
        moved = problem.transfers_s(v)[device[v], device[following]] + left[following]
        left[v] = problem.op_time_s[v, device[v]] + max(rest[device[v]], moved.max(initial=0.0))
        rest[device[v]] = left[v]
    least = float(max((free + rest).max(initial=0.0), end[before].max(initial=0.0)))
    head, tail = np.repeat(free[None], n, axis=0), np.repeat(rest[None], n, axis=0)
    for u, w in problem.edges.tolist():
        if place[u] >= window[1] or place[w] < window[0]:
            continue
        if place[u] < window[0]:
            ready = end[u] + problem.transfers_s(u)[device[u]]
            if place[w] >= window[1]:
                least = max(least, float(ready[device[w]] + left[w]))
            else:
                head[w] = np.maximum(head[w], ready)
        elif place[w] >= window[1]:
            tail[u] = np.maximum(tail[u], problem.transfers_s(u)[:, device[w]] + left[w])
    return _Around(head, tail, least)
