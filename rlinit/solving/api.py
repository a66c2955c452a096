"""`schedule` and `bound`: the four phases joined. The only place where agent, heuristics, solvers and bounds meet."""

from __future__ import annotations

import importlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, get_args

import numpy as np

from rlinit.budget import Budget
from rlinit.checker import verify
from rlinit.checker.compatibility import figures_of
from rlinit.errors import RlinitError
from rlinit.exporters.device_map import module_paths
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Objective, Plan, Resident, Status, Transfers, is_closed
from rlinit.solving.incumbent import (
    ActivationIncumbent,
    PlacementIncumbent,
    Progress,
    StageIncumbent,
    for_activations,
    for_placement,
    for_stages,
)
from rlinit.solving.stages import Window, bound_stages, solve_stages, stage_bounds
from rlinit.stages.activation_problem import with_activations
from rlinit.stages.lowering import lower_stages
from rlinit.stages.plan_fields import stage_parts, stages_from_plan

__all__ = ["ProvenBound", "bound", "schedule"]

_STAGE_SOLVERS = ("rlinit.heuristics.stages", "rlinit.exact.stages.ideals.solve", "rlinit.exact.stages.pipeline_milp")

_PLACEMENT_SOLVERS = (
    "rlinit.solving.placements",
    "rlinit.placements.plan_fields",
    "rlinit.placements.window",
    "rlinit.agent.latency_selection",
    "rlinit.agent.placements.agent",
    "rlinit.heuristics.placements",
    "rlinit.exact.placements.bounds.registry",
    "rlinit.exact.placements.milp.solve",
    "rlinit.exact.placements.split.solve",
)


@dataclass(frozen=True, slots=True)
class ProvenBound:
    """A lower bound on the full problem, level by level, what proved it, and the seconds it took."""

    bounds: tuple[float, ...]
    source: str
    seconds: float

    @property
    def value(self) -> float:
        """The bound on the first level."""
        return self.bounds[0]


def schedule(
    graph: Graph,
    hardware: Hardware,
    *,
    objective: Objective = "pipeline",
    stages: int | None = None,
    agent: str | Plan = "auto",
    window: Window = "auto",
    method: str = "auto",
    gap: float = 0.0,
    time_limit_s: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    inputs: int | None = None,
    transfers: Transfers = "parallel",
    resident: Resident = "tensors",
    coarsen: bool = False,
    activations: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Schedule a graph on hardware and prove how good the schedule is.

    The plan never gets worse along the way, and Ctrl-C returns the best one so far. Without a time limit the work
    inside is counted, so the same inputs and seed give the same schedule on every machine.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    objective
        ``pipeline``: smallest bottleneck stage in seconds. ``memory``: lexicographically smallest peak parameter
        bytes of a stage, then off-cache bytes, then bytes leaving a stage. ``latency``: smallest makespan of one
        input, every op on a device of its own choice. ``throughput``: smallest makespan of `inputs` inputs, which may
        be split over devices op by op.
    stages
        Number of stages k, where the hardware does not say.
    agent
        Where the coarse schedule comes from: ``auto``, a heuristic's name, a learned agent (the name of a checkpoint
        that comes with rlinit, or the path of one, ``*.safetensors``), or a Plan to refine. The plan's provenance
        says under ``start`` what it was.
    window
        For ``warm``: the levels around stage boundaries the exact solver may change; ``auto`` widens 1, 2, 4, ...;
        None frees everything. For placements: the ops it may move at a time.
    method
        ``auto``: whatever proves the optimum soonest. ``warm``: coarse schedule, windows on SCIP, bounds. ``milp``:
        the full program on SCIP from nothing. ``agent``: the learned agent alone. A heuristic's name: that alone, with
        the cheapest bounds. For stages also ``ideals``: dynamic programming over ideals. For placements also
        ``sweep``: local search; ``split``: module by module; ``branch-and-bound``.
    gap
        Stop once proven within this fraction of the best possible.
    time_limit_s
        Wall-clock seconds, not counting the import of the solvers by a process's first call; None: a fixed amount of
        work.
    seed
        Seed of everything random.
    jobs
        Runs of the heuristics side by side; more of them find better schedules in the same time.
    inputs
        For ``throughput``: inputs to finish. They are dealt in shards, the common divisor of the devices' batch sizes.
    transfers
        For placements: ``parallel``, ``exclusive`` (one at a time on each directed link), or ``blocking`` (the
        receiving device waits).
    resident
        For placements: whether all ``tensors`` of a device's ops count against its memory beside their weights, or
        ``weights`` alone.
    coarsen
        For placements: search with fused ops and contracted chains only (Moirai's GCOF), which is faster on large
        graphs and loses what only splitting them could gain. Bounds remain bounds of the problem itself.
    activations
        For ``pipeline``: count the peak of activation memory of each stage against its cache, beside its parameters
        (MTPP eq. 2). The plan then says in which order the ops of a stage reach that peak.
    progress
        Called with every improvement.

    Returns
    -------
    Plan
        Checked by `rlinit.verify` before it is returned.

    Raises
    ------
    InvalidGraph, InvalidHardware
        The inputs do not fit together; the message names the op or device.
    RlinitError
        An argument out of range, or an unknown method or agent.
    SolverFailure
        SCIP ended in a way that is neither a result nor a limit.
    """
    _check_objective(objective)
    _check_settings(gap=gap, time_limit_s=time_limit_s, window=window, jobs=jobs)
    if stages is not None:
        hardware = hardware.with_stages(stages)
    if objective in ("pipeline", "memory") and (
        inputs is not None or coarsen or (transfers, resident) != ("parallel", "tensors")
    ):
        raise RlinitError(
            f"inputs, transfers, resident and coarsen are for latency and throughput, not for {objective}"
        )
    if activations and objective != "pipeline":
        raise RlinitError(f"activations is for pipeline, not for {objective}")
    provenance: dict[str, str | float | bool | None] = {
        "agent": agent if isinstance(agent, str) else "plan",
        "method": method,
        "window": window,
        "seed": seed,
        "jobs": jobs,
        "gap": gap,
        "time_limit_s": time_limit_s,
        "coarsen": coarsen,
        "activations": activations,
    }
    if time_limit_s is not None:
        _load_solvers(objective)
    budget = Budget(time_limit_s)
    if objective == "latency" or objective == "throughput":
        incumbent: StageIncumbent | PlacementIncumbent | ActivationIncumbent
        incumbent, parts, provenance["start"] = _place(
            graph,
            hardware,
            objective,
            inputs,
            transfers,
            resident,
            coarsen,
            agent,
            method,
            window,
            seed,
            jobs,
            budget,
            gap,
            progress,
        )
    else:
        incumbent, parts, provenance["start"] = _stage(
            graph, hardware, objective, activations, agent, method, window, seed, jobs, budget, gap, progress
        )
    provenance["interrupted"] = budget.cancelled
    plan = _plan(incumbent, parts, graph, hardware, objective, provenance)
    verify(plan, graph, hardware)
    return plan


def _load_solvers(objective: Objective) -> None:
    """Import what the search uses, which takes a second or two once, so that a first call's limit is for searching."""
    for name in _PLACEMENT_SOLVERS if objective in ("latency", "throughput") else _STAGE_SOLVERS:
        importlib.import_module(name)


def _stage(
    graph: Graph,
    hardware: Hardware,
    objective: Literal["pipeline", "memory"],
    activations: bool,
    agent: str | Plan,
    method: str,
    window: Window,
    seed: int,
    jobs: int,
    budget: Budget,
    gap: float,
    progress: Progress | None,
) -> tuple[StageIncumbent | ActivationIncumbent, dict[str, Any], str]:
    """Solve a stage problem; return the incumbent, the fields of its plan, and where the coarse schedule came from."""
    timed = budget.remaining_s < np.inf
    origin = "none"
    with _interruptible(budget):
        lowered = lower_stages(graph, hardware, objective)
        start = None
        if not lowered.infeasible and not isinstance(agent, str):
            start = stages_from_plan(agent, lowered, graph, hardware)
        name = agent if isinstance(agent, str) else "auto"

        def solve(one: StageIncumbent) -> None:
            nonlocal origin
            origin = solve_stages(
                one, method=method, agent=name, start=start, window=window, seed=seed, jobs=jobs, timed=timed
            )

        incumbent: StageIncumbent | ActivationIncumbent
        if activations:
            from rlinit.solving.activations import solve_activations

            problem = with_activations(lowered.problem, lowered.node_of_op, graph)
            incumbent = priced = for_activations(problem, budget, gap, progress)
            if not lowered.infeasible:
                priced.offer(start, "plan")
                solve_activations(priced, solve)
        else:
            incumbent = plain = for_stages(lowered.problem, budget, gap, progress)
            if not lowered.infeasible:
                solve(plain)
        incumbent.infeasible = incumbent.infeasible or lowered.infeasible
    return incumbent, stage_parts(incumbent.assignment, incumbent.problem, lowered, graph, hardware), origin


def _place(
    graph: Graph,
    hardware: Hardware,
    objective: Literal["latency", "throughput"],
    inputs: int | None,
    transfers: Transfers,
    resident: Resident,
    coarsen: bool,
    agent: str | Plan,
    method: str,
    window: Window,
    seed: int,
    jobs: int,
    budget: Budget,
    gap: float,
    progress: Progress | None,
) -> tuple[PlacementIncumbent, dict[str, Any], str]:
    """Solve a placement problem; return the incumbent, the fields of its plan, and where its start came from."""
    from rlinit.placements.lowering import lower_placement
    from rlinit.placements.plan_fields import placement_from_plan, placement_parts
    from rlinit.solving.placements import search_coarse, solve_placement

    timed = budget.remaining_s < np.inf
    origin = "none"
    with _interruptible(budget):
        lowered = lower_placement(graph, hardware, objective, inputs=inputs, transfers=transfers, resident=resident)
        problem = lowered.problem
        incumbent = for_placement(problem, budget, gap, progress)
        if lowered.infeasible:
            incumbent.infeasible = lowered.infeasible
        else:
            start = None if isinstance(agent, str) else placement_from_plan(agent, problem, graph, hardware)
            name = agent if isinstance(agent, str) else "auto"
            if coarsen:
                origin = search_coarse(
                    incumbent, graph, method=method, agent=name, start=start, seed=seed, jobs=jobs, timed=timed
                )
            else:
                origin = solve_placement(
                    incumbent, method=method, agent=name, start=start, window=window, seed=seed, jobs=jobs, timed=timed
                )
    parts: dict[str, Any] = {
        "inputs": inputs or 1,
        "shard_inputs": problem.shard_inputs,
        "transfer_rule": transfers,
        "resident": resident,
    }
    if incumbent.assignment is not None:
        parts |= placement_parts(problem, incumbent.assignment, graph, hardware, resident)
    return incumbent, parts, origin


def bound(
    graph: Graph,
    hardware: Hardware,
    objective: Objective = "pipeline",
    *,
    method: str = "auto",
    stages: int | None = None,
    inputs: int | None = None,
    transfers: Transfers = "parallel",
    resident: Resident = "tensors",
    time_limit_s: float | None = None,
) -> ProvenBound:
    """Prove a lower bound on the full problem.

    Parameters
    ----------
    graph, hardware, objective, stages, inputs, transfers, resident
        As for `schedule`.
    method
        The name of one bound, or ``auto``: the ideals where there are not too many, else all that apply, and the
        best is kept.
    time_limit_s
        Wall-clock seconds.

    Raises
    ------
    RlinitError
        An unknown method, or one that does not apply to the objective; the message lists those that do.
    """
    _check_objective(objective)
    if objective == "latency" or objective == "throughput":
        return _placement_bound(graph, hardware, objective, method, inputs, transfers, resident, time_limit_s)
    names = (*stage_bounds(objective), "ideals")
    if method not in ("auto", *names):
        raise RlinitError(f"unknown bound {method!r} for {objective}; expected auto, {', '.join(names)}")
    if stages is not None:
        hardware = hardware.with_stages(stages)
    if time_limit_s is not None:
        _load_solvers(objective)
    started = time.monotonic()
    budget = Budget(time_limit_s)
    with _interruptible(budget):
        lowered = lower_stages(graph, hardware, objective)
        incumbent = for_stages(lowered.problem, budget, 0.0, None)
        if lowered.infeasible:
            raise RlinitError(f"nothing to bound: {lowered.infeasible}")
        bound_stages(incumbent, method)
    bounds = incumbent.bounds or (0.0,) * (1 if objective == "pipeline" else 3)
    return ProvenBound(bounds, incumbent.bound_source or "nothing", time.monotonic() - started)


def _placement_bound(
    graph: Graph,
    hardware: Hardware,
    objective: Literal["latency", "throughput"],
    method: str,
    inputs: int | None,
    transfers: Transfers,
    resident: Resident,
    time_limit_s: float | None,
) -> ProvenBound:
    """Prove a bound on a placement problem by one method or by all of them."""
    from rlinit.placements.lowering import lower_placement
    from rlinit.solving.placements import placement_bound_phase, placement_bounds

    names = list(placement_bounds())
    if method not in ("auto", *names):
        raise RlinitError(f"unknown bound {method!r} for {objective}; expected auto, {', '.join(names)}")
    if time_limit_s is not None:
        _load_solvers(objective)
    started = time.monotonic()
    budget = Budget(time_limit_s)
    with _interruptible(budget):
        lowered = lower_placement(graph, hardware, objective, inputs=inputs, transfers=transfers, resident=resident)
        incumbent = for_placement(lowered.problem, budget, 0.0, None)
        if lowered.infeasible:
            raise RlinitError(f"nothing to bound: {lowered.infeasible}")
        for name in names if method == "auto" else [method]:
            placement_bound_phase(incumbent, name)
    bounds = incumbent.bounds or (0.0,)
    return ProvenBound(bounds, incumbent.bound_source or "nothing", time.monotonic() - started)


def _check_objective(objective: str) -> None:
    if objective not in get_args(Objective):
        raise RlinitError(f"unknown objective {objective!r}; expected {' or '.join(get_args(Objective))}")


def _check_settings(*, gap: float, time_limit_s: float | None, window: Window, jobs: int) -> None:
    if not 0.0 <= gap < 1.0:
        raise RlinitError(f"gap is {gap}; expected a fraction from 0 to below 1")
    if time_limit_s is not None and not time_limit_s > 0:
        raise RlinitError(f"time_limit_s is {time_limit_s}; expected seconds > 0")
    if isinstance(window, int) and window < 0:
        raise RlinitError(f"window is {window}; expected levels >= 0, 'auto' or None")
    if jobs < 1:
        raise RlinitError(f"jobs is {jobs}; expected at least 1")


@contextmanager
def _interruptible(budget: Budget) -> Iterator[None]:
    """Make Ctrl-C end the budget, so that the incumbent is returned; a second Ctrl-C raises as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        budget.cancel()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _plan(
    incumbent: StageIncumbent | PlacementIncumbent | ActivationIncumbent,
    parts: Mapping[str, Any],
    graph: Graph,
    hardware: Hardware,
    objective: Objective,
    provenance: Mapping[str, str | float | bool | None],
) -> Plan:
    """Turn the incumbent into a plan."""
    found = "assignment" in parts
    status: Status = "feasible" if found else "no_solution"
    if is_closed(incumbent.values, incumbent.bounds):
        status = "optimal"
    message = incumbent.infeasible
    if incumbent.infeasible:
        status = "infeasible"
    elif incumbent.budget.cancelled:
        message = "interrupted; this is the best schedule so far" if found else "interrupted before a schedule"
    elif status == "no_solution":
        message = incumbent.note or "the budget ended before a schedule was found"
    elif status == "feasible":
        message = incumbent.note
    return Plan(
        objective=objective,
        status=status,
        values=incumbent.values,
        bounds=None if incumbent.infeasible else incumbent.bounds,
        bound_source=incumbent.bound_source,
        method=incumbent.method,
        history=tuple(incumbent.history),
        phase_s=incumbent.phase_s,
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=hardware.name,
        hardware_fingerprint=hardware.fingerprint(),
        provenance=provenance,
        message=message,
        graph_figures=figures_of(graph),
        modules={op: path for op, path in module_paths(graph).items() if path},
        **{"assignment": None, "stages": (), **parts},
    )
