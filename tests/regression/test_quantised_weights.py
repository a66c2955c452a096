"""Quantised models that were counted as BF16, and four bits without the scales that every file of four bits has."""

from __future__ import annotations

from typing import Any

import pytest

from rlinit import llm

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "fp8": {"weight_block_size": [128, 128]},
    "awq": {"bits": 4, "group_size": 128, "zero_point": True},
}


def weight_bytes(config: dict[str, Any], dtype: str | None = None) -> int:
    """Return the bytes of all parts."""
    model = llm.load(config, dtype=dtype)
    return sum(model.weight_bytes(part) for part in model.architecture.parts)


@pytest.mark.parametrize(("method", "gigabytes"), [("fp8", 9.08), ("awq", 5.73)])
def test_quantised_checkpoints_are_not_bf16(method: str, gigabytes: float) -> None:
    """`quantization_config` was ignored: 16.1 GB of BF16 for each."""
    said = {"quant_method": method, **METHODS[method]}
    assert weight_bytes(LLAMA | {"quantization_config": said}) / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_experts_of_gpt_oss_have_four_bits() -> None:
    """gpt-oss-20b, 13.76 GB of files, took 41.8 GB."""
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32}
    assert weight_bytes(config | {"quantization_config": {"quant_method": "mxfp4"}}) == 13761264768


def test_files_of_four_bits_have_more_than_four() -> None:
    """int4 said 4.02 GB of an 8B model, whose file of type Q4_K_M has 4.92; there was no name for that."""
    assert weight_bytes(LLAMA, "q4_k_m") / 1e9 == pytest.approx(4.92, rel=0.01)
    assert weight_bytes(LLAMA, "int4") / 1e9 == pytest.approx(4.02, abs=0.01)
