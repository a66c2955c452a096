"""Small torch models, their graphs, and random models."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinit.graph import Graph
from rlinit.importers.torch.functionalise import without_writes

__all__ = [
    "Branches",
    "Chain",
    "Inception",
    "RandomNet",
    "TinyTransformer",
    "check_same",
    "flat",
    "graph_of",
    "graph_of_program",
]


def flat(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an output."""
    import torch.utils._pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def check_same(model: nn.Module, inputs: tuple[Any, ...], outputs: Any, *, exact: bool = True) -> None:
    """Check that outputs have the structure and the values of the model's own."""
    with torch.no_grad():
        expected = model(*inputs)
    assert type(outputs) is type(expected)
    for mine, true in zip(flat(outputs), flat(expected), strict=True):
        if exact:
            assert torch.equal(mine, true)
        else:
            torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)


def graph_of(
    model: nn.Module, inputs: tuple[Any, ...], *, devices: int = 4, seed: int = 0, batched: bool = False
) -> Graph:
    """Return the graph of a model's exported program: one op a call, ``getitem`` folded, random times."""
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs) if batched else None
    exported = without_writes(torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False))
    return graph_of_program(exported, type(model).__name__, devices=devices, seed=seed)


def graph_of_program(exported: torch.export.ExportedProgram, name: str, *, devices: int = 4, seed: int = 0) -> Graph:
    """Return the graph of an exported program, as `graph_of` does of a model."""
    rng = np.random.default_rng(seed)
    ops: list[tuple[str, dict[str, Any]]] = []
    edges: list[tuple[str, str]] = []
    behind: dict[Any, set[str]] = {}
    for node in exported.graph.nodes:
        if node.op != "call_function":
            continue
        reads: set[str] = set().union(*(behind.get(other, set()) for other in node.all_input_nodes))
        value = node.meta.get("val")
        folded = "getitem" in str(node.target) or isinstance(value, (int, torch.SymInt)) or value is None
        if folded:
            behind[node] = reads
            continue
        op = f"op_{node.name}"
        size = value.numel() if isinstance(value, torch.Tensor) else 0
        seconds = float(rng.random() + 0.1)
        ops.append(
            (
                op,
                {
                    "op": str(node.target),
                    "node": node.name,
                    "time_s": {f"d{i}": {b: seconds * (1 + i) for b in range(1, 9)} for i in range(devices)},
                    "out_bytes": 4.0 * int(size) if isinstance(size, int) else 4.0,
                    "param_bytes": 0.0,
                    "module": [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()],
                },
            )
        )
        edges.extend((other, op) for other in reads)
        behind[node] = {op}
    return Graph.build(ops, edges, name=name)


class Chain(nn.Module):
    """Layers one after the other, with batch norm and in-place ReLU."""

    def __init__(self, depth: int = 6, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
                for _ in range(depth)
            )
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, H, W) images to (B, 10) logits."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Blocks of parallel branches, concatenated, with a skip connection over all of them."""

    def __init__(self, blocks: int = 2, branches: int = 3, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 1)
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(branches)) for _ in range(blocks)
        )
        self.joins = nn.ModuleList(nn.Conv2d(width * branches, width, 1) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Map (B, 3, H, W) images to pooled features, and a dictionary of extras."""
        first = y = self.stem(x).relu()
        for branches, join in zip(self.branches, self.joins, strict=True):
            assert isinstance(branches, nn.ModuleList)
            y = join(torch.cat([branch(y).relu_() for branch in branches], 1))
        left, right = torch.chunk(y + first, 2, 1)
        return left.mean((2, 3)), {"right": right.amax((2, 3)), "input": x}


class TinyTransformer(nn.Module):
    """A causal transformer with tied embeddings and positions made while running."""

    def __init__(self, layers: int = 2, width: int = 16, heads: int = 2, vocabulary: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(64, width)
        self.heads = heads
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (B, T) tokens to (B, T, vocabulary) logits."""
        batch, length = tokens.shape
        x = self.embedding(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for qkv, out, norm, mlp in zip(self.qkv, self.out, self.norms, self.mlps, strict=True):
            q, k, v = qkv(norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).reshape(batch, length, -1))
            x = x + mlp(x)
        logits: torch.Tensor = x @ self.embedding.weight.T
        return logits


class Branches(nn.Module):
    """Independent towers of matrix products that meet at the end."""

    def __init__(self, towers: int = 2, depth: int = 4, width: int = 256) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))
            for _ in range(towers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 64) to (B, width)."""
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


_KINDS = ["linear", "add", "relu_", "split", "tanh", "cat", "view", "softmax", "sort", "write", "where", "expand"]


class RandomNet(nn.Module):
    """A random acyclic network over (B, width) tensors: splits, views, writes, several outputs, shared layers."""

    def __init__(self, seed: int, num_ops: int = 12, width: int = 4) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.steps: list[tuple[str, int, int]] = []
        for at in range(num_ops):
            kind = str(rng.choice(_KINDS))
            self.steps.append((kind, int(rng.integers(0, at + 1)), int(rng.integers(0, at + 1))))
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.wide = nn.Linear(2 * width, width)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / width

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map (B, 64) to the last value and the sum of all of them."""
        values = [x]
        for kind, a, b in self.steps:
            u, v = values[a], values[b]
            if kind == "linear":
                y = self.layers[b % 3](u)
            elif kind == "add":
                y = u + v
            elif kind == "relu_":
                y = (u * 1.5).relu_()
            elif kind == "split":
                left, right = u.chunk(2, 1)
                y = torch.cat([right, left], 1)
            elif kind == "tanh":
                y = torch.tanh(u)
            elif kind == "cat":
                y = self.wide(torch.cat([u, v], 1))
            elif kind == "view":
                y = u.view(u.shape[0], 2, -1).transpose(1, 2).reshape(u.shape[0], -1)
            elif kind == "sort":  # two outputs, one of them integers that are indices
                largest, places = torch.topk(u, u.shape[1], 1)
                y = torch.gather(u, 1, places) - largest + torch.clamp(places, 0, 1)
            elif kind == "write":  # through a view
                y = u.clone()
                y.narrow(1, 0, 1).copy_(v.narrow(1, 1, 1))
            elif kind == "where":
                y = torch.where(u > v, u, v)
            elif kind == "expand":
                y = u.mean(1, keepdim=True).expand_as(v) + v
            else:
                y = torch.softmax(u, 1)
            values.append(y)
        return values[-1], torch.stack(values).sum(0)


class Rewriting(nn.Module):
    """Writes through slices and views, which lie otherwise in memory where the batch is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        """Map (B, 8) to several outputs."""
        y = self.layer(x)
        y[:, :4] = y[:, 4:] * 2
        turned = y.view(len(x), 4, 2).transpose(0, 1).transpose(1, 2).permute(2, 0, 1).reshape(len(x), 8)
        turned[:, 1] = 0
        again = self.layer(turned).view(len(x), 4, 2).transpose(1, 2).reshape(len(x), 8)
        again[:, 0] += 1
        pairs = again.t().contiguous().t().reshape(len(x), 4, 2)
        return {"pairs": pairs, "rest": (y.relu_() * self.scale, x, x.new_zeros(len(x), 3) + x[:, :3])}


class Variadic(nn.Module):
    """Takes any number of inputs, the second of them in a dictionary."""

    def forward(self, *xs: Any) -> torch.Tensor:
        """Add (B, 8) and (B, 8)."""
        return torch.tanh(xs[0]) + torch.relu(xs[1]["more"][0])


class Deciding(nn.Module):
    """Does something else for one row than for several."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, n) to (B, n)."""
        return torch.tanh(x) if len(x) == 1 else torch.relu(x)


class Failing(nn.Module):
    """A model with an op that fails for large indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.out = nn.Linear(3, 3)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Look up and transform."""
        return self.out(torch.tanh(self.table(index)))  # type: ignore[no-any-return]


class Overwriting(nn.Module):
    """A model that reads a tensor after overwriting it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (2 x)^+ by a view that was taken before."""
        y = x * 2
        view = y.view(-1)
        y.relu_()
        return view + 1


class WithMask(nn.Module):
    """A model with a mask that depends on no input, a number as an argument, and a random op that is unused."""

    def forward(self, x: torch.Tensor, scale: float, *, shift: torch.Tensor | None = None) -> torch.Tensor:
        """Mask, scale and shift."""
        mask = torch.tril(torch.ones(x.shape[-1], x.shape[-1], device=x.device))
        y = x @ mask * scale
        return y if shift is None else y + shift


class Centred(nn.Module):
    """A model that subtracts the mean of the whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Centre."""
        return torch.tanh(x) - torch.tanh(x).mean()


class Reversed(nn.Module):
    """A model that reads its inputs in both orders, in ways that shapes do not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the batch and its reverse."""
        return torch.tanh(x) + torch.tanh(x.flip(0))


class TimeMajor(nn.Module):
    """A model that merges (time, batch), not (batch, time)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double, time by time."""
        rows = torch.tanh(x.transpose(0, 1).reshape(-1, x.shape[2]))
        return (rows * 2).view(x.shape[1], x.shape[0], -1).transpose(0, 1)


@torch.library.custom_op("rlinit_tests::nap", mutates_args=())
def nap(x: torch.Tensor) -> torch.Tensor:
    """Sleep for two seconds."""
    time.sleep(2.0)
    return x.clone()


@nap.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rlinit_tests::lost", mutates_args=())
def lost(x: torch.Tensor) -> torch.Tensor:
    """Fail as a device that has no memory left (for ones), or that is gone (for others)."""
    if bool((x == 1).all()):
        raise torch.OutOfMemoryError("out of memory: tried to allocate 20.00 GiB")
    raise RuntimeError("the device is lost")


@lost.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Losing(nn.Module):
    """A model with an op that fails, between others on several devices."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fail."""
        y: torch.Tensor = torch.ops.rlinit_tests.lost(x.abs()) + torch.tanh(x)
        return y.sin()


class Sleepy(nn.Module):
    """A model with an op that takes long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep."""
        y: torch.Tensor = torch.ops.rlinit_tests.nap(torch.tanh(x))
        return y


class Tokens(nn.Module):
    """A class token before the patches of a picture; a variable batch brings slices of all there is with it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.ones(1, 1, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, 16, 16) pictures to (B, 5) logits."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1)
        rows = rows + torch.tanh(rows).mean(1, keepdim=True)
        return self.head(rows[:, 0])  # type: ignore[no-any-return]


class Wired(torch.nn.Module):
    """Layers, sums and elementwise ops wired at random, with tensors that live long and short."""

    def __init__(self, seed: int, num_ops: int = 14) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        kinds = ["linear", "tanh", "add", "relu", "view"]
        self.steps = [(str(rng.choice(kinds)), *rng.integers(0, at + 1, 2)) for at in range(num_ops)]
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 64) to the sum of the values that nothing else reads, and the last one."""
        values, read = [x], set()
        for kind, a, b in self.steps:
            u, v = values[a], values[b]
            read |= {a, b} if kind == "add" else {a}
            if kind == "view":
                values.append(u.view(*reversed(u.shape)).view(u.shape))
                continue
            values.append(self.layer(u) if kind == "linear" else u + v if kind == "add" else getattr(torch, kind)(u))
        total = values[-1]
        for at in range(1, len(values) - 1):
            if at not in read:
                total = total + values[at]
        return total


class Branching(nn.Module):
    """Two control-flow ops with equal shapes whose branches differ."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, n) to (n, n)."""
        y = torch.cond(x.sum() < 1e30, lambda t: t + 1.0, lambda t: t - 1.0, (x,))
        return torch.cond(x.sum() < 1e30, lambda t: (t @ t) @ t, lambda t: t - 1.0, (y,))  # type: ignore[no-any-return]
