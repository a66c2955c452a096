"""The one-shot agent's forward pass without torch: the same numbers on every machine.

Layers multiply whole numbers. Weights are rounded to `_BITS` bits and a sign, and inputs to as many steps as keep every
sum of products below 2^24, up to where float32 counts exactly. So sums are the same in any order, whatever library adds
them up, and products take half the time of float64. What is left, norms and attention, is rounded at the end to a grid
much coarser than rounding errors; what is equal on the grid is told apart by the node's index alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.message_passing import read_states
from rlinit.arrays import FloatArray, Floats
from rlinit.errors import CheckpointError
from rlinit.kernels.compiled import njit

GRID = 1e-6
"""Keys and scores are multiples of this."""

_NORM_EPSILON = 1e-5

_BITS = 7
"""Of a weight, beside its sign."""

_EXACT = 2**24
"""Whole numbers up to this, and their sums, are exact in float32."""

_ROWS = 256
"""Nodes of which is gathered at once what they read: as much as stays in a processor's cache."""

_LEAST_STEP = np.float32(1e-30)
"""Of inputs that are all zero, or nearly."""


class _Layer(NamedTuple):
    """A linear layer in whole numbers.

    `weight` (in, out) float32 holds whole numbers, `step` (out,) what one of them is worth, `bias` is (out,); inputs
    are whole numbers up to `most`.
    """

    weight: Floats
    step: Floats
    bias: Floats
    most: np.float32


class OneShotWeights:
    """The weights of a one-shot agent, checked and rounded once.

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
        self._vectors = {name: array.astype(np.float32) for name, array in arrays.items() if array.ndim == 1}
        self._layers = {
            name.removesuffix(".weight"): self._layer(name.removesuffix(".weight"), array.astype(np.float32))
            for name, array in arrays.items()
            if array.ndim == 2
        }

    def _layer(self, name: str, weight: Floats) -> _Layer:
        top = np.abs(weight).max(axis=1)
        step = np.where(top > 0, top, np.float32(1)) / np.float32(2**_BITS - 1)
        whole = np.rint(weight / step[:, None])
        most = np.floor(_EXACT / max(1.0, float(np.abs(whole).sum(axis=1).max())))
        bias = self._vectors.get(f"{name}.bias", np.zeros(len(weight), np.float32))
        return _Layer(np.ascontiguousarray(whole.T), step, bias, np.float32(most))

    def whole(self, name: str, x: Floats, out: Floats | None = None) -> tuple[Floats, np.float32]:
        """Return inputs x (n, in) of a layer as (whole numbers, what one is worth), both float32.

        Parameters
        ----------
        name
            Of the layer.
        x
            (n, in) inputs.
        out
            (n, in) float32, where whole numbers are written; may be x. None: a new array.
        """
        top = np.float32(max(x.max(initial=0.0), -x.min(initial=0.0)))
        step = max(top / self._layers[name].most, _LEAST_STEP)
        y = np.multiply(x, 1 / step, out=out, dtype=np.float32)
        return np.rint(y, out=y), step

    def product(self, name: str, whole: Floats, step: np.float32, out: Floats | None = None) -> Floats:
        """Return (n, out) what a layer makes of whole inputs, float32.

        Parameters
        ----------
        name
            Of the layer.
        whole, step
            (n, in) whole numbers, and what one of them is worth; see `whole`.
        out
            (n, out) float32 to be filled; None: a new array.
        """
        layer = self._layers[name]
        y: Floats = np.matmul(whole, layer.weight, out=out)
        y *= layer.step * step
        y += layer.bias
        return y

    def linear(self, name: str, x: Floats, out: Floats | None = None) -> Floats:
        """Return x (n, in) through a linear layer, (n, out) float32.

        Parameters
        ----------
        name
            Of the layer.
        x, out
            (n, in) inputs, and scratch; see `whole`.
        """
        return self.product(name, *self.whole(name, x, out))

    def norm(self, name: str, x: Floats) -> Floats:
        """Return x (n, h) through a LayerNorm, float32.

        Parameters
        ----------
        name
            Of the layer; its weight and bias are (h,).
        x
            (n, h) inputs; rows are normalised.
        """
        y = np.empty(x.shape, np.float32)
        _normalise(x, self._vectors[f"{name}.weight"], self._vectors[f"{name}.bias"], y)
        return y


@functools.cache
def _blas() -> ThreadpoolController:
    """Return what sets the threads of products: on several they wait for each other longer than small layers take."""
    return ThreadpoolController().select(user_api="blas")


@njit(cache=True, nogil=True)
def _normalise(x: Floats, weight: Floats, bias: Floats, y: Floats) -> None:
    """Write the LayerNorm of the rows of x (n, h); sums are of two halves, which do not wait for each other."""
    n, width = x.shape
    half = width // 2
    for v in range(n):
        total, square, other, other_square = 0.0, 0.0, 0.0, 0.0
        for c in range(half):
            one, two = np.float64(x[v, c]), np.float64(x[v, c + half])
            total, other, square, other_square = total + one, other + two, square + one * one, other_square + two * two
        if 2 * half < width:
            total, square = total + x[v, -1], square + np.float64(x[v, -1]) ** 2
        mean = (total + other) / width
        variance = max(0.0, (square + other_square) / width - mean * mean)
        less, share = np.float32(mean), np.float32(1.0 / np.sqrt(variance + _NORM_EPSILON))
        for c in range(width):
            y[v, c] = (x[v, c] - less) * share * weight[c] + bias[c]


@njit(cache=True, nogil=True)
def _rectify_pairs(x: Floats, node: Floats, device: Floats) -> None:
    """Add to each row of x (n * d, h) that of its node (n, h) and that of its device (d, h), and cut off below 0."""
    d, width = device.shape
    for v in range(len(node)):
        for i in range(d):
            for c in range(width):
                total = (x[v * d + i, c] + node[v, c]) + device[i, c]
                x[v * d + i, c] = total if total > np.float32(0.0) else np.float32(0.0)


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

    What `rlinit.agent.network.oneshot_torch.OneShot` computes, up to the rounding of weights and inputs, about 1%.

    Parameters
    ----------
    weights
        Of a one-shot agent.
    features
        Of N nodes and, for placements, P pairs of op and device.
    """
    with _blas().limit(limits=1):
        states = _node_states(weights, features)
        key = weights.linear("key_out", _relu(weights.linear("key_hidden", states)))[:, 0]
        keys = _on_grid(features.base_key + key)
        if weights.config.problem == "stages":
            return keys, np.zeros((0, 2))
        return keys, _on_grid(_device_scores(weights, features, states))


def _node_states(weights: OneShotWeights, features: GraphFeatures) -> Floats:
    """Return (N, h) the encoder's states; see `rlinit.agent.network.encoder.Encoder`."""
    h = weights.linear("encoder.embed", features.node)
    graph, width = features.graph_of_node, weights.config.hidden
    size = np.maximum(np.diff(features.ptr), 1)[:, None]
    read, joined = np.empty((len(h), width), np.float32), np.empty((min(_ROWS, len(h)), 5, width), np.float32)
    neighbours = features.pred_indptr, features.pred, features.succ_indptr, features.succ
    for i in range(weights.config.layers):
        name = f"encoder.layers.{i}"
        normed = weights.norm(f"{name}.norm", h)
        x, step = weights.whole(f"{name}.read", normed, normed)
        total = np.zeros((features.num_graphs, width))
        for first in range(0, len(h), _ROWS):
            part = joined[: len(h) - first]
            read_states(x, graph, *neighbours, first, part, total)
            weights.product(f"{name}.read", part.reshape(len(part), -1), step, read[first : first + _ROWS])
        read += weights.linear(f"{name}.context", total * float(step) / size)[graph]
        h += weights.linear(f"{name}.write", _relu(read), read)
    return weights.norm("encoder.norm", h)


def _device_scores(weights: OneShotWeights, features: GraphFeatures, states: Floats) -> FloatArray:
    """Return (P, 2) the device head's outputs; see `rlinit.agent.network.oneshot_torch.DeviceHead`."""
    embedded = weights.linear("devices.embed", features.device)
    embedded = embedded + weights.linear("devices.mix", np.maximum(embedded, 0.0))
    query, key, value = (
        weights.linear(f"devices.{name}", x).astype(np.float64)
        for name, x in (("query", states), ("key", embedded), ("value", embedded))
    )
    about_device, bias = weights.linear("devices.device", embedded), weights.linear("devices.bias", features.pair)
    first, scores = 0, np.empty((len(features.pair), 2))
    for nodes, devices in zip(pairwise(features.ptr), pairwise(features.device_ptr), strict=True):
        own, here = slice(*nodes), slice(*devices)
        shape = (nodes[1] - nodes[0], devices[1] - devices[0])
        pairs = slice(first, first := first + shape[0] * shape[1])
        weight = query[own] @ key[here].T / np.sqrt(states.shape[1]) + bias[pairs].reshape(shape)
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        context = weight / weight.sum(axis=1, keepdims=True) @ value[here]
        hidden = weights.linear("devices.pair", features.pair[pairs])
        about = weights.linear("devices.node", np.concatenate([states[own], context], axis=1, dtype=np.float32))
        _rectify_pairs(hidden, about, about_device[here])
        scores[pairs] = weights.linear("devices.out", hidden, hidden)
    return scores


def _relu(x: Floats) -> Floats:
    """Return x with its negative numbers made zero, in place."""
    return np.maximum(x, 0.0, out=x)


def _on_grid(x: FloatArray) -> FloatArray:
    y: FloatArray = np.round(x / GRID) * GRID
    return y
