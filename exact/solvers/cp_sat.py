"""One call of CP-SAT that looks at a budget, whatever the model.

References
----------
OR-Tools, CP-SAT.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from rlinit.budget import WATCH_S, Budget, memory_left
from rlinit.errors import BackendUnavailable, SolverFailure

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SHORT_WORK = 0.5
"""Deterministic work of a phase where no time limit is set: some seconds of one core."""

Solution_co = TypeVar("Solution_co", covariant=True)
Solution = TypeVar("Solution")


@dataclass(frozen=True, slots=True)
class ConstraintSettings:
    """How CP-SAT searches.

    Parameters
    ----------
    work
        Deterministic work limit, about seconds of one core; None: the budget's seconds alone.
    seed
        Of its random choices.
    """

    work: float | None = None
    seed: int = 0


def is_available() -> bool:
    """Return whether CP-SAT is installed, and highspy, which breaks it in the same process, is not loaded."""
    return "highspy" not in sys.modules and importlib.util.find_spec("ortools") is not None


def require_available() -> None:
    """Refuse to run CP-SAT by name where it cannot be had, saying why.

    Raises
    ------
    BackendUnavailable
        It is not installed, or cannot be loaded beside highspy.
    """
    if not is_available():
        raise BackendUnavailable(
            "method 'cp-sat' needs OR-Tools, in a process that has not loaded highspy: pip install rlinit[cp]"
        )


class SolvableModel(Protocol[Solution_co]):
    """A model in integers that is minimised: `cp`, and the `horizon` that a known solution reaches, in steps."""

    cp: cp_model.CpModel
    horizon: int

    def solution(self, values: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> Solution_co:
        """Return what CP-SAT's values stand for."""


class ConstraintSearch(Generic[Solution]):
    """One call of CP-SAT that looks at a budget.

    After `run`: `last` solution, or None; proven `bound` in steps; deterministic `work`.

    Parameters
    ----------
    model
        What to solve.
    budget
        Time limit and switch.
    settings
        Work limit and seed.
    spent
        Work that counts against the limit already.
    """

    def __init__(
        self, model: SolvableModel[Solution], budget: Budget, settings: ConstraintSettings, spent: float = 0.0
    ) -> None:
        from ortools.sat.python import cp_model

        self.model, self.budget = model, budget
        self.last: Solution | None = None
        self.bound = self.work = 0.0
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = settings.seed % (1 << 31)
        parameters.catch_sigint_signal = False
        if np.isfinite(memory_left()):
            parameters.max_memory_in_mb = max(1, int(memory_left() / 2**20))
        if settings.work is not None:
            parameters.max_deterministic_time = max(settings.work - spent, 1e-3)

    def run(self, offer: Callable[[Solution], None], raise_bound: Callable[[float], None]) -> str:
        """Search; return ``optimal``, ``infeasible`` or ``stopped``.

        Parameters
        ----------
        offer
            Called with each solution of the search.
        raise_bound
            Called with bounds in steps.

        Raises
        ------
        SolverFailure
            CP-SAT calls the model invalid.
        """
        from ortools.sat.python import cp_model

        solver, model = self.solver, self.model
        found: list[Solution] = []
        lock = threading.Lock()

        class Collector(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                with lock:
                    found.append(model.solution(self))

        def take() -> None:
            with lock:
                arrived, found[:] = list(found), []
            for one in arrived:
                offer(one)

        outcome: list[cp_model.CpSolverStatus] = []
        bounds: list[float] = []
        solver.best_bound_callback = bounds.append
        thread = threading.Thread(target=lambda: outcome.append(solver.solve(model.cp, Collector())), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(WATCH_S)
            take()
            if bounds:
                raise_bound(bounds[-1])
            if self.budget.expired:
                solver.stop_search()
        take()
        self.work = solver.response_proto.deterministic_time
        ended = outcome[0] if outcome else cp_model.UNKNOWN
        if ended == cp_model.MODEL_INVALID:
            raise SolverFailure(f"CP-SAT calls the model invalid: {model.cp.validate()}")
        if ended in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.last = model.solution(solver)
            self.bound = solver.best_objective_bound
        elif ended == cp_model.INFEASIBLE:
            # Nothing is at most the horizon, which the start reaches: its value in steps is a bound.
            self.bound = float(model.horizon + 1)
            return "infeasible"
        else:
            self.bound = solver.best_objective_bound
        return "optimal" if ended == cp_model.OPTIMAL else "stopped"
