"""The configuration of a training run: frozen dataclasses, read from TOML, every field a flag of the command line."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rlinit.errors import InvalidConfig
from rlinit.train.core.curriculum import CurriculumConfig
from rlinit.train.tasks.fields import require, require_share
from rlinit.train.tasks.protocol import NetworkName, TaskName, task_class

P = TypeVar("P")


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
    """REINFORCE: what a trajectory's reward is held against."""

    baseline: Literal["shared", "greedy"] = "shared"
    """shared: the mean of the problem's other trajectories (POMO). greedy: what the best network so far gets when it
    plays greedily."""
    challenge_every: int = 100
    """For greedy: steps between challenges of that network by the current one."""
    entropy_weight: float = 0.01
    """Weight of the mean entropy of choices, which keeps the agent exploring."""
    normalise: bool = True
    """Divide advantages by their standard deviation over the batch."""

    def __post_init__(self) -> None:
        require(self.challenge_every >= 1, "reinforce.challenge_every", self.challenge_every, "at least 1")
        require(self.entropy_weight >= 0, "reinforce.entropy_weight", self.entropy_weight, "at least 0")


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation: several clipped updates from the same trajectories, shared baseline."""

    clip: float = 0.2
    """Probability ratios count up to this far from 1."""
    epochs: int = 3
    """Updates from each batch of trajectories."""
    batches: int = 2
    """Batches played before updating."""
    entropy_weight: float = 0.01
    """Weight of the mean entropy of choices."""

    def __post_init__(self) -> None:
        require(self.clip > 0, "ppo.clip", self.clip, "more than 0")
        require(self.epochs >= 1, "ppo.epochs", self.epochs, "at least 1")
        require(self.batches >= 1, "ppo.batches", self.batches, "at least 1")
        require(self.entropy_weight >= 0, "ppo.entropy_weight", self.entropy_weight, "at least 0")


@dataclass(frozen=True)
class ImitationConfig:
    """Imitation of exact labels, which are made once and cached in shards, one shard a batch."""

    shards: int = 200
    """Shards to learn from; training goes round them in an order that changes every time."""
    labels: Path = Path("runs/labels")
    """Folder of the cache; runs with the same task, problem, curriculum and seed share shards."""
    label_jobs: int = 2
    """Processes that make labels."""
    labels_only: bool = False
    """Make the labels and stop."""

    def __post_init__(self) -> None:
        require(self.shards >= 1, "imitation.shards", self.shards, "at least 1")
        require(self.label_jobs >= 1, "imitation.label_jobs", self.label_jobs, "at least 1")


@dataclass(frozen=True)
class ValidationConfig:
    """Validation on unseen problems, unseen sizes and real models."""

    every: int = 100
    """Steps between validations."""
    samples: int = 16
    """Trajectories drawn for each problem, of which the best counts; 0: greedy only."""
    patience: int = 0
    """Stop after so many validations in a row without a better score; 0: never."""
    pictures: int = 2
    """Problems of the first validation set drawn at every validation."""
    small: bool = False
    """Small validation sets, for trying things out."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "validation.every", self.every, "at least 1")
        for name in ("samples", "patience", "pictures"):
            require(getattr(self, name) >= 0, f"validation.{name}", getattr(self, name), "at least 0")


@dataclass(frozen=True)
class TrainConfig(Generic[P]):
    """Everything a training run depends on. The same configuration gives the same weights on one CPU thread."""

    problem: P
    """The task's own parameters."""
    task: TaskName = "stages"
    """stages (memory, pipeline) or latency."""
    network: NetworkName = "oneshot"
    """The architecture."""
    algorithm: Literal["imitation", "reinforce", "ppo"] = "reinforce"
    """How to learn."""
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
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the network's forward pass; float16 scales the loss."""
    threads: int = 1
    """Threads of torch in each process; more than one gives up bit-identical repetition."""
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
    ppo: PPOConfig = field(default_factory=PPOConfig)
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("samples", 1), ("threads", 1), ("workers", 0), ("ahead", 1)):
            require(getattr(self, name) >= least, name, getattr(self, name), f"at least {least}")
        for name in ("log_every", "save_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(0 <= self.seed < 2**62, "seed", self.seed, "0 <= seed < 2**62")
        require(self.minutes is None or self.minutes > 0, "minutes", self.minutes, "more than 0")
        require(
            self.precision != "float16" or self.device == "cuda", "precision", self.precision, "float16 on cuda only"
        )
        if self.algorithm != "imitation" and (self.algorithm == "ppo" or self.reinforce.baseline == "shared"):
            require(self.samples >= 2, "samples", self.samples, "at least 2 for a shared baseline")


def smoke(config: TrainConfig[P]) -> TrainConfig[P]:
    """Return a configuration that walks through everything the given one does in well under a minute."""
    curriculum = dataclasses.replace(config.curriculum, batch_nodes=min(config.curriculum.batch_nodes, 16 * 30))
    return dataclasses.replace(
        config,
        steps=min(config.steps, 12),
        curriculum=curriculum,
        log_every=2,
        save_every=6,
        validation=dataclasses.replace(
            config.validation, every=6, samples=min(config.validation.samples, 4), small=True
        ),
        imitation=dataclasses.replace(config.imitation, shards=min(config.imitation.shards, 4)),
    )


def read_config(path: Path, task: str | None = None, network: str | None = None) -> TrainConfig[Any]:
    """Return the configuration in a .toml or .json file; `task` and `network` override the file's.

    Parameters
    ----------
    path
        A ``.json`` file, else TOML.
    task, network
        In place of the file's; None: the file's.

    Raises
    ------
    InvalidConfig
        The file cannot be read, has a key that is no field, or a value of the wrong type or out of range.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as problem:
        raise InvalidConfig(f"cannot read {path}: {problem}") from problem
    for name, value in (("task", task), ("network", network)):
        if value is not None:
            data[name] = value
    return config_from_dict(data, str(path))


def config_from_dict(data: dict[str, Any], source: str) -> TrainConfig[Any]:
    """Return the configuration that plain data describe; fields left out have their defaults.

    Parameters
    ----------
    data
        Plain data, nested as the configuration is.
    source
        What messages call them: a path, as a rule.

    Raises
    ------
    InvalidConfig
        A key that is no field, a value of the wrong type or out of range, or an unknown task or network.
    """
    try:
        params = task_class(data.get("task", "stages"), data.get("network", "oneshot")).params_class
    except ValueError as problem:
        raise InvalidConfig(f"{source}: {problem}") from None
    found: TrainConfig[Any] = _build(TrainConfig, {"problem": {}, **data}, source, "", {P: params})
    return found


def config_to_dict(config: object) -> dict[str, Any]:
    """Return a configuration as plain data that JSON and `config_from_dict` take; fields that are None are left out."""
    return {
        entry.name: _plain(getattr(config, entry.name))
        for entry in dataclasses.fields(config)  # type: ignore[arg-type]
        if getattr(config, entry.name) is not None
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return config_to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _build(kind: Any, data: Any, source: str, where: str, known: dict[Any, type]) -> Any:
    """Return `data` as a value of type `kind`; `known` says what type variables stand for."""
    kind = known.get(kind, kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise InvalidConfig(f"{source}: {where} is {data!r}; expected a table")
        hints = get_type_hints(kind)
        names = [entry.name for entry in dataclasses.fields(kind)]
        for key in data:
            if key not in names:
                raise InvalidConfig(
                    f"{source}: there is no {where + '.' if where else ''}{key}; known: {', '.join(names)}"
                )
        given = {
            key: _build(hints[key], value, source, f"{where}.{key}" if where else key, known)
            for key, value in data.items()
        }
        return kind(**given)  # type: ignore[operator]
    wrong = InvalidConfig(f"{source}: {where} is {data!r}; expected {getattr(kind, '__name__', None) or kind}")
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if data not in arguments:
            raise InvalidConfig(f"{source}: {where} is {data!r}; expected one of {', '.join(map(str, arguments))}")
        return data
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return _build(kind, data, source, where, known)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise wrong
        return tuple(_build(arguments[0], entry, source, f"{where}[{at}]", known) for at, entry in enumerate(data))
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise wrong
    return data
