"""Plans for several inputs, made from the graph of one, on the models that they were made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlinit
import rlinit.executors
from rlinit import Graph
from rlinit.errors import InvalidPlan
from rlinit.importers.torch.export import exported
from tests.draws import draws
from tests.executors.plans import random_hardware, random_plan
from tests.late import late_imports

with late_imports():
    import torch
    import transformers
    from torch import nn

    from rlinit.executors.lowering.batch_sizes import calls_at_size
    from rlinit.executors.lowering.torch_program import torch_program
    from tests.executors.models import (
        Chain,
        Deciding,
        RandomNet,
        Rewriting,
        TinyTransformer,
        Variadic,
        flat,
    )

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A model with positional and keyword inputs for four rows."""

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    **dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id"], 0),
}


def tokens(length: int = 7) -> Any:
    """Return (4, length) tokens."""
    return torch.arange(4 * length).reshape(4, length) % 50


def built(model: str, config: str, **sizes: Any) -> Any:
    """Return a model of transformers by the names of its class and its configuration's."""
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()


def language(name: str, masked: bool = False, **more: Any) -> Made:
    """Return a small causal language model."""
    model = built(f"{name}ForCausalLM", f"{name}Config", **(SMALL | more))
    named = {"input_ids": tokens(), "attention_mask": torch.ones(4, 7, dtype=torch.int64)}
    return model, () if masked else (tokens(),), named if masked else {}


def gpt2() -> Made:
    """Return a small GPT-2 with its head."""
    small = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return built("GPT2LMHeadModel", "GPT2Config", **small, bos_token_id=0, eos_token_id=0), (tokens(),), {}


def whisper() -> Made:
    """Return a small encoder and decoder, with an input by keyword."""
    small = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    wide = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8, "max_source_positions": 12}
    ends = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"], 0)
    sizes = {"vocab_size": 50, "d_model": 16, "max_target_positions": 16, **small, **wide, **ends}
    return built("WhisperModel", "WhisperConfig", **sizes), (torch.randn(4, 8, 24),), {"decoder_input_ids": tokens(5)}


def swin() -> Made:
    """Return a small Swin, which shifts windows."""
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
    return built("SwinModel", "SwinConfig", **sizes), (torch.randn(4, 3, 32, 32),), {}


def bert() -> Made:
    """Return a small BERT."""
    small = {name: value for name, value in SMALL.items() if "key_value" not in name}
    return built("BertModel", "BertConfig", **small), (tokens(),), {}


MODELS: dict[str, Callable[[], Made]] = {
    "gpt2": gpt2,
    "llama": lambda: language("Llama"),
    "llama, masked": lambda: language("Llama", masked=True),
    "qwen3": lambda: language("Qwen3", head_dim=4, num_hidden_layers=1),
    "gemma2": lambda: language("Gemma2", head_dim=4, sliding_window=4),
    "mistral": lambda: language("Mistral", sliding_window=4, num_hidden_layers=1),
    "bert": bert,
    "whisper": whisper,
    "swin": swin,
    "writes": lambda: (Rewriting().eval(), (torch.randn(4, 8),), {}),
    "any number": lambda: (Variadic(), (torch.randn(4, 8), {"more": [torch.randn(4, 8)]}), {}),
    "batch norm": lambda: (Chain(2).eval(), (torch.randn(4, 3, 8, 8),), {}),
    "tied": lambda: (TinyTransformer().eval(), (tokens(),), {}),
    "lstm": lambda: (nn.LSTM(8, 8, batch_first=True).eval(), (torch.randn(4, 5, 8),), {}),
    "random": lambda: (RandomNet(3, 20).eval(), (torch.randn(4, 4),), {}),
}


@pytest.fixture(autouse=True)
def known_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a model once for inputs of the same shapes, not again for every plan and every run."""
    known: dict[str, Any] = {}

    def known_program(module: Any, *call: Any) -> Any:
        leaves, structure = torch.utils._pytree.tree_flatten(call)
        shapes = [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        key = str((id(module), structure, shapes))
        if key not in known:
            known[key] = exported(module, *call), module  # which keeps its id from another one
        return known[key][0]

    monkeypatch.setattr("rlinit.importers.torch.export.exported", known_program)


def first(value: Any) -> Any:
    """Return the first row of every tensor."""
    return torch.utils._pytree.tree_map(lambda leaf: leaf[:1] if isinstance(leaf, torch.Tensor) else leaf, value)


def several(graph: Graph, seed: int, inputs: int = 4) -> Any:
    """Return a random plan for several inputs over three devices, in batches of all sizes."""
    timed = dataclasses.replace(graph, times={("*", size): np.ones(graph.num_ops) for size in range(1, inputs + 1)})
    return random_plan(timed, random_hardware(seed, 3), seed, inputs=inputs), timed


def check(made: Made, plan: Any, graph: Graph | None) -> None:
    """Check that a run gives what the model gives."""
    model, args, kwargs = made
    outputs = rlinit.run(plan, model, *args, kwargs=kwargs, graph=graph)
    with torch.no_grad():
        expected = model(*args, **kwargs)
    assert type(outputs) is type(expected)
    for mine, true in zip(flat(outputs), flat(expected), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_plans_run_on_the_model_they_were_made_from(name: str) -> None:
    """A plan for four inputs of the graph of one gives the model's outputs, with that graph, and some without."""
    torch.manual_seed(0)
    made = MODELS[name]()
    model, args, kwargs = made
    plan, graph = several(Graph.from_torch(model, first(args), first(kwargs)), seed=1)
    check(made, plan, graph)
    if name in list(MODELS)[-draws(len(MODELS)) :]:
        check(made, plan, None)


@pytest.mark.parametrize("name", ["mixtral", "multi-head attention"])
def test_inputs_that_batches_do_not_keep_apart_run_one_by_one(name: str) -> None:
    """Experts that count tokens, and lists of tokens in another order than that of the inputs, run with a warning."""
    torch.manual_seed(0)
    made = language("Mixtral", num_local_experts=4, num_hidden_layers=1)
    if name != "mixtral":
        made = nn.MultiheadAttention(8, 2, batch_first=True).eval(), tuple(torch.randn(3, 4, 5, 8)), {}
    model, args, kwargs = made
    plan, graph = several(Graph.from_torch(model, first(args), first(kwargs)), seed=1)
    with pytest.warns(UserWarning, match="each input of a batch runs on its own, slower than planned"):
        check(made, plan, graph)


def test_graphs_of_the_whole_batch_run_too() -> None:
    """Where the graph is of as many rows as run, its names are those of the program for all of them."""
    made = MODELS["llama"]()
    plan, graph = several(Graph.from_torch(made[0], made[1]), seed=2)
    check(made, plan, graph)


def test_other_calls_for_other_batch_sizes_are_refused() -> None:
    """A model whose calls depend on the batch size is not run in parts, and the call is named."""
    model, x = Deciding(), torch.randn(4, 3)
    plan, graph = several(Graph.from_torch(model, (x[:1],)), seed=0)
    with pytest.raises(InvalidPlan, match="other calls for other batch sizes, such as 'relu'"):
        rlinit.run(plan, model, x, graph=graph)
    with pytest.raises(InvalidPlan, match="have 3 rows; the plan is for 4 inputs"):
        rlinit.run(plan, model, x[:3], graph=graph)


def test_calls_at_another_size_read_what_the_others_read() -> None:
    """Copies that one export lacks are looked through, and views become reshapes."""
    model = Rewriting().eval()
    one, four = (torch_program(model, (torch.randn(rows, 8),), []) for rows in (1, 4))
    copies = [sum("clone" in str(node.target) for node in program.nodes) for program in (one, four)]
    assert copies[0] < copies[1]
    calls, own = calls_at_size(one, four)
    assert {node for node in one.nodes if node not in one.constant_nodes} < calls.keys()
    assert set(own.values()) <= {*one.nodes, *one.inputs, *one.constants}
    assert not any("view" in str(call.target) for call in calls.values())
    assert [own[node] for node in four.outputs] == list(one.outputs)


def test_inputs_given_by_name_are_told_where_to_go() -> None:
    """What is given by a name that no parameter has is refused in a line that says how to give it."""
    model, x = Deciding(), torch.randn(1, 3)
    plan, graph = several(Graph.from_torch(model, (x,)), seed=0, inputs=1)
    for call in (rlinit.run, rlinit.executors.execute):
        with pytest.raises(InvalidPlan, match=r"'x' is given by name; .* go into kwargs=\{'x': ...\}"):
            call(plan, model, x=x, graph=graph)
    assert torch.equal(rlinit.run(plan, model, kwargs={"x": x}, graph=graph), torch.tanh(x))
