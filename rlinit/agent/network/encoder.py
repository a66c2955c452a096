"""The message-passing encoder shared by the agents, in torch.

Each round lets every node read the mean and the maximum of its predecessors' and of its successors' states, and the
mean of its whole graph::

    x     = LayerNorm(h)
    h    += W2 relu(W1 [x, mean_pred x, max_pred x, mean_succ x, max_succ x, mean_graph x])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.message_passing import mean_max, mean_max_gradient


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTensors:
    """`GraphFeatures` as tensors on a device; floats in float32. Names and shapes are the same."""

    node: Tensor
    pred_indptr: Tensor
    pred: Tensor
    succ_indptr: Tensor
    succ: Tensor
    graph: Tensor
    num_graphs: int
    base_key: Tensor
    device: Tensor
    pair: Tensor
    pair_node: Tensor
    pair_device: Tensor

    @classmethod
    def of(cls, features: GraphFeatures, device: torch.device | str = "cpu") -> FeatureTensors:
        """Move features to a device.

        Parameters
        ----------
        features
            Arrays of one or several graphs.
        device
            Where tensors are put.
        """
        pair_node, pair_device = features.pair_ends()
        ends = {"graph": features.graph_of_node, "pair_node": pair_node, "pair_device": pair_device}

        def tensor(name: str) -> Tensor:
            array = ends[name] if name in ends else getattr(features, name)
            return torch.as_tensor(
                array, dtype=torch.int64 if array.dtype.kind == "i" else torch.float32, device=device
            )

        names = [name for name in cls.__annotations__ if name != "num_graphs"]
        return cls(num_graphs=features.num_graphs, **{name: tensor(name) for name in names})


class _CompiledMeanMax(torch.autograd.Function):
    """`rlinit.agent.network.message_passing.mean_max` on the CPU: five times as fast as scattering by torch's own
    operations.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, indptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return (mean, max), both (N, h)."""
        mean, most, where = mean_max(x.detach().contiguous().numpy(), indptr.numpy(), index.numpy())
        ctx.arrays = (where, indptr.numpy(), index.numpy())
        return torch.from_numpy(mean), torch.from_numpy(most)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of x."""
        mean, most = (grad.contiguous().numpy() for grad in grads)
        return torch.from_numpy(mean_max_gradient(mean, most, *ctx.arrays)), None, None


def neighbour_mean_max(x: Tensor, indptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mean, max) over the neighbours of each node, both (N, h), zero where there are none.

    Parameters
    ----------
    x
        (N, h) states of nodes.
    indptr
        (N + 1,) where the neighbours of each node begin.
    index
        (E,) neighbours, node after node.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        mean, most = _CompiledMeanMax.apply(x, indptr, index)  # type: ignore[no-untyped-call]
        return mean, most
    count = indptr[1:] - indptr[:-1]
    row = torch.repeat_interleave(torch.arange(len(count), device=x.device), count)
    message = x.index_select(0, index)
    total = torch.zeros((len(count), x.shape[1]), dtype=x.dtype, device=x.device).index_add(0, row, message)
    most = torch.zeros_like(total).scatter_reduce(
        0, row[:, None].expand_as(message), message, "amax", include_self=False
    )
    return total / count.clamp(min=1)[:, None], most


def graph_mean(x: Tensor, graph: Tensor, num_graphs: int) -> Tensor:
    """Return (G, h) the mean of x (N, h) over each graph's nodes; `graph` (N,).

    Parameters
    ----------
    x
        (N, h) states of nodes.
    graph
        (N,) the graph of each, from 0 to `num_graphs` - 1.
    num_graphs
        G; a graph without nodes has mean 0.
    """
    total = torch.zeros((num_graphs, x.shape[1]), dtype=x.dtype, device=x.device).index_add(0, graph, x)
    return total / torch.bincount(graph, minlength=num_graphs).clamp(min=1)[:, None]


def ragged_log_softmax(score: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return (p,) log-softmax of `score` (p,) within each group; `group` (p,) is in 0..num_groups - 1.

    Parameters
    ----------
    score
        (p,) logits.
    group
        (p,) int64 the group of each, from 0 to `num_groups` - 1.
    num_groups
        Number of groups; each may be empty.
    """
    peak = score.new_full((num_groups,), -torch.inf).scatter_reduce(0, group, score.detach(), "amax")
    shifted = score - peak[group]
    weight = shifted.exp()
    total = weight.new_zeros(num_groups).index_add(0, group, weight)
    return shifted - total.log()[group]


class EncoderLayer(nn.Module):
    """One round of message passing."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.read = nn.Linear(5 * hidden, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False)
        self.write = nn.Linear(hidden, hidden)

    def forward(self, h: Tensor, features: FeatureTensors) -> Tensor:
        """Return new node states (N, h) from old ones (N, h).

        Parameters
        ----------
        h
            (N, h) states.
        features
            The graphs that the nodes are of.
        """
        x = self.norm(h)
        pred = neighbour_mean_max(x, features.pred_indptr, features.pred)
        succ = neighbour_mean_max(x, features.succ_indptr, features.succ)
        context = self.context(graph_mean(x, features.graph, features.num_graphs)).index_select(0, features.graph)
        read = self.read(torch.cat([x, *pred, *succ], dim=1)) + context
        return h + self.write(torch.relu(read))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Node states from node features by rounds of message passing along and against the edges."""

    def __init__(self, node_features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(node_features, hidden)
        self.layers = nn.ModuleList(EncoderLayer(hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, features: FeatureTensors) -> Tensor:
        """Return (N, h) the node states, normalised."""
        h = self.embed(features.node)
        for layer in self.layers:
            h = layer(h, features)
        return self.norm(h)  # type: ignore[no-any-return]
