"""From an incumbent to the plan that users get, checked."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlinit.budget import WATCH_S, Budget
from rlinit.checker import verify
from rlinit.checker.compatibility import figures_of
from rlinit.comparison.advice import placement_advice, type_advice
from rlinit.comparison.baselines import Baseline
from rlinit.costs.measured_graph import cost_shares
from rlinit.costs.sources import paper_machine
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.exporters.device_map import module_paths
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.importers.common.blocks import blocks_of
from rlinit.importers.common.precision import chosen_dtype, precision_of
from rlinit.plan import COSTS, Plan, Status, is_closed
from rlinit.solving.common.incumbent import Incumbent, Progress, strict
from rlinit.solving.common.options import ProblemOptions, SolveOptions, places_ops

_CHECKPOINT_S, _AGAIN_S = 10.0, 1.0
"""Seconds between two writings of a checkpoint at least, and after a writing that failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    options
        How to solve it.
    plan
        A plan to refine, or None.
    budget
        When to stop.
    progress
        Called with every improvement, or None.
    """

    graph: Graph
    hardware: Hardware
    options: SolveOptions
    plan: Plan | None = None
    budget: Budget = field(default_factory=Budget)
    progress: Progress | None = None


class Solved(NamedTuple):
    """What a search ended with.

    The incumbent, the fields of its plan, where its coarse schedule came from, and what simple rules give.
    """

    incumbent: Incumbent[Any, Any]
    parts: dict[str, Any]
    origin: str
    baselines: Sequence[Baseline[Any]] = ()


def checked_plan(solved: Solved, request: Request) -> Plan:
    """Return the plan of what was found, which the checker accepts.

    Where the checker refuses a bound only, the plan comes without one, and says so.

    Parameters
    ----------
    solved
        What the search ended with.
    request
        What was asked for.

    Raises
    ------
    InvalidPlan
        The schedule itself is wrong, or, in strict mode, anything is.
    """
    plan = _plan(solved, request)
    try:
        verify(plan, request.graph, request.hardware)
    except InvalidPlan as problem:
        if strict() or plan.values is None or plan.bounds is None:
            raise
        note = f"the bound {plan.bounds} by {plan.bound_source} was dropped: {problem}"
        plan = dataclasses.replace(plan, status="feasible", bounds=None, bound_source="", notes=(*plan.notes, note))
        verify(plan, request.graph, request.hardware)
    return plan


def resumed(request: Request) -> Request:
    """Return the request with the plan of the options' checkpoint to begin from, if there is one.

    Raises
    ------
    InvalidPlan
        The file is no plan, or the checker refuses it.
    RlinitError
        The plan is of another problem; the message says what differs.
    """
    saved = _saved_plan(request)
    return request if saved is None or saved.assignment is None else dataclasses.replace(request, plan=saved)


def _saved_plan(request: Request) -> Plan | None:
    """Return the plan of the options' checkpoint, or None where there is none yet; raises what `resumed` does."""
    graph, hardware, options = request.graph, request.hardware, request.options
    if options.checkpoint is None or not options.checkpoint.exists():
        return None
    plan = Plan.load(options.checkpoint)
    pairs = {
        "graph": (plan.graph_fingerprint, graph.fingerprint()),
        "hardware": (plan.hardware_fingerprint, hardware.fingerprint()),
        **{name: (getattr(plan, name), getattr(options, name)) for name in ("objective", *_SPLIT)},
        **{name: (plan.provenance.get(name), getattr(options, name)) for name in ("activations", "training")},
    }
    if places_ops(options.objective):
        pairs["inputs"] = (plan.inputs, options.inputs or 1)
        pairs["transfers"] = (plan.transfer_rule, options.transfers)
        pairs["resident"] = (plan.resident, options.resident)
    if options.training is not None:
        pairs |= {name: (plan.provenance.get(name), getattr(options, name)) for name in _TRAINING}
        pairs["layers"] = (plan.provenance.get("layers"), _layers(graph))
    different = [name for name, (saved, asked) in pairs.items() if saved != asked]
    if different:
        raise RlinitError(
            f"{options.checkpoint} is a checkpoint of another problem: {', '.join(different)} differ; name another "
            "file (--checkpoint)"
        )
    try:
        verify(plan, graph, hardware)
    except InvalidPlan as problem:
        raise InvalidPlan(f"{options.checkpoint} is no sound checkpoint: {problem} (--checkpoint)") from None
    return plan


def _layers(graph: Graph) -> str:
    """Return a mark of what may be recomputed as a whole, which the fingerprint of a graph does not tell."""
    return hashlib.sha256(repr(blocks_of(graph)).encode()).hexdigest()[:16]


@contextmanager
def checkpointed(incumbent: Incumbent[Any, Any], solved: Callable[[Any], Solved], request: Request) -> Iterator[None]:
    """Take the bounds of the options' checkpoint, if they name one, and keep it up to date while the body runs.

    Parameters
    ----------
    incumbent
        What is known of the problem.
    solved
        Gives what becomes a plan, from the incumbent as it was at one moment.
    request
        What is asked for.
    """
    path, over = request.options.checkpoint, threading.Event()
    if path is None:
        yield
        return
    saved = _saved_plan(request)
    if saved is not None and saved.bounds is not None:
        incumbent.take_over(saved.bounds, saved.bound_source, saved.trusted)

    failures: list[Exception] = []

    def keep() -> None:
        written: tuple[Any, ...] = (None, None, "")
        last, failed, ending = time.monotonic(), -math.inf, False
        while not ending:
            ending, now = over.wait(WATCH_S), time.monotonic()
            known = incumbent.snapshot()
            state = known.values, known.bounds, known.infeasible
            first = written[0] is None and known.values is not None
            due = now >= failed + _AGAIN_S and (first or now >= last + _CHECKPOINT_S)
            if state == written or not (due or ending):
                continue
            try:
                checked_plan(solved(known), request).save(path)
            except Exception as failure:  # a full disk, or what was known changed while it was copied
                failures[:], failed = [failure], time.monotonic()
            else:
                failures.clear()
                written, last = state, time.monotonic()

    writer = threading.Thread(target=keep, name="checkpoint", daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
        incumbent.notes += [f"the checkpoint could not be written in the end: {failure}" for failure in failures]


_METHOD = {one.name for one in dataclasses.fields(SolveOptions)} - {
    *(one.name for one in dataclasses.fields(ProblemOptions)),
    "checkpoint",
    "refine",
}
"""Settings of how a problem is solved, which a plan keeps."""

_SPLIT = ("chunks", "chunk_order", "contiguous")
_TRAINING = ("microbatches", "recompute", "optimizer")
"""Fields of a plan, and settings of training, that decide the problem."""


def _plan(solved: Solved, request: Request) -> Plan:
    """Turn the incumbent into a plan."""
    incumbent, graph, hardware, options = solved.incumbent, request.graph, request.hardware, request.options
    bounds = None if incumbent.infeasible else incumbent.reported_bounds
    status, message = _status(incumbent, bounds)
    return Plan(
        objective=options.objective,
        status=status,
        values=incumbent.values,
        bounds=bounds,
        bound_source=incumbent.bound_source,
        method=incumbent.method,
        history=tuple(incumbent.history),
        phase_s=incumbent.phase_s,
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=hardware.name,
        hardware_fingerprint=hardware.fingerprint(),
        provenance={
            **_provenance(solved, graph, options),
            "dtype": chosen_dtype(graph),
            "numbers": precision_of(graph),
            **({"machine": machine} if (machine := paper_machine(hardware)) else {}),
            **_cost_shares(solved, request),
        },
        message=message,
        notes=tuple(dict.fromkeys([*incumbent.notes, *_advice(solved, request)])),
        baselines={one.name: one.value for one in solved.baselines},
        baseline_notes={one.name: one.note for one in solved.baselines if one.note},
        graph_figures=figures_of(graph),
        modules={op: path for op, path in module_paths(graph).items() if path},
        chunks=options.chunks,
        chunk_order=options.chunk_order,
        contiguous=options.contiguous,
        **{"assignment": None, "stages": (), **solved.parts},
    )


def _cost_shares(solved: Solved, request: Request) -> dict[str, float]:
    """Return which share of the ops' seconds comes from where, as provenance."""
    assignment = solved.parts.get("assignment")
    if assignment is None or request.options.objective == "memory" or "groups" in solved.parts:
        return {}
    stages = solved.parts.get("stages", ())
    places = {
        op: stages[place].device if isinstance(place, int) else place
        for op, place in assignment.items()
        if isinstance(place, (int, str))
    }
    return {COSTS + name: share for name, share in cost_shares(request.graph, request.hardware, places).items()}


def _advice(solved: Solved, request: Request) -> list[str]:
    """Return what to know before the plan is used."""
    graph, hardware, options = request.graph, request.hardware, request.options
    values, assignment = solved.incumbent.values, solved.parts.get("assignment")
    if options.objective == "memory":
        return []
    notes = type_advice(graph, hardware)
    if places_ops(options.objective) and assignment is not None and values is not None:
        shard_inputs = int(solved.parts.get("shard_inputs", 1))
        notes += placement_advice(graph, hardware, assignment, values[0], solved.baselines, shard_inputs)
    return notes


def _status(incumbent: Incumbent[Any, Any], bounds: tuple[float, ...] | None) -> tuple[Status, str]:
    """Return how the search ended, and what is to be said about it."""
    if incumbent.infeasible:
        return "infeasible", incumbent.infeasible
    found = incumbent.assignment is not None
    if incumbent.budget.cancelled:
        message = "interrupted; this is the best schedule so far" if found else "interrupted before a schedule"
    else:
        message = incumbent.note or ("" if found else "the budget ended before a schedule was found")
    if not found:
        return "no_solution", message
    if is_closed(incumbent.values, bounds):
        return "optimal", message if incumbent.budget.cancelled else ""
    return "feasible", message


def _provenance(solved: Solved, graph: Graph, options: SolveOptions) -> dict[str, str | float | bool | None]:
    """Return the settings that led to a plan."""
    names = sorted(_METHOD)
    if options.training is not None:
        names += ["training", *_TRAINING]
    settings = {name: getattr(options, name) for name in names}
    trusted = ", ".join(solved.incumbent.trusted)
    if options.training is not None:
        settings["layers"] = _layers(graph)
    found = {**settings, "start": solved.origin, "interrupted": solved.incumbent.budget.cancelled}
    return {**found, "trusted": trusted} if trusted else found
