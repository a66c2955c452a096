"""What one device of a tensor group has of a part of a language model, and what tokens leave behind on it.

Products are split as Megatron-LM splits them: those that widen by their outputs, those that lead back into the residual
stream by their inputs, so that one all-reduce follows each pair; attention by heads, embedding and head by the
vocabulary, experts each by its width or, spread out, as a whole. What no rule covers, or what does not divide, every
device of the group has.

Activations are counted tensor by tensor as in Korthikanti et al., section 4: the inputs of products, of norms and of
what is not linear, in 16 bits. For GPT that is their s b h (34 + 5 a s / h) a layer.

References
----------
Shoeybi et al.: Megatron-LM, 2019. Korthikanti et al.: Reducing activation recomputation in large transformer models,
MLSys 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlinit.llm.architecture import Part
from rlinit.llm.weights.tensors import Tensor

BY_OUTPUTS = (
    "q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj", "c_fc",
    "embed_tokens", "lm_head",
)  # fmt: skip
BY_INPUTS = ("o_proj", "down_proj", "c_proj")
"""Last names of the modules whose matrices are split, by rows or by columns."""

_DROPOUT = ("gpt2",)
"""Families that train with dropout, whose masks take a byte a number."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a device of a tensor group has of a part.

    Parameters
    ----------
    part
        Its heads, rows and columns, or its experts.
    reduces
        Whether its results are partial sums, which the group adds up.
    tokens
        Of each token of a micro-batch, how many go through it: 1, or of spread experts the share of the busiest device.
    """

    part: Part
    reduces: bool = False
    tokens: float = 1.0


def share_of(part: Part, degree: int, *, spread: bool = False) -> Share:
    """Return what each of so many devices has of a part; the whole part where it cannot be split so.

    Parameters
    ----------
    part
        Of an architecture.
    degree
        Devices of the group.
    spread
        Whether experts stay whole and are divided among them, where their number allows.
    """
    if degree == 1:
        return Share(part)
    if spread and part.kind == "experts" and part.experts % degree == 0:
        count = part.experts // degree
        tensors = tuple(replace(_scaled(one, one.shape, 1 / degree), copies=count) for one in part.tensors)
        local = replace(part, tensors=tensors, experts=count, experts_per_token=1, shares=())
        even = part.experts_per_token / degree
        groups = [sum(part.shares[at : at + count]) for at in range(0, len(part.shares), count)]
        return Share(local, True, max(groups, default=even))
    ratios = {one.name: ratio for one in part.tensors if (ratio := _ratio(part, one, degree)) != (1.0, 1.0)}
    if not ratios or not _divides(part, degree):
        return Share(part)
    tensors = tuple(_cut(one, *ratios.get(one.name, (1.0, 1.0))) for one in part.tensors)
    if part.kind != "attention":
        return Share(replace(part, tensors=tensors), any(_leaf(one) in BY_INPUTS for one in part.tensors))
    cached = part.kv_numbers // (1 if _latent(part) else min(degree, _kv_heads(part)))
    flops = part.pair_flops[0] / degree, part.pair_flops[1] / degree
    local = replace(part, tensors=tensors, kv_numbers=cached, pair_flops=flops, heads=part.heads // degree)
    return Share(local, True)


def kept_bytes(
    share: Share, family: str, hidden: int, scattered: float, number_bytes: float, scores: float = 0.0
) -> float:
    """Return the bytes that a token leaves on a device until its backward pass.

    Parameters
    ----------
    share
        What the device has.
    family
        Of the architecture.
    hidden
        Width of the residual stream.
    scattered
        Share of what all devices of a group would hold alike: less than 1 with sequence parallelism.
    number_bytes
        Of an activation.
    scores
        Tokens whose scores are kept for each token and head: those of a sequence without flash attention.
    """
    part, masks = share.part, family in _DROPOUT
    if part.kind == "embedding":
        return scattered * hidden * masks
    if part.kind == "head":  # the inputs of norm and product, and logits in 32 bits
        return scattered * 2 * hidden * number_bytes + 4.0 * part.tensors[0].shape[0]
    matrices = [one for one in part.tensors if one.is_matrix]
    outputs = sum(one.shape[0] for one in matrices if _leaf(one) not in BY_INPUTS)
    outputs += sum(one.shape[1] for one in matrices if _leaf(one) in BY_INPUTS)
    inner = {one.shape[1] for one in matrices if _leaf(one) not in BY_INPUTS} - {hidden}
    if part.kind == "experts":  # what is sent to an expert, and its result, beside what is inside it
        return share.tokens * part.experts_per_token * (outputs + 2 * hidden) * number_bytes
    alike = 2 * hidden * number_bytes + hidden * masks
    kept = scattered * alike + (outputs + sum(inner)) * number_bytes
    return kept + part.heads * scores * (number_bytes * (1 + masks) + masks)


def _leaf(tensor: Tensor) -> str:
    return tensor.name.rpartition(".")[2]


def _latent(part: Part) -> bool:
    return any(_leaf(one) == "kv_b_proj" for one in part.tensors)


def _kv_heads(part: Part) -> int:
    return max(1, round(part.kv_numbers * 2 * part.heads / part.pair_flops[0]))


def _divides(part: Part, degree: int) -> bool:
    if part.kind in ("embedding", "head"):
        return True
    if part.kind == "attention":
        kv = degree if _latent(part) else _kv_heads(part)
        return part.heads % degree == 0 and (kv % degree == 0 or degree % kv == 0)
    sides = [one.shape[_leaf(one) in BY_INPUTS] for one in part.tensors if _leaf(one) in (*BY_OUTPUTS, *BY_INPUTS)]
    return all(side % degree == 0 for side in sides)


def _ratio(part: Part, tensor: Tensor, degree: int) -> tuple[float, float]:
    """Return which share of a matrix's rows and columns a device has."""
    leaf = _leaf(tensor)
    if leaf in BY_INPUTS:
        return 1.0, 1.0 / degree
    if leaf not in BY_OUTPUTS or not tensor.is_matrix:
        return 1.0, 1.0
    if leaf in ("k_proj", "v_proj"):
        return 1.0 / min(degree, _kv_heads(part)), 1.0
    if leaf == "qkv_proj":
        queries = tensor.shape[0] - part.kv_numbers
        rows = queries / degree + part.kv_numbers / min(degree, _kv_heads(part))
        return rows / tensor.shape[0], 1.0
    return 1.0 / degree, 1.0


def _cut(tensor: Tensor, rows: float, columns: float) -> Tensor:
    if (rows, columns) == (1.0, 1.0):
        return tensor
    shape = math.ceil(tensor.shape[0] * rows - 1e-6), math.ceil(tensor.shape[1] * columns - 1e-6)
    return _scaled(tensor, shape, shape[0] * shape[1] / math.prod(tensor.shape))


def _scaled(tensor: Tensor, shape: tuple[int, ...], share: float) -> Tensor:
    return replace(tensor, shape=shape, num_bytes=math.ceil(tensor.num_bytes * share - 1e-6))
