"""Training steps of stage plans: one process a device, by torch.distributed.pipelining; started by torchrun.

Every process calls `training_step` with the same plan, model, inputs and targets. The plan says the schedule, the
number of micro-batches, and which blocks run forward twice. torch has a schedule for each of those of plans, with the
passes in the same order (`rlinit.stages.training.schedule`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from rlinit.errors import InvalidPlan
from rlinit.executors.lowering.stage_modules import StageModule, stage_modules
from rlinit.executors.lowering.torch_program import TorchProgram
from rlinit.executors.pipeline import (
    failing_stage,
    joined_stages,
    microbatch_sizes,
    numbered_stages,
    pipeline_stage,
    stage_program,
)
from rlinit.graph import Graph
from rlinit.importers.common.blocks import blocks_of
from rlinit.plan import Plan

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
        Name of each parameter that ops of this process read -> its gradient, the mean over the batch. What several
        processes read has its whole gradient on each: they add up their parts after the step.
    seconds
        The shortest step of the repeats, without that exchange, as `TrainingUse.step_s` is.
    """

    loss: float | None
    gradients: dict[str, torch.Tensor]
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
        A plan of `schedule(..., training=...)`.
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
        The plan does not train, there are not as many processes as devices, the batch cannot be split into its
        micro-batches, or torch's schedule does not take so many.
    ExecutionFailure
        This stage failed, or another process is gone.
    """
    if plan.training is None or plan.assignment is None:
        raise InvalidPlan("the plan is not for training; make it with schedule(..., training='1f1b')")
    with joined_stages(plan, graph, time_limit_s) as (rank, size):
        if size * plan.chunks != plan.num_stages:
            needed = plan.num_stages // plan.chunks
            raise InvalidPlan(f"there are {size} processes for {needed} devices; expected one a device")
        parts = microbatch_sizes([*inputs, targets], plan.training.microbatches)
        count = plan.training.microbatches
        program, places = stage_program(plan, model, inputs, None, graph, devices or {}, count)
        cut = stage_modules(
            program,
            numbered_stages(plan),
            plan.num_stages,
            microbatch=parts[1] if parts else None,
            batch=program.batch,
            devices=places,
            trainable="split" if plan.training.schedule == "zero-bubble" else "whole",
            recomputed=_recomputed(plan, graph),
        )
        own = {place: (cut[place], places[place]) for place in range(rank, plan.num_stages, size)}
        flat = program.flat_inputs(inputs)
        with failing_stage(" and ".join(str(one.stage) for one, _ in own.values()), rank, places[rank]):
            step = _steps(plan, program, own, flat, targets, loss, repeats)
            holders = [set(one.parameters.values()) for one in cut]
            _exchange(step.gradients, [set().union(*holders[at::size]) for at in range(size)], own)
            return step


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
    own: Mapping[int, tuple[StageModule, torch.device]],
    flat: list[Any],
    targets: Any,
    loss: Loss,
    repeats: int,
) -> TrainingStep:
    """Run the steps of one process; `own` are its stages, by their places, and where they are."""
    import torch.distributed as dist

    assert plan.training is not None
    last = plan.num_stages - 1

    def mean_loss(outputs: Any, target: Any) -> Any:
        values = iter(outputs if isinstance(outputs, (tuple, list)) else [outputs])
        results = [next(values) if hasattr(output, "all_input_nodes") else output for output in program.outputs]
        return loss(program.structured(results), target)

    schedule = _schedule(plan, own, mean_loss)
    given = [value.to(own[0][1]) for value in flat] if 0 in own else []
    wanted: dict[str, Any] = {"target": targets.to(own[last][1]), "losses": []} if last in own else {}
    best = float("inf")
    for _ in range(repeats):
        for cut, _ in own.values():
            cut.module.zero_grad()
        wanted.get("losses", []).clear()
        dist.barrier()
        started = time.perf_counter()
        schedule.step(*given, **wanted)
        dist.barrier()
        best = min(best, time.perf_counter() - started)
    gradients: dict[str, Any] = {}
    for cut, _ in own.values():
        for name, value in cut.module.named_parameters():
            if value.grad is not None:
                known = gradients.get(cut.parameters[name])
                gradients[cut.parameters[name]] = value.grad if known is None else known + value.grad
    mean = sum(float(one.detach()) for one in wanted["losses"]) / plan.training.microbatches if wanted else None
    return TrainingStep(mean, gradients, best)


def _exchange(
    gradients: dict[str, torch.Tensor], holders: Sequence[Set[str]], own: Mapping[int, tuple[StageModule, torch.device]]
) -> None:
    """Add up the gradients of parameters that several processes hold, in place.

    Parameters
    ----------
    gradients
        Of this process, by name.
    holders
        Names of the parameters that each process holds.
    own
        The stages of this process: a parameter without a gradient there has zeros.
    """
    import torch.distributed as dist

    ranks = {name: [at for at, names in enumerate(holders) if name in names] for name in sorted(set().union(*holders))}
    values = {name: cut.module.get_parameter(at) for cut, _ in own.values() for at, name in cut.parameters.items()}
    groups: dict[tuple[int, ...], Any] = {}
    for name, several in ranks.items():
        if len(several) < 2:
            continue
        if tuple(several) not in groups:  # every process takes part in making a group
            groups[tuple(several)] = dist.new_group(several)
        if dist.get_rank() in several:
            part = gradients.get(name, torch.zeros_like(values[name])).contiguous()
            dist.all_reduce(part, group=groups[tuple(several)])
            gradients[name] = part
    for members, group in groups.items():
        if dist.get_rank() in members:
            dist.destroy_process_group(group)


def _schedule(plan: Plan, own: Mapping[int, tuple[StageModule, torch.device]], mean_loss: Loss) -> Any:
    """Return torch's schedule of a plan, over the stages of this process."""
    import torch.distributed.pipelining as pipelining

    assert plan.training is not None
    stages = [pipeline_stage(cut.module, place, plan.num_stages, device) for place, (cut, device) in own.items()]
    name, microbatches = plan.training.schedule, plan.training.microbatches
    if name in ("gpipe", "1f1b"):
        kind = pipelining.ScheduleGPipe if name == "gpipe" else pipelining.Schedule1F1B
        return kind(stages[0], microbatches, loss_fn=mean_loss)
    many = pipelining.ScheduleInterleaved1F1B if name == "interleaved" else pipelining.ScheduleInterleavedZeroBubble
    try:
        return many(stages, microbatches, loss_fn=mean_loss)
    except ValueError as problem:
        raise InvalidPlan(f"torch does not run {name} with {microbatches} micro-batches: {problem}") from None
