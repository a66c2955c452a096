"""The part of a decoder of transformers that a stage runs: some of its layers, split over a tensor group.

Configurations of transformers say which modules make up a pipeline (`base_model_pp_plan`), and models which products
are split by columns and rows (`tp_plan`); both are followed, so that every family that says them runs here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from rlinit.errors import InvalidPlan
from rlinit.stages.groups.decoder_spans import Span, layer_of

_PARTIAL = "replicated_with_grad_allreduce"
"""The style of parameters that act on split heads, such as norms of queries."""

_BY_VOCABULARY = "embedding_rowwise"
"""The style of embeddings, which plans of transformers leave whole."""


def check_decoder(model: Any, degrees: Iterable[int]) -> None:
    """Refuse models that cannot be cut into stages, or whose products do not split over so many devices.

    Parameters
    ----------
    model
        A causal language model of transformers.
    degrees
        Tensor degrees.

    Raises
    ------
    InvalidPlan
        The configuration says no pipeline, the model no tensor groups, or its heads are not a multiple of a group.
    """
    from transformers.distributed.tensor_parallel import get_kv_heads_per_rank

    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", type(model).__name__)
    if not {"embed_tokens", "layers", "norm"} <= set(getattr(config, "base_model_pp_plan", None) or {}):
        raise InvalidPlan(f"transformers says no pipeline of embed_tokens, layers and norm for {family!r} models")
    most = max(degrees)
    if most > 1 and not model.tp_plan:
        raise InvalidPlan(f"transformers says no tensor parallelism (tp_plan) for {family!r} models")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if most > 1 and get_kv_heads_per_rank(model.tp_plan, heads, most) is None:
        raise InvalidPlan(f"{heads} heads of keys and values (num_key_value_heads) do not split over {most} devices")


class DecoderStage:
    """One stage of a decoder, in one process.

    Parameters
    ----------
    model
        A causal language model of transformers with its weights, in eval mode; it is changed in place: what the stage
        does not hold leaves it.
    span
        What the stage holds.
    mesh
        The tensor group, a mesh of one dimension; None for a group of one.
    recomputed
        Numbers of the layers that run forward again in the backward pass.
    """

    def __init__(self, model: Any, span: Span, mesh: Any = None, recomputed: Collection[int] = ()) -> None:
        self.model, self.span = model, span
        self.base = getattr(model, model.base_model_prefix)
        self.tied = _untie(model)
        self.partial = frozenset[str]() if mesh is None else _split(model, span, mesh)
        for at in recomputed:
            layer = self.base.layers[at]
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        names = {id(value): name for name, value in model.named_parameters()}
        self.base.layers = self.base.layers[span.first : span.end]
        if not span.embeds:
            self.base.embed_tokens = None
        if not span.heads:
            self.base.norm, model.lm_head = torch.nn.Identity(), None
        self.parameters: dict[str, torch.nn.Parameter] = {names[id(value)]: value for value in model.parameters()}

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        """Return the logits (b, s, vocabulary) of the last stage, or the hidden states (b, s, h) of another.

        Parameters
        ----------
        given
            Tokens (b, s) for the first stage, else hidden states (b, s, h).
        """
        named = {"input_ids" if self.span.embeds else "inputs_embeds": given}
        hidden = self.base(**named, use_cache=False).last_hidden_state
        made: torch.Tensor = self.model.lm_head(hidden) if self.span.heads else hidden
        return made


def _untie(model: Any) -> tuple[str, str] | None:
    """Give the head weights of its own where it shares those of the embedding; return both names."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.weight is not embedding.weight:
        return None
    head.weight = torch.nn.Parameter(embedding.weight.detach().clone())
    names = {id(value): name for name, value in model.named_parameters()}
    return names[id(embedding.weight)], names[id(head.weight)]


def _split(model: Any, span: Span, mesh: Any) -> frozenset[str]:
    """Keep of every product that is split what this member of the tensor group has.

    Returned are the parameters that every member has, whose gradients are to be added up over the group after the last
    micro-batch. (transformers adds up what has accumulated, again after each.)
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    embedding = model.get_input_embeddings()
    paths = {id(module): path for path, module in model.named_modules()}
    rules = dict(model.tp_plan)
    if embedding.num_embeddings % mesh.size() == 0:
        rules.setdefault(paths[id(embedding)], _BY_VOCABULARY)
    styles = {name: style for name, style in _expanded(model, rules) if _held(name, span)}
    partial = {name for name, style in styles.items() if style == _PARTIAL}
    apply_tensor_parallelism(model, mesh, {name: style for name, style in styles.items() if name not in partial})
    return frozenset(partial)


def _held(name: str, span: Span) -> bool:
    layer = layer_of(name)
    if layer is None:
        return span.embeds if "embed" in name else span.heads
    return span.first <= layer < span.end


def _expanded(model: Any, rules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield rules by the names of modules and parameters rather than by patterns; parameters before their module."""
    for path, module in model.named_modules():
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", path)
        for parameter, _ in module.named_parameters(recurse=False):
            style = rules.get(f"{pattern}.{parameter}", rules.get(pattern))
            if style is not None:
                yield f"{path}.{parameter}", style
        if pattern in rules:
            yield path, rules[pattern]
