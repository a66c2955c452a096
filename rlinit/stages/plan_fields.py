"""From stages to the plan that users get, and back from a plan that they hand in."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinit.checker.stages import stage_uses
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.lowering import LoweredStages
from rlinit.stages.problem import StageAssignment, StageProblem

__all__ = ["stage_parts", "stages_from_plan"]


def stage_parts(
    assignment: StageAssignment | None,
    problem: StageProblem | StageActivations,
    lowered: LoweredStages,
    graph: Graph,
    hardware: Hardware,
) -> dict[str, Any]:
    """Return the fields of a plan that describe stages; every figure comes from the checker's own arithmetic."""
    if assignment is None:
        return {}
    stage_of = dict(zip(graph.names, assignment.stage[lowered.node_of_op].tolist(), strict=True))
    devices = [hardware.devices[i].name for i in lowered.devices_of(assignment)]
    orders: tuple[tuple[str, ...], ...] = ()
    if isinstance(problem, StageActivations):
        found = problem.orders(assignment)
        orders = tuple(tuple(graph.names[op] for op in order) for order in found)
    uses = stage_uses(stage_of, graph, hardware, devices, lowered.problem.objective, orders=orders)
    return {"assignment": stage_of, "stages": uses, "stage_orders": orders}


def stages_from_plan(plan: Plan, lowered: LoweredStages, graph: Graph, hardware: Hardware) -> StageAssignment:
    """Return the assignment of a plan handed in to be refined.

    Raises
    ------
    InvalidPlan
        It is for another graph, devices or number of stages, or has no stages.
    """
    if plan.assignment is None or plan.objective not in ("pipeline", "memory"):
        raise InvalidPlan(f"the plan to refine is a {plan.objective} plan that is {plan.status}; it has no stages")
    if plan.graph_fingerprint != graph.fingerprint() or len(plan.stages) != hardware.num_devices:
        raise InvalidPlan(
            f"the plan to refine is for {plan.graph!r} on {len(plan.stages)} stages, not for this problem"
        )
    stage = np.zeros(lowered.problem.num_nodes, np.int64)
    for op, node in zip(graph.names, lowered.node_of_op.tolist(), strict=True):
        stage[node] = plan.assignment[op]
    class_of = {hardware.devices[i].name: c for c, devices in enumerate(lowered.class_devices) for i in devices}
    try:
        classes = [class_of[use.device] for use in plan.stages]
    except KeyError as missing:
        raise InvalidPlan(f"the plan to refine uses device {missing}, which {hardware.name!r} does not have") from None
    return StageAssignment(stage, np.array(classes, np.int64))
