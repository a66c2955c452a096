"""The autoregressive agent: a graph network reads the graph, an LSTM points at one ready node after the other.

For placements a head then chooses the chosen op's device, from the state of the decoder, the features of devices and
when the op would end on each. Nothing depends on how nodes or devices are numbered, and any number of either will do.

As for the one-shot agent, a node's score is the heuristic's key plus the network's, and the last layers start at zero:
an untrained agent decodes greedily to the heuristic's order and gives every op the device where it ends first.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import scatter, to_dense_batch

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.encoder import FeatureTensors
from rlinit.agent.network.oneshot_torch import DeviceHead
from rlinit.agent.placements.features import MOST_HASTE
from rlinit.agent.sequential.pointer_network import EncodedNodes, OrderDecoding, order_choices
from rlinit.agent.sequential.pointing_decoder import PointingDecoder, StepwiseNetwork, on_grid
from rlinit.agent.sequential.rollouts import PlacementRollouts

__all__ = ["AutoregressiveNetwork", "EncodedPlacements", "PlacedRows", "PlacementDecoding", "pyg_batch"]

_HASTE = 4.0
"""What an untrained agent's score for a device loses if an op ends there a mean op later than on the best."""


def pyg_batch(features: FeatureTensors) -> Data:
    """Return features as one PyG batch: `x`, `edge_index` along the data flow, `batch`."""
    consumers = features.pred_indptr.diff()
    nodes = torch.arange(len(consumers), device=consumers.device)
    edge_index = torch.stack([features.pred, nodes.repeat_interleave(consumers)])
    return Batch(x=features.node, edge_index=edge_index, batch=features.graph)


def _within(graph: Tensor) -> Tensor:
    """Return (n,) the place of each entry within its graph; `graph` (n,) ascends."""
    counts = graph.bincount()
    return torch.arange(len(graph), device=graph.device) - (counts.cumsum(0) - counts)[graph]


class GraphEncoder(nn.Module):
    """Rounds of message passing along and against the edges, by mean and maximum, and the mean of the graph.

    Size-invariant: neither the number of nodes nor that of neighbours scales anything.

    Parameters
    ----------
    node_features, hidden, layers
        Widths and rounds.
    """

    def __init__(self, node_features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(node_features, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers + 1))
        both = ["mean", "max"]
        self.along = nn.ModuleList(SAGEConv(hidden, hidden, aggr=both) for _ in range(layers))
        self.against = nn.ModuleList(SAGEConv(hidden, hidden, aggr=both, root_weight=False) for _ in range(layers))
        self.context = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.write = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, data: Data, num_graphs: int) -> Tensor:
        """Return (N, H) the node states of a PyG batch."""
        h, back = self.embed(data.x.to(self.embed.weight.dtype)), data.edge_index.flip(0)
        rounds = zip(self.norms, self.along, self.against, self.context, self.write, strict=False)
        for norm, along, against, context, write in rounds:
            x = norm(h)
            mean = scatter(x, data.batch, 0, num_graphs, "mean")
            read = along(x, data.edge_index) + against(x, back) + context(mean)[data.batch]
            h = h + write(torch.relu(read))
        return torch.as_tensor(self.norms[-1](h))


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPlacements:
    """What the decoder knows of g graphs with devices.

    Parameters
    ----------
    nodes
        The nodes.
    device_inputs, device_keys
        (g, D, H) what a chosen device feeds back, and what is pointed at.
    device_bias
        (g, N, D, 2) what each node's score for a device has added, and its haste there: the logarithm of how much more
        than usual ending late counts.
    """

    nodes: EncodedNodes
    device_inputs: Tensor
    device_keys: Tensor
    device_bias: Tensor

    def single(self) -> EncodedPlacements:
        """Return the same in float32, whatever precision they were computed in."""
        return EncodedPlacements(
            self.nodes.single(), self.device_inputs.float(), self.device_keys.float(), self.device_bias.float()
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlacedRows:
    """What was chosen in B rows, and what there was to choose from.

    Parameters
    ----------
    orders, devices
        (B, N) op of each step and its device; -1 after the last.
    lateness
        (B, N, D) at each step, how much later than on the best device the op would end on each, see
        `PlacementDecoding`; inf where it may not run.
    """

    orders: Tensor
    devices: Tensor
    lateness: Tensor


class AutoregressiveNetwork(StepwiseNetwork):
    """Graph encoder, pointing decoder and device head.

    Parameters
    ----------
    config
        Widths; those of `rlinit.agent.network.oneshot_torch.OneShot`.
    """

    def __init__(self, config: OneShotConfig) -> None:
        super().__init__()
        h = config.hidden
        self.config = config
        self.encoder = GraphEncoder(config.node_features, h, config.layers)
        self.inputs = nn.Linear(h, h)
        self.start = nn.Linear(2 * h, 2 * h)
        self.decoder = PointingDecoder(h)
        nn.init.zeros_(self.decoder.score.weight)
        if config.problem == "latency":
            self.scores = DeviceHead(config)
            self.device_inputs = nn.Linear(config.device_features, h)
            self.device_keys = nn.Linear(config.device_features, h)
            self.device_query = nn.Linear(2 * h, h)
            nn.init.zeros_(self.device_query.weight)
            nn.init.zeros_(self.device_query.bias)
            self.haste = nn.Parameter(torch.tensor(math.log(_HASTE)))

    def forward(self, features: FeatureTensors) -> EncodedNodes | EncodedPlacements:
        """Return graphs (for latency with their devices) as the decoder needs them."""
        if self.config.problem == "latency":
            return self.encode_placements(features)
        return self._nodes(self.encoder(pyg_batch(features), features.num_graphs), features)

    def encode_placements(self, features: FeatureTensors) -> EncodedPlacements:
        """Return graphs with their devices as the decoder needs them."""
        states = self.encoder(pyg_batch(features), features.num_graphs)
        graph, dtype = features.graph, states.dtype
        devices, _ = to_dense_batch(features.device.to(dtype), features.device_graph, batch_size=features.num_graphs)
        nodes = self._nodes(states, features)
        place = _within(graph)[features.pair_node], _within(features.device_graph)[features.pair_device]
        scores = self.scores(
            states, dataclasses.replace(features, device=features.device.to(dtype), pair=features.pair.to(dtype))
        )
        dense = states.new_zeros((*nodes.latent.shape[:2], devices.shape[1], 2))
        dense = dense.index_put((graph[features.pair_node], *place), scores.to(dtype))
        return EncodedPlacements(nodes, self.device_inputs(devices), self.device_keys(devices), dense)

    def _nodes(self, states: Tensor, features: FeatureTensors) -> EncodedNodes:
        graph, count = features.graph, features.num_graphs
        pooled = [scatter(states, graph, 0, count, how) for how in ("mean", "max")]
        hidden, cell = torch.tanh(self.start(torch.cat(pooled, dim=1))).chunk(2, dim=1)
        latent, _ = to_dense_batch(states, graph, batch_size=count)
        bias, _ = to_dense_batch(features.base_key.to(states.dtype), graph, batch_size=count)
        return EncodedNodes(self.inputs(latent), latent, (hidden, cell), bias)

    def device_scores(
        self, encoded: EncodedPlacements, graph: Tensor, node: Tensor, hidden: Tensor, lateness: Tensor
    ) -> Tensor:
        """Return (r, D) scores of devices for chosen ops; -inf where they may not run.

        Parameters
        ----------
        encoded
            The graphs.
        graph, node
            (r,) graph and op of each choice.
        hidden
            (r, H) the decoder's states.
        lateness
            (r, D) as in `PlacedRows`.
        """
        query = self.device_query(torch.cat([hidden, encoded.nodes.latent[graph, node]], dim=1))
        score = (encoded.device_keys[graph] @ query[:, :, None])[:, :, 0] / query.shape[1] ** 0.5
        bias, haste = encoded.device_bias[graph, node].unbind(dim=2)
        urgency = torch.exp(self.haste + haste.clamp(-MOST_HASTE, MOST_HASTE))
        allowed = torch.isfinite(lateness)
        late = torch.where(allowed, lateness, 0.0).to(score.dtype)
        return torch.where(allowed, on_grid(score + bias - urgency * late), -torch.inf)

    def placement_choices(
        self, encoded: EncodedPlacements, rollouts: PlacementRollouts, played: PlacedRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability and entropy of every choice, of ops first and then of devices; see `order_choices`."""
        orders = played.orders
        graph = rollouts.graph_of_row
        row, step = (orders >= 0).nonzero(as_tuple=True)
        fed = encoded.device_inputs[graph[:, None], played.devices.clamp(min=0)]
        log_prob, entropy, trajectory, hidden = order_choices(
            self.decoder, encoded.nodes, rollouts.graphs, orders, fed[:, :-1]
        )
        scores = self.device_scores(
            encoded, graph[row], orders[row, step], hidden[row, step], played.lateness[row, step]
        )
        choice = torch.log_softmax(scores, dim=1)
        # Masked before the product, not after it, where the gradient would be 0 times infinity.
        spread = -(choice.exp() * torch.where(torch.isneginf(choice), 0.0, choice)).sum(dim=1)
        chosen = choice.gather(1, played.devices[row, step][:, None])[:, 0]
        return torch.cat([log_prob, chosen]), torch.cat([entropy, spread]), torch.cat([trajectory, row])


class PlacementDecoding(OrderDecoding):
    """Placements in the making: a row chooses an op, then its device; a
    `rlinit.agent.sequential.decoding.StepDecoding`.

    Parameters
    ----------
    network, encoded
        The policy.
    rollouts
        B rows over the encoded graphs.
    scale_s
        (g,) seconds that lateness is counted in.

    Attributes
    ----------
    failed
        (B,) bool: rows where an op fitted on no device; they end there.
    """

    def __init__(
        self, network: AutoregressiveNetwork, encoded: EncodedPlacements, rollouts: PlacementRollouts, scale_s: Tensor
    ) -> None:
        super().__init__(network.decoder, encoded.nodes, rollouts)
        self.network = network
        self.encoded = encoded
        self.placing = rollouts
        self._from_device = nn.functional.linear(encoded.device_inputs, network.decoder.gates[0])
        self._scale_s = scale_s
        self._op: Tensor | None = None
        self.failed = torch.zeros(rollouts.num_rows, dtype=torch.bool, device=scale_s.device)
        shape = (rollouts.num_rows, rollouts.num_steps, rollouts.num_devices)
        self._lateness = torch.zeros(shape, dtype=torch.float32, device=scale_s.device)
        self._devices = torch.full(shape[:2], -1, dtype=torch.int64, device=scale_s.device)

    def log_probs(self) -> Tensor:
        """Return (B, N) log-probabilities of the next op, or (B, D) of the device of the op just chosen."""
        if self._op is None:
            return super().log_probs()
        graph = self.rollouts.graph_of_row
        op = self._op.clamp(min=0)
        score = self.network.device_scores(self.encoded, graph, op, self._state[0], self._lateness_now())
        stuck = torch.isneginf(score).all(dim=1)
        score[stuck, 0] = 0.0
        return torch.log_softmax(score, dim=1)

    def _lateness_now(self) -> Tensor:
        best = self._finish_s.min(dim=1, keepdim=True).values
        late = (self._finish_s - best) / self._scale_s[self.rollouts.graph_of_row, None]
        return torch.where(torch.isfinite(self._finish_s), late, torch.inf).float()

    def choose(self, choice: Tensor) -> None:
        """Take one op in each row, or put the op just taken on a device."""
        live = self.rollouts.ready.any(dim=1)
        if self._op is None:
            self._op = torch.where(live, choice, -1)
            self._finish_s = self.placing.finish_s(self._op)
            return
        op, step, graph = self._op, self.rollouts.steps, self.rollouts.graph_of_row
        stuck = live & torch.isinf(self._finish_s).all(dim=1)
        self.failed |= stuck
        self.placing.abandon(stuck)
        fits = live & ~stuck
        op, device = torch.where(fits, op, -1), torch.where(fits, choice, -1)
        self._lateness[:, step], self._devices[:, step] = self._lateness_now(), device
        self.placing.place(op, device, self._finish_s)
        self._op = None
        rows = self.rollouts.ready.any(dim=1).nonzero()[:, 0]
        at = graph[rows]
        self._feed(rows, self._projected[at, op[rows]] + self._from_device[at, device[rows]])

    def played(self) -> PlacedRows:
        """Return what was chosen in the rows that did not fail; those that did are empty."""
        lost = self.failed[:, None]
        orders, devices = self.rollouts.orders.masked_fill(lost, -1), self._devices.masked_fill(lost, -1)
        return PlacedRows(orders, devices, self._lateness)

    def select(self, rows: Tensor) -> Self:
        """Return a copy whose row i is row ``rows[i]`` of this one."""
        copy = super().select(rows)
        copy.placing = copy.rollouts  # type: ignore[assignment]
        copy.failed, copy._lateness, copy._devices = self.failed[rows], self._lateness[rows], self._devices[rows]
        if self._op is not None:
            copy._op, copy._finish_s = self._op[rows], self._finish_s[rows]
        return copy
