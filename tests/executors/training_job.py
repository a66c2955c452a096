"""Training steps over processes against one process: ``python -m tests.executors.training_job 2 4`` for 2, then for 4.

Models are exported before processes part, by a fork of a process without threads.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.executors.lowering import torch_program
from rlinit.executors.training import training_step
from rlinit.graph import Graph
from rlinit.importers.torch.export import export_program
from rlinit.plan import Plan
from rlinit.stages.training.rules import Recompute, Training
from rlinit.stages.training.schedule import pass_order
from tests.executors.models import Inception, RandomNet, TinyTransformer, graph_of

MICROBATCHES = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its input and what it was exported to."""

    model: torch.nn.Module
    x: torch.Tensor
    graph: Graph

    @classmethod
    def of(cls, model: torch.nn.Module, x: torch.Tensor) -> Case:
        """Export a model."""
        return cls(model.eval(), x, graph_of(model.eval(), (x,)))

    def plan(self, size: int, schedule: Training, recompute: Recompute = "none") -> Plan:
        """Return a training plan with as many stages as processes."""
        hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(size)], 1e9)
        chunks = 2 if schedule == "interleaved" else 1
        return rlinit.schedule(
            self.graph,
            hardware,
            training=schedule,
            microbatches=MICROBATCHES,
            recompute=recompute,
            chunks=chunks,
            time_limit_s=0.3,
        )


def squared(outputs: Any, targets: Any) -> Any:
    """Return the mean squared error of the first output."""
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return ((first - targets) ** 2).mean()


def check(case: Case, plan: Plan) -> None:
    """Compare loss and gradients with those of one process."""
    model, x, size = case.model, case.x, dist.get_world_size()
    assert plan.training is not None
    model.zero_grad()
    outputs = model(x)
    targets = torch.randn_like(outputs[0] if isinstance(outputs, tuple) else outputs)
    expected = squared(model(x), targets)
    expected.backward()
    step = training_step(plan, model, (x,), targets, squared, graph=case.graph, repeats=2)
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
        assert found
        for each in found:  # on every process that holds it
            torch.testing.assert_close(each, parameter.grad, rtol=1e-4, atol=1e-6)


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


def export_once(cases: list[Case]) -> Any:
    """Let all plans, and the processes to come, take what a model is exported to here, at the sizes they ask for."""
    known: dict[tuple[int, int], Any] = {}

    def known_program(model: torch.nn.Module, *inputs: Any, batch: int) -> Any:
        if (id(model), batch) not in known:
            known[id(model), batch] = export_program(model, *inputs, batch=batch)
        return known[id(model), batch]

    patched = patch.object(torch_program, "export_program", known_program)
    with patched:
        for case in cases:
            torch_program.torch_program(
                case.model, (case.x,), case.graph.names, graph=case.graph, plan_inputs=MICROBATCHES, parts=(1,)
            )
    return patched


def planned(cases: list[Case], size: int) -> list[tuple[Case, Plan]]:
    """Return plans by all schedules for the first model, and for two processes some for the others."""
    transformer, inception, *nets = cases
    found = [(transformer, transformer.plan(size, "gpipe"))]
    for schedule in ("1f1b", "interleaved", "zero-bubble"):
        plan = transformer.plan(size, schedule, "all")
        assert plan.training is not None
        assert any(stage.recomputed for stage in plan.training.stages)
        found.append((transformer, plan))
    if size == 2:
        found += [(inception, inception.plan(size, "1f1b")), (inception, inception.plan(size, "zero-bubble"))]
        found += [(net, net.plan(size, schedule)) for net in nets for schedule in ("zero-bubble", "interleaved")]
    return found


def run(rank: int, size: int, folder: str, plans: list[tuple[Case, Plan]], net: Case) -> None:
    """Take the part of one process: train by all plans, and see what is refused."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{size}", rank=rank, world_size=size)
    torch.manual_seed(0)
    for case, plan in plans:
        check(case, plan)
    check_order(size)
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(size)], 1e9)
    plain = rlinit.schedule(net.graph, hardware, objective="pipeline", time_limit_s=0.3)
    with pytest.raises(InvalidPlan, match="not for training"):
        training_step(plain, net.model, (net.x,), net.x, squared)
    with pytest.raises(InvalidPlan, match="processes"):
        training_step(net.plan(size - 1, "gpipe"), net.model, (net.x,), net.x, squared)
    dist.destroy_process_group()


def main(sizes: list[int]) -> None:
    """Export transformers with tied weights and networks with skips, and train them over processes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    cases = [Case.of(TinyTransformer(layers=4), torch.randint(0, 50, (8, 7)))]
    cases.append(Case.of(Inception(), torch.randn(4, 3, 8, 8)))
    cases += [Case.of(RandomNet(seed), x) for seed in (7, 23)]
    net = Case.of(RandomNet(3), x)
    processes: Any = torch.multiprocessing  # It has no types.
    with tempfile.TemporaryDirectory() as folder, export_once(cases):
        for size in sizes:
            parts = (size, folder, planned(cases, size), net)
            processes.start_processes(run, parts, nprocs=size, start_method="fork")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
