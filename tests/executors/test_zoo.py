"""Models of transformers and pytorchcv, with random weights, run by plans."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rlinit.executors
from benchmarks.components.pytorchcv_models import image_network
from rlinit.importers.torch.export import export_program, from_program
from tests.executors.plans import random_hardware, random_plan
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.executors.lowering.torch_program import export_model
    from tests.executors.models import check_same


TEXT = {
    "GPT2": {"n_layer": 2, "n_head": 2, "n_embd": 16},
    "Bert": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
    "Llama": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
    "OPT": {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "ffn_dim": 32,
        "word_embed_proj_dim": 16,
    },
}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
IMAGES = ["resnet10", "shufflenetv2_wd2", "squeezenet_v1_1"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def transformer(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a small transformer and inputs for it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "Swin":
        model = transformers.SwinModel(transformers.SwinConfig(**SWIN))
        return model.eval(), (torch.randn(4, 3, 32, 32),)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(vocab_size=100, use_cache=False, **ends, **TEXT[name])
    return getattr(transformers, f"{name}Model")(config).eval(), (torch.randint(3, 100, (4, 6)),)


def network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return an image classifier and inputs for it."""
    if importlib.util.find_spec("pytorchcv") is None:
        pytest.skip("pytorchcv is not installed")
    torch.manual_seed(0)
    return image_network(name, batch=4)


CASES: list[tuple[str, Callable[[str], tuple[Any, tuple[Any, ...]]]]] = [
    *((name, transformer) for name in [*TEXT, "Swin"]),
    *((name, network) for name in IMAGES),
]


@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_latency(name: str, make: Callable[[str], tuple[Any, tuple[Any, ...]]]) -> None:
    """A random placement over three devices gives bit for bit what the model gives."""
    model, inputs = make(name)
    program = export_program(model, inputs)
    graph = from_program(program)
    graph = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
    plan = random_plan(graph, random_hardware(1, 3), 1)
    check_same(model, inputs, rlinit.executors.execute(plan, program, *inputs, graph=graph).outputs)


@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_throughput(name: str, make: Callable[[str], tuple[Any, tuple[Any, ...]]]) -> None:
    """Four inputs split over three devices give what the model gives, up to the rounding of batched kernels."""
    model, inputs = make(name)
    program = export_model(model, inputs, dynamic_batch=4)
    graph = from_program(program)
    graph = dataclasses.replace(graph, times={("*", size): np.ones(graph.num_ops) for size in (1, 2, 3, 4)})
    plan = random_plan(graph, random_hardware(1, 3), 1, inputs=4)
    result = rlinit.executors.execute(plan, program, *inputs, graph=graph)
    check_same(model, inputs, result.outputs, exact=False)
