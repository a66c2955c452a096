"""Configurations of models whose files were published, without what does not bear on their sizes."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

MISTRAL_7B: Config = {
    "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
MISTRAL_NEMO = MISTRAL_7B | {"vocab_size": 131072, "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40}
MIXTRAL_8X7B = MISTRAL_7B | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
LLAMA_8B = MISTRAL_7B | {"model_type": "llama", "vocab_size": 128256}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
LLAMA_3B = LLAMA_8B | {
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_1B = LLAMA_8B | {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN2_7B: Config = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
}  # fmt: skip
QWEN3_30B: Config = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
PHI3_MINI: Config = {
    "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
PHI4 = PHI3_MINI | {
    "vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 10,
}  # fmt: skip
GEMMA2_2B: Config = {"model_type": "gemma2"}
GPT_OSS_20B: Config = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_120B = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}
DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "num_experts_per_tok": 8, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
