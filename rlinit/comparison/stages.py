"""Baselines of stages: everything on one device, and cuts of the natural order into equal parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.comparison.baselines import BEST_DEVICE, EQUAL_LAYERS, Baseline, cut_order
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.stages.lowering import LoweredStages
from rlinit.stages.problem import StageAssignment, StageProblem, Value
from rlinit.units import format_bytes

STAGE_BASELINES = (BEST_DEVICE, EQUAL_LAYERS, "equal work", "equal bytes")

ValueOf = Callable[[StageAssignment], Value]
"""The value of an assignment, infinite where it is not feasible."""


def stage_baselines(
    lowered: LoweredStages, graph: Graph, hardware: Hardware, value_of: ValueOf, budget: Budget
) -> list[Baseline[StageAssignment]]:
    """Return what the rules of `STAGE_BASELINES` give, each evaluated as the plan is.

    The cuts take the natural order, and the devices in the hardware's order.

    Parameters
    ----------
    lowered
        The problem.
    graph, hardware
        Where ops and devices have their names from.
    value_of
        Evaluates an assignment as the plan is.
    budget
        Once it has ended, a rule is begun only while none of those that cut gave a schedule: there is a plan however
        short the limit.
    """
    problem = lowered.problem
    ops = np.bincount(lowered.node_of_op, minlength=problem.num_nodes).astype(np.float64)
    work = np.where(np.isfinite(problem.work_s), problem.work_s, np.inf).min(axis=0)
    weights = {EQUAL_LAYERS: ops, "equal work": work, "equal bytes": problem.param_bytes}
    found: list[Baseline[StageAssignment]] = []
    for name in STAGE_BASELINES:
        if budget.expired and any(one.schedule is not None for one in found[1:]):
            found.append(Baseline(name, None, None, "not computed: the time limit had passed"))
        elif name == BEST_DEVICE:
            found.append(_single(lowered, hardware, value_of))
        elif name == "equal work" and problem.objective == "memory":
            found.append(Baseline(name, None, None, "the memory objective has no times"))
        else:
            found.append(_cut(name, weights[name], lowered, graph, hardware, value_of))
    return found


def _cut(
    name: str,
    weight: FloatArray,
    lowered: LoweredStages,
    graph: Graph,
    hardware: Hardware,
    value_of: ValueOf,
) -> Baseline[StageAssignment]:
    """Cut the natural order into stages of equal weight."""
    problem = lowered.problem
    stage = cut_order(problem.order, weight, np.ones(problem.num_stages))
    assignment = StageAssignment(stage, problem.stage_class)
    value = value_of(assignment)[0]
    if value < float("inf"):
        return Baseline(name, assignment, value)
    devices = [hardware.devices[i].name for i in lowered.devices_of(assignment)]
    return Baseline(name, None, None, _reason(lowered, assignment, graph.names, devices))


def _single(lowered: LoweredStages, hardware: Hardware, value_of: ValueOf) -> Baseline[StageAssignment]:
    """Put everything in one stage, on the device that does it best; for `memory` in the stage that costs least."""
    problem = lowered.problem
    best: Baseline[StageAssignment] | None = None
    levels: Value = ()
    for c, devices in enumerate(lowered.class_devices):
        assignment = _all_on(problem, c)
        values = value_of(assignment)
        if values[0] < float("inf") and (best is None or values < levels):
            levels = values
            best = Baseline(BEST_DEVICE, assignment, values[0], hardware.devices[devices[0]].name)
    if best is not None:
        return best
    if not np.isfinite(problem.work_s).all(axis=1).any():
        return Baseline(BEST_DEVICE, None, None, "no device may run every op")
    need, room = float(problem.param_bytes.sum()), float(problem.memory_bytes.max())
    reason = f"no device holds the whole model: {format_bytes(need)}, the largest memory is {format_bytes(room)}"
    return Baseline(BEST_DEVICE, None, None, reason)


def _all_on(problem: StageProblem, c: int) -> StageAssignment:
    """Return the assignment of all nodes to one stage of a class."""
    if problem.objective == "memory":
        position, classes = int(np.flatnonzero(problem.stage_class == c)[0]), problem.stage_class
    else:
        position, classes = 0, problem.completed_classes([c])
    return StageAssignment(np.full(problem.num_nodes, position, np.int64), classes)


def _reason(lowered: LoweredStages, assignment: StageAssignment, ops: Sequence[str], devices: Sequence[str]) -> str:
    """Return why nodes may not be in their stages."""
    problem = lowered.problem
    classes = assignment.classes[assignment.stage]
    stuck = np.flatnonzero(~np.isfinite(problem.work_s[classes, np.arange(problem.num_nodes)]))
    if len(stuck):
        op = ops[int(np.flatnonzero(lowered.node_of_op == stuck[0])[0])]
        return f"op {op!r} may not run on device {devices[int(assignment.stage[stuck[0]])]!r}"
    held = np.bincount(assignment.stage, problem.param_bytes, minlength=problem.num_stages)
    room = problem.memory_bytes[assignment.classes]
    full = np.flatnonzero(held > room * CAPACITY_SLACK)
    if len(full):
        j = int(full[0])
        return f"device {devices[j]!r} would hold {format_bytes(float(held[j]))} of {format_bytes(float(room[j]))}"
    return "it does not fit"
