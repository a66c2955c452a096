"""Torch modules that are hard to import: branches on data, writes in place, weights of every sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


class Choice(nn.Module):
    """A branch on data: one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        """Transform and shift."""
        y: torch.Tensor = self.yes(x) if x.sum() > 0 else self.no(x)
        return y + shift


class Sorting(nn.Module):
    """Work done by NumPy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sort."""
        return torch.from_numpy(np.sort(x.detach().numpy(), 0))


class Block(nn.Module):
    """A layer, twice a branch on data, an activation in place, a view, and normal modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.choice, self.norm = Choice(), nn.BatchNorm1d(4)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 2.0
    ) -> dict[str, torch.Tensor | tuple[torch.Tensor, float]]:
        """Return nested outputs."""
        y = self.inner(x)
        z = self.choice(y)
        if mask is not None:
            z = z * mask
        z = self.choice(z - 1, 0.5) * scale + self.norm(y.view(-1, 2, 2).flatten(1))
        return {"z": z, "rest": (x, scale)}


class Net(torch.nn.Module):
    """A linear layer with a buffer, a constant, a write in place and a size computed at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.table = torch.arange(4.0)

    def forward(self, x: Any) -> Any:
        """Return two rows of two for each row of four."""
        y = self.lin(x) + self.mask + self.hidden
        y.add_(self.table)
        return y.reshape(x.shape[0] * 2, 2)


class Mixed(nn.Module):
    """Shared, strided, half-precision, empty and non-persistent tensors, and lifted constants."""

    count: torch.Tensor
    none: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.turned = nn.Parameter(torch.randn(3, 3).t())
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.arange(3), persistent=False)
        self.register_buffer("none", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, 3) to (n, 3)."""
        y = self.second(self.first(x + self.count)) @ self.turned + torch.tensor([1.0, 2.0, 3.0])
        return y * self.scale + self.none.sum()  # type: ignore[no-any-return]
