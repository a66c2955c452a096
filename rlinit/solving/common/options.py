"""What a caller may ask of `schedule` and `bound`: one frozen class, checked once, that the command line reads too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.limits import closest
from rlinit.plan import ChunkOrder, Objective, Resident, Transfers
from rlinit.stages.training.rules import Recompute, Training, TrainingRules, optimizer_factor
from rlinit.units import parse_quantity

Window = int | Literal["auto", "full"] | None
"""How much the exact solver may change at a time; ``full`` and None are the same."""


_PLACED = ("latency", "throughput")


def places_ops(objective: Objective) -> bool:
    """Return whether an objective gives every op a device of its own choice, rather than a stage."""
    return objective in _PLACED


def groups_devices(options: ProblemOptions) -> bool:
    """Return whether stages may have several devices."""
    return options.replicas != 1 or options.tensor_parallel != 1 or options.uniform


def splits_devices(options: SolveOptions) -> bool:
    """Return whether devices run several chunks, or hold loose ops, and nothing is trained."""
    return options.training is None and (options.chunks > 1 or not options.contiguous)


SEED_STRIDE = 1_000_003
"""Between the seeds of runs side by side, so that they do not meet those of later rounds."""


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Which problem to solve.

    Raises
    ------
    RlinitError
        A value out of range, of the wrong kind, or for another objective; the message has the keyword and the flag.
    """

    objective: Objective = "pipeline"
    """What is made small, one of:
    - pipeline: seconds of the slowest stage, each stage a run of ops on one device;
    - memory: parameter bytes of the largest stage, then bytes beyond the caches, then bytes sent on;
    - latency: seconds from one input to its output, each op on any device;
    - throughput: seconds for several inputs (--inputs), each op on any device."""
    stages: int | None = None
    """Number of stages, where the hardware does not say."""
    inputs: int | None = None
    """For throughput: inputs to finish."""
    transfers: Transfers = "parallel"
    """For latency and throughput: parallel, exclusive (one at a time on each link) or blocking (the receiver waits)."""
    resident: Resident = "peak"
    """For latency and throughput: what a device's memory has to hold at once, beside its reserve, one of:
    - peak: weights, and the tensors that are alive at the same time;
    - tensors: weights, and all tensors of its ops (DIVIML's rule);
    - weights: weights alone."""
    chunks: int = 1
    """For pipeline: stages that each device runs; the bottleneck is the largest sum over the stages of a device."""
    chunk_order: ChunkOrder = "interleaved"
    """With --chunks, on k devices: interleaved (stage j on the device of stage j mod k), or free."""
    contiguous: bool = True
    """For pipeline: stages in the order of the data. Without it a device may hold any ops."""
    training: Training | None = None
    """For pipeline: train by this schedule (interleaved: with --chunks), forward and backward of an op on one stage."""
    microbatches: int | None = None
    """For training: parts that a batch is cut into, which follow each other through the stages."""
    recompute: Recompute = "none"
    """For training: layers whose forward runs again before the backward, to keep less: none, auto or all."""
    optimizer: str = "adam"
    """For training: sgd, momentum, adam, adam-bf16, or the bytes held for each byte of parameters."""

    replicas: int | Literal["auto", "mixed"] = 1
    """For pipeline: replicas of every stage, by ops' menus (rlinit.menu), else as traced; or one of:
    - auto: of each stage its own, on devices of one kind;
    - mixed: on several kinds where that is better, with shares of a batch as they are fast."""
    tensor_parallel: int | Literal["auto"] = 1
    """For pipeline: devices that share the work of an op, in every stage, or auto: in each stage as many as pay."""
    uniform: bool = False
    """With --replicas auto or --tensor-parallel auto: the same in all stages, as many runtimes need it."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                door = LANGUAGE_MODELS if name == "objective" and value in ("decode", "prefill", "request") else ""
                raise _refused(name, value, f"one of {', '.join(choices)}", door)
        for name in ("stages", "inputs"):
            self._set(name, _whole(name, getattr(self, name), 1, ", or none"))
        if self.objective == "throughput" and self.inputs is None:
            raise _refused("inputs", None, "for throughput the number of inputs to finish, such as 16")
        if self.objective == "latency" and self.inputs not in (None, 1):
            raise _refused("inputs", self.inputs, "1 or none for latency; several inputs are the throughput objective")
        self._set("chunks", _whole("chunks", self.chunks, 1))
        self._set("contiguous", bool(self.contiguous))
        for name in ("inputs", "transfers", "resident"):
            self._refuse_others(name, _PLACED)
        for name in ("replicas", "tensor_parallel"):
            if getattr(self, name) != "auto" and (name, getattr(self, name)) != ("replicas", "mixed"):
                self._set(name, _whole(name, getattr(self, name), 1))
        self._set("uniform", bool(self.uniform))
        for name in ("chunks", "chunk_order", "contiguous", "training", "replicas", "tensor_parallel", "uniform"):
            self._refuse_others(name, ("pipeline",))
        if groups_devices(self):
            self._check_groups()
            return
        if self.chunks > 1 and not self.contiguous:
            raise RlinitError(
                f"chunks is {self.chunks} with contiguous=False; expected one of them, for a device that may hold any "
                "ops has no chunks (--chunks, --no-contiguous)"
            )
        self._check_training()

    @property
    def training_rules(self) -> TrainingRules | None:
        """How the pipeline trains; None where it does not."""
        if self.training is None or self.microbatches is None:
            return None
        factor = optimizer_factor(self.optimizer)
        return TrainingRules(self.training, self.microbatches, self.recompute, factor, self.chunks)

    def _check_groups(self) -> None:
        self._set("microbatches", _whole("microbatches", self.microbatches, 1, ", or none"))
        self._set("optimizer", str(self.optimizer))
        if self.chunks > 1 or not self.contiguous:
            raise RlinitError(
                "stages of several devices are contiguous, without chunks (--replicas, --tensor-parallel)"
            )
        if self.training not in (None, "1f1b", "gpipe"):
            raise _refused("training", self.training, "1f1b or gpipe for stages of several devices")
        if self.uniform and self.replicas == "mixed":
            raise RlinitError(
                "uniform=True is for one shape on one kind of devices; expected replicas='auto' or a number"
            )

    def _check_training(self) -> None:
        self._set("microbatches", _whole("microbatches", self.microbatches, 1, ", or none"))
        self._set("optimizer", str(self.optimizer))
        if self.training is None:
            usual = {"microbatches": None, "recompute": "none", "optimizer": "adam"}
            given = [name for name, value in usual.items() if getattr(self, name) != value]
            if given:
                raise RlinitError(
                    f"{' and '.join(given)}: for training only ({', '.join(map(_flag, given))}); "
                    f"name its schedule, such as training='1f1b' (--training 1f1b)"
                )
            return
        if self.chunk_order != "interleaved" or not self.contiguous:
            raise RlinitError(
                "training takes stages in the order of the data, without contiguous=False or chunk_order='free' "
                "(--training)"
            )
        if self.microbatches is None:
            raise _refused("microbatches", None, "for training the number of parts of a batch, such as 8")
        _ = self.training_rules

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _refuse_others(self, name: str, objectives: tuple[str, ...]) -> None:
        """Refuse an option that is not as by default for an objective that it is not for."""
        usual = next(one.default for one in fields(self) if one.name == name)
        if self.objective not in objectives and getattr(self, name) != usual:
            raise RlinitError(f"{name} is for {' and '.join(objectives)}, not for {self.objective} ({_flag(name)})")


@dataclass(frozen=True, slots=True)
class SolveOptions(ProblemOptions):
    """Which problem to solve, and how.

    Raises
    ------
    RlinitError
        A value out of range, of the wrong kind, or for another objective; the message has the keyword and the flag.
    """

    method: str = "auto"
    """auto, or one way alone: milp (all by SCIP), agent, or a heuristic.
    For pipeline and memory also warm (a start, then windows by SCIP), ideals and cp-sat.
    For latency and throughput also sweep, split and cp-sat.
    An unknown name lists them all."""
    agent: str = "auto"
    """Where a first schedule comes from: auto, a heuristic, a learned agent (.safetensors), a saved plan (.json)."""
    window: Window = "auto"
    """For warm: levels around the borders of stages that the exact solver may change: a number, auto, full."""
    gap: float = 0.0
    """Stop once the schedule is proven within this fraction of the best possible."""
    time_limit_s: float | None = None
    """Seconds to spend; without it, a fixed amount of work."""
    memory_limit_bytes: float | str | None = None
    """Bytes that solving may take, such as 16GB; without it, 80% of what is free. What would take more is left out."""
    checkpoint: Path | None = None
    """Keep the best plan so far in this file, every few seconds; where it is there, go on from it."""
    seed: int = 0
    """Seed of everything random."""
    jobs: int = 1
    """Runs of the heuristics side by side."""
    coarsen: bool = False
    """For latency and throughput: search with fused ops and chains of ops whole, which is faster on large graphs."""
    activations: bool = False
    """For pipeline: count the peak of activation memory against a stage's cache, too."""
    refine: Literal["layer", "module"] | None = None
    """Plan with layers (or modules) whole first, then go on inside them; the plan never gets worse."""

    def __post_init__(self) -> None:
        # A plan keeps the values: numbers of NumPy become plain ones, "full" and infinite limits None.
        ProblemOptions.__post_init__(self)
        for name in ("method", "agent"):
            if not isinstance(getattr(self, name), str):
                raise _refused(name, getattr(self, name), "a name")
        for name, least in (("seed", 0), ("jobs", 1)):
            self._set(name, _whole(name, getattr(self, name), least))
        if self.window is None or (isinstance(self.window, str) and self.window == "full"):
            self._set("window", None)
        elif not isinstance(self.window, str) or self.window != "auto":
            self._set("window", _whole("window", self.window, 0, ", auto, or full"))
        self._set("gap", _number("gap", self.gap, "a fraction from 0 to below 1", lambda share: 0.0 <= share < 1.0))
        if isinstance(self.memory_limit_bytes, str):
            self._set("memory_limit_bytes", _bytes("memory_limit_bytes", self.memory_limit_bytes))
        for name, expected in (("time_limit_s", "seconds > 0, or none"), ("memory_limit_bytes", "bytes > 0, or none")):
            value = getattr(self, name)
            limit = math.inf if value is None else _number(name, value, expected, lambda number: number > 0.0)
            self._set(name, None if math.isinf(limit) else limit)
        self._set("checkpoint", None if self.checkpoint is None else Path(self.checkpoint))
        for name in ("coarsen", "activations"):
            self._set(name, bool(getattr(self, name)))
        self._refuse_others("coarsen", _PLACED)
        self._refuse_others("activations", ("pipeline",))
        if self.refine not in (None, "layer", "module"):
            raise _refused("refine", self.refine, "layer, module or none")
        if self.checkpoint is not None and (self.refine is not None or self.agent == "plan"):
            raise RlinitError(
                f"checkpoint is {str(self.checkpoint)!r} beside refine or a plan as agent; expected one of them: all "
                "say what to begin from (--checkpoint, --refine, --agent)"
            )
        if self.refine is not None and self.agent != "auto":
            raise RlinitError(
                f"refine is {self.refine!r} and agent {self.agent!r}; expected one of them, for both say what to begin "
                "from (--refine, --agent)"
            )
        if self.activations and (self.chunks > 1 or not self.contiguous):
            raise RlinitError(
                "activations counts one stage a device, in the order of the data (--activations without --chunks and "
                "--no-contiguous)"
            )

    @property
    def keeps_best(self) -> bool:
        """Whether the plan may be a baseline, where one is better; methods asked for by name are shown as they are."""
        return self.method in ("auto", "warm")

    @property
    def memory_limit(self) -> float | None:
        """`memory_limit_bytes` as a number."""
        return None if self.memory_limit_bytes is None else float(self.memory_limit_bytes)

    @property
    def timed(self) -> bool:
        """Whether a clock ends the work; otherwise counts of it do."""
        return self.time_limit_s is not None


LANGUAGE_MODELS = (
    "; decode, prefill and request are for language models: rlinit.llm.plan(rlinit.llm.load(config), hardware, "
    "objective='decode'), or rlinit llm CONFIG --hw HARDWARE"
)
"""Which door leads to the objectives of language models."""

_CHOICES = {
    "objective": get_args(Objective),
    "transfers": get_args(Transfers),
    "resident": get_args(Resident),
    "chunk_order": get_args(ChunkOrder),
}


def shares(hardware: Hardware, options: SolveOptions) -> bool:
    """Return whether devices slow each other under an objective.

    Parameters
    ----------
    hardware
        The devices.
    options
        The problem.

    Raises
    ------
    RlinitError
        They would, in a pipeline of a kind that does not count it.
    """
    if not hardware.sharing or options.objective != "pipeline":
        return False
    for said, what in (
        (options.chunks > 1, "chunks"),
        (not options.contiguous, "contiguous=False"),
        (options.training is not None, "training"),
        (groups_devices(options), "replicas"),
        (options.activations, "activations"),
        (options.refine is not None, "refine"),
        (options.checkpoint is not None, "checkpoint"),
    ):
        if said:
            raise RlinitError(
                f"{what} does not count devices that share {', '.join(map(repr, hardware.sharing))}; leave sharing out "
                "of the hardware and give devices a slowdown"
            )
    return True


def unknown_bound(method: str, names: Iterable[str], problem: str) -> RlinitError:
    """Return the error of a bound that a problem does not have, with the nearest of those it has.

    Parameters
    ----------
    method
        What was asked for.
    names
        The bounds there are, ``auto`` among them.
    problem
        The problem, as the message calls it.
    """
    known = tuple(names)
    near = closest(method, known)
    return RlinitError(f"unknown bound {method!r} for {problem}{near} (expected {', '.join(known)}; {_flag('method')})")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refused(name: str, value: object, expected: str, door: str = "") -> RlinitError:
    return RlinitError(f"{name} is {value!r}; expected {expected} ({_flag(name)} on the command line){door}")


def _whole(name: str, value: object, least: int, others: str = "") -> int | None:
    """Return a whole number as a plain int, whatever kind of integer it was; None only where `others` are allowed."""
    if value is None and others:
        return None
    expected = f"a whole number of at least {least}{others}"
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _refused(name, value, expected) from None
    if isinstance(value, bool) or whole < least:
        raise _refused(name, value, expected)
    return whole


def _bytes(name: str, text: str) -> float:
    try:
        return parse_quantity(text, "bytes")
    except ValueError:
        raise _refused(name, text, "bytes > 0 such as '16GB', or none") from None


def _number(name: str, value: object, expected: str, fits: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes, bool)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not fits(number):
        raise _refused(name, value, expected)
    return number
