"""Plan: the result of scheduling, with its status, bound and provenance; JSON in and out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlinit.errors import InvalidPlan
from rlinit.files import read_json, write_json
from rlinit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rlinit.graph import Graph
    from rlinit.hardware import Hardware
    from rlinit.solving.sensitivity import Sensitivity

__all__ = [
    "OPTIMALITY_TOLERANCE",
    "Batch",
    "ChunkOrder",
    "DeviceUse",
    "GroupRules",
    "HistoryEntry",
    "Objective",
    "Plan",
    "PlannedTransfer",
    "Resident",
    "StageUse",
    "Status",
    "TrainedStageUse",
    "TrainingUse",
    "Transfers",
    "is_closed",
    "relative_gap",
]

Objective = Literal["pipeline", "memory", "latency", "throughput"]
Status = Literal["optimal", "feasible", "infeasible", "no_solution"]

Transfers = Literal["parallel", "exclusive", "blocking"]

Exchange = Literal["ring", "zero2", "zero3", "server"]
"""How the devices of a stage of several send each other what they share; see `rlinit.stages.groups.problem`."""

ChunkOrder = Literal["interleaved", "free"]
"""Which device runs which chunk: stage j on the device of stage j mod k, or any as long as each has as many."""

Resident = Literal["peak", "tensors", "weights"]
"""What a device holds at once: weights and the most bytes of tensors that are alive together, weights and all tensors
of its ops (DIVIML condition 6), or weights alone."""

COSTS = "costs: "
"""Before what seconds come from, in provenance."""

OPTIMALITY_TOLERANCE = 1e-6
"""A value is optimal when it exceeds a bound on the full problem by at most this, relatively."""


def relative_gap(values: tuple[float, ...] | None, bounds: tuple[float, ...] | None) -> float:
    """Return (value - bound) / value at the first level where they differ by more than the tolerance; 0 if none does.

    ``inf`` without a value. A bound above its value is for the checker to refuse; here it closes the gap.

    Parameters
    ----------
    values, bounds
        One for each level, or None.
    """
    if values is None:
        return float("inf")
    for value, bound in zip(values, bounds or (0.0,) * len(values), strict=True):
        gap = (value - bound) / value if value > 0 else 0.0
        if gap > OPTIMALITY_TOLERANCE:
            return gap
    return 0.0


def is_closed(values: tuple[float, ...] | None, bounds: tuple[float, ...] | None) -> bool:
    """Return whether the bound proves the value optimal on every level.

    Parameters
    ----------
    values, bounds
        One for each level, or None.
    """
    return values is not None and relative_gap(values, bounds) == 0.0


@dataclass(frozen=True, slots=True)
class ShareUse:
    """What the replicas on one kind of devices have of a stage that lies on several.

    Each takes `microbatches` of those of a batch, runs ops in the ways of `variants`, and takes `time_s` for the stage
    between two micro-batches of it; what its devices hold is as in `StageUse`.
    """

    kind: str
    replicas: int
    microbatches: int
    time_s: float
    in_flight: int
    held_bytes: float
    variants: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage does on each input: seconds of its parts, and bytes; `activation_bytes` is 0 where not counted.

    A stage of several devices (`Plan.groups`) has `replicas` groups of `tensor_parallel` devices, whose names are in
    `devices` group by group; `variants` says in which of its menu's ways each op runs. Seconds are those between two
    micro-batches: `sync_s` of gathers at its borders, `gradient_s` of gradients among replicas, beside work and
    tensors. `held_bytes` is what each of its devices holds, with `in_flight` micro-batches under way. Where replicas
    are on several kinds of devices, `shares` has those of each, the slowest first, in the order of `devices`; seconds,
    held bytes and variants of the stage are those of the first.
    """

    device: str
    num_ops: int
    work_s: float
    in_s: float
    out_s: float
    overflow_s: float
    param_bytes: float
    off_cache_bytes: float
    out_bytes: float
    activation_bytes: float = 0.0
    replicas: int = 1
    tensor_parallel: int = 1
    devices: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    sync_s: float = 0.0
    gradient_s: float = 0.0
    in_flight: int = 1
    held_bytes: float = 0.0
    shares: tuple[ShareUse, ...] = ()

    @property
    def time_s(self) -> float:
        """Seconds of the whole stage."""
        return self.in_s + self.work_s + self.overflow_s + self.out_s + self.sync_s + self.gradient_s


GROUPED = (
    "replicas", "tensor_parallel", "devices", "variants", "sync_s", "gradient_s", "in_flight", "held_bytes", "shares",
)  # fmt: skip
"""Fields of a stage that are written where stages may have several devices."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What stages of several devices may be.

    Parameters
    ----------
    training
        ``1f1b`` or ``gpipe``, where menus are of forward and backward together; "": inference.
    microbatches
        Micro-batches N of a batch, which replicas divide; in inference the replicas that there may be at most.
    replicas, tensor_parallel
        Of every stage; 0: each stage its own.
    uniform
        Whether all stages have one number of replicas and one degree.
    recompute
        ``none``, ``all`` or ``auto``: which variants count.
    exchange
        ``ring``, ``zero2``, ``zero3`` or ``server``: how groups and replicas send each other what they share.
    workspace_bytes
        Tensor degree, as text -> bytes of each device that are for no op of a stage of this degree, beside the
        device's reserve.
    mixed
        Whether a stage may have replicas on several kinds of devices, with shares of a batch as they are fast.
    """

    training: str
    microbatches: int
    replicas: int = 0
    tensor_parallel: int = 0
    uniform: bool = False
    recompute: str = "auto"
    exchange: Exchange = "ring"
    workspace_bytes: Mapping[str, float] = field(default_factory=dict)
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class TrainedStageUse:
    """What a stage of a training pipeline does for each micro-batch, and what it holds.

    Parameters
    ----------
    forward_s, backward_s, recompute_s
        Seconds of computing; they add up to the stage's `work_s`.
    in_flight
        Micro-batches whose activations it holds at most.
    state_bytes, kept_bytes, recomputed_bytes, buffer_bytes, working_bytes
        Parameters, gradients and optimiser; activations of all micro-batches in flight; the largest block that is
        recomputed; tensors and gradients received from other stages; gradients at work.
    recomputed
        Blocks that run forward a second time.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    in_flight: int
    state_bytes: float
    kept_bytes: float
    recomputed_bytes: float
    buffer_bytes: float
    working_bytes: float
    recomputed: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> float:
        """Bytes of the device's memory that the stage takes."""
        activations = self.kept_bytes + self.recomputed_bytes
        return self.state_bytes + activations + self.buffer_bytes + self.working_bytes


@dataclass(frozen=True, slots=True)
class TrainingUse:
    """How a training pipeline runs.

    Parameters
    ----------
    schedule
        ``gpipe``, ``1f1b``, ``interleaved`` or ``zero-bubble``.
    microbatches
        Parts m of a batch.
    recompute
        ``none``, ``auto`` or ``all``.
    state_factor
        Bytes held for each byte of parameters.
    step_s
        Seconds of a whole step: all micro-batches forward and backward, with what it takes to fill and drain.
    stages
        What each stage does, beside `Plan.stages`.
    exchange_bytes
        Bytes that devices send each other after each step, outside `step_s`, to add up the gradients of parameters that
        several of them hold: 2 (h - 1) times a parameter's bytes for h devices, as a ring all-reduce sends them.
    """

    schedule: str
    microbatches: int
    recompute: str
    state_factor: float
    step_s: float
    stages: tuple[TrainedStageUse, ...]
    exchange_bytes: float = 0.0

    def bubble(self, bottleneck_s: float) -> float:
        """Return the share of a step in which even the busiest stage waits."""
        return 1.0 - self.microbatches * bottleneck_s / self.step_s if self.step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One run of an op on a device, for the inputs in some shards, in seconds from the start."""

    op: str
    device: str
    shards: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """One transfer of an op's output from device to device, in seconds from the start.

    `tensor` says which output, as `Graph.tensors` calls it: ``""`` for the main one, a port, or ``"-> consumer"``.
    """

    op: str
    source: str
    target: str
    start_s: float
    end_s: float
    tensor: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one device does in a placement: batches, seconds of computing, bytes it holds."""

    device: str
    num_batches: int
    busy_s: float
    held_bytes: float


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One improvement: seconds since the start, values and bounds from then on, and the phase that found it."""

    time_s: float
    values: tuple[float, ...] | None
    bounds: tuple[float, ...] | None
    phase: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule and how good it is.

    Parameters
    ----------
    objective
        What was minimised.
    status
        ``optimal``: the value meets a bound on the full problem within 1e-6 relative, on every level.
        ``feasible``: a schedule, not proven best. ``infeasible``: proven that none exists; `message` says why.
        ``no_solution``: the budget ended before one was found.
    values, bounds
        The value on each level, and proven lower bounds on the full problem. ``(bottleneck_s,)`` for `pipeline`;
        (peak parameter bytes, off-cache bytes, largest bytes leaving a stage) for `memory`, where a bound on one
        level holds for schedules that are optimal on all levels before it. ``(makespan_s,)`` for `latency` and, over
        all inputs, for `throughput`.
    bound_source, method
        What proved the bound, and what found the schedule.
    assignment
        op name -> stage number from 0 (stage objectives) or device name (`latency`, `throughput`), in the graph's op
        order; None without a schedule. Where several devices run an op, each for some inputs, it is the tuple of their
        names in the order of the hardware; `batches` says which inputs each runs.
    stages
        What each stage does; stage j runs on ``stages[j].device``.
    history
        Every improvement of value or bound.
    phase_s
        Seconds of each phase.
    graph, graph_fingerprint, hardware, hardware_fingerprint
        What the plan is for, by name and by contents.
    provenance
        Settings and seeds that led here.
    message
        Why there is no schedule, or what limited it; empty if there is nothing to say.
    notes
        Bounds, windows and phases that failed and were passed over, bounds that were refuted, and what else to know
        before the plan is used.
    start_s
        op name -> start of its first batch in seconds, for objectives with a timeline.
    batches, transfers, devices
        For `latency` and `throughput`: every batch by start, the transfers that share links or devices with others
        (none for ``parallel`` transfers), and what each device does.
    inputs, shard_inputs
        Inputs L to finish, and inputs of one shard.
    transfer_rule, resident
        ``parallel``, ``exclusive`` or ``blocking`` transfers; whether the ``peak`` of live tensors is held beside
        weights, all ``tensors``, or ``weights`` alone.
    graph_figures
        Totals of the graph by name (ops, edges, param_bytes, out_bytes, flops); tells what differs from another one.
    modules
        op -> path of its innermost module, where the graph says.
    stage_orders
        Ops of each stage in the order that its peak of activation memory is for; empty where the cost of stages does
        not count activations.
    training
        How the stages train, where the plan is for training; without a schedule, how they are to.
    groups
        What stages may be, where they may have several devices.
    baselines
        What simple rules give on the same problem: rule -> value on the first level, by the same evaluation; None where
        the rule gives nothing that fits. Empty where nothing was compared.
    baseline_notes
        rule -> the reason where its value is None, or which device it is, for ``best single device``.
    chunks, chunk_order
        For `pipeline`: stages that each device runs, so there are ``chunks`` times as many stages as devices, and
        which device runs which. The value is the largest sum over the stages of one device. Parameters of a device's
        stages count against its memory and its cache together; each stage shows its share, by bytes, of the overflow.
    contiguous
        For `pipeline`: whether stages are in the order of the data. Where not, a stage is all that one device does,
        and data may go to and fro between devices.
    """

    objective: Objective
    status: Status
    values: tuple[float, ...] | None
    bounds: tuple[float, ...] | None
    bound_source: str
    method: str
    assignment: Mapping[str, Any] | None
    stages: tuple[StageUse, ...]
    history: tuple[HistoryEntry, ...]
    phase_s: Mapping[str, float]
    graph: str
    graph_fingerprint: str
    hardware: str
    hardware_fingerprint: str
    provenance: Mapping[str, str | float | bool | None] = field(default_factory=dict)
    message: str = ""
    start_s: Mapping[str, float] | None = None
    batches: tuple[Batch, ...] = ()
    transfers: tuple[PlannedTransfer, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    inputs: int = 1
    shard_inputs: int = 1
    transfer_rule: Literal["parallel", "exclusive", "blocking"] = "parallel"
    resident: Resident = "tensors"
    graph_figures: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    stage_orders: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    baseline_notes: Mapping[str, str] = field(default_factory=dict)
    chunks: int = 1
    chunk_order: ChunkOrder = "interleaved"
    contiguous: bool = True
    training: TrainingUse | None = None
    groups: GroupRules | None = None

    @property
    def value(self) -> float:
        """The value on the first level: bottleneck or makespan seconds, or peak parameter bytes; inf without any."""
        return self.values[0] if self.values else float("inf")

    @property
    def bound(self) -> float:
        """The proven lower bound on `value`; inf where infeasible."""
        if self.status == "infeasible":
            return float("inf")
        return self.bounds[0] if self.bounds else 0.0

    @property
    def costs(self) -> dict[str, float]:
        """Share of the ops' seconds by where they come from.

        ``given``, ``measured``, ``interpolated``, ``extrapolated`` (measured tables), ``modelled`` (the roofline).
        """
        return {
            key.removeprefix(COSTS): float(share or 0)
            for key, share in self.provenance.items()
            if key.startswith(COSTS)
        }

    def sensitivity(self, graph: Graph, hardware: Hardware, **settings: Any) -> Sensitivity:
        """Return what the plan is worth when costs are off.

        Parameters
        ----------
        graph, hardware
            What it was made for.
        settings
            As for `rlinit.solving.sensitivity.sensitivity`: spread, draws, seed, options.
        """
        from rlinit.solving.sensitivity import sensitivity

        return sensitivity(self, graph, hardware, **settings)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Whose word the bound rests on: ``scip``, ``cp-sat``, or the ``checkpoint`` that a search went on from.

        Empty where rlinit's own code proves it in this search.
        """
        return tuple(filter(None, str(self.provenance.get("trusted") or "").split(", ")))

    @property
    def gap(self) -> float:
        """(value - bound) / value on the first level that is not proven; 0 when optimal, inf without a schedule."""
        return relative_gap(self.values, self.bounds)

    @property
    def inputs_per_s(self) -> float:
        """Inputs finished in a second: L / makespan for `latency` and `throughput`, 1 / bottleneck for `pipeline`.

        Raises
        ------
        InvalidPlan
            A `memory` plan, which has no times.
        """
        if self.objective == "memory":
            raise InvalidPlan("a memory plan has no times")
        return self.inputs / self.value if self.value > 0 else float("inf")

    def ratio_to(self, baseline: str) -> float | None:
        """Return the plan's value over that of a baseline, below 1 where the plan is better; None without either.

        Raises
        ------
        InvalidPlan
            The plan was not compared with such a baseline; the message lists those that there are.
        """
        if baseline not in self.baselines:
            raise InvalidPlan(f"no baseline {baseline!r}; expected one of {', '.join(self.baselines) or 'none'}")
        other = self.baselines[baseline]
        if self.values is None or other is None:
            return None
        return self.value / other if other > 0.0 else 1.0 if self.value == 0.0 else float("inf")

    @property
    def device_times_s(self) -> dict[str, float]:
        """Seconds of each device of a stage plan, all its stages together, by name."""
        times: dict[str, float] = {}
        for use in self.stages:
            times[use.device] = times.get(use.device, 0.0) + use.time_s
        return times

    @property
    def num_stages(self) -> int:
        """Number of stage slots k, empty stages counted."""
        return len(self.stages)

    def __repr__(self) -> str:
        what = f"{self.graph!r} on {self.hardware!r}, {self.objective}"
        if self.values is None:
            return f"Plan({what}, {self.status}{': ' * bool(self.message)}{self.message})"
        value = format_bytes(self.value) if self.objective == "memory" else format_seconds(self.value)
        gap = "" if self.status == "optimal" else f", gap {self.gap:.2%}"
        return f"Plan({what} {value}, {self.status}{gap})"

    def __str__(self) -> str:
        from rlinit.reports.tables import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        """Return the plan as notebooks show it."""
        from rlinit.reports.tables import plan_html

        return plan_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (schema `rlinit/schemas/plan.schema.json`)."""
        data: dict[str, Any] = {"format": "rlinit-plan", "version": 1, **dataclasses.asdict(self)}
        for row in data["transfers"]:
            if not row["tensor"]:
                del row["tensor"]
        for what in ("training", "groups"):
            if data[what] is None:
                del data[what]
        for row in data["stages"] if self.groups is None else ():
            for what in GROUPED:
                del row[what]
        data["assignment"] = None if self.assignment is None else dict(self.assignment)
        return data

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan written by `save`.

        Raises
        ------
        InvalidPlan
            Unreadable file, truncated JSON, or JSON that breaks the schema (the message gives the path in it).
        """
        data = read_json(path, "plan", InvalidPlan)
        for key in ("format", "version"):
            del data[key]
        for key in ("values", "bounds"):
            data[key] = _levels(data[key])
        for op, place in (data["assignment"] or {}).items():
            if isinstance(place, list):
                data["assignment"][op] = tuple(place)
        for row in data["stages"]:
            shares = tuple(ShareUse(**share) for share in row.get("shares", ()))
            row |= {"devices": tuple(row.get("devices", ())), "shares": shares}
        data["stages"] = tuple(StageUse(**row) for row in data["stages"])
        data["groups"] = GroupRules(**data["groups"]) if data.get("groups") else None
        data["batches"] = tuple(Batch(**{**row, "shards": tuple(row["shards"])}) for row in data.get("batches", ()))
        data["transfers"] = tuple(PlannedTransfer(**row) for row in data.get("transfers", ()))
        data["devices"] = tuple(DeviceUse(**row) for row in data.get("devices", ()))
        data["training"] = _training(data.get("training"))
        data["stage_orders"] = tuple(map(tuple, data.get("stage_orders", ())))
        data["notes"] = tuple(data.get("notes", ()))
        data["history"] = tuple(
            HistoryEntry(row["time_s"], _levels(row["values"]), _levels(row["bounds"]), row["phase"])
            for row in data["history"]
        )
        return cls(**data)

    def plot(self, path: str | Path, graph: Graph | None = None, hardware: Hardware | None = None) -> None:
        """Draw what each stage costs, or a Gantt chart, with the proven bound, into an SVG, PNG or PDF file.

        Parameters
        ----------
        path
            The file to write; its suffix says which format.
        graph, hardware
            What the plan was made for. With both, a Gantt chart shows parallel transfers and the critical path, too.
        """
        from rlinit.reports.figures import draw

        draw(self, path, graph, hardware)

    def certify(
        self, path: str | Path, graph: Graph, hardware: Hardware, *, time_limit_s: float = 60.0
    ) -> tuple[str, ...]:
        """Write a proof of the plan's bounds that ``tools/check.py`` checks; see `rlinit.certificates`.

        Parameters
        ----------
        path
            The file to write, as JSON.
        graph, hardware
            What the plan is for.
        time_limit_s
            Seconds to look for proofs. A level whose proof is not found by then rests on what found its bound.

        Returns
        -------
        tuple of str
            What the bound still rests on; empty where every level is proven in the file.

        Raises
        ------
        InvalidPlan
            Nothing is known of schedules, or no proof was found that there is none. Or the schedule is not feasible in
            exact arithmetic, or that of a training pipeline of one device a stage, or of a pipeline with chunks,
            scattered ops, peaks of activations, or devices that share a resource.
        """
        from rlinit.certificates import write_certificate

        return write_certificate(path, self, graph, hardware, time_limit_s)

    def certify_vipr(self, path: str | Path, graph: Graph, hardware: Hardware, *, time_limit_s: float = 60.0) -> float:
        """Write a proof of a lower bound in VIPR's format, which tools such as viprchk check.

        Parameters
        ----------
        path
            The file to write, as text.
        graph, hardware
            What the plan is for.
        time_limit_s
            Seconds to look for a tree. Where they end first, the file proves what one linear program says.

        Returns
        -------
        float
            The bound that the file proves, in seconds (`memory`: bytes): the plan's, or a lower one where a tree of
            programs does not reach it. inf where the file proves that there is no schedule.

        Raises
        ------
        InvalidPlan
            Nothing is known of schedules, or no tree says that there is none; or the plan is not feasible in exact
            arithmetic, or is for `throughput`, stages of several devices, a training pipeline, chunks, scattered ops or
            pipelines on devices that share a resource.
        """
        from rlinit.certificates import write_vipr

        return write_vipr(path, self, graph, hardware, time_limit_s)

    def certify_veripb(
        self, path: str | Path, graph: Graph, hardware: Hardware, *, time_limit_s: float = 60.0
    ) -> float:
        """Write a proof of a lower bound in VeriPB's format, and the program that it is of, for ``veripb x.opb x.pbp``.

        Parameters
        ----------
        path
            The proof to write, ``x.pbp``; the program is ``x.opb`` beside it.
        graph, hardware
            What the plan is for.
        time_limit_s
            As for `certify_vipr`.

        Returns
        -------
        float
            The bound that the file proves, as for `certify_vipr`.

        Raises
        ------
        InvalidPlan
            As for `certify_vipr`; or the path does not end in ``.pbp``, or times are whole numbers in no unit.
        """
        from rlinit.certificates import write_veripb

        return write_veripb(path, self, graph, hardware, time_limit_s)

    def to_trace(self, path: str | Path) -> None:
        """Write the plan as trace JSON for Perfetto; see `rlinit.exporters.to_trace`."""
        from rlinit.exporters import to_trace

        to_trace(self, path)

    def to_dot(self, path: str | Path, graph: Graph) -> None:
        """Write the graph as Graphviz text, coloured by this plan; see `rlinit.exporters.to_dot`.

        Parameters
        ----------
        path
            The file to write.
        graph
            The graph the plan was made for.
        """
        from rlinit.exporters import to_dot

        to_dot(graph, path, self)

    def to_device_map(self, graph: Graph | None = None, *, devices: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return module path -> device, for ``accelerate.dispatch_model``; see `rlinit.exporters.to_device_map`.

        Parameters
        ----------
        graph
            What the plan was made for; without it, the paths are those that the plan keeps.
        devices
            Device name of the plan -> what the map shall say; the plan's names if not given.
        """
        from rlinit.exporters import to_device_map

        return to_device_map(self, graph, devices=devices)

    def to_megatron_layout(self, graph: Graph) -> str:
        """Return Megatron's ``--pipeline-model-parallel-layout``; see `rlinit.exporters.to_megatron_layout`."""
        from rlinit.exporters import to_megatron_layout

        return to_megatron_layout(self, graph)

    def report(self, path: str | Path, graph: Graph, hardware: Hardware) -> None:
        """Write one HTML page about the plan that opens offline; see `rlinit.exporters.to_report`.

        Parameters
        ----------
        path
            The file to write.
        graph, hardware
            What the plan was made for.
        """
        from rlinit.exporters import to_report

        to_report(self, graph, hardware, path)


def _training(data: Mapping[str, Any] | None) -> TrainingUse | None:
    if data is None:
        return None
    stages = (TrainedStageUse(**{**row, "recomputed": tuple(row["recomputed"])}) for row in data["stages"])
    return TrainingUse(**{**data, "stages": tuple(stages)})


def _levels(values: list[float] | None) -> tuple[float, ...] | None:
    try:
        return None if values is None else tuple(map(float, values))
    except OverflowError:  # JSON has whole numbers of any size
        raise InvalidPlan("a value or bound of the plan is too large to compute with") from None
