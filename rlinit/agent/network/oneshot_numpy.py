"""The one-shot agent's forward pass without torch: the same numbers on every machine.

Layers multiply whole numbers (`rlinit.agent.network.integer_layers`). What is left, norms and attention, is rounded at
the end to a grid much coarser than rounding errors; what is equal on the grid is told apart by the node's index alone.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from rlinit.agent.network.checkpoint import Checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.integer_layers import IntegerLayer, add_ends, largest_size, layer_norm
from rlinit.agent.network.message_passing import read_states, sums_of_one
from rlinit.arrays import FloatArray, Floats, IntArray
from rlinit.errors import CheckpointError

GRID = 1e-6
"""Keys and scores are multiples of this."""

_ROWS = 256
"""Nodes of which is gathered at once what they read: as much as stays in a processor's cache."""

_MOST_SEVERAL = 0.4
"""Share of nodes with several neighbours on a side up to which the others have products of their own: three for every
node and five for these, in place of five for all."""


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
        single = {name: array.astype(np.float32) for name, array in arrays.items()}
        names = [name.removesuffix(".weight") for name, array in arrays.items() if array.ndim == 2]
        self.layers = {
            name: IntegerLayer.rounded(single[f"{name}.weight"], single.get(f"{name}.bias")) for name in names
        }
        self.of_one = [_of_one(self.layers[f"encoder.layers.{i}.read"].weight) for i in range(config.layers)]
        self._vectors = {name: array for name, array in single.items() if array.ndim == 1}

    @classmethod
    def of(cls, checkpoint: Checkpoint, problem: str, *features: int) -> OneShotWeights:
        """Return the weights of a checkpoint for a kind of problem.

        Parameters
        ----------
        checkpoint
            Weights and card.
        problem
            ``stages`` or ``latency``.
        features
            Features of a node, a device and a pair that this version computes.

        Raises
        ------
        CheckpointError
            It is of another architecture, for another problem, or for other features.
        """
        config = OneShotConfig.from_dict(checkpoint.card.config)
        found = (config.problem, config.node_features, config.device_features, config.pair_features)
        if found != (problem, *features):
            raise CheckpointError(
                f"the checkpoint is for (problem, features of a node, a device, a pair) {found}; this version computes "
                f"{(problem, *features)}. Train it again."
            )
        return cls(config, checkpoint.arrays)

    def norm(self, name: str, x: Floats, y: Floats) -> float:
        """Write x (n, h) through a LayerNorm to y; return the largest size of one of its numbers.

        Parameters
        ----------
        name
            Of the layer.
        x, y
            (n, h) inputs, whose rows are normalised, and where outputs are written.
        """
        return float(layer_norm(x, self._vectors[f"{name}.weight"], self._vectors[f"{name}.bias"], y))


@functools.cache
def _blas() -> ThreadpoolController:
    """Return what sets the threads of products: on several they wait for each other longer than small layers take."""
    return ThreadpoolController().select(user_api="blas")


_WITHOUT_BIAS = ("context", "key_out", "device", "pair")
"""Last names of linear layers that have no bias."""


def weight_shapes(config: OneShotConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a network, by name."""
    h = config.hidden
    linear = {"encoder.embed": (h, config.node_features), "key_hidden": (h, h), "key_out": (1, h)}
    norms = ["encoder.norm", *(f"encoder.layers.{i}.norm" for i in range(config.layers))]
    for i in range(config.layers):
        widths = {"read": 5 * h, "context": h, "write": h}
        linear |= {f"encoder.layers.{i}.{name}": (h, inputs) for name, inputs in widths.items()}
    if config.problem == "latency":
        linear |= {f"devices.{name}": (h, h) for name in ("mix", "query", "key", "value", "device")}
        linear |= {"devices.bias": (1, config.pair_features), "devices.pair": (h, config.pair_features)}
        linear |= {"devices.embed": (h, config.device_features), "devices.node": (h, 2 * h), "devices.out": (2, h)}
    biased = [name for name in linear if name.rpartition(".")[2] not in _WITHOUT_BIAS]
    return {
        **{f"{name}.weight": shape for name, shape in linear.items()},
        **{f"{name}.bias": linear[name][:1] for name in biased},
        **{f"{name}.{part}": (h,) for name in norms for part in ("weight", "bias")},
    }


def infer(weights: OneShotWeights, features: GraphFeatures) -> tuple[FloatArray, FloatArray]:
    """Return (keys, scores) of one graph: (N,) and (P, 2), see `DeviceHead`, or (0, 2); multiples of `GRID`.

    What `rlinit.agent.network.oneshot_torch.OneShot` computes, up to the rounding of weights and inputs, about 1%.

    Parameters
    ----------
    weights
        Of a one-shot agent.
    features
        Of one graph of N nodes, at least one, and, for placements, P pairs of op and device.
    """
    with _blas().limit(limits=1):
        states, top = _node_states(weights, features)
        scores = np.zeros((0, 2))
        if weights.config.problem == "latency":
            scores = _on_grid(_device_scores(weights, features, states, top))
        hidden = weights.layers["key_hidden"]
        about, largest = hidden.product(*hidden.whole(states, top), least=0.0, out=_kept("sums", *states.shape))
        return _on_grid(features.base_key + weights.layers["key_out"].few(about, largest)[:, 0]), scores


def _of_one(read: Floats) -> Floats:
    """Return (h, 3h) weights of a node's own state, of its only predecessor's and of its only successor's.

    Where there is one neighbour it is both mean and maximum, so that its weights in `read` (5h, h) add up.
    """
    own, mean_pred, max_pred, mean_succ, max_succ = np.split(read, 5)
    return np.concatenate([own, mean_pred + max_pred, mean_succ + max_succ], axis=1)


_KEPT = threading.local()
"""Arrays of a thread by name."""


def _kept(name: str, *shape: int) -> Floats:
    """Return a float32 array that stays from call to call: fresh pages took a sixth of the time of 2,000 ops.

    Parameters
    ----------
    name
        What is asked for by the same name is overwritten.
    shape
        Of the array, whose numbers are arbitrary.
    """
    size, found = math.prod(shape), _KEPT.__dict__.get(name)
    if found is None or len(found) < size:
        found = _KEPT.__dict__[name] = np.empty(size, np.float32)
    kept: Floats = found[:size].reshape(shape)
    return kept


def _node_states(weights: OneShotWeights, features: GraphFeatures) -> tuple[Floats, float]:
    """Return (N, h) the encoder's states and the largest size; see `rlinit.agent.network.encoder.Encoder`."""
    h = weights.layers["encoder.embed"](features.node)
    spare, x = _kept("next states", *h.shape), _kept("whole states", *h.shape)
    neighbours = features.pred_indptr, features.pred, features.succ_indptr, features.succ
    several = np.flatnonzero((np.diff(features.pred_indptr) > 1) | (np.diff(features.succ_indptr) > 1))
    for i in range(weights.config.layers):
        read, context, write = (weights.layers[f"encoder.layers.{i}.{name}"] for name in ("read", "context", "write"))
        _, step = read.whole(x, weights.norm(f"encoder.layers.{i}.norm", h, x))
        sums = _read_sums(x, read.weight, weights.of_one[i], neighbours, several)
        mean = context(x.sum(axis=0, keepdims=True, dtype=np.float32).astype(np.float64) * float(step) / len(x))
        y, top = read.finish(sums, step, mean, 0.0)
        write.product(*write.whole(y, top), more=h, out=spare)
        h, spare = spare, h
    return x, weights.norm("encoder.norm", h, x)


def _read_sums(
    x: Floats,
    read: Floats,
    of_one: Floats,
    neighbours: tuple[IntArray, IntArray, IntArray, IntArray],
    several: IntArray,
) -> Floats:
    """Return (N, h) sums of whole products of what nodes read: of themselves and both sides' means and maxima.

    Parameters
    ----------
    x
        (N, h) whole states.
    read, of_one
        (5h, h) and (h, 3h) weights; see `_of_one`.
    neighbours
        Pointers and indices of predecessors, then of successors.
    several
        Nodes with more than one neighbour on a side.
    """
    sums = _kept("sums", *x.shape)
    if len(several) <= _MOST_SEVERAL * len(x):
        product = np.matmul(x, of_one, out=_kept("products", len(x), of_one.shape[1]))
        sums_of_one(product.reshape(len(x), 3, -1), *neighbours, sums)
    else:
        several = np.arange(len(x))
    parts = _kept("parts", _ROWS, 5, x.shape[1])
    for first in range(0, len(several), _ROWS):
        nodes = several[first : first + _ROWS]
        read_states(x, *neighbours, nodes, parts)
        sums[nodes] = parts[: len(nodes)].reshape(len(nodes), -1) @ read
    return sums


def _device_scores(weights: OneShotWeights, features: GraphFeatures, states: Floats, top: float) -> FloatArray:
    """Return (P, 2) the device head's outputs; see `rlinit.agent.network.oneshot_torch.DeviceHead`."""
    layers = {name.removeprefix("devices."): layer for name, layer in weights.layers.items()}
    pair = features.pair.astype(np.float32)
    most = largest_size(pair)
    embedded = layers["embed"](features.device)
    embedded = embedded + layers["mix"](np.maximum(embedded, 0.0))
    bias = layers["bias"].few(pair, most).reshape(len(states), -1)
    about = _about_nodes(layers, states, top, embedded, bias)
    whole, step = layers["pair"].whole(pair, most)
    hidden = np.matmul(whole, layers["pair"].weight, out=_kept("pairs", len(pair), states.shape[1]))
    most = add_ends(hidden, layers["pair"].step * step, about, layers["device"](embedded))
    return layers["out"].few(hidden, most)


def _about_nodes(
    layers: Mapping[str, IntegerLayer], states: Floats, top: float, embedded: Floats, bias: Floats
) -> Floats:
    """Return (N, h) what the device head makes of nodes: of their states and what they look up of devices by attention.

    Parameters
    ----------
    layers
        Of the device head.
    states, top
        (N, h) of nodes, and the largest size.
    embedded
        (d, h) of devices.
    bias
        (N, d) of pairs, added to what nodes and devices have in common.
    """
    n, width = states.shape
    key, value = (layers[name](embedded).astype(np.float64) for name in ("key", "value"))
    joined = _kept("states and context", n, 2 * width)
    joined[:, :width] = states
    query = layers["query"]
    asked = key @ (query.weight * query.step).T.astype(np.float64) / np.sqrt(width)
    always = key @ query.bias / np.sqrt(width)
    for first in range(0, n, _ROWS):
        rows = slice(first, first + _ROWS)
        whole, step = query.whole(states[rows].copy(), top)
        weight = (
            asked @ whole.T.astype(np.float64) * step + always[:, None] + bias[rows].T
        )  # (d, r): short sums are slow
        weight = np.exp(weight - weight.max(axis=0))
        joined[rows, width:] = (weight / weight.sum(axis=0)).T @ value
    return layers["node"].product(*layers["node"].whole(joined), out=_kept("sums", n, width))[0]


def _on_grid(x: FloatArray) -> FloatArray:
    y: FloatArray = np.round(np.asarray(x, np.float64) / GRID) * GRID
    return y
