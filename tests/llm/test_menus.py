"""Menus of language models: what is split, what is kept, what it takes, and plans of several devices by them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rlinit
from rlinit import llm
from rlinit.errors import InvalidConfig, InvalidHardware, RlinitError
from rlinit.hardware import Device, Hardware
from rlinit.llm.families import FAMILIES
from rlinit.llm.splitting import kept_bytes, share_of
from rlinit.menu import Variant

LLAMA = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT = {"model_type": "gpt2", "n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 1024, "n_positions": 512}


def seconds(variant: Variant) -> float:
    """Return the seconds of a variant that takes as long on all devices."""
    assert not isinstance(variant.time_s, dict)
    return float(variant.time_s)  # type: ignore[arg-type]


def variants(graph: rlinit.Graph, op: str, t: int) -> dict[str, Variant]:
    """Return the variants of an op by name."""
    assert graph.menu is not None
    return {one.name: one for one in graph.menu.ops[op][t]}


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("flash", [False, True])
def test_activations_of_gpt_are_those_of_the_paper(t: int, flash: bool) -> None:
    """Korthikanti et al.: s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism all of it over t."""
    model = llm.load(GPT, context=512)
    a, s, h = 8, 512, 256
    shares = [share_of(part, t) for part in model.architecture.parts[1:3]]
    scores = 0.0 if flash else float(s)
    for scattered, alike in ((1.0, 10.0), (1.0 / t, 10.0 / t)):
        kept = sum(kept_bytes(share, "gpt2", h, scattered, 2.0, scores) for share in shares)
        assert kept == pytest.approx(h * (alike + 24 / t + (0 if flash else 5 * a * s / (h * t))))
    head = kept_bytes(share_of(model.architecture.parts[-1], t), "gpt2", h, 1.0 / t, 2.0)
    assert head == pytest.approx(4 * h * (1 + 1024 / h) / t)


@pytest.mark.parametrize("family", FAMILIES)
def test_devices_of_a_group_hold_the_model_between_them(family: str) -> None:
    """Every family has a menu at every degree; a group has all products once, but for keys that few heads share."""
    sizes = {"num_hidden_layers": 4, "n_layer": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 1408}
    model = llm.load({"model_type": family, **sizes}, context=16)
    graph = llm.to_graph(model, Hardware.preset("2x4xa100-80g"), training="1f1b", microbatches=4)
    assert graph.menu is not None
    assert graph.menu.degrees == (1, 2, 4)
    assert list(graph.names) == [name for name, _ in model.units()]
    assert graph.extras[0]["note"]["replicated"] == []
    for part in model.architecture.parts:
        alike = [one.size for one in part.tensors if one.name.endswith(("k_proj", "v_proj", "qkv_proj"))]
        alike += [one.size for one in part.tensors if not one.is_matrix or "_a_" in one.name]
        alike += [one.size for one in part.tensors if one.name.endswith((".gate", ".router", "expert_gate"))]
        for t in (2, 4):
            for spread in (False, True):
                share = share_of(part, t, spread=spread)
                assert part.params <= t * share.part.params <= part.params + (t - 1) * (sum(alike) + part.params // 500)


def test_variants_say_what_they_take() -> None:
    """Groups take less time and bytes, sequence parallelism fewer bytes yet, recomputation time for bytes."""
    model = llm.load(LLAMA, context=1024, batch=2)
    hardware = Hardware.preset("2x4xa100-80g")
    graph = llm.to_graph(model, hardware, training="1f1b", microbatches=8)
    one, four = variants(graph, "layer0", 1), variants(graph, "layer0", 4)
    assert list(one) == ["plain", "plain recomputed"]
    assert list(four) == ["tensor", "tensor recomputed", "sequence", "sequence recomputed"]
    assert one["plain recomputed"].held_bytes == 2 * 1024 * 512 * 2
    assert four["sequence recomputed"].held_bytes == one["plain recomputed"].held_bytes / 4
    assert four["sequence"].held_bytes == pytest.approx(one["plain"].held_bytes / 4)
    assert four["sequence"].held_bytes < four["tensor"].held_bytes < one["plain"].held_bytes
    assert seconds(one["plain recomputed"]) == pytest.approx(seconds(one["plain"]) * 4 / 3)
    assert one["plain"].fixed_bytes == 8 * one["plain"].param_bytes
    assert four["tensor"].sync_bytes == {"embedding": 0.75 * 2 * 1024 * 512 * 2}
    assert four["sequence"].sync_bytes == {}
    slow = Hardware.preset("2x4xl4")
    apart = variants(llm.to_graph(model, slow, training="1f1b", microbatches=8), "layer0", 4)
    size, steps = 2 * 1024 * 512 * 2.0, 2 * 3
    sent = 4 * steps * (10e-6 + size / 4 / 31.5e9)
    near = Hardware(slow.devices, np.full_like(slow.bandwidth, np.inf), np.zeros_like(slow.latency_s))
    alone = variants(llm.to_graph(model, near, training="1f1b", microbatches=8, degrees=(4,)), "layer0", 4)
    assert seconds(apart["tensor"]) == pytest.approx(seconds(alone["tensor"]) + sent)


@pytest.mark.parametrize(("zero", "fixed", "shared"), [(0, 8, 0), (1, 2, 6), (2, 1, 7), (3, 0, 8)])
def test_zero_moves_states_to_what_is_shared(zero: int, fixed: int, shared: int) -> None:
    """Of 16 bytes a parameter stages share 12, 14 and 16; exchange and workspace go with it."""
    model = llm.load(LLAMA, context=256)
    graph = llm.to_graph(model, Hardware.preset("2x4xa100-80g"), training="1f1b", microbatches=8, zero=zero)
    row = variants(graph, "layer0", 2)["tensor"]
    assert (row.fixed_bytes, row.shared_bytes) == (fixed * row.param_bytes, shared * row.param_bytes)
    assert graph.extras[0]["note"]["exchange"] == ("ring", "ring", "zero2", "zero3")[zero]


def test_experts_are_split_or_spread() -> None:
    """Both ways hold the same weights; what tokens leave is less where whole experts are dealt out."""
    model = llm.load(MIXTRAL, context=1024)
    graph = llm.to_graph(model, Hardware.preset("1x8xa100-80g"), training="1f1b", microbatches=8)
    rows = variants(graph, "layer0", 8)
    assert {"tensor", "tensor experts", "sequence", "sequence experts"} < set(rows)
    assert rows["sequence experts"].param_bytes == rows["sequence"].param_bytes
    assert rows["sequence experts"].held_bytes < rows["sequence"].held_bytes
    skewed = llm.load(MIXTRAL, context=1024, shares=[1.0, *[1 / 7] * 7])
    worse = variants(llm.to_graph(skewed, Hardware.preset("1x8xa100-80g"), training="1f1b"), "layer0", 8)
    assert seconds(worse["sequence experts"]) > seconds(rows["sequence experts"])
    assert worse["sequence experts"].held_bytes > rows["sequence experts"].held_bytes


def test_what_no_rule_splits_is_said() -> None:
    """Heads that do not divide stay whole on every device, in a note of the plan."""
    odd = LLAMA | {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 384}
    model, hardware = llm.load(odd, context=256), Hardware.preset("2x4xa100-80g")
    plan = llm.plan(model, hardware, replicas="auto", tensor_parallel="auto", training="1f1b", microbatches=8)
    assert any("attention is not split over 2 or 4 devices" in note for note in plan.notes)
    assert any(note.endswith("tokens a second") for note in plan.notes)


@pytest.mark.parametrize(
    "asked",
    [
        {"training": "1f1b", "microbatches": 8, "recompute": "auto", "zero": 1},
        {"training": "gpipe", "microbatches": 8, "tensor_parallel": 2, "replicas": "auto", "zero": 3},
        {"training": "1f1b", "microbatches": 8, "replicas": 1, "tensor_parallel": 1, "recompute": "all"},
        {"training": "1f1b", "microbatches": 8, "uniform": True, "granularity": "part"},
        {"replicas": "auto", "tensor_parallel": "auto"},
        {"replicas": "auto", "tensor_parallel": "auto", "objective": "prefill", "microbatches": 4},
    ],
)
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL])
def test_plans_are_those_of_schedule(config: dict[str, Any], asked: dict[str, Any]) -> None:
    """They are proven, hold in nodes, and are verified against the graph that `to_graph` gives."""
    model = llm.load(config, context=256, prompt=200, output=56, batch=4)
    tight = [replace(device, memory_bytes=1.7e9) for device in Hardware.preset("2x4xa100-80g").devices]
    hardware = replace(Hardware.preset("2x4xa100-80g"), devices=tuple(tight))
    plan = llm.plan(model, hardware, **asked)
    assert plan.status == "optimal", plan.message
    alone = asked.get("replicas") == asked.get("tensor_parallel") == 1
    names = ("training", "microbatches", "granularity", "zero")
    graph = llm.to_graph(
        model, hardware, **{name: asked[name] for name in names if name in asked},
        recompute=asked.get("recompute", "none") != "none", phase=asked.get("objective", "decode"),
        degrees=(1,) if alone else None,
    )  # fmt: skip
    rlinit.verify(plan, graph, hardware)
    node_of = {device.name: device.node for device in hardware.devices}
    for use in plan.stages:
        for at in range(0, len(use.devices), use.tensor_parallel):
            assert len({node_of[name] for name in use.devices[at : at + use.tensor_parallel]}) == 1
    values = [value for value in plan.baselines.values() if value is not None]
    assert all(value >= plan.value * (1 - 1e-9) for value in values)
    if asked.get("recompute") == "all":
        assert all("recomputed" in way for use in plan.stages for op, way in use.variants.items() if "layer" in op)


def test_collectives_are_those_that_were_measured() -> None:
    """Where the tables of a device have all-reduces, these count in place of a ring."""

    class Tables:
        @staticmethod
        def collective(kind: str, devices: int, size: float) -> Any:
            assert (kind, devices) == ("all_reduce", 2)
            return SimpleNamespace(seconds=[2.0])

        @staticmethod
        def nothing(*_: Any, **__: Any) -> None:
            return None

        product = attention = experts = nothing

    hardware = Hardware.preset("1x2xa100-80g")
    model = llm.load(LLAMA, context=256)
    measured = replace(model, costs=cast("Any", {"a100": Tables}))
    rows = [variants(llm.to_graph(one, hardware, training="1f1b"), "layer0", 2)["tensor"] for one in (model, measured)]
    assert seconds(rows[1]) - seconds(rows[0]) == pytest.approx(4 * 2.0, rel=1e-3)


def test_caches_are_dealt_out_among_replicas() -> None:
    """Of the batches under way every replica of a stage holds its part."""
    model, hardware = llm.load(LLAMA, context=1024, batch=3), Hardware.preset("2x4xa100-80g")
    graph = llm.to_graph(model, hardware, microbatches=6)
    layer, head = variants(graph, "layer1", 2)["tensor"], variants(graph, "head", 2)["tensor"]
    assert layer.shared_bytes == 6 * model.kv_bytes(model.architecture.parts[3]) / 2
    assert (layer.held_bytes, head.shared_bytes) == (0.0, 0.0)
    assert graph.out_bytes[0] == 3 * 512 * 2


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"zero": 1}, InvalidConfig, "zero is for stages of several devices"),
        ({"recompute": "auto"}, InvalidConfig, "recompute is for stages of several devices"),
        ({"replicas": "auto", "zero": 1}, InvalidConfig, "0 without training"),
        ({"training": "1f1b", "microbatches": 4, "zero": 4}, InvalidConfig, "zero is 4; expected 0 to 3"),
        ({"replicas": "auto", "first": ("a100-0",)}, InvalidConfig, "leave --first out"),
        ({"replicas": "auto", "reserve_bytes": 1e9}, InvalidConfig, "leave --reserve out"),
        ({"replicas": "auto", "objective": "request"}, InvalidConfig, "decode or prefill"),
        ({"training": "1f1b"}, RlinitError, "microbatches is None"),
        ({"training": "zb", "microbatches": 4}, RlinitError, "1f1b or gpipe"),
        ({"replicas": 3, "training": "1f1b", "microbatches": 4}, RlinitError, "divisor of the 4"),
        ({"replicas": 0}, RlinitError, "replicas is 0"),
        ({"tensor_parallel": 8}, RlinitError, "the menu has 1, 2, 4"),
        ({"training": "1f1b", "microbatches": 4, "optimizer": "lion"}, RlinitError, "optimizer is 'lion'"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    """One line says which argument, and the way on."""
    with pytest.raises(error, match=said):
        llm.plan(llm.load(LLAMA, context=256), "2x4xa100-80g", **asked)


def test_hardware_and_weights_must_do() -> None:
    """Devices without rates, and weights in blocks that are to be trained, are refused."""
    model = llm.load(LLAMA, context=256)
    with pytest.raises(InvalidHardware, match="no flops_per_s"):
        llm.plan(model, Hardware.mesh([Device("a"), Device("b")], 1e9), replicas="auto")
    with pytest.raises(InvalidConfig, match="training takes bf16"):
        llm.plan(llm.load(LLAMA, dtype="int4"), "2xa100", training="1f1b", microbatches=2)
    pair = Hardware.preset("2xa100")
    mixed = replace(pair, devices=(pair.devices[0], replace(pair.devices[1], memory_bytes=9e9)))
    with pytest.raises(InvalidHardware, match="differ"):
        llm.plan(model, mixed, replicas="auto")
