"""Stages filled one after the other from either end, under a bottleneck that is bisected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rlinit.arrays import DEFAULT_WORK, MOST_CELLS, WORK_A_LOOK, FloatArray
from rlinit.budget import Budget
from rlinit.heuristics.stages.filling.kernel import fill_line, new_line, new_loads
from rlinit.heuristics.stages.filling.stage_state import FillRule, new_state
from rlinit.heuristics.stages.filling.threshold_search import Attempt, ThresholdSearch
from rlinit.heuristics.stages.slicing.orders import Found, natural, random_orders
from rlinit.kernels.stages.priorities import FEATURES, balance_prices, longest_tails, reach_sums
from rlinit.stages.kernel_arrays import kernel_arrays
from rlinit.stages.problem import StageAssignment, StageProblem, byte_costs, evaluate, largest_cost

_PRICE_ROUNDS = 300
"""Rounds of multiplicative weights for the prices of devices, fewer where ops times classes are many."""

_MOST_TILT = 0.02
"""Part of an op's mean value that the ops which much waits for are worth more; less where stages must be full."""

_FRONTS = (1.0, 0.0, 0.5)
"""Share of stages that are taken from the front, run by run."""


class FillSettings:
    """What fillings of one problem share: arrays, features of ops for both ends, and prices of devices.

    Parameters
    ----------
    problem
        The problem.
    """

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.arrays = kernel_arrays(problem)
        work = self.arrays.work
        self.cheapest = work.min(axis=0)
        rounds = max(_PRICE_ROUNDS // 30, min(_PRICE_ROUNDS, MOST_CELLS // max(1, work.size)))
        self.price = balance_prices(work, problem.class_count, rounds)
        self.features = (_features(problem, work, True), _features(problem, work, False))
        self.fixed = problem.stage_class if problem.objective == "memory" else np.zeros(0, np.int64)
        self.key = np.random.default_rng(1).integers(1, 2**63, problem.num_nodes).astype(np.uint64)

    def value_of_ops(self, price: FloatArray) -> FloatArray:
        """Return (n,) what it costs at these prices to do each op on the best class, infinite nowhere."""
        return np.asarray((price[:, None] * self.arrays.work).min(axis=0), np.float64)

    def draw(
        self, rng: np.random.Generator, run: int, threshold: float, effort: int
    ) -> tuple[FloatArray, tuple[FillRule, FillRule]]:
        """Return the prices of devices and the rules of both ends for one run, each drawn anew.

        Parameters
        ----------
        rng
            Where they are drawn from.
        run
            Number of the run; some use one feature alone.
        threshold
            Seconds that a stage may cost.
        effort
            How many times as many loads as at first are looked at.
        """
        price = self.price
        if self.problem.num_classes > 1:
            mixed = price * rng.uniform(0.3, 1.0)
            price = (mixed + price.mean() - mixed.mean()) * np.exp(0.2 * rng.standard_normal(len(price)))
        value = self.value_of_ops(price)
        weights = rng.dirichlet(np.full(len(FEATURES), 0.5))
        if run % 4 < 2:
            weights = np.zeros(len(FEATURES))
            weights[2 * (run % 2)] = 1.0
        near = self.arrays.in_s.min(axis=0), self.arrays.out_s.min(axis=0)
        share = (0.0, 0.5, 1.0)[int(rng.integers(3))] * float(price.mean())
        slack = max(0.0, 1.0 - float(value.sum()) / max(float(self.problem.class_count @ price) * threshold, 1e-300))
        tilt = min(_MOST_TILT, 2.0 * slack) * float(rng.random()) * float(value.mean())
        cap, dives = (500 * effort, 4 * effort) if run % 2 else (100, 16 * effort)
        most = max(1, WORK_A_LOOK // self.problem.num_classes)  # no look at the clock within a stage
        cap, dives = min(cap, most), min(dives, max(1, most // (1 + self.problem.num_nodes // 16)))
        rules = [
            FillRule(
                forward=forward,
                value=value + tilt * self.features[side][:, 0],
                priority=self.features[side] @ weights,
                penalty=near[side] * share,
                cap=cap,
                dives=dives,
                noise=float(rng.uniform(0.02, 0.6)),
                full=1.0 - slack * float(rng.random()),
            )
            for side, forward in enumerate((True, False))
        ]
        return price, (rules[0], rules[1])


class Filler:
    """Fills lines by random rules; one call is one attempt of a `ThresholdSearch`.

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
        self.loads = new_loads(1, settings.key)
        self.runs = 0

    def __call__(
        self, threshold: float, effort: int, _best: StageAssignment | None = None
    ) -> tuple[StageAssignment | None, int]:
        """Return an assignment within the threshold, or None after so many tries, and the loads looked at."""
        settings, problem = self.settings, self.settings.problem
        total = 0
        for _ in range(2 * len(_FRONTS) * effort):  # each kind of rule for each share
            if total and self.budget.expired:
                break
            price, rules = settings.draw(self.rng, self.runs, threshold, effort)
            front = _FRONTS[self.runs // 2 % 3]
            line = new_line(settings.arrays, self.state, problem.num_stages, problem.class_count)
            args = (self.rng, settings.arrays, self.state, self.loads, rules, threshold, front, price, settings.fixed)
            while line.now[2] > 0 and line.now[0] <= line.now[1]:
                if total and self.budget.expired:
                    return None, total
                total += 1 + int(fill_line(*args, line, WORK_A_LOOK))
            self.runs += 1
            total += problem.num_nodes
            if line.now[2] == 0:
                return StageAssignment(line.stage, line.classes), total
        return None, total


def fill(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Fill stages one after the other and bisect the bottleneck; `evaluations` are loads looked at.

    Never worse than slicing the natural order. By default 4 million loads.

    Parameters
    ----------
    problem
        The problem; for `memory` only the first level counts.
    seed
        Of everything random.
    evaluations
        Loads of stages that are looked at.
    budget
        When to stop.
    """
    start = sliced(problem, seed, budget)
    return bisect_from(Filler, problem, start, seed=seed, loads=evaluations or DEFAULT_WORK, budget=budget)


def sliced(problem: StageProblem, seed: int, budget: Budget | None) -> StageAssignment | None:
    """Return the natural order sliced, or a random one where that fails; None where all do.

    Parameters
    ----------
    problem
        The problem.
    seed
        Of random orders.
    budget
        When to stop.
    """
    found = natural(problem) or random_orders(problem, seed=seed, budget=budget)
    return found[0] if found else None


def bisect_from(
    searcher: Callable[[FillSettings, int, Budget], Attempt[StageAssignment]],
    problem: StageProblem,
    start: StageAssignment | None,
    *,
    seed: int,
    loads: int,
    lower: float = 0.0,
    quantum: float = 0.0,
    budget: Budget | None = None,
    on_solution: Callable[[StageAssignment], object] | None = None,
) -> Found:
    """Return the best assignment found below a bisected bottleneck; None where there is none at all.

    Parameters
    ----------
    searcher
        Takes what is known of the problem, a seed and a budget; gives the attempts to stay within a bottleneck.
    problem
        The problem. For `memory` only the first level counts.
    start
        An assignment to improve, or None; the result is never worse.
    seed
        Of everything random.
    loads
        Loads of stages that are looked at.
    lower
        A bottleneck that none is below.
    quantum
        Every bottleneck is a whole multiple of it; 0: not known.
    budget
        When to stop.
    on_solution
        Called with each better assignment.
    """
    settings = FillSettings(problem)
    if not np.isfinite(settings.cheapest).all():
        return None
    clock = budget or Budget()
    floor = max(lower, quick_lower_bound(settings))
    attempt, value_of = searcher(settings, seed, clock), partial(evaluate, problem)
    search = ThresholdSearch(value_of, attempt, floor, clock, quantum, on_solution)
    if start is not None:
        search.offer(start)
    costs = byte_costs(problem) if problem.objective == "memory" else problem.cost_arrays
    search.run(largest_cost(costs), loads)
    return None if search.best is None or search.value is None else (search.best, search.value)


def quick_lower_bound(settings: FillSettings) -> float:
    """Return the larger of the costliest op and the average load at the settings' prices, less room for rounding."""
    count = settings.problem.class_count
    load = float(settings.value_of_ops(settings.price).sum()) / float(count @ settings.price)
    return max(float(settings.cheapest.max(initial=0.0)), load * (1 - 1e-9))


def _features(problem: StageProblem, work: FloatArray, forward: bool) -> FloatArray:
    """Return (n, features) of ops as seen from the front, or from the back."""
    n = problem.num_nodes
    allowed = np.isfinite(work)
    finite = np.where(allowed, work, 0.0)
    mean = finite.sum(axis=0) / np.maximum(allowed.sum(axis=0), 1)
    indptr, after = (problem.succ_indptr, problem.succ) if forward else (problem.pred_indptr, problem.pred)
    order = problem.order if forward else np.ascontiguousarray(problem.order[::-1])
    tail = longest_tails(order, indptr, after, mean)
    reach = reach_sums(order, indptr, after, mean) if n * n <= MOST_CELLS else tail
    earliness = np.empty(n)
    earliness[order] = np.arange(n, 0, -1)
    spread = np.maximum(finite.max(axis=0) - work.min(axis=0), 0.0)
    columns = [reach, tail, mean, np.diff(indptr).astype(np.float64), spread, earliness]
    return np.column_stack([column / max(float(column.max(initial=0.0)), 1e-300) for column in columns])
