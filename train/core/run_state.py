"""The full state of a run in one file, written atomically: a kill or a full disk leaves the one before.

``state.safetensors`` holds the weights (``network.``), their average (``average.``), the optimiser's moments
(``optimiser.``), and in its header everything that is not a tensor: step, seconds, best score, history. There is no
other random state: everything random derives from (seed, step).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from rlinit.agent.network.checkpoint import load_checkpoint
from rlinit.errors import CheckpointError, TrainingFailure
from rlinit.files import write_atomically
from rlinit.train.core.learner import Learner

FORMAT = 2
"""Of the files of a run."""
STATE_FILE = "state.safetensors"


@dataclass(slots=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    step
        Steps done.
    seconds, graphs
        Time spent and problems learnt from, over all sittings.
    best, best_step
        The best score, and the step it was reached at.
    done
        Whether the run has ended as it should.
    history
        A record for each validation: step, seconds, measures.
    """

    step: int = 0
    seconds: float = 0.0
    graphs: int = 0
    best: float = -math.inf
    best_step: int = -1
    done: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def is_best(self, score: float) -> bool:
        """Take a new score in; return whether it is better than all before."""
        better = score > self.best
        if better:
            self.best, self.best_step = score, self.step
        return better


def save_state(folder: Path, learner: Learner, progress: Progress) -> None:
    """Write the full state into a run's folder.

    Parameters
    ----------
    folder
        Of the run.
    learner
        Network, average and optimiser.
    progress
        How far the run is.

    Raises
    ------
    TrainingFailure
        The file cannot be written (a full disk, say); the state saved before is still there.
    """
    tensors: dict[str, Tensor] = {}
    for key, module in _networks(learner).items():
        tensors |= {f"{key}.{name}": value for name, value in module.state_dict().items()}
    optimiser = learner.optimiser.state_dict()
    for index, moments in optimiser["state"].items():
        tensors |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {
        "format": FORMAT,
        "progress": asdict(progress),
        "param_groups": optimiser["param_groups"],
    }
    path = folder / STATE_FILE
    try:
        write_atomically(path, save(tensors, {"training": json.dumps(about)}))
    except OSError as problem:
        raise TrainingFailure(
            f"cannot save the state of step {progress.step} to {path}: {problem}. The state saved before it is whole; "
            "make room and resume"
        ) from problem


def load_state(folder: Path, learner: Learner) -> Progress:
    """Put a run's full state back into a learner.

    Parameters
    ----------
    folder
        Of the run.
    learner
        Of the architecture that was saved; is filled.

    Raises
    ------
    CheckpointError
        There is no state, it is damaged, of a newer format, or of another architecture.
    """
    path = folder / STATE_FILE
    tensors, about = _read(path)
    for key, module in _networks(learner).items():
        _fill(module, key, tensors, path)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, moment = name.split(".")
            state.setdefault(int(index), {})[moment] = value
    try:
        learner.optimiser.load_state_dict({"state": state, "param_groups": about["param_groups"]})
    except ValueError as problem:
        raise CheckpointError(f"{path} is the state of another optimiser: {problem}") from problem
    return Progress(**about["progress"])


def _networks(learner: Learner) -> dict[str, nn.Module]:
    return {"network": learner.network} | ({} if learner.average is None else {"average": learner.average})


def load_weights(source: Path, network: nn.Module) -> None:
    """Put weights into a network: the last average of a run's folder, or those of a checkpoint's file.

    Parameters
    ----------
    source
        A run's folder, or a ``.safetensors`` file.
    network
        Of the architecture that was saved; is filled.

    Raises
    ------
    CheckpointError
        As for `load_state` and `load_checkpoint`.
    """
    if source.is_dir():
        tensors, _ = _read(source / STATE_FILE)
        key = "average.module" if "average.n_averaged" in tensors else "network"
    else:
        arrays = load_checkpoint(source).arrays
        key, tensors = "network", {f"network.{name}": torch.from_numpy(array) for name, array in arrays.items()}
    _fill(network, key, tensors, source)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise CheckpointError(f"there is no {path}: nothing to resume from")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["training"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except (SafetensorError, OSError, KeyError, ValueError) as problem:
        raise CheckpointError(f"{path} is not the state of a training run, or is damaged: {problem}") from problem
    if about.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {about.get('format')}; this version reads {FORMAT}")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{path}: {name} holds values that are not finite")
    return tensors, about


def _fill(module: nn.Module, key: str, tensors: dict[str, Tensor], path: Path) -> None:
    prefix = f"{key}."
    mine = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    try:
        module.load_state_dict(mine)
    except RuntimeError as problem:
        raise CheckpointError(f"{path} does not fit this {key}: {problem}") from problem
