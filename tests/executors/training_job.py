"""What each process of the training tests runs: several plans, each step against one process."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.executors.training import training_step
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.stages.training.rules import Recompute, Training
from rlinit.stages.training.schedule import pass_order
from tests.executors.models import Inception, RandomNet, TinyTransformer, graph_of


def planned(graph: Graph, size: int, schedule: Training, recompute: Recompute = "none") -> Plan:
    """Return a training plan with as many stages as processes, the first one's: a limit ends in different plans."""
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(size)], 1e9)
    chunks = 2 if schedule == "interleaved" else 1
    plan: list[Plan | None] = [None]
    if dist.get_rank() == 0:
        plan[0] = rlinit.schedule(
            graph, hardware, training=schedule, microbatches=4, recompute=recompute, chunks=chunks, time_limit_s=1.0
        )
    dist.broadcast_object_list(plan)
    assert plan[0] is not None
    return plan[0]


def squared(outputs: Any, targets: Any) -> Any:
    """Return the mean squared error of the first output."""
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return ((first - targets) ** 2).mean()


def check(model: torch.nn.Module, x: torch.Tensor, size: int, schedule: Training, recompute: Recompute) -> None:
    """Compare loss and gradients with those of one process."""
    graph = graph_of(model, (x,))
    plan = planned(graph, size, schedule, recompute)
    assert plan.training is not None
    assert recompute == "none" or any(stage.recomputed for stage in plan.training.stages)
    model.zero_grad()
    outputs = model(x)
    targets = torch.randn_like(outputs[0] if isinstance(outputs, tuple) else outputs)
    expected = squared(model(x), targets)
    expected.backward()
    step = training_step(plan, model, (x,), targets, squared, graph=graph, repeats=2)
    assert step.seconds > 0
    assert (step.loss is not None) == (dist.get_rank() == size - 1)
    if step.loss is not None:
        assert step.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    parts: list[Any] = [None] * size
    dist.all_gather_object(parts, dict(step.gradients))
    for name, parameter in model.named_parameters():
        found = [part[name] for part in parts if name in part]
        if parameter.grad is None:  # the loss does not depend on it; torch sends zeros for gradients that are none
            assert not any(part.any() for part in found)
            continue
        torch.testing.assert_close(sum(found), parameter.grad, rtol=1e-4, atol=1e-6)


def check_order(size: int) -> None:
    """Compare the passes of torch's schedules with those that plans count."""
    kinds: list[tuple[Training, Any, int]] = [
        ("interleaved", ScheduleInterleaved1F1B, 2),
        ("zero-bubble", ScheduleInterleavedZeroBubble, 1),
    ]
    for name, kind, chunks in kinds:
        rank = dist.get_rank()
        stages = [
            PipelineStage(torch.nn.Identity(), place, size * chunks, torch.device("cpu"))
            for place in range(rank, size * chunks, size)
        ]
        for device, row in kind(stages, 2 * size, loss_fn=squared).pipeline_order.items():
            found = [(one.computation_type.value, one.microbatch_index, one.stage_index) for one in row if one]
            assert found == pass_order(name, size, 2 * size, device, chunks)


def main(size: int) -> None:
    """Train by all schedules, on two processes several models, and see what is refused."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (8, 7))
    transformer = TinyTransformer(layers=4).eval()
    check(transformer, tokens, size, "gpipe", "none")
    check(transformer, tokens, size, "1f1b", "all")
    check(transformer, tokens, size, "interleaved", "all")
    check(transformer, tokens, size, "zero-bubble", "all")
    net, x = RandomNet(3).eval(), torch.randn(4, 4)
    graph = graph_of(net, (x,))
    if size == 2:
        check(Inception().eval(), torch.randn(4, 3, 8, 8), size, "1f1b", "none")
        check(Inception().eval(), torch.randn(4, 3, 8, 8), size, "zero-bubble", "none")
        for seed in (7, 23):
            check(RandomNet(seed).eval(), x, size, "zero-bubble", "none")
            check(RandomNet(seed).eval(), x, size, "interleaved", "none")
    check_order(size)
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(size)], 1e9)
    plain = rlinit.schedule(graph, hardware, objective="pipeline", time_limit_s=5.0)
    with pytest.raises(InvalidPlan, match="not for training"):
        training_step(plain, net, (x,), x, squared)
    with pytest.raises(InvalidPlan, match="processes"):
        training_step(planned(graph, size - 1, "gpipe"), net, (x,), x, squared)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    main(int(os.environ["WORLD_SIZE"]))
    dist.destroy_process_group()
