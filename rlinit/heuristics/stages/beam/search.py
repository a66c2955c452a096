"""Beam search over what is placed and which devices are used, under a bottleneck that is bisected."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import DEFAULT_WORK, MOST_CELLS, ROUNDING, SAFETY, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.heuristics.stages.beam.kernel import expand_states
from rlinit.heuristics.stages.beam.levels import read_levels
from rlinit.heuristics.stages.beam.states import States, chosen_states, new_states
from rlinit.heuristics.stages.filling.kernel import new_loads
from rlinit.heuristics.stages.filling.search import FillSettings, bisect_from, sliced
from rlinit.heuristics.stages.filling.stage_state import FillRule, new_state
from rlinit.heuristics.stages.slicing.orders import Found
from rlinit.stages.problem import StageAssignment, StageProblem

_WIDTH = 10
"""States kept of a level at the first effort."""

_DIVES = 3
"""Ways in which a stage is filled from one state; each is a child."""

_NOISES = (0.05, 0.2, 0.5)
"""Standard deviations of what is added to the logarithm of priorities."""

_STEEPNESS = (0.0, 0.5, 1.0, 1.0)
"""Powers of the relative speed in a priority."""

_OVERHEAD = 400
"""What a search costs beside the loads that it looks at, in loads; it ends searches of a few ops that find no more."""


class Beam:
    """Searches from one end at a time; one call is one attempt of a `ThresholdSearch`.

    Parameters
    ----------
    settings
        What is known of the problem.
    seed
        Of everything random.
    budget
        When to stop.
    """

    def __init__(self, settings: FillSettings, seed: int, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget
        self.rng = np.random.default_rng(seed)
        self.state = new_state(settings.arrays)
        self.loads = new_loads(_DIVES, settings.key)
        self.speed = _log_speeds(settings.arrays.work, settings.problem.class_count)

    def __call__(
        self, threshold: float, effort: int, _best: StageAssignment | None = None
    ) -> tuple[StageAssignment | None, int]:
        """Return an assignment within the threshold, or None after a search from each end, and the loads looked at."""
        total = 0
        for forward in (True, False):
            if total and self.budget.expired:
                break
            found, work = self._search(threshold, effort, forward)
            total += work
            if found is not None:
                return found, total
        return None, total

    def _search(self, threshold: float, effort: int, forward: bool) -> tuple[StageAssignment | None, int]:
        settings, problem = self.settings, self.settings.problem
        n, k, num_classes = problem.num_nodes, problem.num_stages, problem.num_classes
        urgency, blend = self._urgencies(forward), float(self.rng.random())
        penalty = (self.settings.arrays.out_s if forward else self.settings.arrays.in_s).min(axis=0)
        rule = FillRule(
            forward=forward,
            value=np.zeros(n),
            priority=np.zeros(n),
            penalty=penalty * (0.0, 0.5, 1.0)[int(self.rng.integers(3))],
            cap=0,
            dives=_DIVES,
            noise=_NOISES[int(self.rng.integers(len(_NOISES)))],
            full=1.0,
        )
        child_bytes = num_classes * _DIVES * (n // 8 + 2 * num_classes + 40)
        width = max(1, min(_WIDTH * effort, 8 * MOST_CELLS // child_bytes))
        levels = [new_states(1, n, num_classes)]
        levels[0].now[0] = 1
        children = new_states(width * num_classes * _DIVES, n, num_classes)
        limit = threshold * (1 + ROUNDING)
        args = (self.rng, settings.arrays, self.state, self.loads, rule)
        total = _OVERHEAD + n
        for j in range(k):
            at = j if forward else k - 1 - j
            count = np.array([problem.class_count, problem.class_count])
            if len(settings.fixed):
                count[1] = np.arange(num_classes) == settings.fixed[at]
            children.now[:] = 0, -1
            children.table[:] = -1
            first = 0
            while first < levels[-1].now[0]:
                if self.budget.expired:
                    return None, total
                first, work = expand_states(*args, urgency, blend, limit, levels[-1], children, count, first)
                total += work
            levels.append(_best(children, width))
            if levels[-1].now[1] >= 0:
                return read_levels(problem, levels, forward), total
            if levels[-1].now[0] == 0:
                break
        return None, total

    def _urgencies(self, forward: bool) -> FloatArray:
        """Return (c, `_DIVES`, n) logarithms of priorities, the more the quicker a class is on an op, drawn anew."""
        settings = self.settings
        features = settings.features[0 if forward else 1]
        urgency = np.empty((len(self.speed), _DIVES, settings.problem.num_nodes))
        for i in range(_DIVES):
            weights = self.rng.dirichlet(np.full(features.shape[1], 0.3))
            urgency[:, i] = np.log(np.maximum(features @ weights, 1e-9)) + self.rng.choice(_STEEPNESS) * self.speed
        return urgency


def _log_speeds(work: FloatArray, class_count: IntArray) -> FloatArray:
    """Return (c, n) the logarithm of how much quicker a class is on an op than the harmonic mean of all devices."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = 1.0 / work
        mean = (class_count @ speed) / class_count.sum()
        ratio = np.log(speed / mean)
    return np.asarray(np.clip(np.nan_to_num(ratio, nan=0.0), np.log(SAFETY), -np.log(SAFETY)), np.float64)


def _best(children: States, width: int) -> States:
    """Return copies of the best `width` states; of the one that has placed everything if there is one."""
    count, done = int(children.now[0]), int(children.now[1])
    rows = np.argsort(children.rank[:count], kind="stable")[:width] if done < 0 else np.array([done])
    best = chosen_states(children, rows)
    best.now[1] = min(done, 0)
    return best


def beam(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Search a beam from either end and bisect the bottleneck; never worse than slicing the natural order.

    Parameters
    ----------
    problem
        The problem; for `memory` only the first level counts.
    seed
        Of everything random.
    evaluations
        Loads of stages that are looked at; by default 4 million.
    budget
        When to stop.
    """
    start = sliced(problem, seed, budget)
    return bisect_from(Beam, problem, start, seed=seed, loads=evaluations or DEFAULT_WORK, budget=budget)
