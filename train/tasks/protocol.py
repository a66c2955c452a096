"""What training needs to know of a problem: the Task protocol. One loop trains every agent through it.

A task makes problems from seeds, lets a network play them (in compiled kernels), says how probable what was played is
(in torch, with gradients), and holds the outcome against a reference. A training step is::

    batch   = task.generate(seed, size, count)                   # numpy only; in worker processes, ahead of time
    outputs = task.forward(network, batch, device)               # torch, with gradients
    played  = task.rollout(network, batch, outputs, samples=16, seed=seed)      # compiled, without gradients
    choices = task.choices(network, batch, outputs, played)      # torch: log-probability and entropy of each choice
    loss    = -(weight * choices.log_prob).mean()                # the weight of a choice: what its schedule gained

B is the number of problems of a batch and S the number of trajectories sampled for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from rlinit.arrays import FloatArray

if TYPE_CHECKING:
    import torch

TaskName = Literal["stages", "latency"]
NetworkName = Literal["oneshot", "pointer"]


def excess(value: FloatArray, least: FloatArray) -> FloatArray:
    """Return value / least - 1 elementwise: 0 where they are equal, infinite where only `least` is 0.

    Parameters
    ----------
    value, least
        Equally shaped, at least 0; seconds or bytes.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value == least, 0.0, value / least - 1.0)


class Batch(Protocol):
    """B problems as arrays: made by a worker process and pickled to the trainer, so numpy and numbers only."""

    @property
    def reference(self) -> FloatArray:
        """(B,) value of the heuristic that the untrained agent equals; finite, at least 0."""

    @property
    def optimum(self) -> FloatArray:
        """(B,) optimal value, NaN where unknown. Needed for validation only."""

    @property
    def bound(self) -> FloatArray:
        """(B,) proven lower bound on the value, NaN where unknown. Needed for validation only."""

    @property
    def num_nodes(self) -> int:
        """Nodes of all problems together."""

    def __len__(self) -> int:
        """Return B."""


class Trajectories(Protocol):
    """S complete schedules for each of B problems, and whatever `Task.choices` needs to recompute their choices."""

    @property
    def value(self) -> FloatArray:
        """(B, S) value of each schedule (its first level, where values have several); infinite if infeasible."""

    @property
    def reward(self) -> FloatArray:
        """(B, S) what training maximises, finite: relative improvement on the reference, 1 - value / reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Every choice of B * S trajectories in one flat list; forced choices (one candidate) may be left out.

    Parameters
    ----------
    log_prob
        (C,) float, with gradients: log-probability of what was chosen among what was allowed.
    entropy
        (C,) float, with gradients: entropy of that choice in nats.
    trajectory
        (C,) int64: problem * S + sample that the choice belongs to.
    credit
        (C,) what each choice did for the outcome, relative to the other samples of its problem, where a task can tell;
        None: every choice has its trajectory's part in it.
    """

    log_prob: torch.Tensor
    entropy: torch.Tensor
    trajectory: torch.Tensor
    credit: torch.Tensor | None = None


B = TypeVar("B", bound=Batch)
O = TypeVar("O")  # noqa: E741
T = TypeVar("T", bound=Trajectories)
P = TypeVar("P")


class Task(Protocol[B, O, T]):
    """A kind of problem with a kind of network. Stateless: everything random comes from the seeds passed in.

    A task is constructed as ``TaskClass(params)``, where ``TaskClass.params_class`` is a frozen dataclass with a
    default for every field, checked in ``__post_init__``; its fields become flags ``--problem.FIELD`` and keys of the
    TOML's ``[problem]``. It must pickle: worker processes call `generate`.
    """

    params_class: ClassVar[type]
    """The frozen dataclass of parameters; the architecture's own dataclass may be nested in it."""

    selection: ClassVar[tuple[str, ...]]
    """Validation sets by which the best checkpoint is chosen: synthetic ones, never the real models."""

    def __init__(self, params: Any) -> None:
        """Take an instance of `params_class`."""

    def generate(self, seed: int, size: int, count: int) -> B:
        """Return `count` training problems of about `size` nodes, the same for the same arguments on every machine.

        Called in worker processes. Computes features and reference values, not optima.

        Parameters
        ----------
        seed
            0 <= seed < 2**62; different seeds give independent problems, apart from those of `validation`.
        size, count
            Nodes a problem, problems.
        """

    def validation(self, *, small: bool) -> Mapping[str, B]:
        """Return the fixed validation sets by name: unseen problems, unseen sizes, real models.

        With `small` a few problems each, in under five seconds together (for ``--smoke`` and tests). `optimum` and
        `bound` are filled where affordable.
        """

    def network(self, seed: int) -> torch.nn.Module:
        """Return a fresh network on the CPU, its weights drawn from `seed` without touching the global generator."""

    def forward(self, network: torch.nn.Module, batch: B, device: torch.device) -> O:
        """Return the network's outputs for the batch, with gradients where they are enabled.

        Runs under autocast.

        Parameters
        ----------
        network
            From `network`, perhaps replaced by its average.
        batch
            Problems, from `generate` or `validation`.
        device
            Where the network is.
        """

    def rollout(
        self, network: torch.nn.Module, batch: B, outputs: O, *, samples: int, seed: int, greedy: bool = False
    ) -> T:
        """Return schedules that the network plays: `samples` drawn ones for each problem, or with `greedy` one.

        No gradients flow through it. The same arguments give the same schedules.

        Parameters
        ----------
        network
            From `network`, perhaps replaced by its average.
        batch
            Problems, from `generate` or `validation`.
        outputs
            From `forward` on the same batch.
        samples
            S, schedules of each problem; 1 with `greedy`.
        seed
            Of the draws; 0 <= seed < 2**62.
        greedy
            Whether the likeliest choice is taken each time, without drawing.
        """

    def choices(self, network: torch.nn.Module, batch: B, outputs: O, played: T) -> Choices:
        """Return the log-probability and entropy of every choice of trajectories that `rollout` returned.

        Exact, in float32 or better, and with gradients into `outputs` (and into the network, where its decoder has
        weights of its own).

        Parameters
        ----------
        network
            From `network`, perhaps replaced by its average.
        batch
            Problems, from `generate` or `validation`.
        outputs
            From `forward` on the same batch.
        played
            From `rollout`.
        """

    def export(self, network: torch.nn.Module, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint (safetensors and card beside it), atomically.

        `card` has two entries, as the card's: ``training`` (command, configuration, seed, steps, seconds, machine) and
        ``quality`` (measures of each validation set).

        Parameters
        ----------
        network
            From `network`, or its average.
        path
            Of the ``.safetensors`` file.
        card
            Plain data, as above.
        """


AnyTask = Task[Any, Any, Any]

TASKS: dict[tuple[str, str], str] = {
    ("stages", "oneshot"): "rlinit.train.tasks.stages:StageTask",
    ("stages", "pointer"): "rlinit.train.tasks.sequential_stages:PointerTask",
    ("latency", "oneshot"): "rlinit.train.tasks.placements:PlacementTask",
}
"""(task, network) -> module:class, imported when asked for."""


def task_class(task: str, network: str = "oneshot") -> type[AnyTask]:
    """Return the class that trains `network` on `task`.

    Parameters
    ----------
    task
        ``stages`` or ``latency``.
    network
        ``oneshot``, or ``pointer`` for stages.

    Raises
    ------
    ValueError
        There is no such combination.
    """
    if (task, network) not in TASKS:
        known = ", ".join(f"{name} with {kind}" for name, kind in TASKS)
        raise ValueError(f"there is no {network} network for the task {task!r}; expected one of: {known}")
    module, name = TASKS[task, network].split(":")
    found: type[AnyTask] = getattr(import_module(module), name)
    return found
