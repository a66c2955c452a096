"""Stages of several devices over processes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.plan import Plan
from rlinit.stages.groups.decoder_spans import Span, decoder_spans
from tests.executors.processes import run_module

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers")


@needs_transformers
def test_loss_gradients_and_logits_are_those_of_one_process() -> None:
    """Plain, of experts, and with tied weights, on 2, 4 and 8 processes; a process that ends is noticed."""
    result = run_module("tests.executors.groups_job", "2", "4", "8")
    assert result.returncode == 0, result.stderr[-3000:]


@needs_transformers
def test_the_command_line_trains_and_compares(tmp_path: Path) -> None:
    """A plan and a configuration are all it takes."""
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    ).save_pretrained(tmp_path)
    _plan(tensor_parallel=2, training="1f1b").save(tmp_path / "plan.json")
    result = run_module("rlinit.cli.main", "run", str(tmp_path / "plan.json"), str(tmp_path), "--check", "--json")
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout)
    assert found["processes"] == 2
    assert found["difference"] < 1e-5


def test_a_model_that_is_no_decoder_is_refused_before_processes_start(tmp_path: Path) -> None:
    """In one line."""
    _plan(tensor_parallel=2).save(tmp_path / "plan.json")
    result = run_module("rlinit.cli.main", "run", str(tmp_path / "plan.json"), str(tmp_path / "model.pt2"))
    assert result.returncode == 2
    assert "config.json of transformers" in " ".join(result.stderr.split())
    assert len(result.stderr.splitlines()) <= 4


def _plan(**asked: object) -> Plan:
    menu = {t: [{"name": "plain", "time_s": 1.0 / t}] for t in (1, 2)}
    names = ["embedding", "layer0", "layer1", "head"]
    graph = rlinit.Graph.build(
        [(name, {"menu": menu}) for name in names], list(zip(names, names[1:], [1.0] * 3, strict=False))
    )
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(2)], 1e9)
    return rlinit.schedule(graph, hardware, objective="pipeline", microbatches=2, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ({"embedding": 1, "layer0": 0, "layer1": 1, "head": 1}, "op 'embedding' is on stage 1"),
        ({"embedding": 0, "layer0": 0, "layer1": 1, "head": 0}, "op 'head' is on stage 0"),
        ({"embedding": 0, "layer0": 1, "layer1": 0, "head": 1}, "not on stages in their order"),
        ({"embedding": 0, "layer0": 0, "head": 1}, "1 layers, numbered otherwise"),
        ({"embedding": 0, "layer0.a": 0, "layer0.b": 1, "layer1": 1, "head": 1}, "cuts inside layer 0"),
    ],
)
def test_decoders_run_with_whole_layers_in_their_order(assignment: dict[str, int], says: str) -> None:
    """The message names the op or the layer."""
    plan = _plan(replicas=1, tensor_parallel=1, uniform=True)
    two = replace(plan, assignment=assignment, stages=(plan.stages[0], plan.stages[0]))
    with pytest.raises(InvalidPlan, match=says):
        decoder_spans(two, 2)


def test_spans_follow_names_of_layers() -> None:
    """Those of configurations, and those of modules."""
    plan = _plan(replicas=1, tensor_parallel=1, uniform=True)
    names = {"model.embed_tokens": 0, "model.layers.0.mlp": 0, "model.layers.1": 1, "lm_head": 1}
    two = replace(plan, assignment=names, stages=(plan.stages[0], plan.stages[0]))
    assert decoder_spans(two, 2) == [Span(0, 1, True, False), Span(1, 2, False, True)]


@given(st.integers(1, 12), st.integers(1, 12))
def test_passes_hold_no_more_than_is_planned(count: int, in_flight: int) -> None:
    """Every micro-batch goes forward once, then backward once."""
    order = pytest.importorskip("rlinit.executors.groups").pass_order(range(count), in_flight)
    assert sorted(order) == sorted([(way, m) for way in (True, False) for m in range(count)])
    held: set[int] = set()
    for forward, m in order:
        if forward:
            held.add(m)
        else:
            held.remove(m)
        assert len(held) <= in_flight
