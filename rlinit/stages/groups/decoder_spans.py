"""Which layers of a decoder the stages of a plan hold, for what runs decoders by whole layers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlinit.errors import InvalidPlan
from rlinit.menu import is_recomputed
from rlinit.plan import GroupRules, Plan, StageUse

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h)[._]?(\d+)(?:\.|$)")
"""The number of the layer in the name of an op, such as ``layer3.attention`` or ``model.layers.3.mlp``."""


def layer_of(op: str) -> int | None:
    """Return the number of the layer that an op belongs to; None for embedding and head."""
    found = _LAYER.search(op)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Span:
    """The layers of a stage, from `first` to before `end`, and whether it holds the embedding or the head."""

    first: int
    end: int
    embeds: bool
    heads: bool


def decoder_spans(plan: Plan, num_layers: int) -> list[Span]:
    """Return what each stage holds.

    Parameters
    ----------
    plan
        With stages. Ops whose names have a layer's number belong to it; of the others those of the embedding have
        "embed" or "wte" in their names, and the rest belongs to the head.
    num_layers
        Of the model.

    Raises
    ------
    InvalidPlan
        Layers that are cut, missing or out of order; an embedding that is not on the first stage, or a head that is
        not on the last.
    """
    stages = len(plan.stages)
    held: dict[int, int] = {}
    for op, stage in (plan.assignment or {}).items():
        layer = layer_of(op)
        if layer is None:
            embeds = "embed" in op or "wte" in op
            if stage != (0 if embeds else stages - 1):
                place = "first" if embeds else "last"
                raise InvalidPlan(f"op {op!r} is on stage {stage}; decoders run with it on the {place} stage alone")
        elif held.setdefault(layer, int(stage)) != stage:
            raise InvalidPlan(f"the plan cuts inside layer {layer}, at op {op!r}; decoders run with whole layers")
    if sorted(held) != list(range(num_layers)):
        raise InvalidPlan(f"the plan has {len(held)} layers, numbered otherwise than the {num_layers} of the model")
    row = [held[at] for at in range(num_layers)]
    if row != sorted(row):
        raise InvalidPlan("layers of the plan are not on stages in their order")
    spans, first = [], 0
    for stage in range(stages):
        end = first + row.count(stage)
        spans.append(Span(first, end, stage == 0, stage == stages - 1))
        first = end
    return spans


def rules_of_equal_shares(plan: Plan, runs: str) -> GroupRules:
    """Return the rules of a plan of stages of several devices whose replicas take equal shares of a batch.

    Parameters
    ----------
    plan, runs
        The plan, and who runs equal shares alone, such as "vLLM runs".

    Raises
    ------
    InvalidPlan
        It has no such stages, or shares are unequal; the message names the stage.
    """
    rules = plan.groups
    if rules is None or plan.assignment is None:
        raise InvalidPlan(
            f"the plan is {plan.status} and has no stages of several devices; make it with replicas='auto' and "
            "tensor_parallel='auto'"
        )
    for j, use in enumerate(plan.stages):
        if use.shares or rules.microbatches % use.replicas:
            raise InvalidPlan(
                f"replicas of stage {j} take unequal shares of a batch; {runs} equal ones (plan with replicas='auto')"
            )
    return rules


def recomputed_layers(use: StageUse) -> set[int]:
    """Return the layers of a stage that run forward twice.

    Parameters
    ----------
    use
        The stage, with variants.
    """
    layers = {layer_of(op) for op, name in use.variants.items() if is_recomputed(name)}
    return {layer for layer in layers if layer is not None}
