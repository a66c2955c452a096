"""Types of llama.cpp, held against the gguf package and against the sizes of published files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit import llm
from rlinit.errors import InvalidConfig
from rlinit.llm.weights.mixtures import BLOCKS, MIXTURES, mixed
from rlinit.llm.weights.tensors import Tensor
from tests.llm.weights import configs
from tests.llm.weights.configs import Config

FILES: dict[str, tuple[Config, dict[str, int]]] = {
    "bartowski/Llama-3.2-1B-Instruct-GGUF": (configs.LLAMA_1B, {
        "iq3_m": 657289344, "q4_k_m": 807694464, "q5_k_m": 911503488, "q6_k": 1021800576, "q8_0": 1321083008,
    }),
    "bartowski/Llama-3.2-3B-Instruct-GGUF": (configs.LLAMA_3B, {
        "iq3_m": 1599668768, "q4_k_m": 2019377696, "q5_k_m": 2322154016, "q6_k": 2643853856, "q8_0": 3421899296,
    }),
    "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF": (configs.LLAMA_8B, {
        "q2_k": 3179136416, "q3_k_m": 4018922912, "q4_k_m": 4920739232, "q5_k_m": 5732992416, "q6_k": 6596011424,
        "q8_0": 8540775840,
    }),
    "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF": (configs.LLAMA_70B, {"q4_k_m": 42520398400}),
    "MaziyarPanahi/Mistral-7B-Instruct-v0.3-GGUF": (configs.MISTRAL_7B, {
        "iq1_m": 1757663392, "q2_k": 2722877600, "q3_k_m": 3522941088, "q4_k_m": 4372811936, "q5_k_m": 5136175264,
        "q6_k": 5947248800, "q8_0": 7702565024,
    }),
    "bartowski/Mistral-Nemo-Instruct-2407-GGUF": (configs.MISTRAL_NEMO, {
        "q2_k": 4791051392, "q3_k_m": 6083093632, "q4_k_m": 7477208192, "q5_k_m": 8727635072, "q6_k": 10056213632,
        "q8_0": 13022372992,
    }),
    "MaziyarPanahi/Mixtral-8x7B-Instruct-v0.1-GGUF": (configs.MIXTRAL_8X7B, {
        "q2_k": 17309173632, "q3_k_m": 22544394112, "q4_k_m": 28446410624, "q5_k_m": 33227523968, "q6_k": 38378760064,
        "q8_0": 49624262528,
    }),
    "Qwen/Qwen2-7B-Instruct-GGUF": (configs.QWEN2_7B, {"q4_k_m": 4683071264}),
    "unsloth/Qwen3-30B-A3B-GGUF": (configs.QWEN3_30B, {"q3_k_s": 13292468800}),
    "bartowski/Phi-3-mini-4k-instruct-GGUF": (configs.PHI3_MINI, {"q4_k_m": 2393231360}),
    "microsoft/phi-4-gguf": (configs.PHI4, {"q4_k_s": 8440762560}),
    "bartowski/gemma-2-2b-it-GGUF": (configs.GEMMA2_2B, {"q4_k_m": 1708582752}),
    "lmstudio-community/gpt-oss-20b-GGUF": (configs.GPT_OSS_20B, {"mxfp4": 12109565632}),
}  # fmt: skip
"""Repository -> bytes of its files, as public listings of them say: vocabulary and other metadata with the tensors."""

HEADERS = {"bartowski/Llama-3.2-1B-Instruct-GGUF": 0.012}
"""Share that vocabulary and metadata of a small model take."""

ROUNDED = {
    "f16": 16.07, "q4_0": 4.66, "q4_1": 5.13, "q5_0": 5.60, "q5_1": 6.07, "q4_k_s": 4.69, "q5_k_s": 5.60,
    "q3_k_s": 3.67, "q3_k_l": 4.32, "iq3_s": 3.68, "iq3_xs": 3.51, "iq3_xxs": 3.27, "iq2_m": 2.94, "iq2_s": 2.75,
    "iq2_xs": 2.60, "iq2_xxs": 2.39, "iq1_m": 2.16, "iq1_s": 2.01,
}  # fmt: skip
"""Gigabytes that model cards say: SanctumAI/Meta-Llama-3-8B-Instruct-GGUF, and from iq3_s on
bartowski/LLaMA3-iterative-DPO-final-GGUF, which rounds down."""


def num_bytes(config: Config, dtype: str) -> int:
    """Return the bytes of all weights."""
    return llm.load(config, dtype=dtype).architecture.num_bytes


def test_blocks_are_those_of_the_gguf_package() -> None:
    """Numbers and bytes of a block, by name."""
    gguf = pytest.importorskip("gguf")
    known = {kind.name.lower(): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {name: known[name] for name in BLOCKS} == dict(BLOCKS)


@pytest.mark.parametrize("repository", FILES)
def test_bytes_are_those_of_published_files(repository: str) -> None:
    """To 1%, and less only the metadata, which takes the same bytes in every file of a model."""
    config, files = FILES[repository]
    rest = set()
    for dtype, published in files.items():
        ours = num_bytes(config, dtype)
        assert ours == pytest.approx(published, rel=HEADERS.get(repository, 0.01)), dtype
        rest.add(published - ours)
    assert max(rest) - min(rest) <= 1024  # what metadata says of a type differs by a few bytes


@pytest.mark.parametrize("dtype", ROUNDED)
def test_bytes_are_those_of_model_cards(dtype: str) -> None:
    """Other types of an 8B model, whose vocabulary takes 7.8 MB, to the digits of the cards."""
    assert num_bytes(configs.LLAMA_8B, dtype) / 1e9 + 0.0078 == pytest.approx(ROUNDED[dtype], abs=0.011)


def test_the_llama_file_has_the_tensor_bytes_that_a_reader_printed() -> None:
    """Tensor data of mistral-7b-instruct-v0.2.Q4_K_M.gguf: 4,367,704,064 bytes of 4,368,439,584."""
    assert num_bytes(configs.MISTRAL_7B | {"vocab_size": 32000}, "q4_k_m") == 4367704064


@pytest.mark.parametrize("dtype", MIXTURES)
@pytest.mark.parametrize("config", [configs.GPT_OSS_20B, configs.MIXTRAL_8X7B, configs.DEEPSEEK_V3, configs.PHI4])
def test_every_type_fills_rows_of_blocks(dtype: str, config: Config) -> None:
    """No block is cut, rows of 2880 or of 128 numbers included, and no weight takes less than its type's least."""
    model = llm.load(config, dtype=dtype)
    for part in model.architecture.parts:
        for tensor in part.tensors:
            if tensor.is_matrix:
                rows = tensor.copies * tensor.shape[0]
                assert tensor.num_bytes % rows == 0
                sizes = {
                    tensor.shape[1] // numbers * size
                    for numbers, size in BLOCKS.values()
                    if not tensor.shape[1] % numbers
                }
                assert tensor.num_bytes // rows in sizes
    assert 1.5 < model.bits_per_weight < 17


def test_heads_values_and_narrow_rows() -> None:
    """Rules beside the tables: a tied head, the 70B's values, eight experts, rows that are no multiple of 256."""

    def bits(config: Config, dtype: str, name: str) -> float:
        bare = llm.load(config).architecture
        tensors = [tensor for part in bare.parts for tensor in part.tensors]
        return mixed(dtype, tensors, bare.num_layers)(next(t for t in tensors if t.name == name)).bits

    def value(layer: int) -> str:
        return f"model.layers.{layer}.self_attn.v_proj"

    q4_k, q5_k, q6_k, q8_0 = 4.5, 5.5, 6.5625, 8.5
    assert bits(configs.LLAMA_1B, "q4_k_m", "model.embed_tokens") == q6_k
    assert bits(configs.LLAMA_8B, "q4_k_m", "model.embed_tokens") == q4_k
    assert bits(configs.LLAMA_8B, "q4_k_m", value(5)) == q4_k
    values = [bits(configs.LLAMA_70B, "q4_k_m", value(layer)) for layer in (0, 10, 11, 12, 79)]
    assert values == [q6_k, q5_k, q5_k, q6_k, q6_k]
    assert bits(configs.MIXTRAL_8X7B, "q4_k_m", value(5)) == q8_0
    assert bits(configs.MIXTRAL_8X7B, "q4_k_m", "model.layers.5.self_attn.o_proj") == q5_k
    assert bits(configs.GPT_OSS_20B, "q4_k_m", "model.layers.3.self_attn.q_proj") == 5.5  # q5_0
    assert bits(configs.GPT_OSS_20B, "q4_k_m", "lm_head") == q8_0
    assert bits(configs.GPT_OSS_20B, "q4_k_m", "model.layers.3.mlp.router") == 32.0
    odd = [Tensor("model.embed_tokens", (64, 48)), Tensor("model.layers.0.mlp.up_proj", (64, 40))]
    assert mixed("q4_k_m", odd, 1)(odd[1]).bits == 16.0


def test_a_file_of_these_types_is_read_to_the_same_bytes(tmp_path: Path) -> None:
    """A GGUF file written with the types of a mixture, and the configuration, give the same bytes part by part."""
    gguf = pytest.importorskip("gguf")
    config: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 9,
        "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 128,
    }  # fmt: skip
    bare = llm.load(config, prompt=8, output=8).architecture
    tensors = [tensor for part in bare.parts for tensor in part.tensors]
    choose = mixed("q4_k_m", tensors, bare.num_layers)
    kinds = {
        gguf.GGML_QUANT_SIZES[kind]: kind for kind in reversed(gguf.GGMLQuantizationType) if kind.name.lower() in BLOCKS
    }
    # types of equal bits stand for each other: bytes are what is compared
    sizes = {8 * size / numbers: (numbers, size) for numbers, size in reversed(list(BLOCKS.values()))}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for add, number in (
        (writer.add_block_count, 9), (writer.add_embedding_length, 256), (writer.add_head_count, 4),
        (writer.add_head_count_kv, 1), (writer.add_context_length, 128),
    ):  # fmt: skip
        add(number)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "norms_and_biases": "attn_norm", "embed_tokens": "token_embd",
        "lm_head": "output", "norm": "output_norm",
    }  # fmt: skip
    for tensor in tensors:
        path = tensor.name.removeprefix("model.").removeprefix("layers.")
        layer, _, rest = path.partition(".") if path[0].isdigit() else ("", "", path)
        numbers, size = sizes[choose(tensor).bits]
        shape = (*tensor.shape[:-1], tensor.shape[-1] // numbers * size)
        writer.add_tensor(
            f"blk.{layer}.{names[rest]}.weight" if layer else f"{names[rest]}.weight",
            np.zeros(shape, np.uint8), raw_dtype=kinds[numbers, size],
        )  # fmt: skip
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    read = llm.load(tmp_path / "m.gguf", prompt=8, output=8, dtype="fp16")
    made = llm.load(config, prompt=8, output=8, dtype="q4_k_m")
    assert {p.name: read.weight_bytes(p) for p in read.architecture.parts} == {
        p.name: made.weight_bytes(p) for p in made.architecture.parts
    }
    assert read.weights == "as in the file"
    plans = [llm.plan(model, "t4+cpu", granularity="part") for model in (read, made)]
    assert plans[0].value == pytest.approx(plans[1].value, rel=1e-12)


def test_types_are_asked_for_by_name() -> None:
    """Activations of blocks are FP16 unless said; the name may be in capitals; others are refused with all names."""
    model = llm.load(configs.LLAMA_1B, dtype="Q4_K_M")
    assert (model.weights, model.activations, model.compute_dtype) == ("q4_k_m", "fp16", "fp16")
    assert llm.load(configs.LLAMA_1B, dtype="q8_0/bf16").compute_dtype == "bf16"
    assert llm.load(configs.LLAMA_1B, dtype="int4").bits_per_weight == 4.0
    for wrong in ("q4_k_x", "bf16/q4_0", ("q4_0",), "q4_k"):
        with pytest.raises(InvalidConfig, match=r"expected one of fp32, .*q4_k_m"):
            llm.load(configs.LLAMA_1B, dtype=wrong)  # type: ignore[arg-type]


def test_decode_reads_what_blocks_take() -> None:
    """A pass of one token takes the time of its bytes: 4.89 bits a weight of the layers, not 4."""
    blocks, four = (llm.load(configs.LLAMA_8B, prompt=8, output=2, dtype=f"{one}/fp16") for one in ("q4_k_m", "int4"))
    parts = [part for part in blocks.architecture.parts if part.layer >= 0]
    moved = sum(blocks.streamed_bytes(part, "decode") for part in parts)
    assert moved == sum(part.stored_bytes for part in parts)
    plans = [llm.plan(model, "rtx3090") for model in (blocks, four)]
    assert 1.1 < plans[0].value / plans[1].value < 4.9 / 4 + 0.02
    assert plans[0].spans[0].weight_bytes == blocks.architecture.num_bytes
