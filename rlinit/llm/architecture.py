"""What a decoder-only language model is made of: parts with tensors, in the order in which a token passes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rlinit.llm.weights.tensors import Storage, Tensor

PartKind = Literal["embedding", "attention", "dense", "experts", "head"]


@dataclass(frozen=True, slots=True)
class Part:
    """A group of tensors that stay together.

    Parameters
    ----------
    kind, layer
        What it is, and of which layer, -1 for the embedding and the head.
    tensors
        Biases and norms included; all experts. A head's first one is its matrix.
    kv_numbers
        Numbers that one token adds to the cache.
    window
        Tokens that a token looks back at, itself included; None: all.
    pair_flops
        Operations of a pair of a token and one it looks back at, in prefill and in decode.
    heads
        Of an attention part; 0 else.
    experts, experts_per_token
        Of an expert part; 0 else.
    shares
        Share of the tokens that is sent to each expert; empty: the same to each.
    """

    kind: PartKind
    layer: int
    tensors: tuple[Tensor, ...]
    kv_numbers: int = 0
    window: int | None = None
    pair_flops: tuple[float, float] = (0.0, 0.0)
    heads: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shares: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """``embedding``, ``head``, or such as ``layer3.attention``."""
        return self.kind if self.layer < 0 else f"layer{self.layer}.{self.kind}"

    @property
    def params(self) -> int:
        """Numbers stored."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def active(self) -> int:
        """Entries of the matrices that one token is multiplied with; of experts, those that it is sent to."""
        if self.kind == "embedding":
            return 0
        entries = sum(tensor.size for tensor in self.tensors if tensor.is_matrix)
        return entries * self.experts_per_token // self.experts if self.experts else entries

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tensors in the formats they are kept in."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    def touched(self, tokens: float) -> float:
        """Return the expected share of the weights that some of the tokens read.

        Tokens are sent to experts independently of each other: an expert with share p is read by one of n with
        probability 1 - (1 - p)^n.
        """
        if not self.experts:
            return 1.0
        if not self.shares:
            return 1.0 - math.pow(1.0 - self.experts_per_token / self.experts, tokens)
        return sum(1.0 - math.pow(1.0 - share, tokens) for share in self.shares) / self.experts


@dataclass(frozen=True, slots=True)
class Architecture:
    """A language model without a length.

    Parameters
    ----------
    family
        ``model_type`` of the config, or ``general.architecture`` of the GGUF file.
    hidden
        Width of the residual stream, which is all that passes from layer to layer.
    num_layers
        Decoder layers.
    parts
        Embedding, parts of each layer, head.
    tied
        The head is the embedding's matrix: stored once where both are on one device.
    max_context
        Tokens that positions are made for; None: not said.
    """

    family: str
    hidden: int
    num_layers: int
    parts: tuple[Part, ...]
    tied: bool
    max_context: int | None = None

    @property
    def num_params(self) -> int:
        """Parameters, a tied matrix once."""
        return sum(part.params for part in self.parts) - (self.parts[-1].tensors[0].size if self.tied else 0)

    @property
    def tied_bytes(self) -> int:
        """Bytes that embedding and head share where they are on one device."""
        return self.parts[-1].tensors[0].num_bytes if self.tied else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, a tied matrix once."""
        return sum(part.stored_bytes for part in self.parts) - self.tied_bytes

    def stored(self, choose: Callable[[Tensor], Storage]) -> Architecture:
        """Return the same model with each tensor in the format that is chosen for it.

        Parameters
        ----------
        choose
            Gives the matrix of a tied head, which has the embedding's name, the embedding's format.
        """
        return replace(
            self,
            parts=tuple(
                replace(part, tensors=tuple(replace(t, num_bytes=choose(t).bytes_of(t)) for t in part.tensors))
                for part in self.parts
            ),
        )
