"""The independent checker: recomputes feasibility and value of a plan from the raw graph and hardware.

Nothing here comes from the solvers, the kernels or the array form they work on. It is the definitions of the problems
over columns of plan and graph, so that a plan of 50,000 ops is checked in a fraction of a second.
"""

from __future__ import annotations

from rlinit.checker.compatibility import figures_of, require_graph, require_hardware
from rlinit.checker.form import check_form
from rlinit.checker.groups import check_groups
from rlinit.checker.placements import check_placement
from rlinit.checker.stages import check_stages, stage_uses
from rlinit.checker.tolerances import ROUNDING
from rlinit.checker.training import check_training
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import OPTIMALITY_TOLERANCE, Plan

__all__ = ["stage_uses", "verify"]


def verify(plan: Plan, graph: Graph, hardware: Hardware) -> None:
    """Check that a plan is for this graph and hardware, feasible, and has the value and status it claims.

    A bound is a claim about every other schedule and cannot be checked from one; what is checked is that no value known
    contradicts it.

    Parameters
    ----------
    plan
        The plan, from `schedule`, from a file or from elsewhere.
    graph, hardware
        What it is said to be for.

    Raises
    ------
    InvalidPlan
        Another graph or hardware; a field that is malformed or of another objective; an op missing, unknown or on a
        stage that does not exist; a cycle among stages; batches or transfers that overlap or start too early; colocated
        ops apart; an op where it is forbidden; a memory overfull; a value, figure, bound or status that is not true.
        The message names the op, edge, stage or figure.
    """
    check_form(plan)
    require_graph(plan, graph)
    require_hardware(plan, hardware)
    if hardware.sharing and plan.objective == "pipeline":  # stages that are not empty slow those that share with them
        hardware = hardware.crowded({use.device for use in plan.stages if use.num_ops})
    if plan.graph_figures and dict(plan.graph_figures) != figures_of(graph):
        raise InvalidPlan(f"the plan gives its graph's totals as {plan.graph_figures}; expected {figures_of(graph)}")
    strange = sorted(set(plan.modules) - set(graph.names))
    if strange:
        raise InvalidPlan(f"the plan gives a module for op {strange[0]!r}, which the graph does not have")
    if plan.assignment is None:
        _check_nothing(plan)
        return
    if plan.status not in ("optimal", "feasible"):
        raise InvalidPlan(f"the plan claims {plan.status!r} but assigns ops")
    if plan.objective in ("latency", "throughput"):
        _check_claims(plan, (check_placement(plan, graph, hardware),))
    elif plan.groups is not None:
        _check_claims(plan, check_groups(plan, graph, hardware))
    elif plan.training is not None:
        _check_claims(plan, check_training(plan, graph, hardware))
    else:
        _check_claims(plan, check_stages(plan, graph, hardware))


def _check_nothing(plan: Plan) -> None:
    """Check a plan without a schedule: it has no figures of one, says why, and its bound came about in its history."""
    if plan.status in ("optimal", "feasible") or plan.values is not None:
        raise InvalidPlan(f"the plan claims to be {plan.status} but assigns nothing")
    for what in ("stages", "batches", "transfers", "devices", "stage_orders", "start_s"):
        if getattr(plan, what):
            raise InvalidPlan(f"the plan assigns nothing but gives {what}")
    if plan.status == "infeasible":
        if not plan.message.strip():
            raise InvalidPlan("the plan claims to be infeasible without a reason")
        if plan.bounds is not None:
            raise InvalidPlan(f"the plan claims to be infeasible but bounds the value by {plan.bounds}")
        return
    if any(entry.values is not None for entry in plan.history):
        raise InvalidPlan("the plan claims that no solution was found, but its history has one")
    proven = plan.history[-1].bounds if plan.history else None
    if plan.bounds is not None and (plan.bounds != proven or not plan.bound_source):
        raise InvalidPlan(f"the plan has no schedule but bounds {plan.bounds} that nothing in its history proved")


def _check_claims(plan: Plan, true: tuple[float, ...]) -> None:
    """Check the values, bounds and status of a plan against the values of its schedule."""
    if plan.values is None:
        raise InvalidPlan(f"the plan gives no values; expected {true}")
    for level, (claimed, value) in enumerate(zip(plan.values, true, strict=True)):
        if abs(claimed - value) > ROUNDING * max(claimed, value):
            raise InvalidPlan(f"the plan's value on level {level} is {claimed} but the schedule's is {value}")
    closed = True
    for level, (bound, value) in enumerate(zip(plan.bounds or (0.0,) * len(true), true, strict=True)):
        # A bound on one level speaks of schedules that are optimal on the levels before it.
        if closed and bound > value * (1.0 + ROUNDING):
            raise InvalidPlan(f"the bound {bound} on level {level} exceeds the value {value} of a feasible schedule")
        closed &= value - bound <= OPTIMALITY_TOLERANCE * value
    if (plan.status == "optimal") != closed:
        raise InvalidPlan(f"status is {plan.status!r} with values {true} and bounds {plan.bounds}")
