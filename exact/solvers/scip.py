"""Run a :class:`~rlinit.exact.solvers.linear_model.LinearModel` on SCIP, and say in two facts how it ended.

SCIP runs in a worker thread without the interpreter lock while the calling thread waits, so that `Budget.cancel`
from anywhere and Ctrl-C end it within a fraction of a second. Callbacks run in the calling thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyscipopt import Eventhdlr, Model
from pyscipopt.scip import PY_SCIP_EVENTTYPE as EVENT
from pyscipopt.scip import PY_SCIP_PARAMSETTING as SETTING
from pyscipopt.scip import PY_SCIP_STAGE as STAGE
from pyscipopt.scip import Expr, ExprCons, Term

from rlinit.arrays import FloatArray
from rlinit.budget import ROWS_A_LOOK, WATCH_S, Budget, memory_left, reserve
from rlinit.errors import OutOfMemory, SolverFailure
from rlinit.exact.solvers.linear_model import LinearModel
from rlinit.exact.solvers.lp_dual_bound import ENTRY_BYTES

_INFINITY = 1e20
"""What SCIP takes for infinite; it refuses coefficients of that size, and ignores sides and bounds of it."""

_INTEGRALITY = 1e-5
"""Distance from 0 or 1 at which a binary variable of a point that SCIP calls a solution is one no more."""
_FEASIBILITY_TOLERANCE = 1e-7
"""Of rows, in units of the scaled program; SCIP's default is ten times it."""

_DUAL_TOLERANCE = 1e-9
"""Of reduced costs, on which dual bounds rest: the value of a dual feasible basis is a bound however far its rows are
violated. After numerical trouble SCIP solves an LP again at a thousandth of it; SoPlex, built without GMP, takes 1e-10
at least and says so on the terminal."""

BOUND_SAFETY = 2.5e-7
"""Relative discount on SCIP's dual bounds: LPs are solved to `_DUAL_TOLERANCE` on rows scaled to about 1e2."""

RESOLUTION = 10.0 * _FEASIBILITY_TOLERANCE
"""Units of a program that a dual bound may be wrong by, however small it is: ten times the tolerance of its rows."""

_MEMORY_LIMIT_MB = 8192.0
"""Of a solve, however much memory is free."""


class Status(Enum):
    """What is known about the model."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no_solution"


class Termination(Enum):
    """Why SCIP stopped."""

    COMPLETED = "completed"
    TIME_LIMIT = "time limit"
    NODE_LIMIT = "node limit"
    MEMORY_LIMIT = "memory limit"
    GAP_LIMIT = "gap limit"
    INTERRUPTED = "interrupted"
    NOT_STARTED = "not started"


# Every SCIP status appears here or raises. Models are bounded below, so "infeasible or unbounded" is infeasible;
# the limits missing from the table are never set, so meeting one is a failure.
_TERMINATIONS = {
    "optimal": Termination.COMPLETED,
    "infeasible": Termination.COMPLETED,
    "inforunbd": Termination.COMPLETED,
    "timelimit": Termination.TIME_LIMIT,
    "nodelimit": Termination.NODE_LIMIT,
    "totalnodelimit": Termination.NODE_LIMIT,
    "memlimit": Termination.MEMORY_LIMIT,
    "gaplimit": Termination.GAP_LIMIT,
    "userinterrupt": Termination.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How SCIP searches.

    Parameters
    ----------
    separation, heuristics
        SCIP's emphasis on cutting planes and primal heuristics: ``off``, ``fast``, ``default``.

    Raises
    ------
    ValueError
        A setting that does not exist.
    """

    separation: str = "default"
    heuristics: str = "default"

    def __post_init__(self) -> None:
        for name in ("separation", "heuristics"):
            if getattr(self, name) not in _SETTINGS:
                raise ValueError(f"{name}: expected one of {sorted(_SETTINGS)}, got {getattr(self, name)!r}")


_SETTINGS = {
    "off": SETTING.OFF,
    "fast": SETTING.FAST,
    "default": SETTING.DEFAULT,
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """How a run ended, in the model's units.

    Parameters
    ----------
    status
        ``INFEASIBLE`` under a cutoff means that nothing is better than the cutoff.
    termination
        Why it stopped.
    point
        (num_variables,) the best point SCIP accepted, or None.
    bound
        SCIP's dual bound, subject to its tolerances: ``-inf`` before the root was solved, the cutoff where nothing
        is better than it, ``inf`` where nothing is feasible.
    nodes
        Branch-and-bound nodes.
    """

    status: Status
    termination: Termination
    point: FloatArray | None
    bound: float
    nodes: int


class _Watcher(Eventhdlr):
    """Pass new incumbents and better dual bounds on to a queue; the waiting thread does the rest."""

    def __init__(self, terms: list[Any], events: queue.SimpleQueue[tuple[str, Any]], with_bounds: bool) -> None:
        self._terms = terms
        self._events = events
        self._wanted = EVENT.BESTSOLFOUND
        if with_bounds:
            self._wanted |= EVENT.DUALBOUNDIMPROVED

    def eventinit(self) -> None:
        self.model.catchEvent(EVENT.BESTSOLFOUND, self)
        if self._wanted & EVENT.DUALBOUNDIMPROVED:
            self.model.catchEvent(EVENT.DUALBOUNDIMPROVED, self)

    def eventexec(self, event: Any) -> dict[str, Any]:
        try:
            if event.getType() == EVENT.BESTSOLFOUND:
                self._events.put(("solution", _values(self.model, self.model.getBestSol(), self._terms)))
            else:
                self._events.put(("bound", float(self.model.getDualbound())))
        except Exception as error:  # An exception in a callback would come out of SCIP without its message.
            self._events.put(("error", error))
        return {}


def skipped_run(status: Status) -> Run:
    """Return the run of a model that needed no search."""
    return Run(status, Termination.NOT_STARTED, None, np.inf, 0)


def _values(model: Any, solution: Any, variables: list[Any]) -> FloatArray:
    return np.fromiter((model.getSolVal(solution, x) for x in variables), np.float64, len(variables))


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what SCIP's Python interface raises, which has no class of its own, into `SolverFailure`."""
    try:
        yield
    except (SolverFailure, OutOfMemory, KeyboardInterrupt):
        raise
    except Exception as error:
        raise SolverFailure(f"SCIP failed: {error or type(error).__name__}") from error


def _check_magnitudes(linear: LinearModel) -> None:
    """Refuse what SCIP would take for infinite, naming it.

    Raises
    ------
    SolverFailure
        A coefficient, side or bound that is not a number or of at least 1e20.
    """
    for handle, (low, high) in enumerate(zip(linear.lower, linear.upper, strict=True)):
        if not (abs(low) < _INFINITY and abs(high) < _INFINITY):
            raise SolverFailure(f"variable {handle} in [{low:g}, {high:g}]: SCIP takes bounds below 1e20 only")
    for at, (coefs, lhs, rhs) in enumerate(linear.rows):
        for handle, coef in coefs.items():
            if not abs(coef) < _INFINITY:
                raise SolverFailure(
                    f"row {at} ({len(coefs)} terms, {lhs:g} to {rhs:g}): coefficient {coef:g} of variable {handle}, "
                    "SCIP takes coefficients below 1e20 only"
                )
        if not (lhs == -np.inf or abs(lhs) < _INFINITY) or not (rhs == np.inf or abs(rhs) < _INFINITY):
            raise SolverFailure(f"row {at} ({len(coefs)} terms): sides {lhs:g} to {rhs:g}, SCIP takes those below 1e20")


def _build(linear: LinearModel, settings: RunSettings, budget: Budget) -> tuple[Any, list[Any]] | None:
    """Return the SCIP model of `linear` and its variables in order of their handles; None if the budget ends first."""
    entries = sum(len(coefs) for coefs, _, _ in linear.rows)
    reserve(ENTRY_BYTES * entries, f"a program of {entries:,} entries on SCIP")
    model = Model()
    model.hideOutput()
    variables = []
    for handle in range(linear.num_variables):
        if handle % ROWS_A_LOOK == 0 and budget.expired:
            return None
        kind = "B" if linear.is_binary[handle] else "C"
        cost = 1.0 if handle == linear.objective else 0.0
        x = model.addVar(vtype=kind, lb=linear.lower[handle], ub=linear.upper[handle], obj=cost)
        if linear.priority[handle]:
            model.chgVarBranchPriority(x, linear.priority[handle])
        variables.append(x)
    terms = [Term(x) for x in variables]
    for at, (coefs, lhs, rhs) in enumerate(linear.rows):
        if at % ROWS_A_LOOK == 0 and budget.expired:
            return None
        expression = Expr({terms[handle]: coef for handle, coef in coefs.items()})
        model.addCons(ExprCons(expression, None if lhs == -np.inf else lhs, None if rhs == np.inf else rhs))
    model.setSeparating(_SETTINGS[settings.separation])
    model.setHeuristics(_SETTINGS[settings.heuristics])
    model.setParams(
        {
            "display/verblevel": 0,
            "misc/catchctrlc": False,
            "numerics/feastol": _FEASIBILITY_TOLERANCE,
            "numerics/dualfeastol": _DUAL_TOLERANCE,
            "limits/memory": min(_MEMORY_LIMIT_MB, max(memory_left() / 2**20, 1.0)),
            # SCIP 10.0 replaces a binary by a sum of continuous variables and then forgets that it is one: points
            # with fractional binaries come back as optimal.
            "presolving/donotmultaggr": True,
        }
    )
    return model, variables


def _offer_start(model: Any, variables: list[Any], point: FloatArray) -> bool:
    """Give SCIP a starting point if it satisfies the model; `addSol` alone would accept an infeasible one."""
    solution = model.createSol()
    for x, value in zip(variables, point, strict=True):
        model.setSolVal(solution, x, float(value))
    if not model.checkSol(solution, printreason=False, original=True):
        model.freeSol(solution)
        return False
    model.addSol(solution, free=True)
    return True


def run_scip(
    linear: LinearModel,
    *,
    budget: Budget,
    node_limit: int | None = None,
    cutoff: float | None = None,
    start: FloatArray | None = None,
    absolute_gap: float = 0.0,
    settings: RunSettings | None = None,
    on_point: Callable[[FloatArray], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> Run:
    """Solve `linear` until it is done, the budget ends, or somebody cancels it.

    Deterministic for given inputs unless time, memory or a cancellation ended it.

    Parameters
    ----------
    linear
        The model.
    budget
        Time limit and switch. Ctrl-C in the waiting thread cancels it and returns what there is.
    node_limit
        Most branch-and-bound nodes, or None.
    cutoff
        Only points with a smaller objective count, in the model's units.
    start
        (num_variables,) a point to start from; left out if it does not satisfy the model.
    absolute_gap
        Stop, as ``FEASIBLE``, once the objective is proven within this of its minimum.
    on_point, on_bound
        Called in the calling thread with each new incumbent and each better dual bound.

    Raises
    ------
    SolverFailure
        If a number of the model is too large for SCIP, or SCIP fails, or ends with a status that none of the limits set
        here explains.
    OutOfMemory
        The memory that is left has no room for the model.
    """
    if linear.infeasible:
        bound = np.inf if cutoff is None else cutoff
        return Run(Status.INFEASIBLE, Termination.COMPLETED, None, bound, 0)
    if budget.expired:
        return Run(Status.NO_SOLUTION, Termination.NOT_STARTED, None, -np.inf, 0)
    _check_magnitudes(linear)
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    with _failures():
        built = _build(linear, settings or RunSettings(), budget)
        if built is None:
            return Run(Status.NO_SOLUTION, Termination.NOT_STARTED, None, -np.inf, 0)
        model, variables = built
        if node_limit is not None:
            model.setParam("limits/totalnodes", node_limit)
        if cutoff is not None:
            model.setObjlimit(cutoff)
        if absolute_gap > 0:
            model.setParam("limits/absgap", absolute_gap)
        if start is not None:
            _offer_start(model, variables, start)
        if on_point is not None or on_bound is not None:
            model.includeEventhdlr(_Watcher(variables, events, on_bound is not None), "watcher", "pass events on")
        remaining = budget.remaining_s
        if remaining < _INFINITY:
            model.setParam("limits/time", remaining)
    _wait(model, budget, events, on_point, on_bound)
    with _failures():
        return _outcome(model, variables, np.array(linear.is_binary, np.bool_), cutoff)


def _wait(
    model: Any,
    budget: Budget,
    events: queue.SimpleQueue[tuple[str, Any]],
    on_point: Callable[[FloatArray], None] | None,
    on_bound: Callable[[float], None] | None,
) -> None:
    """Run SCIP in a worker thread and serve its events until it has ended; re-raise whatever went wrong."""

    def work() -> None:
        try:
            model.optimizeNogil()
            events.put(("ended", None))
        except BaseException as error:
            events.put(("ended", SolverFailure(f"SCIP failed: {error}")))

    worker = threading.Thread(target=work, name="scip", daemon=True)
    worker.start()
    failure: BaseException | None = None
    kind: str = ""
    while kind != "ended":
        try:
            kind, item = events.get(timeout=WATCH_S)
            if kind == "solution" and on_point is not None and failure is None:
                on_point(item)
            elif kind == "bound" and on_bound is not None and failure is None:
                on_bound(item)
            elif kind in ("error", "ended") and item is not None:
                failure = failure or item
        except queue.Empty:
            pass
        except KeyboardInterrupt:
            budget.cancel()
        except Exception as error:
            failure = error
        if (budget.stopped or failure is not None) and kind != "ended" and model.getStage() in _INTERRUPTIBLE:
            with suppress(Exception):  # SCIP may have come to another stage meanwhile: the next look tries again
                model.interruptSolve()
    worker.join()
    if failure is not None:
        raise failure


# From transformed to solved, but for the moment in which solving is prepared: the stages that an interrupt can land in.
_INTERRUPTIBLE = (
    STAGE.TRANSFORMED,
    STAGE.INITPRESOLVE,
    STAGE.PRESOLVING,
    STAGE.EXITPRESOLVE,
    STAGE.PRESOLVED,
    STAGE.SOLVING,
    STAGE.SOLVED,
)


def _outcome(model: Any, variables: list[Any], is_binary: NDArray[np.bool_], cutoff: float | None) -> Run:
    """Read status, bound and best point off a model that has ended."""
    code = str(model.getStatus())
    if code not in _TERMINATIONS:
        raise SolverFailure(f"SCIP ended with status {code!r}, which no limit set here explains")
    termination = _TERMINATIONS[code]
    nodes = int(model.getNTotalNodes())
    if code in ("infeasible", "inforunbd"):
        return Run(Status.INFEASIBLE, termination, None, np.inf if cutoff is None else cutoff, nodes)
    point = _values(model, model.getBestSol(), variables) if model.getNSols() > 0 else None
    if point is not None and (np.abs(point - np.round(point))[is_binary] > _INTEGRALITY).any():
        point = None  # Then it is no solution of the model, and what it "proves" is a bound of a relaxation.
    bound = float(model.getDualbound())
    bound = -np.inf if bound <= -_INFINITY else min(bound, np.inf if cutoff is None else cutoff)
    if code == "optimal" and point is not None:
        return Run(Status.OPTIMAL, termination, point, bound, nodes)
    return Run(Status.NO_SOLUTION if point is None else Status.FEASIBLE, termination, point, bound, nodes)
