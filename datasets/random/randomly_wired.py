"""Randomly wired networks: the workloads of DIVIML, with op times from shapes.

A network is a chain of modules. A module is a random undirected graph whose edges are directed from the smaller to the
larger node; each of its nodes sums its inputs with weights and applies ReLU, a 3x3 separable convolution and batch
normalisation. It has c *input* and c *output* ops (the channels); output c of a module feeds input c of the next by one
edge. With one channel that edge is a bridge.

References
----------
Xie, Kirillov, Girshick, He: Exploring randomly wired neural networks for image recognition, ICCV 2019, section 3.
DIVIML: section V-A and V-B, figure 2, tables I, II and IV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.units import BITS

__all__ = ["WIRINGS", "rwnn"]

WIRINGS = ("er", "ws", "ba")
"""Erdos-Renyi ER(0.2), Watts-Strogatz WS(4, 0.75), Barabasi-Albert BA(5)."""

_FLOAT = BITS["fp32"] // 8
"""Bytes of a number."""
_CHANNELS = 78  # C of Xie et al.'s small regime
_RESOLUTIONS = (56, 28, 14, 7)  # of its stages conv2 to conv5, with C, 2C, 4C and 8C channels
_DRAWS = 10_000
"""Of a wiring until one is connected."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """How fast one kind of device runs the parts of an op; `work_s` scales all but the launches.

    Parameters
    ----------
    launch_s
        Seconds a part costs whatever its size and batch.
    flops_per_s
        Operations a second of aggregation, depthwise and pointwise convolution.
    bytes_per_s
        Memory bandwidth.
    spread
        Standard deviation of the logarithm of an op's own factor, whose mean is 1.
    """

    launch_s: float
    flops_per_s: tuple[float, float, float]
    bytes_per_s: float
    spread: float


# Ours. The GPUs' rates are 10% to 20% of their peaks for convolutions, 40% or 60% of the bandwidth; their launches and
# the CPU's rates are then fitted so that totals are those of DIVIML's tables (see `rwnn`).
_RATES = {
    "cpu": _Rates(20e-6, (1.52e9, 1.90e9, 12.2e9), 7.6e9, 0.6),
    "t4": _Rates(261e-6, (0.4e12, 0.6e12, 1.8e12), 190e9, 0.6),
    "a100": _Rates(211e-6, (0.6e12, 1.0e12, 2.9e12), 580e9, 0.6),
}
_PARTS = ("aggregate", "depthwise", "pointwise")


@dataclass(frozen=True, slots=True)
class _Module:
    """Ops of one module in order: inputs, nodes, outputs; edges by position, and what each op computes."""

    edges: list[tuple[int, int]]
    costs: NDArray[
        np.float64
    ]  # (ops, parts, 4): parameters, operations, bytes in and out, bytes out; NaN: no such part


def rwnn(
    wiring: Literal["er", "ws", "ba"],
    *,
    seed: int,
    num_modules: int = 10,
    nodes_per_module: int = 32,
    channels: int = 1,
    dependence: Literal["strong", "weak"] = "strong",
    batch_sizes: Sequence[int] = (1,),
) -> Graph:
    """Return a randomly wired network with times on the kinds ``cpu``, ``t4`` and ``a100``.

    The wiring of a module depends on the seed, its number and its size only: with other channels, or more modules, it
    stays what it was. Draws are repeated until a module is connected.

    Parameters
    ----------
    wiring
        Random graph model of the modules, see `WIRINGS`.
    seed
        At least 0; one seed, one graph.
    num_modules
        At least 1, spread evenly over the stages conv2 to conv5 of the small regime; a single module is of conv3.
    nodes_per_module
        Nodes of a module without its inputs and outputs; DIVIML has 10 and 32. More than 5.
    channels
        Inputs, and outputs, of a module.
    dependence
        ``strong``: one input of a module, drawn at random, feeds all its source nodes, so that all its paths stem
        from it; each other input feeds a random part of them, at least one. ``weak``: each source node is fed by one
        input drawn at random, so that paths are spread over the inputs; an input left over feeds a random node.
        (BA wirings have one source, so that one input reaches every node in any case.)
        Outputs collect from the sinks likewise. With one channel these are the same.
    batch_sizes
        Distinct sizes to give times for, each at least 1. For ``throughput`` all that may be used belong here.

    Returns
    -------
    Graph
        Op ``m3.in1`` is input 1 of module 3, ``m3.n17`` a node, ``m3.out0`` an output. All sizes are of FP32 and one
        input; `times` has an entry for every kind and batch size.

    Raises
    ------
    InvalidGraph
        An argument out of range.

    Notes
    -----
    The wiring, the shapes (3x3 kernels, 78 channels at 56x56 pixels, doubled where the resolution is halved, which an
    input op does) and the sizes that follow are Xie et al.'s. What an op costs on a device is our model: each part
    takes a launch and the larger of operations over rate and bytes over bandwidth, that times the batch size, so that
    GPUs use a batch well and the CPU hardly gains. Each op (each part, if split) has a random factor on each kind,
    log-normal with mean 1. The constants make the mean totals over wirings and sizes 7.10 : 1.26 : 1 for CPU : T4 :
    A100 (table II); a network of 10 modules of 32 nodes takes about 233 ms on the A100 (the mean of table I's "best
    device"), and a batch of 16 some 1.5 times as long (table IV has 54 inputs a second on the best device). The
    spread of the factors is fitted to the best makespan of table I: with one channel and ER wirings, the best device
    takes some 2.6 times as long. Op times of the paper are not published.
    """
    _check(wiring, seed, num_modules, nodes_per_module, channels, dependence, batch_sizes)
    names: list[str] = []
    kinds: list[str] = []
    edges: list[tuple[int, int]] = []
    costs: list[NDArray[np.float64]] = []
    factors: list[NDArray[np.float64]] = []
    below: list[int] = []
    for number in range(num_modules):
        module = _module(wiring, seed, number, num_modules, nodes_per_module, channels, dependence)
        labels = [f"in{c}" for c in range(channels)] + [f"n{v}" for v in range(nodes_per_module)]
        labels += [f"out{c}" for c in range(channels)]
        noise = np.random.default_rng([seed, number, 2]).standard_normal((len(labels), len(_PARTS), len(_RATES)))
        first = len(names)
        names += [f"m{number}.{label}" for label in labels]
        kinds += ["aggregate" if label.startswith("out") else "sepconv" for label in labels]
        costs.append(module.costs)
        factors.append(noise[:, 0])
        edges += [(first + u, first + v) for u, v in module.edges]
        edges += zip(below, range(first, first + channels), strict=bool(below))
        below = list(range(len(names) - channels, len(names)))
    table, factor = np.concatenate(costs), np.concatenate(factors)
    last = 2 - np.argmax(~np.isnan(table[:, ::-1, 3]), axis=1)
    return Graph(
        names=tuple(names),
        kinds=tuple(kinds),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        param_bytes=np.nansum(table[:, :, 0], axis=1) * _FLOAT,
        out_bytes=table[np.arange(len(names)), last, 3],
        flops=np.nansum(table[:, :, 1], axis=1),
        times={
            (kind, batch): _seconds(table, rates, factor[:, k], batch)
            for k, (kind, rates) in enumerate(_RATES.items())
            for batch in batch_sizes
        },
        name=f"rwnn-{wiring}-{num_modules}x{nodes_per_module}-{dependence[0]}{channels}-{seed}",
    )


def _check(
    wiring: str,
    seed: int,
    num_modules: int,
    nodes_per_module: int,
    channels: int,
    dependence: str,
    batch_sizes: Sequence[int],
) -> None:
    if wiring not in WIRINGS:
        raise InvalidGraph(f"wiring is {wiring!r}; expected one of {', '.join(WIRINGS)}")
    if dependence not in ("strong", "weak"):
        raise InvalidGraph(f"dependence is {dependence!r}; expected 'strong' or 'weak'")
    bounds = (("seed", seed, 0), ("num_modules", num_modules, 1), ("nodes_per_module", nodes_per_module, 6))
    for what, value, least in (*bounds, ("channels", channels, 1)):
        if value < least:
            raise InvalidGraph(f"{what} is {value}; expected at least {least}")
    if not batch_sizes or min(batch_sizes) < 1 or len(set(batch_sizes)) < len(batch_sizes):
        raise InvalidGraph(f"batch_sizes is {tuple(batch_sizes)}; expected distinct integers >= 1")


def _module(
    wiring: str, seed: int, number: int, num_modules: int, size: int, channels: int, dependence: str
) -> _Module:
    """Wire one module and count what its ops compute."""
    wires = _wire(wiring, size, np.random.default_rng([seed, number, 0]))
    rng = np.random.default_rng([seed, number, 1])
    sources = sorted(set(range(size)) - {v for _, v in wires})
    sinks = sorted(set(range(size)) - {u for u, _ in wires})
    entering = _attach(sources, size, channels, dependence, rng)
    leaving = _attach(sinks, size, channels, dependence, rng)
    edges = [(c, channels + v) for c, v in entering] + [(channels + u, channels + v) for u, v in wires]
    edges += [(channels + v, channels + size + c) for c, v in leaving]
    in_degree = np.bincount([v for _, v in edges], minlength=2 * channels + size)
    stage = _stage(number, num_modules)
    opens = number == 0 or _stage(number - 1, num_modules) < stage
    costs = np.stack(
        [
            _costs(max(1, degree), stage, halves=opens and i < channels, convolves=i < channels + size)
            for i, degree in enumerate(in_degree.tolist())
        ]
    )
    return _Module(edges, costs)


def _costs(num_inputs: int, stage: int, *, halves: bool, convolves: bool) -> NDArray[np.float64]:
    """Count the parts of an op: (parts, 4), see `_Module`."""
    pixels, width = _RESOLUTIONS[stage] ** 2, _CHANNELS << stage
    before = width // 2 if halves else width
    read = (4 if halves else 1) * pixels * before
    between, after = pixels * before, pixels * width
    # Nodes learn a weight for each of several inputs and apply ReLU; an output op takes the plain mean.
    weights = num_inputs if convolves and num_inputs > 1 else 0
    aggregation = [weights, read * (num_inputs + weights), (num_inputs + 1) * read * _FLOAT, read * _FLOAT]
    depthwise = [9 * before, 18 * between, (read + between) * _FLOAT, between * _FLOAT]
    # Normalisation: scale, shift, mean, variance of each channel; two operations an element.
    pointwise = [before * width + 4 * width, 2 * after * (before + 1), (between + after) * _FLOAT, after * _FLOAT]
    rest = [depthwise, pointwise] if convolves else [[np.nan] * 4] * 2
    return np.array([aggregation, *rest], np.float64)


def _stage(number: int, num_modules: int) -> int:
    """Return the stage of a module, from 0: even shares of the modules, the early ones first."""
    return (len(_RESOLUTIONS) * number + 1) // num_modules


def _wire(wiring: str, size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw the edges of a connected random graph, directed from the smaller to the larger node."""
    import networkx as nx

    for _ in range(_DRAWS):
        draw = int(rng.integers(2**31))
        if wiring == "er":
            graph = nx.erdos_renyi_graph(size, 0.2, seed=draw)
        elif wiring == "ws":
            graph = nx.watts_strogatz_graph(size, 4, 0.75, seed=draw)
        else:
            graph = nx.barabasi_albert_graph(size, 5, seed=draw)
        if nx.is_connected(graph):
            return sorted((min(u, v), max(u, v)) for u, v in graph.edges)
    raise InvalidGraph(f"no connected {wiring} graph of {size} nodes in {_DRAWS} draws")


def _attach(
    ends: Sequence[int], size: int, channels: int, dependence: str, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Return which channel is attached to which of a module's nodes; `ends` are its sources, or its sinks."""
    pairs: set[tuple[int, int]] = set()
    if dependence == "strong":
        main = int(rng.integers(channels))
        for c in range(channels):
            chosen = rng.random(len(ends)) < 0.5
            chosen[rng.integers(len(ends))] = True
            pairs.update((c, v) for v, taken in zip(ends, chosen, strict=True) if taken or c == main)
        return sorted(pairs)
    pairs.update((int(rng.integers(channels)), v) for v in ends)
    for c in range(channels):
        if not any(channel == c for channel, _ in pairs):
            pairs.add((c, int(rng.integers(size))))
    return sorted(pairs)


def _seconds(costs: NDArray[np.float64], rates: _Rates, noise: NDArray[np.float64], batch: int) -> NDArray[np.float64]:
    """Return (n,) seconds of ops on one kind of device; parts an op does not have are NaN."""
    weights, flops, moved = costs[:, :, 0] * _FLOAT, costs[:, :, 1] * batch, costs[:, :, 2] * batch
    work = np.maximum(flops / np.array(rates.flops_per_s), (weights + moved) / rates.bytes_per_s)
    # Rounded, so that machines whose exponential differs in the last bit draw the same graph.
    factor = np.round(np.exp(rates.spread * noise - rates.spread**2 / 2), 12)
    return np.asarray(np.nansum(rates.launch_s + work, axis=1) * factor, np.float64)
