"""The pipeline executor: one process a stage, by torch.distributed.pipelining; started by torchrun.

Every process calls `execute` with the same plan, model and inputs. Inputs are split into micro-batches that follow each
other through the stages (fill and drain). Only the last process gets outputs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from rlinit.checker.compatibility import require_graph
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.compatibility import require_program
from rlinit.executors.lowering.microbatches import probe, run_in_parts
from rlinit.executors.lowering.stage_modules import StageModule, stage_modules, stage_order
from rlinit.executors.lowering.streams import ports_of
from rlinit.executors.lowering.torch_program import TorchProgram, torch_program
from rlinit.executors.protocol import Execution
from rlinit.graph import Graph
from rlinit.plan import Plan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PipelineExecutor:
    """Runs stage plans over processes.

    Parameters
    ----------
    microbatches
        Parts that the batch (the first dimension of every input) is split into.
    time_limit_s
        Seconds that a process waits for another before it gives up.
    repeats
        Runs of the whole batch; `Execution.seconds` is the shortest. The first one sets up connections.
    check
        Where there are several parts, compare the model on the whole batch with the model on its parts first, on
        random inputs, in every process. Without it, a model that mixes the inputs of a batch gives wrong outputs.

    Raises
    ------
    InvalidPlan
        `microbatches` or `repeats` is below 1.
    """

    microbatches: int = 1
    time_limit_s: float = 60.0
    repeats: int = 1
    check: bool = True

    def __post_init__(self) -> None:
        if self.microbatches < 1 or self.repeats < 1:
            raise InvalidPlan(f"microbatches and repeats are {self.microbatches} and {self.repeats}; expected >= 1")

    def execute(
        self,
        plan: Plan,
        model: Any,
        inputs: Sequence[Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> Execution:
        """Run this process's stage; see `Executor.execute`.

        Raises
        ------
        InvalidPlan
            Not a stage plan, not as many processes as stages, not started by torchrun, or inputs that cannot be split.
        ExecutionFailure
            This stage failed, or another process is gone.
        """
        import torch

        _require_stages(plan)
        with joined_stages(plan, graph, self.time_limit_s) as (rank, size):
            if size != plan.num_stages:
                raise InvalidPlan(f"there are {size} processes for {plan.num_stages} stages; expected one a stage")
            microbatch = microbatch_sizes([*inputs, *(kwargs or {}).values()], self.microbatches)
            program, places = stage_program(plan, model, inputs, kwargs, graph, devices or {}, self.microbatches)
            flat = program.flat_inputs(inputs, kwargs)
            if microbatch and self.check:
                whole = microbatch[0]
                probe(program, lambda given: run_in_parts(program, given, whole, self.microbatches), flat, [], whole)
            part = microbatch[1] if microbatch else None
            stages = numbered_stages(plan)
            cut = stage_modules(program, stages, size, microbatch=part, batch=program.batch, devices=places)
            with failing_stage(str(cut[rank].stage), rank, places[rank]), torch.no_grad():
                outputs, seconds = self._run(cut[rank], rank, size, places[rank], flat)
            return Execution(_structured(program, outputs, rank == size - 1), seconds)

    def _run(self, cut: StageModule, rank: int, size: int, device: torch.device, flat: list[Any]) -> tuple[Any, float]:
        """Stream the micro-batches through; return this process's outputs and the shortest time."""
        import torch.distributed as dist
        from torch.distributed.pipelining import ScheduleGPipe

        stage = pipeline_stage(cut.module, rank, size, device)
        schedule = ScheduleGPipe(stage, n_microbatches=self.microbatches)
        best = float("inf")
        outputs = None
        for _ in range(self.repeats):
            dist.barrier()
            started = time.perf_counter()
            # Inputs that no stage reads are placeholders of the first one all the same.
            outputs = schedule.eval(*(value.to(device) for value in flat)) if rank == 0 else schedule.eval()
            dist.barrier()
            best = min(best, time.perf_counter() - started)
        return outputs, best


def _require_stages(plan: Plan) -> None:
    """Refuse a plan without stages, or that trains."""
    if plan.assignment is None or plan.objective not in ("pipeline", "memory"):
        raise InvalidPlan(f"a {plan.objective} plan that is {plan.status} has no stages; expected a stage plan")
    if plan.groups is not None:
        raise InvalidPlan(
            "the plan has stages of several devices; run it by rlinit.executors.groups.DistributedModel (rlinit run)"
        )
    if plan.training is not None:
        raise InvalidPlan("the plan is for training; run it by rlinit.executors.training.training_step")


@contextmanager
def joined_stages(plan: Plan, graph: Graph | None, time_limit_s: float) -> Iterator[tuple[int, int]]:
    """Join the processes that torchrun started, and leave them in the end; give the rank and how many there are.

    Parameters
    ----------
    plan, graph
        The plan, and its graph or None, which is refused if it is another one.
    time_limit_s
        Seconds after which a process gives up on another one.
    """
    import torch.distributed as dist

    if graph is not None:
        require_graph(plan, graph)
    mine = joined_group(time_limit_s)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if mine:
            dist.destroy_process_group()


@contextmanager
def failing_stage(stages: str, rank: int, place: torch.device) -> Iterator[None]:
    """Say which stage failed.

    Parameters
    ----------
    stages, rank, place
        What runs here, in which process, and where.

    Raises
    ------
    ExecutionFailure
        torch raised something.
    """
    try:
        yield
    except (RuntimeError, ValueError) as problem:
        raise ExecutionFailure(
            f"stage {stages} failed in process {rank} on {place}, or a process next to it is gone: {problem}"
        ) from problem


def joined_group(time_limit_s: float) -> bool:
    """Join the processes that torchrun started; return whether that was done here.

    Raises
    ------
    InvalidPlan
        torchrun did not start this process.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return False
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise InvalidPlan(
            "the pipeline executor runs in processes that torchrun starts; RANK and WORLD_SIZE are not set"
        )
    # Both, so that tensors on either kind of device can travel.
    backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() and _has_gpus() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=time_limit_s))
    return True


def _has_gpus() -> bool:
    import torch

    return torch.cuda.is_available()


def microbatch_sizes(inputs: Sequence[Any], parts: int) -> tuple[int, int] | None:
    """Return the sizes of the batch and of a micro-batch; None for one part, which runs as it is.

    Parameters
    ----------
    inputs
        Tensors whose first dimension is the batch.
    parts
        Micro-batches.

    Raises
    ------
    InvalidPlan
        An input is no tensor, or they cannot be split into so many parts.
    """
    import torch

    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise InvalidPlan(f"an input is a {type(value).__name__}; a pipeline takes tensors only")
    if parts == 1:
        return None
    sizes = {value.shape[0] if value.dim() else 0 for value in inputs}
    if len(sizes) != 1 or min(sizes) % parts or not min(sizes):
        raise InvalidPlan(f"inputs have first dimensions {sorted(sizes)}, which cannot be split into {parts} parts")
    return min(sizes), min(sizes) // parts


def pipeline_stage(module: Any, place: int, num_stages: int, device: torch.device) -> Any:
    """Return torch's stage for a module.

    Parameters
    ----------
    module, device
        What it runs, and where.
    place, num_stages
        Its place among so many.
    """
    return _stage_type()(module, place, num_stages, device)


@cache
def _stage_type() -> Any:
    import torch
    from torch.distributed.pipelining import PipelineStage

    class Stage(PipelineStage):
        """A stage that works where torch's does not: on integers that are indices, and on inputs without a gradient."""

        def _to_tensor(self, arg: Any) -> torch.Tensor:
            """Return what torch tries a stage on to learn shapes, where it would take any memory as indices."""
            value = super()._to_tensor(arg)
            return value if value.is_floating_point() else torch.zeros_like(value)

        def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
            """Run a backward as a whole where no input has a gradient to split off: torch would find no parameters."""
            whole = not self.is_first and not any(value.requires_grad for value in self.fwd_cache[bwd_chunk_id][1])
            self.dw_builder = (lambda: lambda: None) if whole else None
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    return Stage


def numbered_stages(plan: Plan) -> dict[str, int]:
    """Return op -> stage."""
    return {op: int(stage) for op, stage in (plan.assignment or {}).items()}


def stage_program(
    plan: Plan,
    model: Any,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    graph: Graph | None,
    devices: Mapping[str, str],
    microbatches: int,
) -> tuple[TorchProgram, list[torch.device]]:
    """Return the program of a model, which is to be the plan's, and the device of each place in the pipeline.

    Parameters
    ----------
    plan, model, inputs, kwargs, graph, devices
        As for `rlinit.executors.execute`.
    microbatches
        Equal parts of the inputs.

    Raises
    ------
    InvalidPlan
        A device that this machine does not have, stages that read each other in a circle, or another model.
    """
    program = torch_program(
        model, inputs, list(plan.assignment or {}), kwargs=kwargs, graph=graph, plan_inputs=microbatches, parts=(1,)
    )
    if graph is None:
        require_program(plan, program.exported)
    ports = ports_of([use.device for use in plan.stages], devices)
    order = stage_order(program, numbered_stages(plan), plan.num_stages)
    return program, [ports[stage].device for stage in order]


def _structured(program: TorchProgram, outputs: Any, is_last: bool) -> Any:
    if not is_last:
        return None
    import torch

    given = iter(outputs if isinstance(outputs, (tuple, list)) else [outputs])
    flat = [next(given) if hasattr(output, "all_input_nodes") else output for output in program.outputs]
    return program.structured([value.cpu() if isinstance(value, torch.Tensor) else value for value in flat])
