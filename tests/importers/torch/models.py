"""Torch modules that are hard to import: branches on data, writes in place, weights of every sort."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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
