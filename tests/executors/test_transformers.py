"""Language models of transformers, as they come: a cache that is on, keyword inputs, tied weights."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import rlinit  # noqa: E402
from rlinit import Graph, Hardware  # noqa: E402
from rlinit.errors import InvalidPlan  # noqa: E402
from rlinit.importers.torch.export import export_program  # noqa: E402

IDS = torch.arange(14).reshape(2, 7)
MASK = torch.ones(2, 7, dtype=torch.int64)


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
        "llama": transformers.LlamaForCausalLM(llama).eval(),
        "gpt2": transformers.GPT2LMHeadModel(gpt2).eval(),
    }


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return models()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_imported_and_run_as_they_are(built: dict[str, Any], name: str) -> None:
    """The cache is left out by itself, and stays on in the model; outputs are the model's."""
    model = built[name]
    graph = Graph.from_torch(model, (IDS,))
    assert model.config.use_cache
    plan = rlinit.schedule(graph, Hardware.preset("cpu-t4-a100"), objective="latency", time_limit_s=1)
    outputs = rlinit.run(plan, model, IDS)
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model(IDS).logits)
    assert bool(graph.groups) == (name == "gpt2")


def test_keyword_inputs(built: dict[str, Any]) -> None:
    """Inputs by keyword are imported, planned and run, in any order; a missing one is named."""
    model, inputs = built["llama"], {"input_ids": IDS, "attention_mask": MASK}
    graph = Graph.from_torch(model, (), inputs)
    plan = rlinit.schedule(graph, Hardware.preset("cpu-t4-a100"), objective="latency", time_limit_s=1)
    outputs = rlinit.run(plan, model, kwargs=dict(reversed(inputs.items())), graph=graph)
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model(**inputs).logits)
    program = export_program(model, (), inputs)
    with pytest.raises(InvalidPlan, match="attention_mask"):
        rlinit.run(plan, program, kwargs={"input_ids": IDS}, graph=graph)
