"""Torch models with blocks, and with a few ops of every sort."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Layer(nn.Module):
    """Two products with a residual that belongs to no submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: Any, mask: Any) -> Any:
        """Map (B, T, 8) to (B, T, 8)."""
        return x + self.down(torch.relu(self.up(x * mask)))


class Model(nn.Module):
    """Embeddings of tokens and places, a mask, layers and a head."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.places = nn.Embedding(5, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Any) -> Any:
        """Map (B, T) tokens to (B, 20) numbers."""
        mask = (ids > 3).float().unsqueeze(-1)
        x = self.tokens(ids) + self.places(torch.arange(5))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x)[:, -1])


class Net(nn.Module):
    """A lookup by integer tokens, a matrix product, a view, a copy and a dropout that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.linear = nn.Linear(4, 6, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Any) -> Any:
        """Map (B, T) tokens to (6, B T) numbers."""
        rows = self.linear(self.table(tokens)).reshape(-1, 6)
        return self.dropout(rows).t().reshape(-1) + 1
