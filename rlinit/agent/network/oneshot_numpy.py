"""The one-shot agent's forward pass without torch, in float64: the same numbers on every machine.

Sums may be taken in another order by another library, so keys and scores are rounded to a grid much coarser than
rounding errors; what is equal on the grid is told apart by the node's index alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.message_passing import mean_max
from rlinit.arrays import FloatArray
from rlinit.errors import CheckpointError

GRID = 1e-6
"""Keys and scores are multiples of this."""

_NORM_EPSILON = 1e-5

_MOST_PRODUCTS = 2**18
"""Multiplications up to which OpenBLAS works on one thread (64 x 64 x 64). More threads wait for each other longer than
these small layers take: 44 instead of 11 ms for 490 ops on a machine in use."""


class OneShotWeights:
    """The weights of a one-shot agent in float64, checked once.

    Parameters
    ----------
    config
        The network's shape.
    arrays
        Weights by name, as in a checkpoint.

    Raises
    ------
    CheckpointError
        A weight is missing, unknown or of another shape.
    """

    def __init__(self, config: OneShotConfig, arrays: Mapping[str, NDArray[Any]]) -> None:
        expected = weight_shapes(config)
        for name in sorted(set(expected) ^ set(arrays)):
            what = "lacks" if name in expected else "has an unknown"
            raise CheckpointError(f"the checkpoint {what} weight {name!r}: it is of another architecture")
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise CheckpointError(f"weight {name!r} has shape {arrays[name].shape}; expected {shape}")
        self.config = config
        self._arrays = {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}

    def linear(self, name: str, x: FloatArray) -> FloatArray:
        """Return x (n, in) through a linear layer, (n, out).

        Parameters
        ----------
        name
            Of the layer; its weight is (out, in) and its bias (out,).
        x
            (n, in) inputs.
        """
        weight = self._arrays[f"{name}.weight"].T
        y = np.empty((len(x), weight.shape[1]))
        rows = max(1, _MOST_PRODUCTS // weight.size)
        for first in range(0, len(x), rows):
            np.matmul(x[first : first + rows], weight, out=y[first : first + rows])
        bias = self._arrays.get(f"{name}.bias")
        return y if bias is None else np.add(y, bias, out=y)

    def norm(self, name: str, x: FloatArray) -> FloatArray:
        """Return x (n, h) through a LayerNorm.

        Parameters
        ----------
        name
            Of the layer; its weight and bias are (h,).
        x
            (n, h) inputs; rows are normalised.
        """
        centred = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + _NORM_EPSILON)
        y: FloatArray = centred / scale * self._arrays[f"{name}.weight"] + self._arrays[f"{name}.bias"]
        return y


def weight_shapes(config: OneShotConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a network, by name."""
    h = config.hidden
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (h,)

    linear("encoder.embed", config.node_features, h)
    for i in range(config.layers):
        norm(f"encoder.layers.{i}.norm")
        linear(f"encoder.layers.{i}.read", 5 * h, h)
        linear(f"encoder.layers.{i}.context", h, h, bias=False)
        linear(f"encoder.layers.{i}.write", h, h)
    norm("encoder.norm")
    linear("key_hidden", h, h)
    linear("key_out", h, 1, bias=False)
    if config.problem == "latency":
        linear("devices.embed", config.device_features, h)
        for name in ("mix", "query", "key", "value"):
            linear(f"devices.{name}", h, h)
        linear("devices.bias", config.pair_features, 1)
        linear("devices.node", 2 * h, h)
        linear("devices.device", h, h, bias=False)
        linear("devices.pair", config.pair_features, h, bias=False)
        linear("devices.out", h, 2)
    return shapes


def infer(weights: OneShotWeights, features: GraphFeatures) -> tuple[FloatArray, FloatArray]:
    """Return (keys, scores): (N,) and (P, 2), see `DeviceHead`, or (0, 2); multiples of `GRID`.

    Every graph must have a node.

    Guarantees what `rlinit.agent.network.oneshot_torch.OneShot` computes, up to rounding of float32.

    Parameters
    ----------
    weights
        Of a one-shot agent.
    features
        Of N nodes and, for placements, P pairs of op and device.
    """
    h = weights.linear("encoder.embed", features.node)
    graph = features.graph_of_node
    for i in range(weights.config.layers):
        name = f"encoder.layers.{i}"
        x = weights.norm(f"{name}.norm", h)
        pred = mean_max(x, features.pred_indptr, features.pred)
        succ = mean_max(x, features.succ_indptr, features.succ)
        read = weights.linear(f"{name}.read", np.concatenate([x, pred[0], pred[1], succ[0], succ[1]], axis=1))
        size = np.maximum(np.diff(features.ptr), 1)[:, None]
        mean = np.add.reduceat(x, features.ptr[:-1], axis=0)
        read += weights.linear(f"{name}.context", mean / size)[graph]
        h = h + weights.linear(f"{name}.write", np.maximum(read, 0.0))
    states = weights.norm("encoder.norm", h)
    key = weights.linear("key_out", np.maximum(weights.linear("key_hidden", states), 0.0))[:, 0]
    keys = _on_grid(features.base_key + key)
    if weights.config.problem == "stages":
        return keys, np.zeros((0, 2))
    return keys, _on_grid(_device_scores(weights, features, states))


def _device_scores(weights: OneShotWeights, features: GraphFeatures, states: FloatArray) -> FloatArray:
    """Return (P, 2) the device head's outputs; see `rlinit.agent.network.oneshot_torch.DeviceHead`."""
    node, device = features.pair_ends()
    embedded = weights.linear("devices.embed", features.device)
    embedded = embedded + weights.linear("devices.mix", np.maximum(embedded, 0.0))
    query = weights.linear("devices.query", states)[node]
    weight = (query * weights.linear("devices.key", embedded)[device]).sum(axis=1) / np.sqrt(states.shape[1])
    weight += weights.linear("devices.bias", features.pair)[:, 0]
    most = np.full(len(states), -np.inf)
    np.maximum.at(most, node, weight)
    weight = np.exp(weight - most[node])
    weight /= np.bincount(node, weights=weight, minlength=len(states))[node]
    context = np.zeros_like(states)
    np.add.at(context, node, weights.linear("devices.value", embedded)[device] * weight[:, None])
    hidden = weights.linear("devices.node", np.concatenate([states, context], axis=1))[node]
    hidden += weights.linear("devices.device", embedded)[device] + weights.linear("devices.pair", features.pair)
    return weights.linear("devices.out", np.maximum(hidden, 0.0))


def _on_grid(x: FloatArray) -> FloatArray:
    y: FloatArray = np.round(x / GRID) * GRID
    return y
