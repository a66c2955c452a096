"""One network being trained: precision, optimiser, learning rate, and the step from a loss to new weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rlinit.errors import TrainingFailure
from rlinit.train.core.config import OptimiserConfig


def rate_share(config: OptimiserConfig, progress: float) -> float:
    """Return the learning rate at `progress` (0 to 1) as a share of the highest: warm-up, then half a cosine.

    Parameters
    ----------
    config
        Its warm-up (a share of the training) and the share of the rate at the end.
    progress
        Share of the training that is done, from 0 to 1.
    """
    if progress < config.warmup:
        return (progress + 1e-3) / (config.warmup + 1e-3)
    rest = min(1.0, (progress - config.warmup) / max(1e-12, 1.0 - config.warmup))
    return config.final_share + (1.0 - config.final_share) * 0.5 * (1.0 + math.cos(math.pi * rest))


def _averaged(decay: float, average: Tensor, weight: Tensor, count: Tensor | int) -> Tensor:
    """Return the next average; the decay grows to its own value, so that the first steps are soon forgotten."""
    return torch.lerp(weight, average, min(decay, (1.0 + float(count)) / (10.0 + float(count))))


class Learner:
    """A network with its optimiser.

    Parameters
    ----------
    network
        Moved to the device.
    config
        Optimiser.
    precision
        ``float32`` or ``bfloat16``: autocast of forward passes. Weights stay float32.
    device
        ``cpu`` or ``cuda``.

    Raises
    ------
    TrainingFailure
        cuda is asked for and absent.
    """

    def __init__(self, network: nn.Module, config: OptimiserConfig, precision: str, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainingFailure(
                "device is cuda, but torch finds no usable GPU here; pass --device cpu, or install a torch built "
                f"for CUDA (this one is {torch.__version__})"
            )
        self.config = config
        self.device = torch.device(device)
        self.network = network.to(self.device)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.halved = precision == "bfloat16"
        self.average: AveragedModel | None = None
        if config.average > 0:
            self.average = AveragedModel(self.network, avg_fn=partial(_averaged, config.average))

    @property
    def evaluated(self) -> nn.Module:
        """The network that is validated and kept: the average of the weights, which wobbles less than they."""
        if self.average is None or int(self.average.n_averaged) == 0:
            return self.network
        return self.average.module

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of forward passes."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.halved)

    def set_rate(self, progress: float) -> float:
        """Set and return the learning rate at `progress`."""
        rate = self.config.learning_rate * rate_share(self.config, progress)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        return rate

    def update(self, loss: Tensor, step: int, seed: int) -> float:
        """Take one step down the gradient of a loss; return the gradient's norm before clipping.

        Parameters
        ----------
        loss
            Scalar, with gradients.
        step, seed
            Of the batch, for the message of a failure.

        Raises
        ------
        TrainingFailure
            The loss or the gradient is not finite. Weights and optimiser are left as they were.
        """
        if not bool(torch.isfinite(loss)):
            raise TrainingFailure(_diverged("loss", float(loss.detach()), step, seed))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise TrainingFailure(_diverged("gradient's norm", norm, step, seed))
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return norm


def _diverged(what: str, value: float, step: int, seed: int) -> str:
    return (
        f"the {what} is {value} at step {step}, on the batch of seed {seed}: training stops, and the state saved last "
        "is good. Resume with a lower learning rate (optimiser.learning_rate), or generate that batch again to see why"
    )
