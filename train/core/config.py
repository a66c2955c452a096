"""The configuration of a training run: frozen dataclasses; every field is a flag, and a key of a file."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from rlinit.errors import InvalidConfig
from rlinit.train.core.curriculum import CurriculumConfig
from rlinit.train.tasks.fields import require, require_share
from rlinit.train.tasks.protocol import NetworkName, TaskName, task_class

P = TypeVar("P")

SMOKE: Mapping[str, Any] = {
    "steps": 12,
    "log_every": 2,
    "save_every": 6,
    "curriculum": {"batch_nodes": 480},
    "validation": {"every": 6, "samples": 4, "small": True},
}
"""What ``--smoke`` sets: a run that walks through everything in well under a minute."""


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW with a warm-up and a cosine decay."""

    learning_rate: float = 1e-3
    """Highest learning rate."""
    final_share: float = 0.05
    """The learning rate ends at this share of the highest."""
    warmup: float = 0.02
    """Share of the training over which the learning rate rises from 0."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    average: float = 0.99
    """What is validated and kept is an exponential moving average of the weights with this decay; 0: the weights
    themselves."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "optimiser.learning_rate", self.learning_rate, "more than 0")
        require_share("optimiser.final_share", self.final_share)
        require(0 <= self.warmup < 1, "optimiser.warmup", self.warmup, "a share from 0 to below 1")
        require(self.weight_decay >= 0, "optimiser.weight_decay", self.weight_decay, "at least 0")
        require(self.max_grad_norm > 0, "optimiser.max_grad_norm", self.max_grad_norm, "more than 0")
        require(0 <= self.average < 1, "optimiser.average", self.average, "a decay from 0 to below 1")


@dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE: a trajectory's reward is held against the mean of the problem's other trajectories (POMO)."""

    entropy_weight: float = 0.01
    """Weight of the mean entropy of choices, which keeps the agent exploring."""

    def __post_init__(self) -> None:
        require(self.entropy_weight >= 0, "reinforce.entropy_weight", self.entropy_weight, "at least 0")


@dataclass(frozen=True)
class ValidationConfig:
    """Validation on unseen problems, unseen sizes and real models."""

    every: int = 100
    """Steps between validations."""
    samples: int = 16
    """Trajectories drawn for each problem, of which the best counts; 0: greedy only."""
    small: bool = False
    """Small validation sets, for trying things out."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "validation.every", self.every, "at least 1")
        require(self.samples >= 0, "validation.samples", self.samples, "at least 0")


@dataclass(frozen=True)
class TrainConfig(Generic[P]):
    """Everything a training run depends on. The same configuration gives the same weights on one CPU thread."""

    problem: P
    """The task's own parameters."""
    task: TaskName = "stages"
    """stages (memory, pipeline) or latency."""
    network: NetworkName = "oneshot"
    """The architecture."""
    run_dir: Path = Path("runs/latest")
    """Folder for everything the run writes."""
    seed: int = 0
    """Seed of everything random."""
    steps: int = 1000
    """Batches to learn from."""
    minutes: float | None = None
    """Stop after this time as well (then learning rate and curriculum follow whichever is nearer its end)."""
    samples: int = 8
    """Trajectories of each problem."""
    init: Path | None = None
    """Start from these weights: another run's folder (its last average) or a checkpoint (its best.safetensors)."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the network lives. cuda is an error where there is none."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the network's forward pass."""
    threads: int = 1
    """Threads of torch; more than one gives up bit-identical repetition."""
    workers: int = 1
    """Processes that generate problems ahead of training; 0: generate in the training process."""
    ahead: int = 4
    """Batches to have ready or under way."""
    log_every: int = 10
    """Steps between points of TensorBoard's curves."""
    save_every: int = 100
    """Steps between saves of the full state."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        least = {"samples": 2, "workers": 0}
        for name in ("steps", "samples", "threads", "workers", "ahead", "log_every", "save_every"):
            at_least = least.get(name, 1)
            require(getattr(self, name) >= at_least, name, getattr(self, name), f"at least {at_least}")
        require(0 <= self.seed < 2**62, "seed", self.seed, "0 <= seed < 2**62")
        require(self.minutes is None or self.minutes > 0, "minutes", self.minutes, "more than 0")


@dataclass(frozen=True)
class Command(Generic[P]):
    """Train an agent."""

    training: Annotated[TrainConfig[P], tyro.conf.arg(name="")]
    config: Path | None = None
    """Read the configuration from this .toml or .json file; flags override it."""
    resume: Path | None = None
    """Go on with the run in this folder, with its configuration; only steps, minutes and the like may change."""
    smoke: bool = False
    """Begin from a dozen small steps, to see that everything works; other flags override what it sets."""


@dataclass(frozen=True)
class _First:
    """The flags that the meaning of the others depends on."""

    task: str = "stages"
    network: str = "oneshot"
    config: Path | None = None
    resume: Path | None = None
    smoke: bool = False


def parse(given: Sequence[str]) -> Command[Any]:
    """Return the command: file or resumed run first, what `--smoke` sets over it, and all other flags over that.

    Exits with code 2 where a flag, or a key of the file, is none, or has a value of another type.

    Parameters
    ----------
    given
        Flags of the command line.

    Raises
    ------
    InvalidConfig
        The file cannot be read, there is no such task or network, or a value is out of range.
    """
    first = _first(given)
    path = first.config if first.resume is None else first.resume / "config.json"
    filed = [] if path is None else flags_of(_read(path))
    if first.resume is not None:
        filed += ["--run-dir", str(first.resume)]
    flags = [*filed, *(flags_of(SMOKE) if first.smoke else []), *given]
    first = _first(flags)
    try:
        params = task_class(first.task, first.network).params_class
    except ValueError as problem:
        raise InvalidConfig(str(problem)) from None
    default = TrainConfig(params(), run_dir=Path("runs") / f"{first.task}-{first.network}")
    generic: Any = Command
    found: Command[Any] = tyro.cli(generic[params], args=flags, default=Command(default), prog="train/run.py")
    return found


def _first(flags: Sequence[str]) -> _First:
    known = [flag for flag in flags if flag not in ("-h", "--help")]
    found: _First = tyro.cli(_First, args=known, return_unknown_args=True)[0]
    return found


def read_config(path: Path) -> TrainConfig[Any]:
    """Return the configuration in a ``.json`` or TOML file; see `parse`."""
    return parse(["--config", str(path)]).training


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as problem:
        raise InvalidConfig(f"cannot read {path}: {problem}") from problem
    return found


def flags_of(data: Mapping[str, Any], where: str = "") -> list[str]:
    """Return the flags of the command line that plain data stand for.

    Parameters
    ----------
    data
        Plain data, nested as the configuration is.
    where
        What their names begin with.
    """
    flags: list[str] = []
    for key, value in data.items():
        name = key.replace("_", "-")
        if isinstance(value, Mapping):
            flags += flags_of(value, f"{where}{name}.")
        elif isinstance(value, bool):
            flags.append(f"--{where}{name if value else f'no-{name}'}")
        else:
            flags += [f"--{where}{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return flags


def config_to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data that JSON and `flags_of` take; fields that are None are left out."""
    return dataclasses.asdict(config, dict_factory=_plain)


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in fields if value is not None}
