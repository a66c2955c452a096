"""The best schedule and bound so far, with the history of how they came about.

A part of the search that fails is noted and passed over, and what was found before it stays. A bound above the value of
a schedule is false: it is dropped, with a note. Where ``RLINIT_STRICT`` is set, as in the tests, both raise instead.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from rlinit.arrays import ROUNDING, SAFETY, FloatArray
from rlinit.budget import Budget, memory_watched
from rlinit.errors import InvalidPlan, OutOfMemory, RlinitError, SolverFailure
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.exact.stages.bounds.rounding import raised_bound, value_quantum
from rlinit.heuristics.placements.memory.peak_memory import PeakMemory
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan
from rlinit.plan import HistoryEntry, relative_gap
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate, sums_exactly

_NOTE_LENGTH = 300
"""Characters that a note keeps of an error's message."""

Progress = Callable[[HistoryEntry], None]
"""Called with every improvement of value or bound, and at every change of phase, from the solving thread."""

_SCIP = ("milp", "lp-root", "three-superblock", "guess")

_SOLVERS = {**dict.fromkeys(_SCIP, "scip"), "cp-sat": "cp-sat"}
"""What proves bounds by the word of a solver that this package does not check, and which."""


ProblemT = TypeVar("ProblemT")
ScheduleT = TypeVar("ScheduleT")


def strict() -> bool:
    """Return whether failed parts and false bounds raise, rather than being noted in the plan."""
    return bool(os.environ.get("RLINIT_STRICT"))


@dataclass(frozen=True, slots=True)
class Equality:
    """When two values of a level count as equal: within a share of the larger, or within so much of its unit.

    Sums of whole bytes are exact, so there only equal numbers are equal; sums of seconds, and of fractions of bytes,
    depend on the order of their terms.
    """

    relative: float = ROUNDING
    absolute: Value = ()

    def holds(self, level: int, one: float, other: float) -> bool:
        """Return whether two values of a level are equal.

        Parameters
        ----------
        level
            Which level of the objective.
        one, other
            Its values.
        """
        absolute = self.absolute[level] if self.absolute else 0.0
        return one == other or abs(one - other) <= max(self.relative * max(abs(one), abs(other)), absolute)

    def is_below(self, values: Value, others: Value) -> bool:
        """Return whether values come before others, compared level by level.

        Parameters
        ----------
        values, others
            Values of all levels.
        """
        for level, (value, other) in enumerate(zip(values, others, strict=True)):
            if not self.holds(level, value, other):
                return value < other
        return False

    def is_false(self, level: int, bound: float, value: float) -> bool:
        """Return whether a bound of a level exceeds a value by more than rounding.

        Parameters
        ----------
        level
            Which level of the objective.
        bound, value
            The bound, and the value of a schedule.
        """
        return bound > value * (1.0 + SAFETY) and not self.holds(level, bound, value)

    def reported(self, bounds: Value, values: Value) -> Value:
        """Return bounds that exceed no value.

        Behind a level that is not proven, a bound speaks of schedules that are better on that level than the one at
        hand, whose value may be below it. What is below a bound is a bound.

        Parameters
        ----------
        bounds, values
            Of all levels.
        """
        return tuple(map(min, bounds, values))


@dataclass(slots=True)
class Incumbent(Generic[ProblemT, ScheduleT]):
    """What is known so far about one problem. Never gets worse; every value is recomputed here.

    Parameters
    ----------
    problem
        The problem.
    value_of
        Gives the value of a schedule of the problem, infinite where it is not feasible.
    budget
        When to stop.
    target_gap
        Closed once the gap is at most this.
    progress
        Told about every improvement.
    equality
        When two values are equal.
    repair
        Makes a feasible schedule of one that is not, or None.
    quantum
        What every value of the first level is a whole multiple of, 0 where nothing is known; bounds are raised to it.
    kept
        What phases leave for later ones, by name.
    infeasible, refuter
        Why there is no schedule at all, and what proved it; "" where neither is known.
    note
        What limited the search, for the plan's message.
    notes
        Parts of the search that failed and were passed over.
    """

    problem: ProblemT
    value_of: Callable[[ProblemT, ScheduleT], Value]
    budget: Budget
    target_gap: float
    progress: Progress | None
    equality: Equality = field(default_factory=Equality)
    assignment: ScheduleT | None = None
    values: Value | None = None
    bounds: Value | None = None
    method: str = ""
    bound_source: str = ""
    infeasible: str = ""
    refuter: str = ""
    note: str = ""
    notes: list[str] = field(default_factory=list)
    phase: str = ""
    started: float = field(default_factory=lambda: time.monotonic())
    history: list[HistoryEntry] = field(default_factory=list)
    phase_s: dict[str, float] = field(default_factory=dict)
    quantum: float = 0.0
    kept: dict[str, object] = field(default_factory=dict)
    repair: Callable[[ProblemT, ScheduleT], ScheduleT | None] | None = None
    _proven: dict[str, Value] = field(default_factory=dict)
    _words: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _progress_error: Exception | None = None

    @property
    def gap(self) -> float:
        """Gap between value and bound, as `Plan.gap`."""
        return relative_gap(self.values, self.bounds)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do: the target gap is reached, or infeasibility is proven."""
        return bool(self.infeasible) or self.gap <= self.target_gap

    @property
    def finished(self) -> bool:
        """Whether to stop: closed, or out of budget."""
        return self.ended()

    def ended(self, late: bool = False) -> bool:
        """Return whether to stop: closed, or out of budget; for what runs although `late`, closed or cancelled."""
        return self.closed or (self.budget.cancelled if late else self.budget.expired)

    def offer(self, assignment: ScheduleT | None, method: str) -> bool:
        """Take an assignment if it is feasible and better than the incumbent; return whether it was.

        Parameters
        ----------
        assignment
            The schedule, or None where there is none.
        method
            What found it.

        Raises
        ------
        SolverFailure
            In strict mode: its value is below a bound.
        """
        if assignment is None:
            return False
        values = self.value_of(self.problem, assignment)
        if self.repair is not None and not values[0] < float("inf"):
            assignment = self.repair(self.problem, assignment)
            values = values if assignment is None else self.value_of(self.problem, assignment)
        if assignment is None or not values[0] < float("inf"):
            return False
        if self.values is not None and not self.equality.is_below(values, self.values):
            return False
        with self._lock:
            self.assignment, self.values, self.method = assignment, values, method
        if self.infeasible:
            self._refute("a proof that nothing fits", f"a schedule by {method} that does")
            self.infeasible = ""
        self._drop_false_bounds()
        self._record()
        return True

    def listeners(self, source: str) -> tuple[Callable[[ScheduleT], None], Callable[[float], None]]:
        """Return what a solver calls with each schedule that it finds, and with each bound on the first level."""

        def on_solution(assignment: ScheduleT) -> None:
            self.offer(assignment, source)

        def on_bound(bound: float) -> None:
            self.raise_bound((bound,), source)

        return on_solution, on_bound

    def raise_bound(self, bounds: Value, source: str) -> bool:
        """Take proven lower bounds on the full problem where they are better; return whether any was.

        A bound on one level holds for schedules that are optimal on the levels before it, whoever proved those, so the
        best of every level may be combined.

        Parameters
        ----------
        bounds
            One for each level.
        source
            What proved them.

        Raises
        ------
        SolverFailure
            In strict mode: the bounds exceed the value of a schedule.
        """
        before = self.bounds
        bounds = (raised_bound(bounds[0], self.quantum), *bounds[1:])
        self._proven[source] = tuple(map(max, self._proven.get(source, bounds), bounds))
        self._drop_false_bounds()
        self.bounds = self._combined()
        if self.bounds == before:
            return False
        self.bound_source = source if source in self._proven else self.bound_source
        self._record()
        return True

    def take_over(self, bounds: Value, source: str, trusted: tuple[str, ...]) -> None:
        """Take bounds that an earlier search has proven, by the word of its checkpoint: the proof is not in there.

        Parameters
        ----------
        bounds
            One for each level.
        source
            What proved them.
        trusted
            The solvers whose word they rest on.
        """
        name = f"{source.removesuffix(', earlier')}, earlier"
        self._words[name] = ", ".join(sorted({*trusted, "checkpoint"}))
        self.raise_bound(bounds, name)

    def snapshot(self) -> Incumbent[ProblemT, ScheduleT]:
        """Return a copy that later schedules, bounds and notes do not change."""
        with self._lock:
            known = copy.copy(self)
        known.notes, known.history, known.phase_s = list(self.notes), list(self.history), dict(self.phase_s)
        known._proven = dict(self._proven)
        return known

    def prove_infeasible(self, reason: str, source: str) -> None:
        """Take a proof that there is no schedule at all.

        Parameters
        ----------
        reason
            Why there is none.
        source
            What proved it.

        Raises
        ------
        SolverFailure
            In strict mode: there is one.
        """
        if self.values is None:
            self.infeasible, self.refuter = reason, source
        else:
            self._refute(f"{source}'s proof that nothing fits", f"a schedule by {self.method} that does")

    @property
    def reported_bounds(self) -> Value | None:
        """The bounds, none above its value."""
        if self.bounds is None or self.values is None:
            return self.bounds
        return self.equality.reported(self.bounds, self.values)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Whose word the bounds rest on, or the proof that nothing fits, where nothing else proves them."""
        levels = [[self.refuter]] if self.infeasible else []
        for level, bound in enumerate(() if self.infeasible else self.bounds or ()):
            levels.append([source for source, bounds in self._proven.items() if bounds[level] >= bound])
        solvers = [{(_SOLVERS | self._words).get(source, "") for source in sources} for sources in levels]
        return tuple(sorted({min(names) for names in solvers if names and "" not in names}))

    def _combined(self) -> Value | None:
        """Return the best proven bound of every level."""
        return tuple(map(max, zip(*self._proven.values(), strict=True))) if self._proven else None

    def _drop_false_bounds(self) -> None:
        """Drop what the value at hand refutes. A level says something of it where all levels before are proven."""
        kept = len(self._proven)
        for level, value in enumerate(self.values or ()):
            false = [s for s, bounds in self._proven.items() if self.equality.is_false(level, bounds[level], value)]
            for source in false:
                bounds = self._proven.pop(source)
                self._refute(f"the bound {bounds} by {source}", f"the value {self.values} of {self.method!r}")
            proven = max((bounds[level] for bounds in self._proven.values()), default=0.0)
            if proven < value and not self.equality.holds(level, proven, value):
                break
        if len(self._proven) < kept:
            self.bounds = self._combined()
            self.bound_source = next(reversed(self._proven), "")

    def _refute(self, claim: str, fact: str) -> None:
        """Note that something claimed to be proven is not true; raise in strict mode."""
        message = f"{claim} is refuted by {fact}"
        if strict():
            raise SolverFailure(message)
        self.notes.append(f"{message}, and was dropped")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Note what fails in the body and go on, so that what was found before is not lost.

        Errors that say what is wrong with the inputs or the installation, and those of a progress callback, are raised,
        and in strict mode all are.
        """
        try:
            yield
        except OutOfMemory as refusal:
            self.notes.append(f"{name} was given up: {refusal}")
        except Exception as failure:
            wrong_input = isinstance(failure, RlinitError) and not isinstance(failure, (SolverFailure, InvalidPlan))
            if strict() or wrong_input or failure is self._progress_error:
                raise
            message = " ".join(str(failure).split())[:_NOTE_LENGTH] or "no message"
            self.notes.append(f"{name} failed and was passed over: {type(failure).__name__}: {message}")

    def _record(self) -> None:
        entry = HistoryEntry(time.monotonic() - self.started, self.values, self.reported_bounds, self.phase)
        self.history.append(entry)
        self._tell(entry)

    def _tell(self, entry: HistoryEntry) -> None:
        if self.progress is None:
            return
        try:
            self.progress(entry)
        except Exception as error:
            self._progress_error = error
            raise

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Narrow the budget to a share of the time left while the body runs, and end it where memory ends.

        Raises
        ------
        OutOfMemory
            Memory ended the body.
        """
        whole = self.budget
        self.budget = whole.share(share * whole.remaining_s, phase=True)
        try:
            with memory_watched(self.budget):
                yield
        finally:
            self.budget = whole

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Name the phase that is running and add up its seconds."""
        started, outer = time.monotonic(), self.phase
        self.phase = name
        self._tell(HistoryEntry(time.monotonic() - self.started, self.values, self.reported_bounds, name))
        try:
            yield
        finally:
            self.phase = outer
            self.phase_s[name] = self.phase_s.get(name, 0.0) + time.monotonic() - started


StageIncumbent = Incumbent[StageProblem, StageAssignment]
PlacementIncumbent = Incumbent[PlacementProblem, Placement]


def for_stages(
    problem: StageProblem, budget: Budget, target_gap: float, progress: Progress | None, *, monotone: bool = True
) -> StageIncumbent:
    """Return what is known at first about a stage problem: nothing.

    Parameters
    ----------
    problem
        The problem.
    budget, target_gap, progress
        See `Incumbent`.
    monotone
        Whether no edge may lead to an earlier stage.
    """
    value_of = _monotone_value if monotone else evaluate
    equality = _byte_equality(problem) if problem.objective == "memory" else Equality()
    return Incumbent(problem, value_of, budget, target_gap, progress, equality, quantum=value_quantum(problem))


def _monotone_value(problem: StageProblem, assignment: StageAssignment) -> Value:
    """Return the value of what a method found, which has to be monotone."""
    source = np.repeat(assignment.stage, np.diff(problem.succ_indptr))
    if (source > assignment.stage[problem.succ]).any():
        raise SolverFailure("a method gave an assignment in which an edge leads to an earlier stage")
    return evaluate(problem, assignment)


def for_placement(
    problem: PlacementProblem,
    budget: Budget,
    target_gap: float,
    progress: Progress | None,
    peak: PeakMemory | None = None,
) -> PlacementIncumbent:
    """Return what is known at first about a placement problem: nothing.

    Parameters
    ----------
    problem
        The problem.
    budget, target_gap, progress
        See `Incumbent`.
    peak
        Where the peak of live tensors counts against memory: it then gives values, and repairs what does not fit.
    """

    def value_of(problem: PlacementProblem, placement: Placement) -> Value:
        return (makespan(problem, placement),)

    values, repair = (value_of, None) if peak is None else (peak.value_of, peak.repaired)
    quantum = makespan_quantum(problem)
    return Incumbent(problem, values, budget, target_gap, progress, quantum=quantum, repair=repair)


def _byte_equality(problem: StageProblem) -> Equality:
    """Return when peaks, bytes off the caches and bytes sent are equal: exactly, where their sums are exact."""
    caches = problem.cache_bytes[np.isfinite(problem.cache_bytes)]
    held = _rounding(np.concatenate([problem.param_bytes, caches]), problem.num_nodes)
    sent = _rounding(problem.tensor_bytes, problem.num_nodes)
    return Equality(0.0, (held, held, sent))


def _rounding(sizes: FloatArray, num_terms: int) -> float:
    """Return by how much two orders of adding some sizes up can differ."""
    return 0.0 if sums_exactly(sizes) else float(sizes.sum()) * num_terms * 2.0**-52
