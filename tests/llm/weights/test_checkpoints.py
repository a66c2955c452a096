"""Quantised checkpoints: published sizes, each method by hand, modules that are left alone, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinit import llm
from rlinit.cli.main import main
from rlinit.errors import InvalidConfig
from tests.llm.weights import configs
from tests.llm.weights.configs import Config

MXFP4: Config = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip
FP8: Config = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
}  # fmt: skip
AWQ: Config = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ: Config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}


def compressed(form: str, ignore: tuple[str, ...] = ("lm_head",), **weights: Any) -> Config:
    """Return what compressed-tensors writes for one group of all linear modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    said = {"quant_method": "compressed-tensors", "format": form, "ignore": list(ignore)}
    return said | {"config_groups": {"group_0": group}}


CHANNELS = compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True)
W4A16 = compressed(
    "pack-quantized", num_bits=4, type="int", strategy="group", group_size=128, symmetric=True, actorder="group"
)
NVFP4 = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
MXFP4_LINEAR = compressed("mxfp4-pack-quantized", num_bits=4, strategy="group", group_size=32)
MODELOPT: Config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("config", "quantization", "published", "error"),
    [
        # openai/gpt-oss-20b and -120b: total_size of model.safetensors.index.json, bytes of all tensors
        (configs.GPT_OSS_20B, MXFP4, 13761264768, 0.0),
        (configs.GPT_OSS_120B, MXFP4, 65248815744, 0.0),
        # safetensors headers of RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic and -quantized.w4a16 (GPTQ with biases
        # of zeros, 2.75 MB, that no plan counts), nvidia/Llama-3.3-70B-Instruct-FP4 (as compressed-tensors says it too)
        # and RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16
        (configs.LLAMA_8B, CHANNELS, 9083953152, 0.0),
        (configs.LLAMA_8B, GPTQ, 5735587840, 5e-4),
        (configs.LLAMA_70B, MODELOPT, 42709045632, 0.0),
        (configs.LLAMA_70B, NVFP4, 42709045632, 0.0),
        (configs.LLAMA_70B, W4A16, 39525311232, 1e-6),
    ],
)
def test_bytes_are_those_of_published_checkpoints(
    config: Config, quantization: Config, published: int, error: float
) -> None:
    """With scales, zeros, and what is not quantised."""
    found = llm.load(config | {"quantization_config": quantization}).architecture
    assert found.num_bytes == pytest.approx(published, rel=error, abs=0)


def test_deepseek_v3_with_its_layer_for_more_tokens() -> None:
    """688,586,727,753 bytes of files hold the model and a layer for one token more, with matrices of its own."""
    model = llm.load(configs.DEEPSEEK_V3 | {"quantization_config": FP8})
    last = sum(part.stored_bytes for part in model.architecture.parts if part.layer == 60)
    hidden, vocab = 7168, 129280
    more = last + 2 * (2 * vocab * hidden + 2 * hidden * hidden + 3 * hidden)
    assert model.architecture.num_bytes + more == pytest.approx(688586727753, rel=5e-5)
    assert (model.weights, model.activations, round(model.num_params / 1e9)) == ("fp8", "bf16", 671)


LAYER: Config = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "float16",
}  # fmt: skip
SHAPES = [(256, 256), (128, 256), (128, 256), (256, 256), (384, 256), (384, 256), (256, 384)]
"""Outputs and inputs of q, k, v, o, gate, up, down."""


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (FP8, lambda r, c: r * c + 4 * -(-r // 128) * -(-c // 128)),
        (FP8 | {"weight_block_size": None}, lambda r, c: r * c + 4),
        (FP8 | {"weight_block_size": None, "activation_scheme": "static"}, lambda r, c: r * c + 8),
        ({"quant_method": "fbgemm_fp8"}, lambda r, c: r * c + 4 * r),
        (AWQ, lambda r, c: r * c // 2 + r * c // 128 * 5 // 2),
        (AWQ | {"group_size": 64}, lambda r, c: r * c // 2 + r * c // 64 * 5 // 2),
        (GPTQ, lambda r, c: r * c // 2 + r * c // 128 * 5 // 2 + 4 * c),
        (GPTQ | {"bits": 8, "group_size": -1}, lambda r, c: r * c + 3 * r + 4 * c),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, lambda r, c: r * c + 4 * r),
        ({"load_in_4bit": True}, lambda r, c: r * c // 2 + r * c // 64 * 4 + 64),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            lambda r, c: r * c // 2 + -(-r * c // 64 * (256 + 4) // 256) + 64 + 1024,
        ),
        (CHANNELS, lambda r, c: r * c + 2 * r),
        (compressed("float-quantized", num_bits=8, strategy="tensor"), lambda r, c: r * c + 2),
        (
            compressed("pack-quantized", num_bits=4, strategy="group", group_size=64, symmetric=False),
            lambda r, c: r * c // 2 + r * c // 64 * 5 // 2 + 16,
        ),
        (
            compressed("float-quantized", num_bits=8, strategy="block", block_structure=[128, 128]),
            lambda r, c: r * c + 2 * -(-r // 128) * -(-c // 128),
        ),
        (MXFP4_LINEAR, lambda r, c: r * c * 17 // 32),
        (NVFP4, lambda r, c: r * c // 2 + r * c // 16 + 8),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, lambda r, c: r * c + 8),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
            lambda r, c: r * c // 2 + r * c // 64 * 4,
        ),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
            lambda r, c: r * c + 2 * r,
        ),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}}},
            lambda r, c: r * c // 2 + r * c // 128 * 4,
        ),
    ],
)  # fmt: skip
def test_bytes_of_each_method(quantization: Config, expected: Any) -> None:
    """Matrices of a layer with their scales and zeros; embedding, head and norms in the model's type."""
    architecture = llm.load(LAYER | {"quantization_config": quantization}).architecture
    matrices = [tensor for part in architecture.parts if part.layer == 0 for tensor in part.tensors if tensor.is_matrix]
    assert [tensor.shape for tensor in matrices] == SHAPES
    assert [tensor.num_bytes for tensor in matrices] == [expected(*shape) for shape in SHAPES]
    rest = architecture.num_bytes - sum(tensor.num_bytes for tensor in matrices)
    assert rest == 2 * (2 * 100 * 256 + 3 * 256)


def quantised(quantization: Config, config: Config = LAYER) -> set[str]:
    """Return ends of the names of matrices that are kept in less than 16 bits a number."""
    parts = llm.load(config | {"quantization_config": quantization}).architecture.parts
    found = (tensor for part in parts for tensor in part.tensors if tensor.num_bytes < 2 * tensor.size)
    return {tensor.name.rpartition("layers.0.")[2] for tensor in found}


def test_modules_that_are_left_alone() -> None:
    """By name, by a part of a path, by ``*``, by pattern, in the words of each method."""
    attention = {f"self_attn.{one}_proj" for one in "qkvo"}
    feed_forward = {f"mlp.{one}_proj" for one in ("gate", "up", "down")}
    assert quantised(AWQ) == attention | feed_forward
    for kept in (
        "self_attn",
        "model.layers.0.self_attn",
        "model.layers.*.self_attn",
        "model.language_model.layers.0.self_attn",
    ):
        assert quantised(AWQ | {"modules_to_not_convert": [kept]}) == feed_forward
    assert quantised(FP8 | {"modules_to_not_convert": ["gate"]}) == attention | feed_forward
    assert quantised({"load_in_8bit": True, "llm_int8_skip_modules": ["down_proj"]}) == (
        attention | feed_forward - {"mlp.down_proj"}
    )
    weights = {"num_bits": 8, "strategy": "channel"}
    assert quantised(compressed("float-quantized", (), **weights)) == attention | feed_forward | {"lm_head"}
    assert quantised(compressed("float-quantized", ("re:.*lm_head", "re:.*self_attn.*"), **weights)) == feed_forward
    assert quantised(GPTQ | {"lm_head": True}) == attention | feed_forward | {"lm_head"}
    dynamic = {"-:.*self_attn.*": {}, "+:.*down_proj.*": {"bits": 8}}
    assert quantised(GPTQ | {"dynamic": dynamic}) == feed_forward
    found = llm.load(LAYER | {"quantization_config": GPTQ | {"dynamic": dynamic}}).architecture.parts[2].tensors[2]
    assert found.num_bytes == 256 * 384 + 256 * 3 * 3 + 4 * 384


def test_groups_of_modules_each_with_a_format() -> None:
    """Groups by name go before the group of all linear modules; what is only for the cache is none."""
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}},
        "group_1": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "strategy": "channel"}},
        "group_2": {"targets": ["re:.*self_attn"], "weights": None},
    }
    said = compressed("int-quantized", num_bits=4) | {"config_groups": groups}
    down = llm.load(LAYER | {"quantization_config": said}).architecture.parts[2].tensors[2]
    gate = llm.load(LAYER | {"quantization_config": said}).architecture.parts[2].tensors[0]
    assert (gate.num_bytes, down.num_bytes) == (384 * 256 // 2 + 2 * 384, 256 * 384 + 2 * 256)


def test_experts_only_and_routers_never() -> None:
    """MXFP4 is for experts; routers, embeddings and heads keep their type under every method."""
    config: Config = configs.GPT_OSS_20B | {"num_hidden_layers": 1}
    assert quantised({"quant_method": "mxfp4"}, config) == {
        f"mlp.experts.0.{one}_proj" for one in ("gate", "up", "down")
    }
    for quantization in (FP8, AWQ, CHANNELS):
        assert not quantised(quantization, config) & {"mlp.router", "model.embed_tokens", "lm_head"}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "aqlm"}, r"quantization_config.quant_method is 'aqlm', .*expected one of mxfp4, .*--dtype"),
        ({"quant_method": "gptqq"}, "did you mean 'gptq'"),
        ({"bits": 4}, "quant_method is None"),
        (["awq"], "expected an object"),
        (AWQ | {"bits": "four"}, "quantization_config.bits is 'four'; expected a whole number from 1 to 16"),
        (AWQ | {"group_size": 0.5}, "group_size is 0.5"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size is .*two whole numbers"),
        (AWQ | {"modules_to_not_convert": [7]}, "modules_to_not_convert is .*list of names"),
        (compressed("sparse-24"), "quantization_config.format is 'sparse-24'"),
        (compressed("pack-quantized", strategy=["group"]), "strategy is .*expected one of tensor, channel"),
        (compressed("pack-quantized", ("re:(",), num_bits=4), r"'re:\(' is no pattern"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'"),
        ({"quant_method": "torchao", "quant_type": "autoquant"}, "quant_type is 'autoquant'"),
        ({"quant_method": "torchao", "quant_type": {"other": {}}}, "quant_type.default is None"),
    ],
)
def test_what_is_not_counted_is_refused(quantization: Any, message: str) -> None:
    """In a line that names the field, what was expected, and the way on."""
    with pytest.raises(InvalidConfig, match=message):
        llm.load(LAYER | {"quantization_config": quantization})


def test_what_is_asked_for_wins_and_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dtype by the user overrides the configuration, also one that is not counted, with a note."""
    for quantization in (AWQ, {"quant_method": "aqlm"}):
        model = llm.load(LAYER | {"quantization_config": quantization}, dtype="int8/fp16")
        assert (model.weights, model.bits_per_weight) == ("int8", 8.0)
        assert f"not by quantization_config ({quantization['quant_method']})" in model.notes[0]
    assert llm.load(LAYER | {"quantization_config": AWQ}).notes == ()
    (tmp_path / "config.json").write_text(json.dumps(LAYER | {"quantization_config": AWQ}))
    assert main(["llm", str(tmp_path), "--hw", "t4"]) == 0
    assert "weights awq (5.29 bits each), activations fp16" in " ".join(capsys.readouterr().out.split())
    assert main(["llm", str(tmp_path), "--hw", "t4", "--dtype", "q8_0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dtype"]["weights"] == "q8_0"
    assert "quantization_config (awq)" in said["notes"][0]
    assert main(["llm", str(tmp_path), "--hw", "t4", "--dtype", "q8_0"]) == 0
    assert "note: weights count as q8_0" in " ".join(capsys.readouterr().out.split())


def test_text_of_models_for_pictures_is_quantised_too() -> None:
    """What stands beside or in ``text_config`` counts, and so does the older key of compressed-tensors."""
    text = {key: value for key, value in LAYER.items() if key != "model_type"}
    plain = llm.load(LAYER | {"quantization_config": CHANNELS}).architecture.num_bytes
    for config in (
        {"model_type": "llama", "text_config": text, "quantization_config": CHANNELS},
        {"model_type": "llama", "text_config": text | {"quantization_config": CHANNELS}},
        LAYER | {"compression_config": CHANNELS},
    ):
        assert llm.load(config).architecture.num_bytes == plain


def test_plans_and_exports_count_the_checkpoint() -> None:
    """Memory, passes and accelerate's budget are those of the quantised weights, and the plan is verified by them."""
    config = configs.LLAMA_8B | {"quantization_config": AWQ, "torch_dtype": "float16"}
    model = llm.load(config, prompt=64, output=8)
    plan = llm.plan(model, "2xt4")
    assert sum(span.weight_bytes for span in plan.spans) == model.architecture.num_bytes
    assert sum(llm.to_device_map(plan).max_memory.values()) == model.architecture.num_bytes
    plain = llm.plan(llm.load(configs.LLAMA_8B, prompt=64, output=8, dtype="fp16"), "2xt4")
    assert plan.value < 0.45 * plain.value
