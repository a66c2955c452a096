"""What the weights of a model are kept in: what is asked for, else what the configuration says, else BF16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlinit.errors import InvalidConfig
from rlinit.llm.weights.checkpoints import checkpoint_of, quantization_of
from rlinit.llm.weights.mixtures import MIXTURES, mixed
from rlinit.llm.weights.tensors import PLAIN, Storage, Tensor
from rlinit.units import BITS

WEIGHTS = (*BITS, *MIXTURES)
"""Names that weights may be asked for by: types of numbers, and types of llama.cpp."""


class Format(NamedTuple):
    """What weights and activations are kept in.

    Parameters
    ----------
    weights
        Name for tables.
    activations
        A type of `rlinit.units`.
    chooser
        Given all tensors and the number of layers, gives what chooses a tensor's format.
    note
        What the configuration says and does not count, "" for nothing.
    """

    weights: str
    activations: str
    chooser: Callable[[list[Tensor], int], Callable[[Tensor], Storage]]
    note: str = ""


def format_of(dtype: str | tuple[str, str] | None, config: Mapping[str, Any]) -> Format:
    """Return what the weights of a configuration are kept in.

    Parameters
    ----------
    dtype
        What is asked for, of weights and activations, or of each; it wins. Where blocks or weights of four bits are
        asked for alone, activations are FP16.
    config
        Contents of ``config.json``; of a GGUF file, whose tensors have their bytes, empty.

    Raises
    ------
    InvalidConfig
        An unknown type, or a quantisation that is not counted.
    """
    if dtype is None:
        found = checkpoint_of(config)
        if found is None:
            return Format("bf16", "bf16", lambda *_: lambda _: PLAIN["bf16"])
        return Format(found.method, found.dtype, lambda *_: found.choose)
    weights, activations = _parsed(dtype)
    key, said = quantization_of(config)
    method = said.get("quant_method") if isinstance(said, Mapping) else said
    note = f"weights count as {weights}, as asked for, not by {key} ({f'{method!s:.40}'})" if key else ""
    if weights in BITS:
        return Format(weights, activations, lambda *_: lambda _: PLAIN[weights], note)
    return Format(weights, activations, lambda tensors, layers: mixed(weights, tensors, layers), note)


def _parsed(dtype: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(dtype, str):
        weights, _, activations = dtype.lower().partition("/")
        pair = weights, activations or ("fp16" if weights == "int4" or weights in MIXTURES else weights)
    else:
        pair = dtype
    if len(pair) != 2 or pair[0] not in WEIGHTS or pair[1] not in BITS:
        raise InvalidConfig(
            f"dtype is {dtype!r}; expected one of {', '.join(BITS)}, or of llama.cpp's {', '.join(MIXTURES)}; or "
            f"WEIGHTS/ACTIVATIONS with activations of the first kind, such as q4_k_m/bf16"
        )
    return pair
