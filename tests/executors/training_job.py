"""What each process of the training tests runs: several plans, each step against one process."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.executors.training import training_step
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.stages.training.rules import Recompute, Training
from tests.executors.models import Inception, RandomNet, TinyTransformer, graph_of


def planned(graph: Graph, size: int, schedule: Training, recompute: Recompute = "none") -> Plan:
    """Return a training plan with as many stages as processes."""
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(size)], 1e9)
    return rlinit.schedule(graph, hardware, training=schedule, microbatches=4, recompute=recompute, time_limit_s=5.0)


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
        found = sum(part[name] for part in parts if name in part)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


def main(size: int) -> None:
    """Train several models by both schedules, and see what is refused."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (8, 7))
    transformer = TinyTransformer(layers=4).eval()
    check(transformer, tokens, size, "1f1b", "none")
    check(transformer, tokens, size, "gpipe", "none")
    check(transformer, tokens, size, "1f1b", "all")
    check(Inception().eval(), torch.randn(4, 3, 8, 8), size, "1f1b", "none")
    net, x = RandomNet(3).eval(), torch.randn(4, 4)
    graph = graph_of(net, (x,))
    with pytest.raises(InvalidPlan, match="zero-bubble"):
        training_step(planned(graph, size, "zero-bubble"), net, (x,), x, squared)
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
