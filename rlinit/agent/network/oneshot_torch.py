"""The one-shot agent in torch: one forward pass gives every node's key and, for placements, a score for each device.

Keys are the heuristic's plus the network's. The last layers start at zero, so an untrained agent *is* the heuristic.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.encoder import Encoder, FeatureTensors, ragged_log_softmax


class DeviceHead(nn.Module):
    """Scores of nodes on devices; nodes first look at the devices of their graph by attention.

    The number of devices is free. With q from nodes, k and v from devices::

        a_vd  = softmax over d of (q_v . k_d / sqrt(h) + b . pair_vd)
        s_v   = sum over d of a_vd value_d
        (score, log late factor) = w relu(W [h_v, s_v] + U e_d + P pair_vd)

    The score is a logit of the device; the factor says how many times the usual weight ending late there has.
    """

    def __init__(self, config: OneShotConfig) -> None:
        super().__init__()
        h = config.hidden
        self.embed = nn.Linear(config.device_features, h)
        self.mix = nn.Linear(h, h)
        self.query = nn.Linear(h, h)
        self.key = nn.Linear(h, h)
        self.value = nn.Linear(h, h)
        self.bias = nn.Linear(config.pair_features, 1)
        self.node = nn.Linear(2 * h, h)
        self.device = nn.Linear(h, h, bias=False)
        self.pair = nn.Linear(config.pair_features, h, bias=False)
        self.out = nn.Linear(h, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, features: FeatureTensors) -> Tensor:
        """Return (P, 2) scores, and logarithms of factors on lateness weights, from node states (N, h).

        Parameters
        ----------
        states
            (N, h) states of ops.
        features
            With the features of devices and of the P pairs of op and device.
        """
        node, device = features.pair_node, features.pair_device
        embedded = self.embed(features.device)
        embedded = embedded + self.mix(torch.relu(embedded))
        query = self.query(states).index_select(0, node)
        key = self.key(embedded).index_select(0, device)
        weight = (query * key).sum(1) / math.sqrt(states.shape[1]) + self.bias(features.pair).squeeze(1)
        weight = ragged_log_softmax(weight, node, len(states)).exp()
        value = self.value(embedded).index_select(0, device) * weight[:, None]
        context = torch.zeros_like(states).index_add(0, node, value.to(states.dtype))
        about = self.node(torch.cat([states, context], dim=1)).index_select(0, node)
        hidden = about + self.device(embedded).index_select(0, device) + self.pair(features.pair)
        return self.out(torch.relu(hidden))  # type: ignore[no-any-return]


class OneShot(nn.Module):
    """The one-shot agent."""

    def __init__(self, config: OneShotConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.node_features, config.hidden, config.layers)
        self.key_hidden = nn.Linear(config.hidden, config.hidden)
        self.key_out = nn.Linear(config.hidden, 1, bias=False)
        nn.init.zeros_(self.key_out.weight)
        self.devices = DeviceHead(config) if config.problem == "latency" else None

    def forward(self, features: FeatureTensors) -> tuple[Tensor, Tensor]:
        """Return (keys, scores): (N,) float32, the heuristic's included, and (P, 2), see `DeviceHead`, or (0, 2)."""
        states = self.encoder(features)
        key = features.base_key + self.key_out(torch.relu(self.key_hidden(states))).squeeze(1)
        if self.devices is None:
            return key, key.new_zeros(0, 2)
        return key, self.devices(states, features)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights by name, as a checkpoint holds them."""
        return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in self.state_dict().items()}
