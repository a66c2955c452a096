"""Where a plan runs each op, for exporters to formats in which every op has one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from rlinit.checker.compatibility import require_graph
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.plan import Plan

Part = TypeVar("Part", int, tuple[int, str])
"""A stage, or what begins with one."""


def check_graph(plan: Plan, graph: Graph) -> None:
    """Refuse a plan that has no schedule, or was made for another graph.

    Parameters
    ----------
    plan
        A plan of any objective.
    graph
        The graph that is to be exported with it.

    Raises
    ------
    InvalidPlan
        The message says which, and names an op where the plan's ops are not the graph's.
    """
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to export")
    if plan.groups is not None:
        raise InvalidPlan(
            "the plan has stages of several devices, which this format cannot say; to_megatron_flags, to_torchtitan, "
            "to_server_flags and to_torchrun_script can"
        )
    require_graph(plan, graph)
    known = set(graph.names)
    for op in plan.assignment:
        if op not in known:
            raise InvalidPlan(f"the plan places op {op!r}, which graph {graph.name!r} does not have")
    for op in graph.names:
        if op not in plan.assignment:
            raise InvalidPlan(f"the plan does not place op {op!r} of graph {graph.name!r}")


def op_devices(plan: Plan, graph: Graph) -> dict[str, str]:
    """Return op -> name of the one device it runs on, in the graph's order.

    Parameters
    ----------
    plan
        A plan of any objective.
    graph
        The graph the plan was made for.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph, has no schedule, or deals the inputs of an op (named) over several devices.
    """
    check_graph(plan, graph)
    assignment = plan.assignment or {}
    if plan.objective in ("pipeline", "memory"):
        stages = op_stages(plan, graph)
        return {op: plan.stages[stages[op]].device for op in graph.names}
    for op, on in assignment.items():
        if not isinstance(on, str):
            raise InvalidPlan(
                f"op {op!r} runs some inputs on {on[0]} and some on {on[1]}; this format has one device for each op "
                "(plan for the objective 'latency', or with shards of all inputs)"
            )
    return {op: assignment[op] for op in graph.names}


def op_places(plan: Plan, stages: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return op -> where it runs: the devices of a placement, in the hardware's order, or what its stage is called.

    Parameters
    ----------
    plan
        A plan with a schedule.
    stages
        What the stages of a plan of stages are called.
    """
    assignment = plan.assignment or {}
    if plan.objective in ("pipeline", "memory"):
        return {op: (stages[int(stage)],) for op, stage in assignment.items()}
    return {op: (on,) if isinstance(on, str) else tuple(on) for op, on in assignment.items()}


def op_stages(plan: Plan, graph: Graph) -> dict[str, int]:
    """Return op -> stage of a `pipeline` or `memory` plan, in the graph's order.

    Parameters
    ----------
    plan
        A 'pipeline' or 'memory' plan.
    graph
        The graph the plan was made for.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph, has no schedule or no stages, or puts an op (named) on a stage it does not have.
    """
    check_graph(plan, graph)
    if plan.objective not in ("pipeline", "memory"):
        raise InvalidPlan(f"a {plan.objective} plan has devices, not stages; plan for 'pipeline' or 'memory'")
    stages = {}
    for op in graph.names:
        stage = (plan.assignment or {})[op]
        if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < plan.num_stages:
            raise InvalidPlan(f"op {op!r} is on stage {stage!r}; the plan has the stages 0 to {plan.num_stages - 1}")
        stages[op] = stage
    return stages


def quotient_order(graph: Graph, op2part: Mapping[str, Part], parts: Iterable[Part]) -> list[Part]:
    """Return the parts that ops belong to in an order in which each comes after those it reads; ties go by themselves.

    Where no edge goes to a smaller part, that is their own order.

    Parameters
    ----------
    graph
        The graph.
    op2part
        op -> part; ops that are not named belong to none.
    parts
        All parts, those without ops included.

    Raises
    ------
    InvalidPlan
        Parts read each other in a circle; the message names an op on it.
    """
    import networkx as nx

    quotient: nx.DiGraph[Part] = nx.DiGraph()
    quotient.add_nodes_from(parts)
    for u, v in graph.edges.tolist():
        source, target = op2part.get(graph.names[u]), op2part.get(graph.names[v])
        if source is not None and target is not None and source != target:
            quotient.add_edge(source, target, op=graph.names[v])
    try:
        return list(nx.lexicographical_topological_sort(quotient))
    except nx.NetworkXUnfeasible:
        circle = nx.find_cycle(quotient)
        stages = sorted(part if isinstance(part, int) else part[0] for part, _ in circle)
        raise InvalidPlan(
            f"stages {stages} read each other in a circle, which op "
            f"{quotient.edges[circle[0]]['op']!r} is on; no order of stages can run such a plan"
        ) from None
