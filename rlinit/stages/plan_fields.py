"""From stages to the plan that users get, and back from a plan that they hand in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlinit.arrays import inverse_of
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.kernels.orders import kahn
from rlinit.plan import Plan, StageUse
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.lowering import LoweredStages
from rlinit.stages.problem import StageAssignment, StageProblem
from rlinit.stages.slicing import slice_order


def stage_parts(
    assignment: StageAssignment | None,
    problem: StageProblem | StageActivations,
    lowered: LoweredStages,
    graph: Graph,
    hardware: Hardware,
) -> dict[str, Any]:
    """Return the fields of a plan that describe stages, from the problem's own arrays.

    Parameters
    ----------
    assignment
        A feasible assignment, or None: no fields.
    problem
        What was solved: `lowered.problem`, or that with activations.
    lowered
        The way back to ops and devices.
    graph, hardware
        Where ops and devices have their names from.
    """
    if assignment is None:
        return {}
    stage_of = dict(zip(graph.names, assignment.stage[lowered.node_of_op].tolist(), strict=True))
    devices = [hardware.devices[i].name for i in lowered.devices_of(assignment)]
    orders: tuple[tuple[str, ...], ...] = ()
    if isinstance(problem, StageActivations):
        found = problem.orders(assignment)
        orders = tuple(tuple(graph.names[op] for op in order) for order in found)
    uses = tuple(_stage_use(problem, lowered, assignment, j, device) for j, device in enumerate(devices))
    return {"assignment": stage_of, "stages": uses, "stage_orders": orders}


def _stage_use(
    problem: StageProblem | StageActivations, lowered: LoweredStages, assignment: StageAssignment, j: int, device: str
) -> StageUse:
    """Return what stage j does: the terms of the stage cost, each summed without rounding on the way."""
    plain = lowered.problem
    member = assignment.stage == j
    c = int(assignment.classes[j] if plain.objective == "pipeline" else plain.stage_class[j])
    tensor_of = np.repeat(np.arange(plain.num_tensors), np.diff(plain.tensor_indptr))
    made_here = member[plain.tensor_src]
    read_here = np.zeros(plain.num_tensors, np.bool_)
    read_here[tensor_of[member[plain.tensor_dst]]] = True
    read_elsewhere = np.zeros(plain.num_tensors, np.bool_)
    read_elsewhere[tensor_of[~member[plain.tensor_dst]]] = True
    enters, leaves = ~made_here & read_here, made_here & read_elsewhere
    param = math.fsum(plain.param_bytes[member].tolist())
    peak = problem.least_peak(member, c).peak_bytes if isinstance(problem, StageActivations) and member.any() else 0.0
    off_cache = max(0.0, param + peak - float(plain.cache_bytes[c]))
    return StageUse(
        device=device,
        num_ops=int(member[lowered.node_of_op].sum()),
        work_s=math.fsum(plain.work_s[c, member].tolist()),
        in_s=math.fsum(plain.in_s[c, enters].tolist()),
        out_s=math.fsum(plain.out_s[c, leaves].tolist()),
        overflow_s=off_cache * float(plain.overflow_s_per_byte[c]),
        param_bytes=param,
        off_cache_bytes=off_cache,
        out_bytes=math.fsum(plain.tensor_bytes[leaves].tolist()),
        activation_bytes=peak,
    )


def stages_from_plan(
    plan: Plan, lowered: LoweredStages, graph: Graph, hardware: Hardware, *, contiguous: bool = True
) -> StageAssignment:
    """Return the assignment of a plan handed in to be refined.

    A contiguous plan may be of a graph and devices that have changed: ops are found by name, those that it does not
    name join the stages that they read from, and the order that this gives is sliced anew. The result may break limits.

    Parameters
    ----------
    plan
        A 'pipeline' or 'memory' plan with stages.
    lowered
        The lowered problem of this call.
    graph
        The graph it was lowered from.
    hardware
        The devices, in the order of the problem.
    contiguous
        Refuse a plan whose stages are not in the order of the data.

    Raises
    ------
    InvalidPlan
        It names none of the ops, has no stages, several chunks, or stages that are not contiguous; if `contiguous` is
        False also: it is for another graph, devices or number of stages.
    """
    if plan.assignment is None or plan.objective not in ("pipeline", "memory"):
        raise InvalidPlan(f"the plan to refine is a {plan.objective} plan that is {plan.status}; it has no stages")
    if plan.chunks > 1 or (contiguous and not plan.contiguous):
        what = f"{plan.chunks} chunks a device" if plan.chunks > 1 else "stages that are not contiguous"
        raise InvalidPlan(f"the plan to refine has {what}, which this problem does not take")
    class_of = {hardware.devices[i].name: c for c, devices in enumerate(lowered.class_devices) for i in devices}
    classes = [class_of.get(use.device, -1) for use in plan.stages]
    same = plan.graph_fingerprint == graph.fingerprint() and len(classes) == hardware.num_devices and min(classes) >= 0
    stage = np.full(lowered.problem.num_nodes, -1)
    for op, node in zip(graph.names, lowered.node_of_op.tolist(), strict=True):
        stage[node] = max(stage[node], plan.assignment.get(op, -1))
    if same:
        return StageAssignment(stage, np.array(classes, np.int64))
    if not contiguous or stage.max() < 0:
        raise InvalidPlan(
            f"the plan to refine is for {plan.graph!r} on {len(plan.stages)} stages, not for this problem"
        )
    problem = lowered.problem
    place = stage * float(problem.num_nodes) + inverse_of(problem.order)
    found = slice_order(problem, kahn(-place, problem.succ_indptr, problem.succ, problem.pred_indptr))
    return StageAssignment(np.zeros_like(stage), problem.stage_class) if found is None else found[0]
