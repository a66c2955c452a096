"""Types of llama.cpp: blocks of weights, and which tensors of a GGUF file have which of them.

The rules are those of ``llama_tensor_get_type`` in llama.cpp's ``src/llama-quant.cpp``: types that ``llama-quantize``
makes by name mix blocks, by the role of a tensor, its layer and the shape of the model. Types whose names begin with iq
count as made with an importance matrix, which most files of them are, the others as made without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from rlinit.llm.weights.tensors import Storage, Tensor

BLOCKS: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
    "q8_0": (32, 34), "mxfp4": (32, 17), "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176),
    "q6_k": (256, 210), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
    "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
}  # fmt: skip
"""Type of a tensor -> numbers and bytes of a block."""

_NARROW = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
"""What takes the place of blocks of 256 where rows are no multiple of it; ``iq4_nl`` for the others."""

_STORAGE = {name: Storage(8.0 * size / numbers) for name, (numbers, size) in BLOCKS.items()}

_ROLES = (
    (r"embed_tokens", "token_embd"), (r"lm_head", "output"), (r"mlp\.(gate|router|shared_expert_gate)", "router"),
    (r"q_proj", "attn_q"), (r"k_proj", "attn_k"), (r"v_proj", "attn_v"), (r"qkv_proj", "attn_qkv"),
    (r"o_proj", "attn_output"), (r"down_proj|c_proj", "ffn_down"),
    (r"gate_proj|up_proj|gate_up_proj|c_fc", "ffn_up"),
)  # fmt: skip
"""End of a module's path in transformers -> what llama.cpp decides by."""


class _Place(NamedTuple):
    """Where a tensor is: its layer, all layers, query heads a key head, routed experts of a layer."""

    layer: int
    layers: int
    grouping: int
    experts: int


_Condition = Callable[[_Place], bool]
_Rules = tuple[tuple[_Condition, str], ...]


def _always(_: _Place) -> bool:
    return True


def _more(at: _Place) -> bool:
    """Tell the first and last eighth of the layers and every third one between, llama.cpp's ``use_more_bits``."""
    eighth = at.layers // 8
    return at.layer < eighth or at.layer >= 7 * at.layers // 8 or (at.layer - eighth) % 3 == 2


def _before(count: int = 0, share: int = 0) -> _Condition:
    """Return whether a layer is of the first `count`, or of the first one of `share` parts."""
    return lambda at: at.layer < (count or at.layers // share)


def _middle(at: _Place) -> bool:
    return at.layers // 8 <= at.layer < 7 * at.layers // 8


def _grouped(at: _Place) -> bool:
    return at.grouping >= 4


def _grouped_or_experts(at: _Place) -> bool:
    return at.grouping >= 4 or at.experts >= 4


def _eight_experts(at: _Place) -> bool:
    return at.experts == 8


def _eight_experts_more(at: _Place) -> bool:
    return at.experts == 8 and _more(at)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A type that llama.cpp makes by name.

    Parameters
    ----------
    base
        Type of tensors that nothing is said about.
    roles
        Role of a tensor -> conditions in order, each with the type of a tensor that fulfils it.
    output
        Type of the head.
    is_low
        Of the types below three bits, whose attention has rules of its own.
    wide_output
        Whether attention's outputs have five bits in models of eight experts.
    """

    base: str
    roles: Mapping[str, _Rules] = field(default_factory=dict)
    output: str = "q6_k"
    is_low: bool = False
    wide_output: bool = False


def _low(base: str, wide: str, out: str, embedding: str) -> Mixture:
    """Return a type below three bits; `wide` is that of values and of the first layers' way back."""
    roles: dict[str, _Rules] = {
        "token_embd": ((_always, embedding),),
        "attn_v": ((_grouped_or_experts, "q4_k"), (_always, wide)),
        "attn_k": ((_eight_experts, "q4_k"),),
        "ffn_down": ((_before(share=8), wide),),
        "attn_output": ((_eight_experts, "q5_k"), (_always, out)),
    }
    return Mixture(base, roles, output="q5_k", is_low=True)


MIXTURES: Mapping[str, Mixture] = MappingProxyType({
    "f16": Mixture("f16", output="f16"),
    "q8_0": Mixture("q8_0", output="q8_0"),
    "mxfp4": Mixture("q8_0", {"experts": ((_always, "mxfp4"),)}, output="q8_0"),
    "q4_0": Mixture("q4_0"),
    "q4_1": Mixture("q4_1"),
    "q5_0": Mixture("q5_0"),
    "q5_1": Mixture("q5_1"),
    "q6_k": Mixture("q6_k"),
    "q5_k_m": Mixture("q5_k", {
        "attn_v": ((_more, "q6_k"),), "ffn_down": ((_more, "q6_k"),), "attn_qkv": ((_always, "q6_k"),),
    }),
    "q5_k_s": Mixture("q5_k"),
    "q4_k_m": Mixture("q4_k", {
        "attn_v": ((_more, "q6_k"),), "ffn_down": ((_more, "q6_k"),), "attn_qkv": ((_always, "q5_k"),),
    }, wide_output=True),
    "q4_k_s": Mixture("q4_k", {
        "attn_v": ((_before(4), "q5_k"),), "ffn_down": ((_before(share=8), "q5_k"),),
    }, wide_output=True),
    "q3_k_l": Mixture("q3_k", {
        "attn_v": ((_always, "q5_k"),), "ffn_down": ((_always, "q5_k"),), "attn_qkv": ((_always, "q4_k"),),
        "attn_output": ((_eight_experts, "q3_k"), (_always, "q5_k")),
    }),
    "q3_k_m": Mixture("q3_k", {
        "attn_v": ((_before(2), "q5_k"), (_always, "q4_k")), "attn_qkv": ((_always, "q4_k"),),
        "ffn_down": ((_before(share=16), "q5_k"), (_always, "q4_k")), "attn_output": ((_always, "q4_k"),),
    }, wide_output=True),
    "q3_k_s": Mixture("q3_k", wide_output=True),
    "q2_k": Mixture("q2_k", {
        "attn_v": ((_grouped, "q4_k"), (_always, "q3_k")), "ffn_down": ((_always, "q3_k"),),
        "attn_output": ((_always, "q3_k"),),
    }, wide_output=True),
    "q2_k_s": Mixture("q2_k", {"attn_v": ((_grouped, "q4_k"),), "ffn_down": ((_before(share=8), "q4_k"),)}),
    "iq4_nl": Mixture("iq4_nl", {"attn_v": ((_grouped, "q5_k"),)}, wide_output=True),
    "iq4_xs": Mixture("iq4_xs", {"attn_v": ((_grouped, "q5_k"),)}, wide_output=True),
    "iq3_m": Mixture("iq3_s", {
        "attn_v": ((_always, "q4_k"),), "attn_qkv": ((_always, "q4_k"),), "attn_output": ((_always, "q4_k"),),
        "ffn_down": ((_before(share=8), "q4_k"), (_eight_experts_more, "q4_k")),
    }, wide_output=True),
    "iq3_s": Mixture("iq3_s", {"attn_v": ((_grouped, "q4_k"),)}, wide_output=True),
    "iq3_xs": Mixture("iq3_s", {
        "attn_v": ((_grouped, "q4_k"),), "attn_q": ((_always, "iq3_xxs"),), "attn_k": ((_always, "iq3_xxs"),),
        "ffn_up": ((_middle, "iq3_xxs"),),
    }, wide_output=True),
    "iq3_xxs": Mixture("iq3_xxs", {
        "token_embd": ((_always, "iq3_s"),), "attn_v": ((_grouped, "q4_k"),), "attn_q": ((_always, "iq2_s"),),
        "attn_k": ((_always, "iq2_s"),), "attn_output": ((_always, "iq3_s"),),
    }, output="q5_k", wide_output=True),
    "iq2_m": _low("iq2_s", "iq3_s", "iq3_s", "iq3_s"),
    "iq2_s": _low("iq2_xs", "iq3_s", "iq3_s", "iq3_s"),
    "iq2_xs": _low("iq2_xs", "q2_k", "iq2_xs", "q2_k"),
    "iq2_xxs": _low("iq2_xxs", "q2_k", "iq2_xxs", "q2_k"),
    "iq1_m": _low("iq1_m", "q2_k", "iq2_xxs", "q2_k"),
    "iq1_s": _low("iq1_s", "q2_k", "iq2_xxs", "q2_k"),
})  # fmt: skip
"""Name of a type, as ``llama-quantize`` takes it in lower case -> its mixture; ``mxfp4`` is its MXFP4_MOE."""


def mixed(name: str, tensors: Sequence[Tensor], num_layers: int) -> Callable[[Tensor], Storage]:
    """Return what gives each tensor of a model its blocks in a GGUF file; vectors and routers are FP32 there.

    Parameters
    ----------
    name
        One of `MIXTURES`.
    tensors
        All of the model, named as in transformers; without an ``lm_head`` the embedding has the head's type.
    num_layers
        Decoder layers.
    """
    rows = {_role(tensor): tensor.shape[0] for tensor in reversed(tensors) if tensor.is_matrix}
    grouping = rows.get("attn_q", 1) // max(1, rows.get("attn_k", rows.get("attn_q", 1)))
    experts = max(tensor.copies for tensor in tensors)
    is_tied = "output" not in rows

    def choose(tensor: Tensor) -> Storage:
        role = _role(tensor)
        if not tensor.is_matrix or role == "router":
            return _STORAGE["f32"]
        found = re.search(r"layers\.(\d+)\.", tensor.name)
        at = _Place(int(found[1]) if found else 0, num_layers, grouping, experts)
        if tensor.copies > 1 and "experts" in MIXTURES[name].roles:
            role = "experts"
        if role == "token_embd" and is_tied:
            role = "output"
        return _STORAGE[_fitting(_type(MIXTURES[name], role, at, tensor.shape[1]), tensor.shape[1])]

    return choose


def _role(tensor: Tensor) -> str:
    return next((role for path, role in _ROLES if re.search(rf"(^|[._])({path})$", tensor.name)), "")


def _type(mixture: Mixture, role: str, at: _Place, columns: int) -> str:
    if role == "output":
        return "q8_0" if columns % BLOCKS[mixture.base][0] else mixture.output
    found = next((kind for holds, kind in mixture.roles.get(role, ()) if holds(at)), mixture.base)
    if mixture.is_low or mixture.base == "f16":
        return found
    if role == "attn_v" and at.layers == 80 and at.grouping > 1 and found in ("q3_k", "q4_k"):
        found = "q5_k"  # what llama.cpp calls 70B
    if at.experts == 8 and role in ("attn_k", "attn_v"):
        return "q8_0"
    return "q5_k" if at.experts == 8 and role == "attn_output" and mixture.wide_output else found


def _fitting(kind: str, columns: int) -> str:
    """Return a type whose blocks fill rows: the type, else one with smaller blocks, else FP16."""
    if columns % BLOCKS[kind][0]:
        kind = _NARROW.get(kind, "iq4_nl")
    return "f16" if columns % BLOCKS[kind][0] else kind
