"""Training steps of stage plans: one process a stage, by torch.distributed.pipelining; started by torchrun.

Every process calls `training_step` with the same plan, model, inputs and targets. The plan says the schedule, the
number of micro-batches, and which blocks run forward twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinit.checker.compatibility import require_graph
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.lowering.compatibility import require_program
from rlinit.executors.lowering.stage_modules import StageModule, stage_modules
from rlinit.executors.lowering.torch_program import TorchProgram, torch_program
from rlinit.executors.pipeline import joined_group, microbatch_sizes, stage_ports
from rlinit.graph import Graph
from rlinit.importers.common.blocks import blocks_of
from rlinit.plan import Plan

if TYPE_CHECKING:
    import torch

__all__ = ["TrainingStep", "training_step"]

Loss = Callable[[Any, Any], Any]
"""Takes the model's outputs and the targets of a micro-batch; returns the mean loss over them, a scalar tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """What one process has after a step.

    Parameters
    ----------
    loss
        Mean loss over the batch, on the last process; None elsewhere.
    gradients
        Name of each parameter that ops of this stage read -> its gradient, the mean over the batch. A parameter that
        several stages read has a part of its gradient on each; the sum of the parts is its gradient.
    seconds
        The shortest step of the repeats.
    """

    loss: float | None
    gradients: Mapping[str, torch.Tensor]
    seconds: float


def training_step(
    plan: Plan,
    model: Any,
    inputs: Sequence[Any],
    targets: Any,
    loss: Loss,
    *,
    graph: Graph | None = None,
    devices: Mapping[str, str] | None = None,
    repeats: int = 1,
    time_limit_s: float = 60.0,
) -> TrainingStep:
    """Run forward and backward of a batch as a training plan says; the gradients are those of one process.

    Parameters
    ----------
    plan
        A plan of `schedule(..., training=...)`, ``gpipe`` or ``1f1b``.
    model
        The ``torch.nn.Module`` it was made for, in eval mode: without dropout and with fixed statistics.
    inputs
        Its positional inputs; the first dimension of each is the batch.
    targets
        A tensor with the same first dimension.
    loss
        The mean loss of a micro-batch.
    graph, devices
        As for `rlinit.executors.execute`.
    repeats
        Steps; gradients are those of the last one alone. The first one sets up connections.
    time_limit_s
        Seconds that a process waits for another before it gives up.

    Raises
    ------
    InvalidPlan
        The plan does not train, its schedule is not one of these, there are not as many processes as stages, or the
        batch cannot be split into its micro-batches.
    ExecutionFailure
        This stage failed, or another process is gone.
    """
    import torch.distributed as dist

    if plan.training is None or plan.assignment is None:
        raise InvalidPlan("the plan is not for training; make it with schedule(..., training='1f1b')")
    if plan.training.schedule not in ("gpipe", "1f1b"):
        raise InvalidPlan(f"the plan trains by {plan.training.schedule}; processes run gpipe and 1f1b")
    if graph is not None:
        require_graph(plan, graph)
    mine = joined_group(time_limit_s)
    try:
        rank, size = dist.get_rank(), dist.get_world_size()
        if size != plan.num_stages:
            raise InvalidPlan(f"there are {size} processes for {plan.num_stages} stages; expected one a stage")
        parts = microbatch_sizes([*inputs, targets], plan.training.microbatches)
        program = torch_program(model, inputs, list(plan.assignment), graph=graph, dynamic_batch=parts and parts[0])
        if graph is None:
            require_program(plan, program.reference)
        places = stage_ports(plan, program, devices or {})
        flat = program.flat_inputs(inputs)
        cut = stage_modules(
            program,
            {op: int(stage) for op, stage in plan.assignment.items()},
            size,
            microbatch=parts[1] if parts else None,
            batch=program.rows(flat),
            devices=places,
            trainable=True,
            recomputed=_recomputed(plan, graph),
        )
        try:
            return _steps(plan, program, cut[rank], rank, places[rank], flat, targets, loss, repeats)
        except (RuntimeError, ValueError) as problem:
            raise ExecutionFailure(
                f"stage {cut[rank].stage} failed in process {rank} on {places[rank]}, or a process next to it is "
                f"gone: {problem}"
            ) from problem
    finally:
        if mine:
            dist.destroy_process_group()


def _recomputed(plan: Plan, graph: Graph | None) -> list[set[str]]:
    """Return the ops of each block that runs forward twice."""
    assert plan.training is not None
    names = {name for stage in plan.training.stages for name in stage.recomputed}
    if not names:
        return []
    if graph is None:
        raise InvalidPlan(f"the plan recomputes {min(names)!r}; give the graph, which says what ops that block has")
    members: dict[str, set[str]] = {name: set() for name in names}
    for op, name in zip(graph.names, blocks_of(graph), strict=True):
        if name in members:
            members[name].add(op)
    return list(members.values())


def _steps(
    plan: Plan,
    program: TorchProgram,
    cut: StageModule,
    rank: int,
    device: torch.device,
    flat: list[Any],
    targets: Any,
    loss: Loss,
    repeats: int,
) -> TrainingStep:
    """Run the steps of one process."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    assert plan.training is not None
    last = rank == plan.num_stages - 1

    def mean_loss(outputs: Any, target: Any) -> Any:
        values = iter(outputs if isinstance(outputs, (tuple, list)) else [outputs])
        results = [next(values) if hasattr(output, "all_input_nodes") else output for output in program.outputs]
        return loss(program.structured(results), target)

    stage = PipelineStage(cut.module, rank, plan.num_stages, device)
    kind = ScheduleGPipe if plan.training.schedule == "gpipe" else Schedule1F1B
    schedule = kind(stage, plan.training.microbatches, loss_fn=mean_loss)
    given = [value.to(device) for value in flat] if rank == 0 else []
    wanted: dict[str, Any] = {"target": targets.to(device), "losses": []} if last else {}
    best = float("inf")
    for _ in range(repeats):
        cut.module.zero_grad()
        wanted.get("losses", []).clear()
        dist.barrier()
        started = time.perf_counter()
        schedule.step(*given, **wanted)
        dist.barrier()
        best = min(best, time.perf_counter() - started)
    gradients = {
        cut.parameters[name]: value.grad for name, value in cut.module.named_parameters() if value.grad is not None
    }
    mean = sum(float(one.detach()) for one in wanted["losses"]) / plan.training.microbatches if last else None
    return TrainingStep(mean, gradients, best)
