"""Small models of several families, and how torch exports them to ONNX. Imported late: it needs torch."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers as installed
from torch.onnx._internal.exporter._registration import ONNXRegistry

transformers: Any = installed

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = torch.ones(2, 12, dtype=torch.long)


def vit() -> tuple[Any, tuple[Any, ...]]:
    """Return a vision transformer without a pooler, and a batch of two."""
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=4)
    return transformers.ViTModel(config, add_pooling_layer=False), (torch.ones(2, 3, 16, 16),)


def bert() -> tuple[Any, tuple[Any, ...]]:
    """Return an encoder that is given a mask of what to look at."""
    config = transformers.BertConfig(**SIZES, vocab_size=50)
    return transformers.BertModel(config, add_pooling_layer=False), (TOKENS, torch.ones_like(TOKENS))


def gpt2() -> tuple[Any, tuple[Any, ...]]:
    """Return a decoder whose activation is written out op by op."""
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), (TOKENS,)


def llama() -> tuple[Any, tuple[Any, ...]]:
    """Return a decoder with rotary positions, norms by the root mean square and fewer heads of keys than of queries."""
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=50, use_cache=False)
    return transformers.LlamaForCausalLM(config), (TOKENS,)


def swin() -> tuple[Any, tuple[Any, ...]]:
    """Return a vision transformer of shifted windows."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinModel(config, add_pooling_layer=False), (torch.ones(1, 3, 16, 16),)


class Layers(torch.nn.Module):
    """What no model above has: norms of groups, activations of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.layers = nn.Sequential(
            nn.Conv1d(8, 8, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.GELU(approximate="tanh"), nn.Mish(), nn.GELU(),
            nn.LayerNorm(6), nn.Linear(6, 6), nn.Hardswish(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Return (N, 8, 6) of (N, 8, 6)."""
        return self.layers(x)


def layers() -> tuple[Any, tuple[Any, ...]]:
    """Return `Layers` and its input."""
    return Layers(), (torch.ones(2, 8, 6),)


class First(torch.nn.Module):
    """A model that gives a tensor where another gives several by name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        """Return the first output."""
        made = self.model(*args)
        return made if isinstance(made, torch.Tensor) else next(iter(made.values()))


CASES: Mapping[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], dict[str, Any]]] = {
    "vit, dynamo": (vit, {"dynamo": True}),
    "vit, TorchScript": (vit, {"dynamo": False, "opset_version": 17}),
    "bert, dynamo": (bert, {"dynamo": True}),
    "bert, TorchScript": (bert, {"dynamo": False, "opset_version": 14}),
    "gpt2, dynamo": (gpt2, {"dynamo": True}),
    "llama, dynamo": (llama, {"dynamo": True}),
    "swin, TorchScript": (swin, {"dynamo": False, "opset_version": 17}),
    "layers, dynamo": (layers, {"dynamo": True, "opset_version": 18}),
    "layers, TorchScript": (layers, {"dynamo": False, "opset_version": 11}),
}


once = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
"""What torch reads anew for every export to ONNX, by the version of its operators."""


def exported(case: str, path: Path) -> tuple[Any, tuple[Any, ...]]:
    """Write a case's model to an ONNX file, and return the model and its arguments."""
    make, options = CASES[case]
    torch.manual_seed(0)
    model, args = make()
    model = First(model).eval()
    with warnings.catch_warnings(), patch.object(ONNXRegistry, "from_torchlib", once):
        warnings.simplefilter("ignore")
        # A copy, since tracing leaves tensors in Swin where it had numbers.
        torch.onnx.export(copy.deepcopy(model), args, str(path), verbose=False, **options)
    return model, args
