"""Menus of traced models: what they add up to, that plans by them hold, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit import llm
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidGraph, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.stages.groups.layouts import layouts_of
from rlinit.stages.groups.traced_menus import with_traced_menu
from tests.late import late_imports

with late_imports():
    from tests.stages.groups import models

MACHINE = Hardware.preset("2x8xa100-80g")
EIGHT = Hardware.preset("8xa100-80g")


def traced(name: str, granularity: Any = "op") -> Graph:
    module, args = models.case(name)
    return Graph.from_torch(module, args, granularity=granularity, dtype="bf16")


def test_plain_variants_take_what_the_ops_take() -> None:
    graph = traced("llama")
    menu = with_traced_menu(graph, EIGHT, training="1f1b", optimizer="adam-bf16").menu
    assert menu is not None
    seconds = op_times(graph, EIGHT.devices[0])
    for v, name in enumerate(graph.names):
        (plain,) = menu.ops[name][1]
        assert plain.time_s == pytest.approx(3.0 * seconds[v])
        assert plain.param_bytes == graph.param_bytes[v] - graph.constant_bytes[v]
        assert plain.fixed_bytes == pytest.approx(8.0 * plain.param_bytes + graph.constant_bytes[v])
    kept = sum(rows[1][0].held_bytes for rows in menu.ops.values())
    views = np.array([bool(graph.extras[v].get("view")) for v in range(graph.num_ops)])
    assert kept == pytest.approx(graph.made_bytes[~views].sum())


def test_constants_are_held_and_not_exchanged() -> None:
    """Buffers, and parameters without a gradient, take memory, but no exchange and no state of an optimizer."""
    module, args = models.with_constants()
    graph = Graph.from_torch(module, args)
    trained = sum(one.numel() * 4.0 for one in module.parameters() if one.requires_grad)
    constant = graph.total_param_bytes - trained
    assert constant == graph.constant_bytes.sum() == (4 * 8 + 8 * 8 + 8) * 4.0
    for training, exchanged, held in (("1f1b", trained, 4.0 * trained + constant), (None, None, trained + constant)):
        menu = with_traced_menu(graph, EIGHT, training=training, optimizer="adam").menu  # type: ignore[arg-type]
        assert menu is not None
        for degree in (1, 2):
            rows = [ways[degree][0] for ways in menu.ops.values()]
            share = sum(row.fixed_bytes for row in rows) / held
            assert share == 1.0 if degree == 1 else 0.5 <= share < 1.0
            if exchanged is not None:
                assert sum(row.param_bytes for row in rows) <= exchanged / (1 if degree == 1 else 1.5)


def test_layers_kept_whole_add_up_and_may_recompute() -> None:
    apart, whole = (with_traced_menu(traced("gpt2", how), EIGHT, training="1f1b") for how in ("op", "layer"))
    for degree in (1, 2, 4, 8):
        rows = [[graph.menu.ops[name][degree] for name in graph.names] for graph in (apart, whole)]  # type: ignore[union-attr]
        for what in ("time_s", "param_bytes", "fixed_bytes"):
            sums = [sum(getattr(variants[0], what) for variants in each) for each in rows]
            assert sums[0] == pytest.approx(sums[1])
    names = [variant.name for ways in whole.menu.ops.values() for variant in ways[2]]  # type: ignore[union-attr]
    assert names.count("sequence recomputed") >= 2
    for ways in whole.menu.ops.values():  # type: ignore[union-attr]
        for plain, *again in ways.values():
            for variant in again:
                assert plain.time_s < variant.time_s < 2.0 * plain.time_s  # type: ignore[operator]
                assert variant.held_bytes < plain.held_bytes


@pytest.mark.parametrize("name", ["llama", "convolutions", "mixtral"])
def test_plans_of_traced_models_hold(name: str, tmp_path: Any) -> None:
    graph = traced(name, "layer" if name != "convolutions" else "op")
    asked: dict[str, Any] = {"replicas": "auto", "tensor_parallel": "auto", "training": "1f1b", "microbatches": 16}
    plan = rlinit.schedule(graph, EIGHT, **asked, recompute="auto")
    planned = with_traced_menu(graph, EIGHT, training="1f1b")
    assert plan.status == "optimal"
    rlinit.verify(plan, planned, EIGHT)
    assert not plan.certify(tmp_path / "proof.json", planned, EIGHT)
    alone = rlinit.schedule(graph, EIGHT, tensor_parallel=1, replicas="auto", training="1f1b", microbatches=16)
    assert plan.value <= alone.value * (1 + 1e-9)


def test_a_menu_agrees_with_that_of_the_config(tmp_path: Any) -> None:
    """A layer that was traced takes about what the config's architecture says, degree by degree."""
    config = {
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 16},
        **{"num_key_value_heads": 8, "vocab_size": 4096, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        **{"torch_dtype": "bfloat16", "tie_word_embeddings": False},
    }
    module, args = models.without_weights(config)
    ours = with_traced_menu(
        Graph.from_torch(module, args, granularity="layer", dtype="bf16"),
        EIGHT,
        training="1f1b",
        optimizer="adam-bf16",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = llm.to_graph(llm.load(tmp_path / "config.json", context=2048), EIGHT, training="1f1b", microbatches=8)
    assert ours.menu is not None
    assert theirs.menu is not None
    for degree in (1, 2, 4, 8):
        mine = ours.menu.ops["model.layers.1"][degree][0]
        (other,) = (one for one in theirs.menu.ops["layer1"][degree] if one.name == mine.name)
        assert mine.param_bytes == other.param_bytes
        masks = mine.fixed_bytes - 8.0 * mine.param_bytes  # and tables of positions, which configs do not count
        assert 0.0 <= masks < 8e6
        assert 0.7 < mine.time_s / other.time_s < 2.0  # type: ignore[operator]
        whole = ours.menu.ops["model.layers.1"][1][0].held_bytes
        assert degree * mine.held_bytes == pytest.approx(whole, rel=0.1)
        assert sum(mine.sync_bytes.values()) == pytest.approx(sum(other.sync_bytes.values()))


def test_given_seconds_shrink_as_the_roofline_does() -> None:
    graph = traced("llama")
    seconds = op_times(graph, EIGHT.devices[0])
    given = replace(graph, times={(EIGHT.devices[0].kind, 1): 2.0 * seconds})
    group = replace(EIGHT, latency_s=np.zeros_like(EIGHT.latency_s), bandwidth=np.full_like(EIGHT.bandwidth, np.inf))
    one, two = (with_traced_menu(each, group).menu for each in (graph, given))
    assert one is not None
    assert two is not None
    for name in graph.names:
        for degree in (1, 2, 8):
            assert two.ops[name][degree][0].time_s == pytest.approx(2.0 * one.ops[name][degree][0].time_s)  # type: ignore[operator]


def test_what_no_rule_splits_is_said() -> None:
    rows = [("a", {"flops": 1e9, "out_bytes": 8}), ("b", {"flops": 1e9, "out_bytes": 8})]
    plan = rlinit.schedule(Graph.build(rows, [("a", "b")]), EIGHT, tensor_parallel=2, replicas="auto")
    assert any("does all of 2 ops with 100% of the operations" in note for note in plan.notes)


def test_models_that_share_devices_are_split_as_they_are_alone() -> None:
    models = {name: (traced(name), 1.0) for name in ("llama", "bert")}
    both = Graph.union(models, EIGHT)
    for degree in (2, 4):
        apart = [layouts_of(graph, degree)[0] for graph, _ in models.values()]
        assert layouts_of(both, degree)[0].work.tolist() == [share for one in apart for share in one.work]


def test_unlike_kinds_have_seconds_of_their_own() -> None:
    both = Hardware.preset("1x8xa100-80g+1x4xl4")
    menu = with_traced_menu(traced("llama", "layer"), both).menu
    assert menu is not None
    fast, slow = both.devices[0].kind, both.devices[-1].kind
    time = menu.ops["model.layers.0"][4][0].time_s
    assert isinstance(time, dict)
    assert time[slow] > time[fast]
    assert set(menu.ops["model.layers.0"][8][0].time_s) == {fast}  # type: ignore[arg-type]


def test_what_menus_of_traced_models_do_not_take() -> None:
    row = {"flops": 1e9, "out_bytes": 8}
    forbidden = Graph.build([("a", row | {"forbidden": [EIGHT.devices[0].kind]})], [])
    backward = Graph.build([("a", row), ("b", row | {"backward_of": "a"})], [("a", "b")])
    for graph, what in ((forbidden, "forbidden"), (backward, "backward ops")):
        with pytest.raises(InvalidGraph, match=what):
            rlinit.schedule(graph, EIGHT, replicas="auto")
    menu = Graph.build([("a", {"menu": {"1": [{"name": "plain", "time_s": 1.0}]}})], [])
    with pytest.raises(RlinitError, match="optimizer"):
        rlinit.schedule(menu, EIGHT, replicas="auto", optimizer="sgd")
