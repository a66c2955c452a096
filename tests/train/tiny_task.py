"""A task small enough for tests: order jobs on one machine, minimise the weighted sum of completion times.

Smith's rule gives the optimum (descending weight / time), so gaps are exact. The reference is the order given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class TinyParams:
    """Parameters of the task."""

    hidden: int = 8
    """Width of the network."""
    spread: float = 1.0
    """How different jobs are."""
    poison_seed: int = -1
    """The batch of this seed makes the loss NaN."""

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden is {self.hidden}")


@dataclass(frozen=True, eq=False)
class TinyBatch:
    """B problems of n jobs: `time`, `weight` (B, n)."""

    time: FloatArray
    weight: FloatArray
    reference: FloatArray
    optimum: FloatArray
    bound: FloatArray
    poisoned: bool = False

    @property
    def num_nodes(self) -> int:
        return self.time.size

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class TinyPlayed:
    """Orders (B, S, n) with their values and rewards (B, S)."""

    order: IntArray
    value: FloatArray
    reward: FloatArray


def value_of(batch: TinyBatch, order: IntArray) -> FloatArray:
    """Return (B, S) weighted sums of completion times of orders (B, S, n)."""
    time = np.take_along_axis(batch.time[:, None, :], order, axis=2)
    weight = np.take_along_axis(batch.weight[:, None, :], order, axis=2)
    return np.asarray((np.cumsum(time, axis=2) * weight).sum(axis=2))


class TinyTask:
    """See the module."""

    params_class: ClassVar[type] = TinyParams
    selection: ClassVar[tuple[str, ...]] = ("jobs-8",)

    def __init__(self, params: TinyParams) -> None:
        self.params = params

    def generate(self, seed: int, size: int, count: int) -> TinyBatch:
        rng = np.random.default_rng(seed)
        time = np.exp(self.params.spread * rng.standard_normal((count, size)))
        weight = np.exp(self.params.spread * rng.standard_normal((count, size)))
        empty = TinyBatch(time, weight, np.zeros(0), np.zeros(0), np.zeros(0))
        given = value_of(empty, np.broadcast_to(np.arange(size), (count, 1, size)))[:, 0]
        best = value_of(empty, np.argsort(-weight / time, axis=1, kind="stable")[:, None])[:, 0]
        return TinyBatch(time, weight, given, best, best / 2, seed == self.params.poison_seed)

    def validation(self, *, small: bool) -> Mapping[str, TinyBatch]:
        return {"jobs-8": self.generate(10**9, 8, 32), "jobs-20": self.generate(10**9 + 1, 20, 8)}

    def network(self, seed: int) -> Any:
        import torch
        from torch import nn

        generator = torch.Generator().manual_seed(seed)
        network = nn.Sequential(nn.Linear(2, self.params.hidden), nn.Tanh(), nn.Linear(self.params.hidden, 1))
        with torch.no_grad():
            for weight in network.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
        return network

    def forward(self, network: Any, batch: TinyBatch, device: Any) -> Any:
        import torch

        features = np.log(np.stack([batch.time, batch.weight], axis=2)).astype(np.float32)
        keys = network(torch.from_numpy(features).to(device)).squeeze(2).float()
        return keys * float("nan") if batch.poisoned and torch.is_grad_enabled() else keys

    def rollout(
        self, network: Any, batch: TinyBatch, outputs: Any, *, samples: int, seed: int, greedy: bool = False
    ) -> TinyPlayed:
        # Softmax choices without replacement are an order by keys with Gumbel noise.
        keys: NDArray[np.float64] = outputs.detach().cpu().double().numpy()
        noise = np.random.default_rng(seed).gumbel(size=(len(batch), samples, keys.shape[1]))
        order = np.argsort(-(keys[:, None] + (0.0 if greedy else noise)), axis=2, kind="stable")
        value = value_of(batch, order)
        return TinyPlayed(order, value, 1.0 - value / batch.reference[:, None])

    def choices(self, network: Any, batch: TinyBatch, outputs: Any, played: TinyPlayed) -> Any:
        import torch

        from rlinit.train.tasks.protocol import Choices

        problems, samples, n = played.order.shape
        order = torch.from_numpy(played.order)
        keys = outputs.cpu()[:, None].expand(problems, samples, n).gather(2, order)
        left = torch.ones(n, n, dtype=torch.bool).triu()
        logits = torch.where(left, keys[:, :, None, :], -1e30)
        log_prob = torch.log_softmax(logits, dim=3)
        entropy = -(log_prob.exp() * log_prob).sum(3)
        trajectory = torch.arange(problems * samples).repeat_interleave(n)
        return Choices(log_prob.diagonal(dim1=2, dim2=3).reshape(-1), entropy.reshape(-1), trajectory)

    def export(self, network: Any, path: Path, card: Mapping[str, Any]) -> None:
        from rlinit.agent.network.checkpoint import Card, save_checkpoint

        arrays = {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
        about = Card("oneshot", "tiny", {"hidden": self.params.hidden}, card["training"], card["quality"])
        save_checkpoint(path, arrays, about)
