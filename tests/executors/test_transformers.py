"""Language models of transformers, as they come: a cache that is on, keyword inputs, tied weights."""

from __future__ import annotations

from typing import Any

import pytest

import rlinit
from rlinit import Graph, Hardware
from rlinit.errors import InvalidPlan
from rlinit.importers.torch.export import export_program
from tests.late import late_imports

with late_imports():
    import torch
    import transformers


def tokens() -> Any:
    """Return (2, 7) tokens."""
    return torch.arange(14).reshape(2, 7)


def models() -> dict[str, Any]:
    """Return small models with random weights: grouped queries; tied embeddings."""
    torch.manual_seed(0)
    llama = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    gpt2 = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return {
        "llama": transformers.LlamaForCausalLM(llama).eval(),  # type: ignore[no-untyped-call]
        "gpt2": transformers.GPT2LMHeadModel(gpt2).eval(),  # type: ignore[no-untyped-call]
    }


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return models()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_imported_and_run_as_they_are(built: dict[str, Any], name: str) -> None:
    """The cache is left out by itself, and stays on in the model; outputs are the model's."""
    model = built[name]
    graph = Graph.from_torch(model, (tokens(),))
    assert model.config.use_cache
    plan = rlinit.schedule(graph, Hardware.preset("cpu-t4-a100"), objective="latency", time_limit_s=1)
    outputs = rlinit.run(plan, model, tokens())
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model(tokens()).logits)
    assert not graph.groups  # tied weights are held on each device that reads them


def test_keyword_inputs(built: dict[str, Any]) -> None:
    """Inputs by keyword are imported, planned and run, in any order; a missing one is named."""
    model, inputs = built["llama"], {"input_ids": tokens(), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    graph = Graph.from_torch(model, (), inputs)
    plan = rlinit.schedule(graph, Hardware.preset("cpu-t4-a100"), objective="latency", time_limit_s=1)
    outputs = rlinit.run(plan, model, kwargs=dict(reversed(inputs.items())), graph=graph)
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model(**inputs).logits)
    program = export_program(model, (), inputs)
    with pytest.raises(InvalidPlan, match="attention_mask"):
        rlinit.run(plan, program, kwargs={"input_ids": tokens()}, graph=graph)
