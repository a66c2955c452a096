"""`schedule` and `bound`: options are checked, a problem is solved, and what came of it is made a plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rlinit.budget import Budget, limited_memory
from rlinit.costs.measured_graph import with_costs
from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.kernels.interruption import compiling_paused, interruptible
from rlinit.plan import ChunkOrder, Objective, Plan, Resident, Transfers
from rlinit.solving import phases
from rlinit.solving.common.incumbent import Progress
from rlinit.solving.common.options import SolveOptions, Window, groups_devices
from rlinit.solving.groups import with_menu
from rlinit.solving.phases import PlannedPhase, check_method, solve
from rlinit.solving.plans import Request, checked_plan, resumed
from rlinit.solving.sensitivity import robust_plan
from rlinit.solving.sharing import bound_of, largest_case, plan_of_cases
from rlinit.stages.training.rules import Recompute, Training


@dataclass(frozen=True, slots=True)
class ProvenBound:
    """A lower bound on the full problem, level by level, what proved it, and the seconds it took.

    `notes` names the bounds that failed and were passed over; `interrupted` says that Ctrl-C ended it.
    """

    bounds: tuple[float, ...]
    source: str
    seconds: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False

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
    memory_limit_bytes: float | str | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    jobs: int = 1,
    inputs: int | None = None,
    transfers: Transfers = "parallel",
    resident: Resident = "peak",
    coarsen: bool = False,
    refine: Literal["layer", "module"] | None = None,
    activations: bool = False,
    chunks: int = 1,
    chunk_order: ChunkOrder = "interleaved",
    contiguous: bool = True,
    training: Training | None = None,
    microbatches: int | None = None,
    recompute: Recompute = "none",
    optimizer: str | float = "adam",
    replicas: int | Literal["auto", "mixed"] = 1,
    tensor_parallel: int | Literal["auto"] = 1,
    uniform: bool = False,
    costs: Any = None,
    robust: bool = False,
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
        that comes with rlinit, or the path of one, ``*.safetensors``), or a Plan to refine, which may be of a model,
        devices or costs that have changed since: ops and devices are found by name. The plan's provenance says under
        ``start`` what it was.
    window
        For ``warm``: the levels around stage boundaries the exact solver may change; ``auto`` widens 1, 2, 4, ...;
        None frees everything.
    method
        ``auto``: whatever proves the optimum soonest. ``milp``: the full program on SCIP from nothing. ``agent``: the
        learned agent alone. A heuristic's name: that alone, with the cheapest bounds. For stages also ``warm``: coarse
        schedule, windows on SCIP, bounds; ``ideals``: dynamic programming over ideals; ``cp-sat``. For placements also
        ``sweep``: local search; ``split``: module by module; ``cp-sat``.
    gap
        Stop once proven within this fraction of the best possible.
    time_limit_s
        Wall-clock seconds, not counting kernels that are compiled on first use; None: a fixed amount of work.
    memory_limit_bytes
        What solving may take beyond what the process has when it begins, as a number or such as "16GB"; None: 80% of
        what is free then. A phase that would take more is given up, and named in the plan's `notes`.
    checkpoint
        A file that keeps the best plan so far, written atomically when it changes, every 10 seconds at most. Where it
        is there, the search goes on from its schedule, and believes its bounds.
    seed
        Seed of everything random.
    jobs
        Runs of the heuristics side by side; more of them find better schedules in the same time.
    inputs
        For ``throughput``: inputs to finish. Split into shards, by the common divisor of the devices' batch sizes;
        16 at most where a device names none.
    transfers
        For placements: ``parallel``, ``exclusive`` (one at a time on each directed link), or ``blocking`` (the
        receiving device waits).
    resident
        For placements: what counts against a device's memory beside the weights of its ops: the ``peak`` of tensors
        that are alive at once, and `Device.reserve_bytes`; all ``tensors`` of its ops (DIVIML's rule); or nothing
        (``weights``).
    coarsen
        For placements: search with fused ops and contracted chains only (Moirai's GCOF), which is faster on large
        graphs and loses what only splitting them could gain. Bounds remain bounds of the problem itself.
    refine
        ``layer`` or ``module``: plan with those whole first (`Graph.group`), then go on inside them from that plan,
        which never gets worse; its value is among the plan's `notes`. Where no plan keeps them whole, the search begins
        as without.
    activations
        For ``pipeline``: count the peak of activation memory of each stage against its cache, beside its parameters
        (MTPP eq. 2). The plan then says in which order the ops of a stage reach that peak.
    chunks, chunk_order
        For ``pipeline``: stages that each of the k devices runs, and whether stage j runs on the device of stage
        j mod k (``interleaved``) or on any (``free``). The bottleneck is the largest sum over the stages of a device;
        its parameters count against memory and cache together.
    contiguous
        For ``pipeline``: False lets a device hold any ops. The bottleneck is the largest sum of a device's work and of
        its tensors, each counted once for each device that it enters or leaves.
    training
        For ``pipeline``: train by the schedule ``gpipe``, ``1f1b``, ``interleaved`` (with `chunks`) or ``zero-bubble``.
        Forward and backward of an op are on one stage, gradients flow back, and the memory of every stage holds what
        training takes there; `rlinit.stages.training.problem` has the formulas. Backward ops, or the times of backward
        passes, may be given in the graph (`rlinit.stages.training.lowering`); else a backward takes twice its forward.
    microbatches
        For training: parts m of a batch that follow each other through the stages. The value is the time of the busiest
        stage for one of them; `plan.training.step_s` is that of the whole step.
    recompute
        For training: ``none``; ``all`` repeated layers and modules that are whole on a stage run forward a second time
        before their backward, and keep their inputs alone; ``auto``: those that the memory needs, at least cost.
    optimizer
        For training: ``sgd``, ``momentum``, ``adam``, ``adam-bf16``, or the bytes that are held for each byte of
        parameters (1: parameters alone).
    replicas, tensor_parallel
        For ``pipeline``: stages of several devices that are alike: copies of every stage between which micro-batches
        are spread, and devices that share the work of every op; ``auto`` chooses for each stage, and ``mixed`` lets
        copies of a stage lie on unlike devices, with unequal shares of a batch. Ops have a menu
        (`Graph.menu`) of the ways in which they may run, with ``training`` of forward and backward together; where none
        has, the plan is one of the graph that `rlinit.stages.groups.traced_menus.with_traced_menu` gives.
        `rlinit.stages.groups.problem` has the formulas.
    uniform
        With these: one number of replicas and one degree for all stages.
    costs
        Seconds beside those of the graph: a `CostTable`, or measured tables (`rlinit.costs.tables`): their folder,
        several, or a mapping from kinds of devices. The plan is one of the graph that
        `rlinit.costs.measured_graph.with_costs` gives, which is what to verify it against; `plan.costs` says what its
        seconds rest on.
    robust
        Return of the plans seen the one of least mean value over 100 draws of the costs within their errors
        (`Plan.sensitivity`), which takes some seconds more.
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

    Notes
    -----
    A bound, window or phase that fails is passed over and named in the plan's `notes`.
    """
    began = time.monotonic()
    options = _options({**locals(), "agent": "plan" if isinstance(agent, Plan) else agent})
    plan = agent if isinstance(agent, Plan) else None
    if costs is not None:
        _check_kinds(graph, hardware)
        graph = with_costs(graph, hardware, costs, range(1, (inputs or 1) + 1))
    elif groups_devices(options):
        _check_kinds(graph, hardware)
    graph = with_menu(graph, hardware, options, costs)
    hardware = _prepared(graph, hardware, options, plan)
    budget = _search_budget(graph, options, time.monotonic() - began)
    with interruptible(budget), compiling_paused(budget, progress), limited_memory(options.memory_limit):
        request = Request(graph, hardware, options, plan, budget, progress)
        planned = plan_of_cases(request)
        if planned is None:
            request = resumed(request)
            planned = checked_plan(solve(request), request)
    return robust_plan(planned, graph, hardware, options) if robust else planned


def _options(given: Mapping[str, Any]) -> SolveOptions:
    """Return the options among the arguments of a call, all others as they are by default."""
    return SolveOptions(**{one.name: given[one.name] for one in fields(SolveOptions) if one.name in given})


_CLOSING_S = 3e-5
"""Seconds of an op that making and checking the plan take, up to twice as many where chunks train: kept back from the
search, up to half of the limit."""


def _search_budget(graph: Graph, options: SolveOptions, spent_s: float) -> Budget:
    """Return what is left of the limit for the search, once costs and menus took `spent_s`."""
    limit_s = options.time_limit_s
    return Budget(None if limit_s is None else max(0.5 * limit_s, limit_s - spent_s - _CLOSING_S * graph.num_ops))


def _check_kinds(graph: object, hardware: object) -> None:
    """Refuse what is not a graph or hardware yet, and say how it becomes one."""
    if not isinstance(graph, Graph):
        how = "rlinit.load_graph reads one from a file, Graph.from_torch from a module"
        if type(graph).__name__ == "LanguageModel":
            how = "rlinit.llm.plan(model, hardware, objective='decode') plans a language model"
        raise InvalidGraph(f"expected a Graph, got a {type(graph).__name__}; {how}")
    if not isinstance(hardware, Hardware):
        raise InvalidHardware(
            f"expected Hardware, got {hardware!r:.60}; Hardware.preset(name) and Hardware.load(path) give one"
        )


def _prepared(graph: Graph, hardware: Hardware, options: SolveOptions, plan: Plan | None) -> Hardware:
    """Refuse wrong kinds, unknown methods and agents before any work is done; return the hardware with its stages."""
    _check_kinds(graph, hardware)
    check_method(options if plan is None else replace(options, agent="auto"))
    return hardware if options.stages is None else hardware.with_stages(options.stages)


def explain(graph: Graph, hardware: Hardware, options: SolveOptions, plan: Plan | None = None) -> list[PlannedPhase]:
    """Return the phases that `schedule` would follow for a problem, whether each would run, and why, without solving.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    options
        How it would be solved.
    plan
        A plan to refine.

    Raises
    ------
    RlinitError
        As `schedule` raises for wrong inputs; also for a problem that is infeasible by its data alone.
    """
    hardware = _prepared(graph, hardware, options, plan)
    graph = with_menu(graph, hardware, options)
    return phases.explain(largest_case(Request(graph, hardware, options, plan)))


def bound(
    graph: Graph,
    hardware: Hardware,
    objective: Objective = "pipeline",
    *,
    method: str = "auto",
    stages: int | None = None,
    inputs: int | None = None,
    transfers: Transfers = "parallel",
    resident: Resident = "peak",
    chunks: int = 1,
    chunk_order: ChunkOrder = "interleaved",
    contiguous: bool = True,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> ProvenBound:
    """Prove a lower bound on the full problem.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    objective, stages, inputs, transfers, resident, chunks, chunk_order, contiguous
        The problem; see `schedule`.
    method
        The name of one bound, or ``auto``: the ideals where there are not too many, else all that apply, and the
        best is kept.
    time_limit_s
        Wall-clock seconds; None: a fixed amount of work. Ctrl-C ends it as the limit does, with the best bound so far.
    progress
        Called with every improvement.

    Raises
    ------
    InvalidGraph, InvalidHardware
        The inputs do not fit together; the message names the op or device.
    RlinitError
        An argument out of range, or an unknown method, or one that does not apply to the objective; the message lists
        those that do.
    """
    options = _options(locals())
    return prove(graph, hardware, options, progress)


def prove(graph: Graph, hardware: Hardware, options: SolveOptions, progress: Progress | None = None) -> ProvenBound:
    """Prove a lower bound on the full problem, of any kind: as `bound`, and with training and activations.

    Parameters
    ----------
    graph, hardware
        The model and the devices.
    options
        The problem; the method is the name of a bound, or ``auto``.
    progress
        Called with every improvement.

    Raises
    ------
    InvalidGraph, InvalidHardware
        The inputs do not fit together.
    RlinitError
        An unknown bound, or a problem that is infeasible by its data alone.
    """
    _check_kinds(graph, hardware)
    check_method(options, bounds=True)
    started, budget = time.monotonic(), Budget(options.time_limit_s)
    hardware = hardware if options.stages is None else hardware.with_stages(options.stages)
    with interruptible(budget), compiling_paused(budget, progress), limited_memory(options.memory_limit):
        bounds, source, notes = bound_of(Request(graph, hardware, options, None, budget, progress))
    bounds = bounds or (0.0,) * (3 if options.objective == "memory" else 1)
    return ProvenBound(bounds, source or "nothing", time.monotonic() - started, tuple(notes), budget.cancelled)
