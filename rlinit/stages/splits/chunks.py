"""Pipelines in which every device runs several stages, its *chunks*.

With k devices and v chunks there are K = k v stages in the order of the data. *Slot* s stands for one device, of class
``classes[s]``, and stage j runs on slot ``slot[j]``: j mod k where chunks are interleaved, any where the order is free,
as long as every slot has v stages. A slot costs the sum of its stages, with its parameters taken together ::

    cost(s) = sum over its stages S of (tensors into S + work of S + tensors out of S)
              + overflow_s_per_byte[c] * max(0, param(all its stages) - cache_bytes[c])

and its parameters must fit the memory. A tensor between two chunks of one device is paid like any other: chunks receive
and send as stages of their own. The bottleneck is the largest cost of a slot.

References
----------
Narayanan et al.: Efficient large-scale language model training on GPU clusters using Megatron-LM, SC 2021, section
2.2.2 (interleaved stages).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.plan import ChunkOrder, Plan, StageUse
from rlinit.stages.lowering import LoweredStages
from rlinit.stages.plan_fields import stage_parts, stages_from_plan
from rlinit.stages.problem import StageAssignment, StageProblem, Value, stage_costs


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedStages:
    """A `pipeline` problem on k devices, each of which runs several stages.

    Parameters
    ----------
    problem
        Nodes, tensors and the k devices.
    chunks
        Stages v of each device.
    order
        Whether stage j is bound to slot j mod k.
    unrolled
        The problem with a device for each stage, without memory limits and caches, which chunks share.
    """

    problem: StageProblem
    chunks: int
    order: ChunkOrder = "interleaved"
    unrolled: StageProblem = field(init=False)

    def __post_init__(self) -> None:
        none = np.full(self.problem.num_classes, np.inf)
        stages = np.tile(self.problem.stage_class, self.chunks)
        unrolled = replace(self.problem, stage_class=stages, memory_bytes=none, cache_bytes=none)
        object.__setattr__(self, "unrolled", unrolled)

    @property
    def num_slots(self) -> int:
        """Number of devices k."""
        return self.problem.num_stages

    @property
    def num_stages(self) -> int:
        """Number of stages K = k v."""
        return self.problem.num_stages * self.chunks

    @property
    def is_bound(self) -> bool:
        """Whether a stage has no slot but its own: several stages a device, in interleaved order."""
        return self.chunks > 1 and self.order == "interleaved"

    @property
    def interleaved_slots(self) -> IntArray:
        """(K,) the slot of each stage in interleaved order."""
        return np.arange(self.num_stages, dtype=np.int64) % self.num_slots


@dataclass(frozen=True, slots=True, eq=False)
class ChunkAssignment:
    """`stage` (n,) of each node, `slot` (K,) of each stage, `classes` (k,) of each slot's device."""

    stage: IntArray
    slot: IntArray
    classes: IntArray

    @property
    def stages(self) -> StageAssignment:
        """The stages as if each had a device of its own."""
        return StageAssignment(self.stage, self.classes[self.slot])


def slot_costs(problem: ChunkedStages, assignment: ChunkAssignment) -> FloatArray:
    """Return (k,) seconds of each slot, ``inf`` where its parameters exceed the memory.

    Parameters
    ----------
    problem
        The problem.
    assignment
        A monotone assignment.
    """
    base, k = problem.problem, problem.num_slots
    slot, classes = assignment.slot, assignment.classes
    cost = np.bincount(slot, weights=stage_costs(problem.unrolled, assignment.stages), minlength=k)
    held = np.bincount(slot[assignment.stage], weights=base.param_bytes, minlength=k)
    over = np.maximum(held - base.cache_bytes[classes], 0.0)
    cost += np.where(over > 0, over * base.overflow_s_per_byte[classes], 0.0)
    return np.where(held > base.memory_bytes[classes] * CAPACITY_SLACK, np.inf, cost)


def chunk_value(problem: ChunkedStages, assignment: ChunkAssignment) -> Value:
    """Return the bottleneck as a value.

    Parameters
    ----------
    problem
        The problem.
    assignment
        A monotone assignment.
    """
    return (float(slot_costs(problem, assignment).max()),)


def chunk_parts(
    assignment: ChunkAssignment | None,
    problem: ChunkedStages,
    lowered: LoweredStages,
    graph: Graph,
    hardware: Hardware,
) -> dict[str, Any]:
    """Return the fields of a plan that describe chunks, from the problem's own arrays.

    Parameters
    ----------
    assignment
        A feasible assignment, or None: no fields.
    problem
        What was solved.
    lowered
        The way back to ops and devices.
    graph, hardware
        Where ops and devices have their names from.
    """
    if assignment is None:
        return {}
    base = problem.problem
    if problem.chunks == 1:
        return stage_parts(assignment.stages, base, lowered, graph, hardware)
    unrolled = replace(lowered, problem=problem.unrolled, class_devices=_repeated(lowered, problem.chunks))
    parts = stage_parts(assignment.stages, unrolled.problem, unrolled, graph, hardware)
    devices = lowered.devices_of(StageAssignment(assignment.stage, assignment.classes))
    together = np.bincount(assignment.slot[assignment.stage], base.param_bytes, problem.num_slots)
    uses: list[StageUse] = []
    for use, s in zip(parts["stages"], assignment.slot.tolist(), strict=True):
        c, held = int(assignment.classes[s]), float(together[s])
        share = use.param_bytes / held if held > 0 else 0.0
        off_cache = max(0.0, held - float(base.cache_bytes[c])) * share
        uses.append(
            replace(
                use,
                device=hardware.devices[devices[s]].name,
                off_cache_bytes=off_cache,
                overflow_s=off_cache * float(base.overflow_s_per_byte[c]),
            )
        )
    return {**parts, "stages": tuple(uses)}


def _repeated(lowered: LoweredStages, times: int) -> tuple[tuple[int, ...], ...]:
    return tuple(devices * times for devices in lowered.class_devices)


def chunks_from_plan(
    plan: Plan,
    problem: ChunkedStages,
    lowered: LoweredStages,
    graph: Graph,
    hardware: Hardware,
    *,
    contiguous: bool = True,
) -> ChunkAssignment:
    """Return the assignment of a plan handed in to be refined: one with as many chunks, or with one stage a device.

    Parameters
    ----------
    plan
        A 'pipeline' plan.
    problem, lowered
        The problem of this call, and where it comes from.
    graph, hardware
        The model and the devices.
    contiguous
        Refuse a plan whose stages are not in the order of the data.

    Raises
    ------
    InvalidPlan
        It is for another graph, devices or number of chunks, is not contiguous, or has no stages.
    """
    if plan.chunks == 1:
        return from_contiguous(problem, stages_from_plan(plan, lowered, graph, hardware, contiguous=contiguous))
    if plan.chunks != problem.chunks or (problem.order == "interleaved" and plan.chunk_order == "free"):
        raise InvalidPlan(
            f"the plan to refine has {plan.chunks} chunks in {plan.chunk_order} order; "
            f"expected {problem.chunks} in {problem.order} order"
        )
    names = list(dict.fromkeys(use.device for use in plan.stages))
    one = replace(plan, chunks=1, stages=tuple(next(u for u in plan.stages if u.device == name) for name in names))
    found = stages_from_plan(one, lowered, graph, hardware, contiguous=False)
    slot = np.array([names.index(use.device) for use in plan.stages], np.int64)
    return ChunkAssignment(found.stage, slot, found.classes)


def from_contiguous(problem: ChunkedStages, assignment: StageAssignment) -> ChunkAssignment:
    """Return an assignment of one stage a device as one of chunks, of which all but the first of a device are empty.

    Parameters
    ----------
    problem
        The problem with chunks.
    assignment
        An assignment of its `problem`.
    """
    return ChunkAssignment(assignment.stage, problem.interleaved_slots, assignment.classes)
