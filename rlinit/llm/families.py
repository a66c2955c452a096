"""Parts of a model from its Hugging Face configuration; parameter counts are those of transformers, to the number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlinit.errors import InvalidConfig
from rlinit.limits import closest
from rlinit.llm.architecture import Architecture, Part
from rlinit.llm.weights.tensors import Tensor


@dataclass(frozen=True, slots=True)
class _Family:
    """How a family differs from Llama.

    Parameters
    ----------
    defaults
        Values of keys that its config files leave out.
    qkv_bias, o_bias
        Keys that turn biases on, or whether there are some.
    mlp_bias
        Likewise of the feed-forward part.
    norms
        Norms of a layer's width in each layer.
    norm_bias
        Whether norms add a bias as well.
    qk_norm
        Whether queries and keys are normalised, each head by the same weights or all heads as a whole.
    gated
        Whether two matrices widen, of which one gates the other.
    separate
        Whether queries, keys and values, and the two matrices that widen, are modules of their own.
    """

    defaults: Mapping[str, Any]
    qkv_bias: str | bool = False
    o_bias: str | bool = False
    mlp_bias: str | bool = False
    norms: int = 2
    norm_bias: bool = False
    qk_norm: Literal["", "head", "whole"] = ""
    gated: bool = True
    separate: bool = True


_LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
_MISTRAL = _LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_QWEN = _LLAMA | {"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768}
_GEMMA = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA2 = _GEMMA | {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip
_MOE = _QWEN | {
    "hidden_size": 2048, "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408, "decoder_sparse_step": 1,
}  # fmt: skip
_QWEN2_MOE = _MOE | {"intermediate_size": 5632, "num_attention_heads": 16, "shared_expert_intermediate_size": 5632}
_QWEN3_MOE = _MOE | {
    "intermediate_size": 6144, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip
_DEEPSEEK2 = _LLAMA | {
    "vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0, "num_experts_per_tok": None,
}  # fmt: skip
_DEEPSEEK3 = _DEEPSEEK2 | {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "num_experts_per_tok": 8, "max_position_embeddings": 4096,
}  # fmt: skip
_GPT2 = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "tie_word_embeddings": True,
}  # fmt: skip

FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(_LLAMA, "attention_bias", "attention_bias", "mlp_bias"),
    "mistral": _Family(_MISTRAL | {"sliding_window": 4096}),
    "qwen2": _Family(_QWEN, True),
    "qwen3": _Family(_QWEN | {"head_dim": 128}, "attention_bias", "attention_bias", qk_norm="head"),
    "gemma": _Family(_GEMMA, "attention_bias", "attention_bias"),
    "gemma2": _Family(_GEMMA2, "attention_bias", "attention_bias", norms=4),
    "gemma3_text": _Family(
        _GEMMA2 | {"vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
        "attention_bias", "attention_bias", norms=4, qk_norm="head",
    ),
    "phi3": _Family(
        _LLAMA | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096},
        separate=False,
    ),
    "granite": _Family(_LLAMA, "attention_bias", "attention_bias", "mlp_bias"),
    "smollm3": _Family(
        _LLAMA | {
            "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
        },
        "attention_bias", "attention_bias", "mlp_bias",
    ),
    "ernie4_5": _Family(
        _LLAMA | {
            "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        "use_bias", "use_bias", "use_bias",
    ),
    "olmo2": _Family(_LLAMA | {"vocab_size": 50304}, "attention_bias", "attention_bias", qk_norm="whole"),
    "glm4": _Family(
        _LLAMA | {
            "vocab_size": 151552, "intermediate_size": 13696, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "head_dim": 128, "max_position_embeddings": 131072, "attention_bias": True,
        },
        "attention_bias", norms=4,
    ),
    "cohere": _Family(
        _LLAMA | {
            "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        },
        "attention_bias", "attention_bias", norms=1,
    ),
    "starcoder2": _Family(
        _LLAMA | {
            "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096, "use_bias": True,
            "tie_word_embeddings": True,
        },
        "use_bias", "use_bias", "use_bias", norm_bias=True, gated=False,
    ),
    "stablelm": _Family(
        _LLAMA | {
            "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "max_position_embeddings": 4096,
        },
        "use_qkv_bias", norm_bias=True,
    ),
    "gpt_oss": _Family(
        _LLAMA | {
            "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
            "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
            "attention_bias": True,
        },
        "attention_bias", "attention_bias", True,
    ),
    "gpt2": _Family(_GPT2, gated=False, separate=False),
    "mixtral": _Family(_MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": _Family(_QWEN2_MOE, "qkv_bias"),
    "qwen3_moe": _Family(_QWEN3_MOE, "attention_bias", "attention_bias", qk_norm="head"),
    "deepseek_v2": _Family(_DEEPSEEK2, "attention_bias", "attention_bias"),
    "deepseek_v3": _Family(_DEEPSEEK3, "attention_bias", "attention_bias"),
}  # fmt: skip
"""``model_type`` -> what is special about it."""


_ALIASES = {
    "gemma3": "gemma3_text", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_text": "qwen3", "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
}  # fmt: skip
"""Types of models for pictures and text, and the family of what they do with text."""

_WINDOWED = (
    "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "starcoder2",
    "gpt_oss",
)  # fmt: skip
"""Families that look back no further than `sliding_window`, where it is said."""

MOST_LAYERS = 10_000
"""Most layers of a model: each has parts of its own."""

LARGEST_COUNT = 1 << 40
"""More layers, heads or numbers than this are damage; products of several are still numbers."""


class _Config:
    """A configuration whose missing keys are the family's, read with a check."""

    def __init__(self, data: Mapping[str, Any], family: str) -> None:
        self.family, self.rules = family, FAMILIES[family]
        self.data = {**self.rules.defaults, **data}

    def number(self, key: str, least: int = 1) -> int:
        """Return a whole number, at least `least`."""
        value, most = self.data.get(key), MOST_LAYERS if key in ("num_hidden_layers", "n_layer") else LARGEST_COUNT
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidConfig(
                f"{self.family}: {key} is {f'{value!r:.40}'}; expected a whole number from {least} to {most}"
            )
        return value

    def number_or(self, key: str, other: int) -> int:
        """Return a whole number, or another where it is missing or null."""
        return other if self.data.get(key) is None else self.number(key)

    def layers(self, key: str) -> list[int]:
        """Return a list of layers, empty where it is missing or null."""
        value = self.data.get(key) or []
        if not isinstance(value, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in value):
            raise InvalidConfig(f"{self.family}: {key} is {f'{value!r:.40}'}; expected a list of numbers of layers")
        return value

    def flag(self, key: str | bool) -> bool:
        """Return whether a flag is on; what is not the name of one is itself."""
        return bool(self.data.get(key, key == "qkv_bias")) if isinstance(key, str) else key


def architecture_of(config: Mapping[str, Any], shares: Sequence[float] = ()) -> Architecture:
    """Return the parts of a model from its configuration.

    Parameters
    ----------
    config
        Contents of ``config.json``; keys that it leaves out have the family's defaults. Of a model for pictures and
        text the ``text_config``.
    shares
        Share of the tokens that is sent to each expert, in every layer; they add up to the experts of a token.

    Raises
    ------
    InvalidConfig
        An unknown family, a size that makes no sense, or shares that do not fit.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        whole = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {"model_type": config.get("model_type"), **text, **whole}
    family = str(config.get("model_type"))
    family = _ALIASES.get(family, family)
    if family not in FAMILIES:
        raise InvalidConfig(
            f"model_type is {family!r}{closest(family, FAMILIES)}; expected one of {', '.join(FAMILIES)}"
        )
    read = _Config(config, family)
    if family == "gpt2":
        return _gpt2(read)
    hidden, layers, vocab = (read.number(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    attention: Callable[[_Config, int], Part] = _latent_attention if family.startswith("deepseek") else _attention
    embedding = Tensor("model.embed_tokens", (vocab, hidden))
    parts = [Part("embedding", -1, (embedding,))]
    for layer in range(layers):
        parts.append(attention(read, layer))
        parts.extend(_feed_forward(read, layer, tuple(shares)))
    tied = read.flag("tie_word_embeddings")
    norm = Tensor("model.norm", (hidden * (1 + read.rules.norm_bias),))
    parts.append(Part("head", -1, (embedding if tied else Tensor("lm_head", (vocab, hidden)), norm)))
    return Architecture(family, hidden, layers, tuple(parts), tied, _positions(read))


def _positions(read: _Config) -> int:
    """Return the tokens that positions are made for, scaling of rotary embeddings included where it is asked for.

    Configurations give either the length before scaling or the one after it, so that the longer one counts.
    """
    most = read.number_or("max_position_embeddings", 2048)
    scaling = read.data.get("rope_scaling") or read.data.get("rope_parameters")
    if not isinstance(scaling, Mapping) or not isinstance(scaling.get("factor"), (int, float)):
        return most
    before = scaling.get("original_max_position_embeddings") or most
    if not isinstance(before, int) or not 1 <= scaling["factor"] <= LARGEST_COUNT / before:
        raise InvalidConfig(f"{read.family}: rope_scaling is {f'{dict(scaling)!r:.80}'}; expected a factor >= 1")
    return max(most, int(scaling["factor"] * before))


def _tensors(layer: int, matrices: Mapping[str, tuple[int, int]], rest: int, copies: int = 1) -> tuple[Tensor, ...]:
    """Return matrices by the path of their module in a layer, and norms and biases together."""
    under = f"model.layers.{layer}"
    found = [Tensor(f"{under}.{path}", shape, copies) for path, shape in matrices.items()]
    return (*found, Tensor(f"{under}.norms_and_biases", (rest,), copies)) if rest else tuple(found)


def _attention(read: _Config, layer: int) -> Part:
    """Grouped-query attention with the norms of its layer: q, k, v, o of heads of one width."""
    rules, hidden, heads = read.rules, read.number("hidden_size"), read.number("num_attention_heads")
    kv_heads = read.number_or("num_key_value_heads", heads)
    width = read.number_or("head_dim", hidden // heads)
    queries, keys = heads * width, 2 * kv_heads * width
    rest = rules.norms * hidden * (1 + rules.norm_bias)
    rest += {"": 0, "head": 2 * width, "whole": queries + keys // 2}[rules.qk_norm]
    rest += (queries + keys) * read.flag(rules.qkv_bias) + hidden * read.flag(rules.o_bias)
    rest += heads if read.family == "gpt_oss" else 0  # a sink a head
    if read.family == "cohere" and read.data.get("use_qk_norm"):
        rest += queries + keys // 2
    if read.family == "stablelm":
        rest += (queries + keys // 2) * bool(read.data.get("qk_layernorm"))
        rest -= 2 * hidden * bool(read.data.get("use_parallel_residual"))
    inward = {"q": queries, "k": keys // 2, "v": keys // 2} if rules.separate else {"qkv": queries + keys}
    matrices = {f"self_attn.{name}_proj": (rows, hidden) for name, rows in inward.items()}
    matrices["self_attn.o_proj"] = (hidden, queries)
    pair = 4.0 * queries
    return Part(
        "attention",
        layer,
        _tensors(layer, matrices, rest),
        kv_numbers=keys,
        window=_window(read, layer),
        pair_flops=(pair, pair),
        heads=heads,
    )


def _window(read: _Config, layer: int) -> int | None:
    """Return how far the attention of a layer looks back, None where that is all."""
    data, family = read.data, read.family
    if not data.get("sliding_window") or (family.startswith("qwen") and not data.get("use_sliding_window")):
        return None
    if family not in _WINDOWED:
        return None
    window, kinds = read.number("sliding_window"), data.get("layer_types")
    if kinds:
        return window if kinds[layer] == "sliding_attention" else None
    if family in ("gemma2", "gpt_oss"):
        return None if layer % 2 else window
    if family == "gemma3_text":
        return window if (layer + 1) % read.number("sliding_window_pattern") else None
    if family in ("qwen2", "qwen3", "qwen2_moe"):
        return window if layer >= read.number_or("max_window_layers", 28) else None
    return window


def _latent_attention(read: _Config, layer: int) -> Part:
    """Multi-head latent attention: the cache keeps a compressed vector and one rotary key a token.

    Prefill works on the keys and values of each head; decode on the compressed ones, with the expansion multiplied into
    queries and outputs.
    """
    hidden, heads, rank = (read.number(key) for key in ("hidden_size", "num_attention_heads", "kv_lora_rank"))
    plain, rotary, value = (read.number(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries, low, under = heads * (plain + rotary), read.data.get("q_lora_rank"), "self_attn."
    biased = read.flag("attention_bias")
    if low is None:
        matrices, rest = {f"{under}q_proj": (queries, hidden)}, 0
    else:
        low = read.number("q_lora_rank")
        matrices, rest = {f"{under}q_a_proj": (low, hidden), f"{under}q_b_proj": (queries, low)}, low + low * biased
    matrices |= {
        f"{under}kv_a_proj_with_mqa": (rank + rotary, hidden),
        f"{under}kv_b_proj": (heads * (plain + value), rank),
        f"{under}o_proj": (hidden, heads * value),
    }
    rest += rank + (rank + rotary + hidden) * biased + 2 * hidden
    pairs = 2.0 * heads * (plain + rotary + value), 2.0 * heads * (2 * rank + rotary)
    return Part(
        "attention", layer, _tensors(layer, matrices, rest), kv_numbers=rank + rotary, pair_flops=pairs, heads=heads
    )


def _feed_forward(read: _Config, layer: int, shares: tuple[float, ...]) -> list[Part]:
    """Return the feed-forward part of a layer, or its router, shared and routed experts."""
    hidden = read.number("hidden_size")
    count = _experts(read, layer)
    if not count:
        width, wide = read.number("intermediate_size"), 1 + read.rules.gated
        biases = (wide * width + hidden) * read.flag(read.rules.mlp_bias)
        return [Part("dense", layer, _tensors(layer, _mlp(read, "mlp", hidden, width), biases))]
    width = read.number("intermediate_size" if read.family in ("mixtral", "gpt_oss") else "moe_intermediate_size")
    chosen = read.number("num_experts_per_tok")
    if chosen > count:
        raise InvalidConfig(f"{read.family}: num_experts_per_tok is {chosen}, of {count} experts")
    _check_shares(shares, count, chosen)
    always = {"mlp.router" if read.family == "gpt_oss" else "mlp.gate": (count, hidden)}
    if read.family == "qwen2_moe":
        shared = read.number("shared_expert_intermediate_size")
        always |= _mlp(read, "mlp.shared_expert", hidden, shared) | {"mlp.shared_expert_gate": (1, hidden)}
    elif read.family.startswith("deepseek") and read.number_or("n_shared_experts", 0):
        always |= _mlp(read, "mlp.shared_experts", hidden, width * read.number("n_shared_experts"))
    biased = read.flag(read.rules.mlp_bias)
    routed = _tensors(layer, _mlp(read, "mlp.experts.0", hidden, width), (2 * width + hidden) * biased, count)
    return [
        Part("dense", layer, _tensors(layer, always, count * biased)),
        Part("experts", layer, routed, experts=count, experts_per_token=chosen, shares=shares),
    ]


def _mlp(read: _Config, under: str, hidden: int, width: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of a feed-forward part or expert: one or two that widen, and one back."""
    wide = {"gate_proj": (width, hidden), "up_proj": (width, hidden)}
    if not read.rules.separate:
        wide = {"gate_up_proj": (2 * width, hidden)}
    if not read.rules.gated:
        wide = {"c_fc": (width, hidden)}
    back = "down_proj" if read.rules.gated else "c_proj"
    return {f"{under}.{name}": shape for name, shape in (wide | {back: (hidden, width)}).items()}


def _experts(read: _Config, layer: int) -> int:
    """Return the number of routed experts of a layer, 0 where it has none."""
    if read.family in ("mixtral", "gpt_oss"):
        return read.number("num_local_experts")
    if read.family in ("qwen2_moe", "qwen3_moe"):
        key = "num_local_experts" if "num_local_experts" in read.data else "num_experts"
        sparse = layer not in read.layers("mlp_only_layers") and (layer + 1) % read.number("decoder_sparse_step") == 0
        return read.number(key, 0) if sparse else 0
    if read.family.startswith("deepseek"):
        return read.number("n_routed_experts", 0) if layer >= read.number("first_k_dense_replace", 0) else 0
    return 0


def _check_shares(shares: Sequence[float], count: int, chosen: int) -> None:
    if not shares:
        return
    if len(shares) != count or not all(0.0 <= share <= 1.0 for share in shares) or abs(sum(shares) - chosen) > 1e-6:
        raise InvalidConfig(
            f"shares: got {len(shares)} that add up to {sum(shares):g}; expected {count} from 0 to 1 that add up to "
            f"{chosen}, the experts of a token"
        )


def _gpt2(read: _Config) -> Architecture:
    hidden, layers, heads, vocab = (read.number(key) for key in ("n_embd", "n_layer", "n_head", "vocab_size"))
    positions, inner = read.number("n_positions"), read.number_or("n_inner", 4 * hidden)
    embedding = Tensor("model.embed_tokens", (vocab, hidden))
    parts = [Part("embedding", -1, (embedding, Tensor("model.position_embedding", (positions * hidden,))))]
    for layer in range(layers):
        square, pair = {"self_attn.qkv_proj": (3 * hidden, hidden), "self_attn.o_proj": (hidden, hidden)}, 4.0 * hidden
        attention = _tensors(layer, square, 8 * hidden)
        parts.append(Part("attention", layer, attention, kv_numbers=2 * hidden, pair_flops=(pair, pair), heads=heads))
        parts.append(Part("dense", layer, _tensors(layer, _mlp(read, "mlp", hidden, inner), inner + hidden)))
    tied = read.flag("tie_word_embeddings")
    head = embedding if tied else Tensor("lm_head", (vocab, hidden))
    parts.append(Part("head", -1, (head, Tensor("model.norm", (2 * hidden,)))))
    return Architecture("gpt2", hidden, layers, tuple(parts), tied, positions)
