"""Plans in other tools' words, held against accelerate, and against tensors of a GGUF file written here."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit import llm
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.hardware import Device, Hardware

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def made(model: llm.LanguageModel, names: str = "ab", share: float = 0.7, **options: Any) -> llm.LlmPlan:
    """Return a plan over devices that are each too small for the model."""
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    devices = [
        Device(name, "", whole * share, flops_per_s=1e9 * (at + 1), bytes_per_s=1e6 * (at + 1))
        for at, name in enumerate(names.split() if " " in names else names)
    ]
    plan = llm.plan(model, Hardware.mesh(devices, 1e6), runtime="none", **options)
    assert len(plan.spans) > 1
    return plan


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_accelerate_runs_the_map(family: str, tmp_path: Path) -> None:
    """`dispatch_model` takes the map, and the outputs are those of the model as it was."""
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = CONFIG | {"model_type": family}
    if family == "gpt2":
        config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 5, "n_head": 4, "vocab_size": 64, "n_positions": 32}
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(settings).eval()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = module(ids).logits
    plan = made(llm.load(config, prompt=7, output=5, dtype="fp32"))
    found = llm.to_device_map(plan, {"a": "cpu", "b": "disk"})
    assert set(found.device_map.values()) == {"cpu", "disk"}
    covered = {path for path, _ in module.named_parameters() if any(path.startswith(f"{m}.") for m in found.device_map)}
    assert covered == {path for path, _ in module.named_parameters()}
    dispatched = accelerate.dispatch_model(module, found.device_map, main_device="cpu", offload_dir=str(tmp_path))
    with torch.no_grad():
        assert torch.equal(dispatched(ids).logits, expected)
    assert sum(found.max_memory.values()) >= 4 * plan.model.num_params


def test_accelerate_streams_what_the_plan_streams(tmp_path: Path) -> None:
    """Modules that a plan streams from the host are offloaded there, and the outputs are the model's own."""
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = CONFIG | {"num_hidden_layers": 12}
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = module(ids).logits
    model = llm.load(config, prompt=300, output=5, dtype="fp32")
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    devices = [
        Device("gpu", "", 0.8 * whole, flops_per_s=1e9, bytes_per_s=1e9),
        Device("cpu", "cpu", 10 * whole, flops_per_s=1e4, bytes_per_s=1e9),
    ]
    plan = llm.plan(
        model, Hardware.mesh(devices, 1e8), objective="prefill", contiguous=False, stream=True, runtime="none"
    )
    assert {span.weights_on for span in plan.spans} == {"", "cpu"}
    assert {span.device for span in plan.spans} == {"gpu"}
    found = llm.to_device_map(plan, {"gpu": "cpu", "cpu": "disk"})  # no GPU here: memory for one, a disk for the other
    assert set(found.device_map.values()) == {"cpu", "disk"}
    dispatched = accelerate.dispatch_model(module, found.device_map, main_device="cpu", offload_dir=str(tmp_path))
    with torch.no_grad():
        assert torch.equal(dispatched(ids).logits, expected)


def write_gguf(
    path: Path, num_layers: int = 6, experts: int = 0, scaling: float | None = None, scalars: tuple[str, ...] = ()
) -> int:
    """Write a small Llama with FP16 matrices; return its bytes of tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(num_layers)
    writer.add_embedding_length(16)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(128)
    if scaling is not None:
        writer.add_rope_scaling_factor(scaling)
    shapes = {"token_embd": (64, 16), "output": (64, 16)}
    for at in range(num_layers):
        shapes |= {
            f"blk.{at}.attn_{x}": (16, 16) if x in ("q", "output") else (8, 16) for x in ("q", "k", "v", "output")
        }
        stacked = (experts,) if experts else ()
        end = "_exps" if experts else ""
        shapes |= {
            f"blk.{at}.ffn_{x}{end}": (*stacked, *((16, 40) if x == "down" else (40, 16)))
            for x in ("gate", "up", "down")
        }
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    total = 0
    for name, shape in shapes.items():
        tensor = np.zeros(shape, dtype=np.float16)
        writer.add_tensor(f"{name}.weight", tensor)
        total += tensor.nbytes
    for name in ["output_norm", *(f"blk.{at}.{kind}_norm" for at in range(num_layers) for kind in ("attn", "ffn"))]:
        writer.add_tensor(f"{name}.weight", np.ones(16, dtype=np.float32))
        total += 64
    for name in scalars:
        writer.add_tensor(name, np.zeros((), dtype=np.float32))
        total += 4
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


def test_damaged_gguf_files_are_refused(tmp_path: Path) -> None:
    """Whatever the bytes, the error is one line that says what is wrong, or the file can be used."""
    write_gguf(tmp_path / "m.gguf", num_layers=2)
    whole, rng = (tmp_path / "m.gguf").read_bytes(), np.random.default_rng(0)
    fields = whole.index(b"blk.0")
    said = []
    for _ in range(150):
        text = bytearray(whole)
        for at in rng.integers(0, fields, 2).tolist():
            text[at : at + int(rng.integers(3))] = bytes(rng.integers(0, 256, int(rng.integers(3)), dtype=np.uint8))
        (tmp_path / "bad.gguf").write_bytes(text)
        try:
            llm.load(tmp_path / "bad.gguf")
        except RlinitError as problem:
            said.append(str(problem))
    assert said
    assert not any("\n" in line for line in said)


def test_a_gguf_tensor_without_axes_is_one_number(tmp_path: Path) -> None:
    """Of weights as of biases."""
    names = ("blk.0.ffn_norm_scale.weight", "blk.1.attn_scale.bias")
    total = write_gguf(tmp_path / "m.gguf", num_layers=2, scalars=names)
    model = llm.load(tmp_path / "m.gguf")
    assert sum(model.weight_bytes(part) for part in model.architecture.parts) == total


def test_gguf_files_are_read_as_they_are(tmp_path: Path) -> None:
    """Bytes are the file's, parameters, matrices and cache those of the same model's configuration."""
    total = write_gguf(tmp_path / "m.gguf")
    model = llm.load(tmp_path / "m.gguf", prompt=7, output=5, dtype="fp16")
    same = llm.load(CONFIG, prompt=7, output=5, dtype="fp16")
    assert sum(model.weight_bytes(part) for part in model.architecture.parts) == total
    assert model.num_params == same.num_params
    for ours, theirs in zip(model.architecture.parts, same.architecture.parts, strict=True):
        assert (ours.name, ours.active, ours.kv_numbers) == (theirs.name, theirs.active, theirs.kv_numbers)
        assert ours.pair_flops == theirs.pair_flops
    assert model.architecture.max_context == 128
    write_gguf(tmp_path / "s.gguf", scaling=4.0)
    assert llm.load(tmp_path / "s.gguf", context=512).architecture.max_context == 512
    write_gguf(tmp_path / "e.gguf", experts=4)
    experts = llm.load(tmp_path / "e.gguf").architecture.parts[3]
    assert (experts.kind, experts.experts, experts.experts_per_token) == ("experts", 4, 2)
    assert experts.active == experts.params // 2


def placed_by_llama_cpp(flags: list[str], names: list[str], num_layers: int) -> dict[str, str]:
    """Return where llama.cpp puts each tensor: the rule of `llama_model::load_tensors`, then the overrides."""
    said = dict(zip(flags[::2], flags[1::2], strict=True))
    count, order = int(said["-ngl"]), said.get("--device", "").split(",")
    shares = np.array([float(share) for share in said.get("-ts", "1").split(",")], dtype=np.float32)
    ends = np.cumsum(shares, dtype=np.float32) / shares.sum(dtype=np.float32)
    start = max(num_layers + 1 - count, 0)

    def layer_device(at: int) -> str:
        if at < start:
            return "CPU"
        return order[int(np.searchsorted(ends, np.float32(at - start) / np.float32(count), side="right"))]

    found = {}
    for name in names:
        match = re.match(r"blk\.(\d+)\.", name)
        at = int(match[1]) if match else num_layers
        found[name] = "CPU" if name.startswith("token_embd") else layer_device(at)
        if re.search(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", name) and at < int(said.get("--n-cpu-moe", "0")):
            found[name] = "CPU"
        for rule in said.get("-ot", "").split(","):
            pattern, _, device = rule.rpartition("=")
            if pattern and re.search(pattern, name):
                found[name] = device
    return found


@pytest.mark.parametrize("first", [("cpu",), ()])
@pytest.mark.parametrize("granularity", ["layer", "part"])
def test_llama_cpp_puts_tensors_where_the_plan_says(tmp_path: Path, first: tuple[str, ...], granularity: Any) -> None:
    """Tensors of a GGUF file lie on the plan's devices, by llama.cpp's own rule and the patterns."""
    write_gguf(tmp_path / "m.gguf")
    tensors = [one.name for one in pytest.importorskip("gguf").GGUFReader(tmp_path / "m.gguf").tensors]
    model = llm.load(tmp_path / "m.gguf", prompt=7, output=5)
    devices = {"gpu0": "CUDA0", "gpu1": "CUDA1", "cpu": "CPU"}
    for order, share in (("gpu0 gpu1 cpu", 0.45), ("cpu gpu1 gpu0", 0.45), ("cpu gpu0", 0.8), ("gpu0 cpu", 0.8)):
        plan = made(model, order, share, first=first, granularity=granularity)
        flags = llm.to_llama_cpp(plan, devices)
        where = placed_by_llama_cpp(flags, tensors, 6)
        for name, device in where.items():
            match = re.match(r"blk\.(\d+)\.(attn|ffn)", name)
            unit = "head" if match is None else f"layer{match[1]}"
            if match and granularity == "part":
                unit += ".attention" if match[2] == "attn" or "norm" in name else ".feed_forward"
            if not name.startswith("token_embd"):
                assert device == devices[plan.assignment[unit]], (name, flags)


def test_vllm_is_told_the_layers_of_each_rank() -> None:
    """Layers add up, and cuts inside a layer or ranks without one are refused."""
    plan = made(llm.load(CONFIG, prompt=7, output=5))
    found = llm.to_vllm(plan)
    assert sum(int(count) for count in found["VLLM_PP_LAYER_PARTITION"].split(",")) == 6
    assert found["--pipeline-parallel-size"] == str(len(plan.spans))
    assert found["--max-model-len"] == "12"
    own = llm.to_vllm(llm.plan(llm.load(MIXTURE, context=4096), "4xrtx3090", runtime="vllm", objective="pipeline"))
    assert own["--max-num-batched-tokens"] == "2048"
    assert own["--gpu-memory-utilization"] == "0.96"  # 1 GB of 24 GiB is the reserve
    inside = made(llm.load(CONFIG | {"num_hidden_layers": 1}, prompt=7, output=5), "abc", 0.45, granularity="part")
    with pytest.raises(InvalidPlan, match=r"cuts inside layer|has no decoder layer"):
        llm.to_vllm(inside)


def test_nothing_is_exported_without_a_split() -> None:
    """An infeasible plan and a device without a name are refused."""
    model = llm.load(CONFIG)
    none = llm.plan(model, Hardware.mesh([Device("a", "", 10.0, flops_per_s=1.0, bytes_per_s=1.0)], 1e6))
    with pytest.raises(InvalidPlan, match="infeasible"):
        llm.to_device_map(none)
    with pytest.raises(InvalidPlan, match="no name"):
        llm.to_llama_cpp(made(model), {})


MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate_inp", "ffn_gate_exps",
    "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps", "ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp",
)  # fmt: skip


@pytest.mark.parametrize("hardware", ["t4+cpu", "t4+rtx4090+cpu", "2xt4+cpu"])
@pytest.mark.parametrize("context", [4096, 40960])
def test_llama_cpp_moves_experts_and_nothing_else(hardware: str, context: int) -> None:
    """Norms, router and shared experts stay with the attention; experts of the first layers are one flag."""
    model = llm.load(MIXTURE, context=context, dtype="int8")
    plan = llm.plan(model, hardware, granularity="part", contiguous=False)
    gpus = [device.name for device in Hardware.preset(hardware).devices if device.kind != "cpu"]
    devices = {"cpu": "CPU"} | {name: f"CUDA{at}" for at, name in enumerate(gpus)}
    owners = [plan.assignment[f"layer{at}.attention"] for at in range(48)]
    if len(list(groupby(owners))) > len(set(owners)):  # the best placement need not be one that llama.cpp can say
        with pytest.raises(InvalidPlan, match="not in a row"):
            llm.to_llama_cpp(plan, devices)
        return
    flags = llm.to_llama_cpp(plan, devices)
    assert flags[flags.index("-c") + 1] == str(context)
    if hardware == "t4+cpu":
        assert "--n-cpu-moe" in flags
        assert not any("exps" in flag for flag in flags)
    names = [f"blk.{at}.{tensor}.weight" for at in range(48) for tensor in TENSORS]
    for name, device in placed_by_llama_cpp(flags, names, 48).items():
        part = "feed_forward" if "_exps" in name else "attention"
        unit = f"layer{name.split('.')[1]}.{part}"
        assert device == devices[plan.assignment[unit]], (name, flags)


def test_the_sizes_that_memory_goes_by_are_told() -> None:
    """Context of all sequences, micro-batch and attention are flags where they are not llama.cpp's defaults."""
    model = llm.load(CONFIG, prompt=7, output=5, batch=3)
    plan = made(model, "ab", flash_attention=False, micro_batch=128)
    flags = llm.to_llama_cpp(plan, {"a": "CUDA0", "b": "CUDA1"})
    assert flags[-6:] == ["-c", "36", "-ub", "128", "-fa", "off"]
