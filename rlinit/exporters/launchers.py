"""Plans of stages of several devices in the words of what runs them: Megatron, torchtitan, vLLM, SGLang.

All four take one tensor degree and one number of replicas for all stages, and whole layers in order. A plan that has
others is refused by the stage that differs; the best that they can do is ``schedule(..., uniform=True)``, whose value a
plan keeps as its baseline ``uniform``.

References
----------
Megatron Core's user guide ("Custom Pipeline Model Parallel Layout", "Megatron FSDP"); torchtitan's job configuration;
vLLM's and SGLang's server arguments and environment.
"""

from __future__ import annotations

import json
from typing import Literal

from rlinit.errors import InvalidPlan
from rlinit.exporters.megatron import written_layout
from rlinit.plan import GroupRules, Plan
from rlinit.stages.groups.decoder_spans import Span, decoder_spans, layer_of, recomputed_layers, rules_of_equal_shares
from rlinit.units import format_seconds

Server = Literal["vllm", "sglang"]

_SHARDING = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
"""How replicas exchange in a plan -> Megatron's sharding strategy."""


def to_megatron_flags(plan: Plan) -> list[str]:
    """Return the flags of Megatron for a training plan; the batch is the plan's micro-batches times their size.

    Parameters
    ----------
    plan
        Of training, uniform. Each stage recomputes as many layers as the others, or all of its own.

    Raises
    ------
    InvalidPlan
        Megatron cannot run it; the message names the stage, and what the best plan costs that it can run.
    """
    rules, spans = _uniform(plan, "Megatron")
    if rules.training != "1f1b":
        raise InvalidPlan(f"the plan's training is {rules.training!r}; Megatron trains by 1f1b")
    first, last = plan.stages[0], len(spans) - 1
    rows = ["E" * span.embeds + "t" * (span.end - span.first) + "L" * (j == last) for j, span in enumerate(spans)]
    flags = ["--tensor-model-parallel-size", str(first.tensor_parallel)]
    flags += ["--pipeline-model-parallel-size", str(len(spans))]
    if last:
        flags += ["--pipeline-model-parallel-layout", written_layout(rows)]
    if first.tensor_parallel > 1 and _some_variant(plan, "sequence"):
        flags.append("--sequence-parallel")
    if _some_variant(plan, "experts"):
        flags += ["--expert-model-parallel-size", str(first.tensor_parallel), "--expert-tensor-parallel-size", "1"]
    if rules.exchange in _SHARDING:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _SHARDING[rules.exchange]]
        flags.append("--no-gradient-accumulation-fusion")
    if first.replicas > 1:  # sends as much as an all-reduce, and a plan may count on its memory (zero=1)
        flags.append("--use-distributed-optimizer")
    return flags + _megatron_recomputation(plan, spans)


def _megatron_recomputation(plan: Plan, spans: list[Span]) -> list[str]:
    """Return how many layers of each stage run forward twice: Megatron has one number for all."""
    counts = [len(recomputed_layers(use)) for use in plan.stages]
    if not any(counts):
        return []
    method = ["--recompute-granularity", "full", "--recompute-method"]
    if all(count == span.end - span.first for count, span in zip(counts, spans, strict=True)):
        return [*method, "uniform", "--recompute-num-layers", "1"]
    most = max(counts)
    for j, (count, span) in enumerate(zip(counts, spans, strict=True)):
        if count != min(most, span.end - span.first):
            raise InvalidPlan(
                f"stage {j} recomputes {count} layers and others {most}; Megatron has one number for all stages "
                "(recompute='all' or 'none')"
            )
    return [*method, "block", "--recompute-num-layers", str(most)]


def _some_variant(plan: Plan, word: str) -> bool:
    """Return whether some op runs as a variant with this word in its name."""
    return any(word in name for use in plan.stages for name in use.variants.values())


def to_torchtitan(plan: Plan) -> str:
    """Return the sections of torchtitan's TOML that a training plan decides.

    Parameters
    ----------
    plan
        Of training, uniform. All layers are recomputed, or none. torchtitan has no shards of the optimiser's state
        alone (`zero=1` of `rlinit.llm.plan`).

    Raises
    ------
    InvalidPlan
        torchtitan cannot run it; the message names the stage or layer, and what the best plan costs that it can run.
    """
    rules, spans = _uniform(plan, "torchtitan")
    if not rules.training:
        raise InvalidPlan("the plan is for inference; torchtitan trains")
    layers, recomputed = spans[-1].end, set[int]().union(*map(recomputed_layers, plan.stages))
    if len(recomputed) not in (0, layers):
        raise InvalidPlan(
            f"the plan recomputes {len(recomputed)} of {layers} layers; torchtitan's full mode has all of them "
            "(recompute='all' or 'none')"
        )
    first, sharded = plan.stages[0], rules.exchange in _SHARDING
    rows = {
        "data_parallel_replicate_degree": 1 if sharded else first.replicas,
        "data_parallel_shard_degree": first.replicas if sharded else 1,
        "tensor_parallel_degree": first.tensor_parallel,
        "pipeline_parallel_degree": len(spans),
    }
    if _some_variant(plan, "experts"):
        rows |= {"expert_parallel_degree": first.tensor_parallel, "expert_tensor_parallel_degree": 1}
    lines = ["[parallelism]", *(f"{key} = {value}" for key, value in rows.items())]
    if sharded:
        after = "always" if rules.exchange == "zero3" else "never"
        lines.append(f'fsdp_reshard_after_forward = "{after}"')
    if len(spans) > 1:
        lines.append(f'pipeline_parallel_schedule = "{"GPipe" if rules.training == "gpipe" else "1F1B"}"')
        parts = [
            ["tok_embeddings"] * span.embeds
            + [f"layers.{at}" for at in range(span.first, span.end)]
            + ["norm", "output"] * span.heads
            for span in spans
        ]
        lines.append(f"module_fqns_per_model_part = {json.dumps(parts)}")
    mode = "full" if recomputed else "none"
    return "\n".join([*lines, "", "[activation_checkpoint]", f'mode = "{mode}"', ""])


def to_server_flags(plan: Plan, server: Server) -> dict[str, str]:
    """Return environment variables and flags of vLLM or SGLang for a plan of inference.

    Parameters
    ----------
    plan
        Of inference, uniform.
    server
        ``vllm`` or ``sglang``.

    Raises
    ------
    InvalidPlan
        The server cannot run it; the message names the stage, and what the best plan costs that it can run.
    """
    name = {"vllm": "vLLM", "sglang": "SGLang"}[server]
    rules, spans = _uniform(plan, name)
    if rules.training:
        raise InvalidPlan(f"the plan is for training; {name} serves (plan without training)")
    first, found = plan.stages[0], dict[str, str]()
    if len(spans) > 1:
        found[f"{server.upper()}_PP_LAYER_PARTITION"] = ",".join(str(span.end - span.first) for span in spans)
    flags = {"tensor": first.tensor_parallel, "pipeline": len(spans), "data": first.replicas}
    short = {"tensor": "--tp-size", "pipeline": "--pp-size", "data": "--dp-size"}
    for way, size in flags.items():
        found[short[way] if server == "sglang" else f"--{way}-parallel-size"] = str(size)
    return found


def _uniform(plan: Plan, runtime: str) -> tuple[GroupRules, list[Span]]:
    """Return the rules of a plan that a runtime with one shape for all stages can run, and its layers."""
    rules, first = rules_of_equal_shares(plan, f"{runtime} runs"), plan.stages[0]
    for j, use in enumerate(plan.stages):
        if (use.replicas, use.tensor_parallel) != (first.replicas, first.tensor_parallel):
            best = plan.baselines.get("uniform")
            costs = f", which takes {format_seconds(best)} in place of {format_seconds(plan.value)}" if best else ""
            raise InvalidPlan(
                f"stage {j} has {use.replicas} replicas of {use.tensor_parallel} devices and stage 0 has "
                f"{first.replicas} of {first.tensor_parallel}; {runtime} has one shape for all stages (plan with "
                f"uniform=True{costs})"
            )
    layers = {layer_of(op) for op in plan.assignment or ()} - {None}
    spans = decoder_spans(plan, len(layers))
    for j, span in enumerate(spans):
        if span.first == span.end and runtime != "Megatron":
            raise InvalidPlan(f"stage {j} has no layer, which a rank of {runtime} has to have")
    return rules, spans
