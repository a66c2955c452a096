"""Op graphs of large networks from shapes alone: GPT-3, Swin transformers, and AlphaFold2's Evoformer.

Sizes are those of Moirai's table IV; so are the numbers of ops, to within a few ops a layer. Every head of an attention
is a chain of ops of its own, which is where the parallelism is. No op has times: devices with rates give them.

References
----------
Moirai, table IV. Brown et al.: Language models are few-shot learners, NeurIPS 2020, table 2.1. Liu et al.: Swin
transformer, ICCV 2021. Jumper et al.: Highly accurate protein structure prediction with AlphaFold, Nature 596, 2021,
supplement 1.6 (Evoformer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.limits import closest

__all__ = ["NAMES", "build"]

_VOCABULARY = 50_257
"""Tokens of GPT-2's and GPT-3's vocabulary."""
_CONTEXT = 2048
"""Positions of GPT-3."""
_WINDOW = 49
"""Tokens of a window of Swin, seven by seven."""
_SEQUENCES = 128  # of the alignment in AlphaFold2
_OUTER = 32  # channels of its outer product mean


@dataclass(frozen=True, slots=True)
class _Shape:
    """Layers, hidden size and heads; what else a family needs: layers of each stage, or width of pairs."""

    family: str
    layers: int
    hidden: int
    heads: int
    stages: tuple[int, ...] = ()
    pair: int = 0


# Moirai's table says 32 layers for the 1.3B one, but counts the ops (and the parameters) of 24. The stages of Swin and
# the pair widths of AlphaFold2 are not published; with these the numbers of parameters are those of the names.
_SHAPES = {
    "gpt3-330m": _Shape("gpt3", 24, 1024, 16),
    "gpt3-1.3b": _Shape("gpt3", 24, 2048, 32),
    "gpt3-2.7b": _Shape("gpt3", 32, 2560, 32),
    "gpt3-13b": _Shape("gpt3", 40, 5120, 40),
    "gpt3-175b": _Shape("gpt3", 96, 12288, 96),
    "swin-1.8b": _Shape("swin", 32, 512, 16, stages=(2, 2, 26, 2)),
    "swin-6.6b": _Shape("swin", 48, 768, 24, stages=(2, 2, 40, 4)),
    "swin-13b": _Shape("swin", 56, 1024, 32, stages=(2, 2, 48, 4)),
    "alphafold2-87m": _Shape("alphafold2", 48, 256, 8, pair=128),
    "alphafold2-930m": _Shape("alphafold2", 64, 512, 16, pair=544),
    "alphafold2-2.4b": _Shape("alphafold2", 96, 1024, 32, pair=448),
    "alphafold2-3.2b": _Shape("alphafold2", 128, 1024, 32, pair=448),
}

NAMES = tuple(_SHAPES)
"""What `build` can build."""


def build(
    name: str, *, batch: int = 1, tokens: int | None = None, split_heads: bool = True, bytes_per_number: int = 4
) -> Graph:
    """Return the op graph of a network.

    Parameters
    ----------
    name
        One of `NAMES`.
    batch
        Inputs worked on at once, at least 1; operations and outputs grow with it.
    tokens
        GPT-3: tokens of an input, at most 2048, which is the default. Swin: patches of 4 x 4 pixels of an image, a
        multiple of 64 (the stages halve its sides three times); by default 3136, an image of 224 x 224. AlphaFold2:
        residues of a protein, by default 256; the alignment has 128 sequences.
    split_heads
        Make each head a chain of ops. Otherwise one chain does all heads of an attention at once.
    bytes_per_number
        Bytes of a parameter and of an entry of a tensor: 4 for FP32, 2 for FP16.

    Returns
    -------
    Graph
        `flops` counts a multiplication with addition as 2, a normalisation or softmax as 5 an element, and moves as
        0. The logits of GPT-3 share the weights of the embedding; both ops hold them, since both need them.

    Raises
    ------
    InvalidGraph
        An unknown name, or a number out of range.

    Notes
    -----
    A layer has 12 ops for each head and 12 more, in GPT-3 and Swin: projections, biases, transposition, scores, scale,
    mask or position bias, softmax, context. AlphaFold2 has four attentions in a layer, of 3 ops for each head, and 11
    more ops.
    """
    if name not in _SHAPES:
        near = closest(name, NAMES)
        raise InvalidGraph(f"there is no network {name!r}{near} (expected one of {', '.join(NAMES)})")
    shape = _SHAPES[name]
    tokens = {"gpt3": _CONTEXT, "swin": 3136, "alphafold2": 256}[shape.family] if tokens is None else tokens
    for what, value in (("batch", batch), ("tokens", tokens), ("bytes_per_number", bytes_per_number)):
        if value < 1:
            raise InvalidGraph(f"{what} is {value}; expected at least 1")
    if shape.family == "gpt3" and tokens > _CONTEXT:
        raise InvalidGraph(f"tokens is {tokens}; {name} has positions for {_CONTEXT}")
    if shape.family == "swin" and tokens % 64:
        raise InvalidGraph(f"tokens is {tokens}; expected a multiple of 64, since three stages quarter it")
    network = _Network()
    chains = shape.heads if split_heads else 1
    if shape.family == "gpt3":
        _gpt3(network, shape, chains, tokens)
    elif shape.family == "swin":
        _swin(network, shape, chains, tokens)
    else:
        _alphafold2(network, shape, chains, tokens)
    return network.graph(name, batch, bytes_per_number)


@dataclass(slots=True)
class _Network:
    """Ops as they are added, each after its inputs; sizes in numbers of one input."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    costs: list[tuple[float, float, float]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, name: str, kind: str, inputs: Sequence[int], out: float, flops: float, params: float = 0.0) -> int:
        """Add an op and return its index."""
        index = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.costs.append((params, out, flops))
        self.edges.extend((source, index) for source in inputs)
        return index

    def norm(self, name: str, source: int, width: int, rows: float) -> int:
        """Add a layer normalisation of rows of numbers."""
        return self.add(name, "norm", [source], rows * width, 5 * rows * width, 2 * width)

    def linear(self, name: str, inputs: Sequence[int], width: int, to: int, rows: float) -> int:
        """Add a matrix product with weights, without bias."""
        return self.add(name, "matmul", inputs, rows * to, 2 * rows * width * to, width * to)

    def bias(self, name: str, source: int, width: int, rows: float) -> int:
        """Add the addition of a bias."""
        return self.add(name, "bias", [source], rows * width, rows * width, width)

    def total(self, name: str, inputs: Sequence[int], numbers: float) -> int:
        """Add an elementwise sum."""
        return self.add(name, "add", inputs, numbers, numbers * (len(inputs) - 1))

    def graph(self, name: str, batch: int, bytes_per_number: int) -> Graph:
        """Return the graph of what was added."""
        params, out, flops = np.array(self.costs, np.float64).T
        return Graph(
            names=tuple(self.names),
            kinds=tuple(self.kinds),
            edges=np.array(self.edges, np.int64).reshape(-1, 2),
            param_bytes=params * bytes_per_number,
            out_bytes=out * (batch * bytes_per_number),
            flops=flops * batch,
            name=name,
        )


def _gpt3(network: _Network, shape: _Shape, chains: int, tokens: int) -> None:
    """Add embeddings, layers with causal attention, and logits."""
    width, numbers = shape.hidden, tokens * shape.hidden
    words = network.add("embedding", "embedding", [], numbers, 0, _VOCABULARY * width)
    position = network.add("position", "embedding", [words], numbers, numbers, _CONTEXT * width)
    stream = position
    for layer in range(shape.layers):
        stream = _layer(network, f"l{layer}", stream, width, (chains, shape.heads), tokens, tokens, causal=True)
    last = network.norm("norm", stream, width, tokens)
    network.linear("logits", [last], width, _VOCABULARY, tokens)


def _swin(network: _Network, shape: _Shape, chains: int, tokens: int) -> None:
    """Add the patch embedding, and stages of layers that attend within windows of at most 7 x 7 patches."""
    width = shape.hidden
    stream = network.add("embedding", "conv2d", [], tokens * width, 2 * tokens * 48 * width, 49 * width)
    layer = 0
    for stage, layers in enumerate(shape.stages):
        if stage:
            # Patch merging: four neighbours side by side, normalised, projected to twice the width.
            tokens, width = tokens // 4, 2 * width
            gathered = network.norm(f"merge{stage}.norm", stream, 2 * width, tokens)
            stream = network.linear(f"merge{stage}", [gathered], 2 * width, width, tokens)
        window = min(_WINDOW, tokens)
        for _ in range(layers):
            heads = (chains, shape.heads)
            stream = _layer(network, f"l{layer}", stream, width, heads, tokens, window, causal=False)
            layer += 1
    network.norm("norm", stream, width, tokens)


def _layer(
    network: _Network,
    name: str,
    stream: int,
    width: int,
    heads: tuple[int, int],
    tokens: int,
    window: int,
    *,
    causal: bool,
) -> int:
    """Add one transformer layer: attention of each token to `window` tokens, then two linear maps."""
    chains, num_heads = heads
    normal = network.norm(f"{name}.norm1", stream, width, tokens)
    contexts = [
        _head(network, f"{name}.h{c}", normal, width, width // chains, num_heads // chains, tokens, window, causal)
        for c in range(chains)
    ]
    joined = network.add(f"{name}.concat", "concat", contexts, tokens * width, 0)
    projected = network.linear(f"{name}.projection", [joined], width, width, tokens)
    attended = network.bias(f"{name}.projection_bias", projected, width, tokens)
    stream = network.total(f"{name}.add1", [stream, attended], tokens * width)
    normal = network.norm(f"{name}.norm2", stream, width, tokens)
    wide = network.linear(f"{name}.up", [normal], width, 4 * width, tokens)
    wide = network.bias(f"{name}.up_bias", wide, 4 * width, tokens)
    # The usual tanh form takes 8 operations an element.
    wide = network.add(f"{name}.gelu", "gelu", [wide], 4 * tokens * width, 8 * 4 * tokens * width)
    narrow = network.linear(f"{name}.down", [wide], 4 * width, width, tokens)
    narrow = network.bias(f"{name}.down_bias", narrow, width, tokens)
    return network.total(f"{name}.add2", [stream, narrow], tokens * width)


def _head(
    network: _Network,
    name: str,
    source: int,
    width: int,
    part: int,
    num_heads: int,
    tokens: int,
    window: int,
    causal: bool,
) -> int:
    """Add the 12 ops of one head (or of several in one chain, `part` wide together)."""
    query, key, value = (
        network.bias(
            f"{name}.{what}_bias", network.linear(f"{name}.{what}", [source], width, part, tokens), part, tokens
        )
        for what in ("q", "k", "v")
    )
    turned = network.add(f"{name}.transpose", "transpose", [key], tokens * part, 0)
    pairs = tokens * window
    entries = float(pairs * num_heads)
    scores = network.add(f"{name}.scores", "matmul", [query, turned], entries, 2 * pairs * part)
    scaled = network.add(f"{name}.scale", "scale", [scores], entries, entries)
    if causal:
        shown = network.add(f"{name}.mask", "mask", [scaled], entries, entries)
    else:
        # Of a window of s x s patches: (2s - 1)^2 relative positions.
        side = round(window**0.5)
        shown = network.add(f"{name}.position", "bias", [scaled], entries, entries, (2 * side - 1) ** 2 * num_heads)
    weights = network.add(f"{name}.softmax", "softmax", [shown], entries, 5 * entries)
    return network.add(f"{name}.context", "matmul", [weights, value], tokens * part, 2 * pairs * part)


def _alphafold2(network: _Network, shape: _Shape, chains: int, residues: int) -> None:
    """Add a stack of Evoformer layers on an alignment (sequences x residues) and on pairs of residues."""
    wide, thin, s, r = shape.hidden, shape.pair, _SEQUENCES, residues
    msa = network.add("msa", "embedding", [], s * r * wide, 2 * s * r * 49 * wide, 50 * wide)
    pair = network.add("pair", "embedding", [], r * r * thin, 2 * r * r * 65 * thin, 66 * thin)
    for layer in range(shape.layers):
        name = f"l{layer}"
        heads = (chains, shape.heads)
        pair_normal = network.norm(f"{name}.pair_norm", pair, thin, r * r)
        msa_normal = network.norm(f"{name}.msa_norm", msa, wide, s * r)
        msa = _gated(network, f"{name}.row", msa_normal, msa, wide, heads, (s, r), bias=(pair_normal, thin))
        msa = _gated(network, f"{name}.column", msa, msa, wide, heads, (r, s))
        msa = _transition(network, f"{name}.msa_transition", msa, wide, s * r)
        # Outer product mean: two projections, products over sequences of each pair of residues, a projection.
        flops = 4 * s * r * wide * _OUTER + 2 * s * r * r * _OUTER**2 + 2 * r * r * _OUTER**2 * thin
        params = 2 * wide * _OUTER + _OUTER**2 * thin
        pair = network.add(f"{name}.outer", "outer", [msa, pair], r * r * thin, flops, params)
        for what in ("outgoing", "incoming"):
            # Triangle multiplication: six projections (gates included), and a sum over a third residue.
            flops = 6 * 2 * r * r * thin**2 + 2 * r**3 * thin
            pair = network.add(f"{name}.{what}", "triangle", [pair], r * r * thin, flops, 6 * thin**2)
        for what in ("starting", "ending"):
            pair = _gated(network, f"{name}.{what}", pair, pair, thin, heads, (r, r), bias=(pair, thin))
        pair = _transition(network, f"{name}.pair_transition", pair, thin, r * r)


def _transition(network: _Network, name: str, source: int, width: int, rows: int) -> int:
    """Add two linear maps through four times the width with ReLU, added to the source, as one op."""
    flops = 2 * 8 * rows * width**2 + 4 * rows * width + rows * width
    return network.add(name, "transition", [source], rows * width, flops, 8 * width**2)


def _gated(
    network: _Network,
    name: str,
    source: int,
    residual: int,
    width: int,
    heads: tuple[int, int],
    shape: tuple[int, int],
    bias: tuple[int, int] | None = None,
) -> int:
    """Add gated attention within rows of tokens, 3 ops for each head and one to join them.

    Parameters
    ----------
    heads
        Chains, and heads in all.
    shape
        Rows, tokens of a row.
    bias
        An op whose output is projected to a bias of the scores, and its width.
    """
    chains, num_heads = heads
    rows, tokens = shape
    part, count = width // chains, num_heads // chains
    cells, scores = rows * tokens, float(rows * tokens**2)
    contexts = []
    for c in range(chains):
        # Query, key, value and gate.
        flops, params = float(2 * cells * width * 4 * part), 4 * width * part
        maps = network.add(f"{name}.h{c}.maps", "matmul", [source], 4 * cells * part, flops, params)
        inputs, flops, params = [maps], 2 * scores * part + 6 * scores * count, 0
        if bias is not None:
            inputs, params = sorted({maps, bias[0]}), bias[1] * count
            flops += 2 * tokens**2 * bias[1] * count + scores * count
        weights = network.add(f"{name}.h{c}.attend", "attend", inputs, scores * count, flops, params)
        flops = 2 * scores * part + 2 * cells * part
        contexts.append(network.add(f"{name}.h{c}.context", "matmul", [maps, weights], cells * part, flops))
    flops = float(2 * cells * width**2 + cells * width)
    return network.add(f"{name}.join", "matmul", [*contexts, residual], cells * width, flops, width**2)
