"""Branch, bound and remember: level by level, from the end of the line that branches less."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray, inverse_of
from rlinit.budget import Budget, reserve
from rlinit.exact.stages.bounds.convex_cover import ConvexCover
from rlinit.exact.stages.remember.dominance import keep_undominated, pays_for_itself
from rlinit.exact.stages.remember.expansion import Keys, expand
from rlinit.exact.stages.remember.pricing import Line, Prices, refute_states
from rlinit.kernels.stages.stage_state import FillRule, new_state
from rlinit.kernels.stages.states import States, chosen_states, new_states, rehash
from rlinit.stages.kernel_arrays import kernel_arrays
from rlinit.stages.levels import read_levels
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate

_QUOTA = 50_000
"""Loads between looks at the budget: some 20 to 50 ms."""

_REFUTED = 20
"""States between looks at the budget."""

_MOST_BYTES = 2**29
"""Bytes of a level and its prices at most; where it has more states, the search gives up."""

_WIDTH = 1_000
"""States that a level has room for at first."""

_ROUNDING = 1e-9
"""Relative room around trials and values."""

_CLOSED, _NEAR = 5e-7, 0.02
"""Shares of the value: bound and value are as good as equal, and no other trial is made between them."""


@dataclass(slots=True)
class _Level:
    """States that are kept, and their prices."""

    states: States
    prices: Prices


@dataclass(slots=True)
class _Side:
    """A search from one end under one trial.

    Parameters
    ----------
    problem
        The problem.
    forward
        From the front, else from the back.
    cover
        Prices at the trial, where the search begins.
    trial
        Seconds of a stage at most.
    budget
        When to stop.
    """

    problem: StageProblem
    forward: bool
    cover: ConvexCover
    trial: float
    budget: Budget
    levels: list[_Level] = field(init=False)
    keys: Keys = field(init=False)
    line: Line = field(init=False)

    def __post_init__(self) -> None:
        problem, forward, a = self.problem, self.forward, kernel_arrays(self.problem)
        n, c = problem.num_nodes, problem.num_classes
        rng = np.random.default_rng(1)
        order = np.ascontiguousarray(problem.order)
        place = inverse_of(order)
        self.keys = Keys(
            rng.integers(1, 2**63, n).astype(np.uint64),
            rng.integers(1, 2**63, c).astype(np.uint64),
            pays_for_itself(a, forward, problem.class_count),
            _silent(problem, forward),
            problem.class_count,
            order if forward else np.ascontiguousarray(order[::-1]),
        )
        rooms = np.array([tuple(room) for room in self.cover.rooms(self.trial)])
        work, param = np.ascontiguousarray(a.work[:, order]), np.ascontiguousarray(a.param[order])
        self.line = Line(work, param, rooms, self.cover.behind, place, problem.class_count)
        root = new_states(1, n, c)
        root.now[0] = 1
        prices = Prices(self.cover.price[order][None].copy(), self.cover.worth[None].copy())
        self.levels = [_Level(root, prices)]

    def advance(self) -> Literal["done", "refuted", "on", "stopped"]:
        """Make the next level: whether one state has placed everything, none is left, or neither is known."""
        problem, a = self.problem, kernel_arrays(self.problem)
        n, c = problem.num_nodes, problem.num_classes
        rule = FillRule(self.forward, np.zeros(n), np.zeros(n), np.zeros(problem.num_tensors), 0, 0, 0.0, 1.0)
        level, children, state = self.levels[-1], new_states(_WIDTH, n, c), new_state(a)
        first = 0
        while first < level.states.now[0]:
            if self.budget.expired:
                return "stopped"
            before = first
            first, work = expand(
                a, state, rule, self.keys, self.trial, level.states, level.prices, children, first, _QUOTA
            )
            if children.now[1] >= 0:
                self.levels.append(_Level(chosen_states(children, children.now[1:]), level.prices))
                return "done"
            if first == before and work <= _QUOTA:
                roomier = self._thinned(children)
                if roomier is None:
                    return "stopped"
                children = roomier
        return self._close(chosen_states(children, self._undominated(children)), level)

    def _thinned(self, states: States) -> States | None:
        """Return the states that are not dominated with room for at least as many, or None where that is too much."""
        n, c = self.problem.num_nodes, self.problem.num_classes
        kept, width = self._undominated(states), len(states.sign)
        if len(kept) <= width // 2:
            rehash(states, kept, states)
            return states
        size = 2 * width * (n // 4 + 2 * c + 48 + 8 * (n + c))
        if size > _MOST_BYTES:
            return None
        reserve(size, f"{2 * width:,} remembered states")
        roomier = new_states(2 * width, n, c)
        rehash(states, kept, roomier)
        return roomier

    def _close(self, states: States, before: _Level) -> Literal["refuted", "on", "stopped"]:
        """Price the states of the next level and leave out those that cannot be completed."""
        problem, count = self.problem, int(states.now[0])
        prices = Prices(np.zeros((count, problem.num_nodes)), np.zeros((count, problem.num_classes)))
        kept: list[IntArray] = [np.zeros(0, np.int64)]
        for at in range(0, count, _REFUTED):
            if self.budget.expired:
                return "stopped"
            kept.append(refute_states(self.line, states, before.prices, prices, at, min(count, at + _REFUTED)))
        rest = np.concatenate(kept)
        self.levels[-1] = _Level(before.states, Prices(before.prices.price[:0], before.prices.worth[:0]))
        self.levels.append(_Level(chosen_states(states, rest), Prices(prices.price[rest], prices.worth[rest])))
        return "on" if len(rest) else "refuted"

    def _undominated(self, states: States) -> IntArray:
        count = int(states.now[0])
        placed = np.bitwise_count(states.bits[:count]).sum(axis=1).astype(np.int64)
        order = np.lexsort((-placed, *states.used[:count].T)).astype(np.int64)
        pays = self.keys.pays
        return keep_undominated(kernel_arrays(self.problem), pays, self.forward, states, order, bool(pays.all()))

    def read(self) -> StageAssignment:
        """Return the assignment that led to the only state of the last level."""
        return read_levels(self.problem, [level.states for level in self.levels], self.forward)


def search_below(
    problem: StageProblem,
    cover: ConvexCover,
    trial: float,
    budget: Budget,
    on_solution: Callable[[StageAssignment], None],
) -> bool:
    """Return whether it is proven that no assignment has a bottleneck of at most `trial`; tell of one that has.

    States are sets of ops placed from one end and the devices used, a level for each number of devices. All loads of
    the next stage are tried, but for those that other ones make needless (`expansion`). Left out are states that others
    with the same devices dominate (`dominance`), and those whose rest is worth more than what is left can hold
    (`pricing`). The end is the one with fewer first states.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    cover
        Convex loads of the problem.
    trial
        Seconds, at least 0.
    budget
        When to stop; then nothing is proven.
    on_solution
        Told of an assignment within the trial, up to rounding.
    """
    if problem.num_nodes == 0:
        return False
    if cover.held(trial) < 1.0:
        return True
    sides = [_Side(problem, forward, cover, trial, budget) for forward in (True, False)]
    sizes = []
    for side in sides:
        outcome = side.advance()
        if outcome in ("done", "refuted"):
            return _told(side, outcome, on_solution)
        sizes.append(int(side.levels[-1].states.now[0]) if outcome == "on" else np.inf)
    side, outcome = sides[int(np.argmin(sizes))], "on" if min(sizes) < np.inf else "stopped"
    while outcome == "on":
        outcome = side.advance()
    return _told(side, outcome, on_solution)


def improve_and_prove(
    cover: ConvexCover,
    lower: float,
    upper: float,
    *,
    quantum: float = 0.0,
    on_solution: Callable[[StageAssignment], None],
    on_bound: Callable[[float], None],
) -> None:
    """Search below trials between a bound and a value until they meet, or one search gives up.

    A trial half way costs little where it can be refuted; the last one is just below the value.

    Parameters
    ----------
    cover
        Convex loads of a `pipeline` problem; its budget says when to stop.
    lower, upper
        A proven bound, and the value of an assignment.
    quantum
        Every bottleneck is a whole multiple of it; 0: not known. Trials lie between two multiples then.
    on_solution, on_bound
        Told of every assignment below `upper`, and of every bound above `lower`.
    """
    problem, budget = cover.problem, cover.budget
    values: list[float] = [upper]

    def take(found: StageAssignment) -> None:
        values.append(evaluate(problem, found)[0])
        on_solution(found)

    while not budget.expired and max(lower, 0.0) < min(values) * (1 - _CLOSED) - 0.5 * quantum:
        high, known = min(values), len(values)
        trial = 0.5 * (lower + high) if high - lower > max(_NEAR * high, 2 * quantum) else high
        if quantum > 0.0:
            trial = (math.ceil(trial / quantum * (1 - _ROUNDING)) - 0.5) * quantum
        trial = min(trial, high * (1 - _CLOSED))
        if search_below(problem, cover, trial, budget, take):
            lower = trial
            on_bound(trial)
        elif len(values) == known:
            return


def _told(side: _Side, outcome: str, on_solution: Callable[[StageAssignment], None]) -> bool:
    """Return whether the search refuted its trial; tell of what it found."""
    if outcome == "done":
        found = side.read()
        if evaluate(side.problem, found)[0] <= side.trial * (1 + _ROUNDING):
            on_solution(found)
    return outcome == "refuted"


def _silent(problem: StageProblem, forward: bool) -> NDArray[np.bool_]:
    """Return (n,) whether all tensors that an op makes (from the back: reads) cost nothing to send (to bring in)."""
    costs = problem.out_s if forward else problem.in_s
    dear = costs.max(axis=0, initial=0.0) > 0
    indptr = problem.out_indptr if forward else problem.in_indptr
    tensor = problem.out_tensor if forward else problem.in_tensor
    owner = np.repeat(np.arange(problem.num_nodes), np.diff(indptr))
    return np.asarray(np.bincount(owner, weights=dear[tensor], minlength=problem.num_nodes) == 0)
