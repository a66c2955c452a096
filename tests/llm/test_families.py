"""Parameters of every family, held against transformers' own modules."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlinit import llm
from rlinit.errors import InvalidConfig
from rlinit.llm.families import FAMILIES, architecture_of
from rlinit.llm.splitting import BY_INPUTS, BY_OUTPUTS
from tests.late import late_imports

with late_imports():
    import torch
    import transformers


def random_config(family: str, seed: int) -> dict[str, Any]:
    """Return a small configuration with sizes that share no factor by chance."""
    draw = random.Random(f"{family}-{seed}")
    heads, width = draw.choice([2, 4, 6]), draw.choice([4, 8])
    hidden = heads * draw.choice([4, 8])
    if family == "gpt2":
        inner = draw.choice([None, 56])
        return {"vocab_size": 97, "n_positions": 33, "n_embd": hidden, "n_layer": 3, "n_head": heads, "n_inner": inner}
    config: dict[str, Any] = {
        "vocab_size": draw.choice([89, 97]), "hidden_size": hidden, "intermediate_size": draw.choice([40, 56]),
        "num_hidden_layers": draw.choice([2, 5]), "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, 2, heads]), "tie_word_embeddings": draw.random() < 0.5,
    }  # fmt: skip
    rules = FAMILIES[family]
    config |= {key: draw.random() < 0.5 for key in (rules.qkv_bias, rules.mlp_bias) if isinstance(key, str)}
    flags = {"cohere": ("use_qk_norm",), "stablelm": ("qk_layernorm", "use_parallel_residual")}
    config |= {key: draw.random() < 0.5 for key in flags.get(family, ())}
    if "head_dim" in transformers.AutoConfig.for_model(family).to_dict() or family == "llama":
        config |= {"head_dim": width}
    if family in ("mixtral", "gpt_oss"):
        config |= {"num_local_experts": 5, "num_experts_per_tok": 2}
    if "moe" in family:
        config |= {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "decoder_sparse_step": 2}
        config |= {"mlp_only_layers": [1]}
    if family == "qwen2_moe":
        config |= {"shared_expert_intermediate_size": 28, "qkv_bias": draw.random() < 0.5}
    if family.startswith("deepseek"):
        config |= {
            "num_key_value_heads": heads, "kv_lora_rank": 12, "q_lora_rank": draw.choice([None, 20]),
            "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10, "n_routed_experts": 8,
            "n_shared_experts": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_experts_per_tok": 2,
            "n_group": 2, "topk_group": 1, "attention_bias": draw.random() < 0.5,
        }  # fmt: skip
    return config


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_transformers(family: str, seed: int) -> None:
    """The whole model and each layer have exactly the parameters of transformers' module on the meta device."""
    config = random_config(family, seed)
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    made = transformers.AutoConfig.for_model(family, **config, **tokens)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    ours = architecture_of({"model_type": family, **config})
    assert ours.num_params == sum(p.numel() for p in module.parameters())
    layers = module.transformer.h if family == "gpt2" else module.model.layers
    for at, layer in enumerate(layers):
        counted = sum(part.params for part in ours.parts if part.layer == at)
        assert counted == sum(p.numel() for p in layer.parameters()), at
    assert architecture_of(made.to_dict()).num_params == ours.num_params


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    """A configuration that says nothing but its type has the parameters of transformers' default one."""
    made = transformers.AutoConfig.for_model(family)
    if family == "deepseek_v2":
        made.num_experts_per_tok = 6
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    said = {"num_experts_per_tok": 6} if family == "deepseek_v2" else {}
    ours = architecture_of({"model_type": family, **said})
    assert ours.num_params == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma2", "gemma3_text", "phi3", "gpt_oss"])
def test_windows_are_those_of_transformers(family: str) -> None:
    """Layers with a sliding window are those that transformers marks, with and without `layer_types`."""
    said = {"num_hidden_layers": 8, "sliding_window": 64}
    said |= {"use_sliding_window": True, "max_window_layers": 3} if family == "qwen2" else {}
    made = transformers.AutoConfig.for_model(family, **said)
    kinds = made.to_dict().get("layer_types") or ["sliding_attention"] * 8
    for config in ({"model_type": family, **said}, made.to_dict()):
        parts = [part for part in architecture_of(config).parts if part.kind == "attention"]
        assert [part.window for part in parts] == [64 if kind == "sliding_attention" else None for kind in kinds]


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_text_of_models_for_pictures(kind: str) -> None:
    """Of a model for pictures and text the layers for text count, as transformers has them."""
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 4}
    text = transformers.AutoConfig.for_model(kind).text_config.to_dict() | sizes
    text |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    text.pop("layer_types", None)
    made = type(transformers.AutoConfig.for_model(kind).text_config)(**text)
    with torch.device("meta"):
        module = transformers.AutoModel.from_config(made)  # type: ignore[no-untyped-call]
    ours = architecture_of({"model_type": kind, "text_config": text})
    for at, layer in enumerate(module.layers):
        assert sum(part.params for part in ours.parts if part.layer == at) == sum(p.numel() for p in layer.parameters())


def test_models_on_meta_say_their_configuration() -> None:
    """A model of transformers, or its configuration, stands for its config.json; other things are refused."""
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(num_hidden_layers=2, vocab_size=64))
    count = sum(one.numel() for one in model.parameters())
    assert llm.load(model).num_params == llm.load(model.config).num_params == count
    with pytest.raises(InvalidConfig, match="its contents, a model with one"):
        llm.load(torch.nn.Linear(2, 2))


def test_wrong_configurations_are_told() -> None:
    """An unknown family, a size that is none, and shares that do not add up name what is wrong."""
    with pytest.raises(InvalidConfig, match="did you mean 'llama'"):
        architecture_of({"model_type": "lama"})
    with pytest.raises(InvalidConfig, match="hidden_size is -1"):
        architecture_of({"model_type": "llama", "hidden_size": -1})
    with pytest.raises(InvalidConfig, match=r"hidden_size is 99{39}; expected a whole number from 1 to"):
        architecture_of({"model_type": "llama", "hidden_size": 10**400 - 1})
    with pytest.raises(InvalidConfig, match="add up to 2"):
        architecture_of({"model_type": "mixtral"}, shares=[0.5] * 8)


def test_contexts_beyond_the_positions_are_refused() -> None:
    """One line says how far positions go and how a configuration extends them; with scaling they go further."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 2048}
    with pytest.raises(InvalidConfig, match=r"8,192 is beyond the model's 2,048 positions.*\"factor\": 4.0") as found:
        llm.load(config, context=8192)
    assert "\n" not in str(found.value)
    assert llm.load(config | {"max_position_embeddings": 100}).workload == llm.Workload(100, 1, 50, 50)
    with pytest.raises(InvalidConfig, match="beyond the model's 2,048"):
        llm.load(config, prompt=2000, output=100)
    for key in ("rope_scaling", "rope_parameters"):
        assert llm.load(config | {key: {"rope_type": "yarn", "factor": 4.0}}, context=8192).workload.context == 8192
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    longer = llm.load(config | {"max_position_embeddings": 131072, "rope_scaling": llama3})
    assert longer.architecture.max_context == 131072
    with pytest.raises(InvalidConfig, match=r"1,024 positions; ask for 1,024$"):
        llm.load({"model_type": "gpt2"}, context=2048)
    for wrong in ({"factor": 0.1}, {"factor": 2.0, "original_max_position_embeddings": "many"}):
        with pytest.raises(InvalidConfig, match="rope_scaling is"):
            llm.load(config | {"rope_scaling": wrong})


@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_split_as_transformers_splits_them(family: str) -> None:
    """By rows or by columns, wherever the tensor parallel plan of the model's configuration names a matrix of ours."""
    plan = getattr(transformers.CONFIG_MAPPING[family], "base_model_tp_plan", None) or {}
    for pattern, way in plan.items():
        leaf = pattern.rpartition(".")[2]
        if way.removeprefix("packed_").startswith("colwise"):
            assert leaf in BY_OUTPUTS or leaf.endswith("_norm"), (pattern, way)
        elif way.startswith("rowwise"):
            assert leaf in BY_INPUTS, (pattern, way)
        else:
            assert leaf not in BY_INPUTS or way == "grouped_gemm", (pattern, way)
