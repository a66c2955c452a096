"""From the stages of a training pipeline to the plan that users get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import StageUse, TrainedStageUse, TrainingUse
from rlinit.stages.problem import StageAssignment
from rlinit.stages.training.lowering import LoweredTraining
from rlinit.stages.training.problem import TrainedStage, trained_stages
from rlinit.stages.training.schedule import PassTimes, timed_passes


def training_parts(
    assignment: StageAssignment | None, lowered: LoweredTraining, graph: Graph, hardware: Hardware
) -> dict[str, Any]:
    """Return the fields of a plan that describe a training pipeline.

    Parameters
    ----------
    assignment
        A feasible assignment, or None: only what is asked for.
    lowered
        The problem, and the way back to ops and devices.
    graph, hardware
        Where ops and devices have their names from.
    """
    training, node_of_op, rules = lowered.training, lowered.stages.node_of_op, lowered.training.rules
    use = TrainingUse(rules.schedule, rules.microbatches, rules.recompute, rules.state_factor, 0.0, ())
    if assignment is None:
        return {"training": use}
    stages = trained_stages(training, assignment)
    chunks = training.rules.chunks
    devices = [hardware.devices[i].name for i in lowered.stages.devices_of(assignment)] * chunks
    uses = tuple(
        StageUse(
            device=device,
            num_ops=int(stage.member[node_of_op].sum()),
            work_s=stage.forward_s + stage.backward_s + stage.recompute_s,
            in_s=stage.in_s,
            out_s=stage.out_s,
            overflow_s=stage.overflow_s,
            param_bytes=stage.param_bytes,
            off_cache_bytes=stage.off_cache_bytes,
            out_bytes=stage.out_bytes,
        )
        for stage, device in zip(stages, devices, strict=True)
    )
    times = [
        PassTimes.of(one.forward_s, one.backward_s, one.recompute_s, one.in_s + one.out_s + one.overflow_s)
        for one in stages
        if one.member.any() or chunks > 1
    ]
    passes = timed_passes(rules.schedule, rules.microbatches, times, chunks)
    names = training.blocks.names
    done = tuple(_trained(stage, names) for stage in stages)
    trained = replace(use, step_s=max(one.end_s for one in passes), stages=done)
    stage_of = dict(zip(graph.names, assignment.stage[node_of_op].tolist(), strict=True))
    return {"assignment": stage_of, "stages": uses, "training": trained}


def _trained(stage: TrainedStage, names: tuple[str, ...]) -> TrainedStageUse:
    return TrainedStageUse(
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        recompute_s=stage.recompute_s,
        in_flight=stage.in_flight,
        state_bytes=stage.state_bytes,
        kept_bytes=stage.kept_bytes,
        recomputed_bytes=stage.recomputed_bytes,
        buffer_bytes=stage.buffer_bytes,
        working_bytes=stage.working_bytes,
        recomputed=tuple(names[b] for b in stage.recomputed),
    )
