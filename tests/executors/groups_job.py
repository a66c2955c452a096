"""Stages of several devices over processes against one process: ``python -m tests.executors.groups_job 2 4 8``.

Small Llamas and Mixtrals from configurations, one step of training and one question each.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, MixtralConfig, PretrainedConfig, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

import rlinit
import rlinit.llm
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.groups import DistributedModel
from rlinit.plan import Plan

MICROBATCHES, LAYERS, VOCABULARY = 8, 4, 128

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def configurations() -> dict[str, PretrainedConfig]:
    """Return small models: plain, of experts, and one whose head shares the weights of the embedding."""
    return {
        "llama": LlamaConfig(**SIZES),
        "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
        "qwen3": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    }


def model_of(config: PretrainedConfig) -> Any:
    """Return the model with the same weights in every process."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM  # It has no types.
    model = auto.from_config(config, dtype=torch.float64, experts_implementation="eager")
    return model.eval()


def planned(size: int, seconds: list[float], training: str = "1f1b", **asked: Any) -> Plan:
    """Return a plan on so many devices for a chain whose units take given seconds on one of them."""
    names = ["embedding", *(f"layer{at}" for at in range(LAYERS)), "head"]
    ops = [
        (
            name,
            {
                "menu": {
                    t: [
                        {"name": "plain", "time_s": s / t * 1.05 ** (t > 1), "held_bytes": 2.0 / t, "fixed_bytes": 1.0},
                        {"name": "recomputed", "time_s": 1.3 * s / t * 1.05 ** (t > 1), "fixed_bytes": 1.0},
                    ]
                    for t in (1, 2, 4)
                }
            },
        )
        for name, s in zip(names, seconds, strict=True)
    ]
    graph = rlinit.Graph.build(ops, [(one, other, 0.1) for one, other in itertools.pairwise(names)])
    memory = asked.pop("memory", 100.0)
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}", memory_bytes=memory) for i in range(size)], 1e9)
    given: dict[str, Any] = {"replicas": "auto", "tensor_parallel": "auto", **asked}
    if training:
        given |= {"training": training, "recompute": "auto"}
    plan = rlinit.schedule(graph, hardware, objective="pipeline", microbatches=MICROBATCHES, **given)
    return plan


def plans(size: int) -> list[Plan]:
    """Return plans of several stages that use all devices, in stages that are alike and that are not."""
    rng = np.random.default_rng(size)
    found: dict[tuple[Any, ...], Plan] = {}
    while len(found) < 2:
        seconds = [0.1, *rng.uniform(0.5, 6.0, LAYERS).tolist(), 0.5]
        plan = planned(size, seconds, "gpipe" if len(found) == 1 else "1f1b", memory=float(rng.uniform(4.0, 12.0)))
        shapes = {(one.replicas, one.tensor_parallel) for one in plan.stages}
        used = sum(one.replicas * one.tensor_parallel for one in plan.stages)
        if used == size and plan.num_stages > 1 and len(shapes) > (size > 2):
            found[tuple(one.num_ops for one in plan.stages)] = plan
    return list(found.values())


def planned_by_config(config: PretrainedConfig) -> Plan:
    """Return the plan of a configuration's own menu: a pipeline of two tensor groups."""
    device = rlinit.Device("d", flops_per_s=1e9, bytes_per_s=1e9, memory_bytes=1e9)
    hardware = rlinit.Hardware.mesh([dataclasses.replace(device, name=f"d{i}") for i in range(4)], 1e8)
    model = rlinit.llm.load(config, context=32, dtype="bf16")
    plan = rlinit.llm.plan(
        model, hardware, training="1f1b", microbatches=MICROBATCHES, recompute="auto", replicas=1, tensor_parallel=2
    )
    assert plan.num_stages == 2
    return plan


def check_bytes(config: PretrainedConfig, plan: Plan) -> None:
    """Compare the parameters that this process keeps with those of the plan, which are in 16 bits."""
    mine = DistributedModel(plan, model_of(config))
    local: list[Any] = [getattr(value, "_local_tensor", value) for value in mine.part.parameters.values()]
    assert 2 * sum(value.numel() for value in local) == mine.use.param_bytes
    assert sum(value.untyped_storage().nbytes() for value in local) == 4 * mine.use.param_bytes  # in 64 bits


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of tokens."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def check(config: PretrainedConfig, plan: Plan) -> None:
    """Compare loss, gradients and logits with those of one process."""
    torch.manual_seed(1)
    tokens, targets = torch.randint(VOCABULARY, (2, 2 * MICROBATCHES, 6))
    whole = model_of(config)
    logits = whole(tokens).logits
    expected = cross_entropy(logits, targets)
    torch.autograd.backward(expected)
    mine = DistributedModel(plan, model_of(config))
    step = mine.step(tokens, targets, cross_entropy)
    own = len(range(mine.replica, MICROBATCHES, mine.use.replicas))
    assert step.in_flight == min(mine.use.in_flight, own)
    heads = mine.stage == plan.num_stages - 1
    assert (step.loss is not None) == heads
    if step.loss is not None:
        assert step.loss == pytest.approx(float(expected.detach()), rel=1e-9)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine.gradients())
    shared = getattr(config, "tie_word_embeddings", False)
    names = {name for part in found for name in part}
    assert names - ({"lm_head.weight"} if shared else set()) == {name for name, _ in whole.named_parameters()}
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        for part in found:
            if name in part:
                torch.testing.assert_close(part[name], parameter.grad, rtol=1e-5, atol=1e-7)
    answers = mine.logits(tokens)
    assert sorted(answers) == ([] if not heads else list(range(mine.replica, MICROBATCHES, mine.use.replicas)))
    for m, value in answers.items():
        torch.testing.assert_close(value, logits[2 * m : 2 * m + 2].detach(), rtol=1e-5, atol=1e-7)


def run(rank: int, size: int, folder: str, made: list[Plan]) -> None:
    """Take the part of one process."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{size}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    models = configurations()
    for at, plan in enumerate(made):
        for name in models if size < 8 and at == 0 else ("llama", "mixtral")[at % 2 : at % 2 + 1]:
            check(models[name], plan)
    if size == 4:
        for config in models.values():
            check_bytes(config, planned_by_config(config))
        check(models["mixtral"], planned_by_config(models["mixtral"]))
    check_refusals(made[0], models["llama"])
    check_a_death(made[0], models["llama"])


def check_refusals(plan: Plan, config: PretrainedConfig) -> None:
    """See what is refused before anything is sent."""
    mine = DistributedModel(plan, model_of(config))
    tokens = torch.zeros(MICROBATCHES + 1, 6, dtype=torch.int64)
    with pytest.raises(InvalidPlan, match="cannot be split into 8 parts"):
        mine.step(tokens, tokens, cross_entropy)
    with pytest.raises(InvalidPlan, match="expected one each"):
        DistributedModel(planned(1, [1.0] * (LAYERS + 2)), model_of(config))
    with pytest.raises(InvalidPlan, match="layers, numbered otherwise than the 2 of the model"):
        DistributedModel(plan, model_of(LlamaConfig(**{**SIZES, "num_hidden_layers": 2})))
    if any(use.tensor_parallel > 1 for use in plan.stages):
        with pytest.raises(InvalidPlan, match="num_key_value_heads"):
            DistributedModel(plan, model_of(LlamaConfig(**{**SIZES, "num_key_value_heads": 1})))


def check_a_death(plan: Plan, config: PretrainedConfig) -> None:
    """End the processes of the last stage in the midst of a step: the others say so in one line, without waiting."""

    def dies(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == dist.get_world_size() - 1:
            os._exit(0)
        return logits.mean()

    mine = DistributedModel(plan, model_of(config))
    tokens = torch.zeros(MICROBATCHES, 6, dtype=torch.int64)
    with pytest.raises(ExecutionFailure, match=r"stage . .* failed on cpu, or a process next to it is gone") as found:
        mine.step(tokens, tokens, dies)
    assert "\n" not in str(found.value)
    os._exit(0)  # so that processes that wait for this one end as well


def main(sizes: list[int]) -> None:
    """Run all sizes; what running a model loads is loaded once, before processes part."""
    processes: Any = torch.multiprocessing  # It has no types.
    with torch.no_grad():
        for config in configurations().values():
            model_of(config)(torch.zeros((1, 2), dtype=torch.int64))
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            processes.start_processes(run, (size, folder, plans(size)), nprocs=size, start_method="fork")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
