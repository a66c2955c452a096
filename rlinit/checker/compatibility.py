"""Whether a plan is for a graph and hardware; where it is not, what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

_LIMIT = 3
"""Names that a message lists of each kind."""


def figures_of(graph: Graph) -> dict[str, float]:
    """Return the totals of a graph that a plan keeps, so that what differs can be said where fingerprints do."""
    return {
        "ops": float(graph.num_ops),
        "edges": float(graph.num_edges),
        "param_bytes": graph.total_param_bytes,
        "out_bytes": float(np.nansum(graph.made_bytes)),
        "flops": float(np.nansum(graph.flops)),
    }


def require_graph(plan: Plan, graph: Graph) -> None:
    """Check that a plan was made for a graph, by its fingerprint.

    Parameters
    ----------
    plan
        A plan of any objective.
    graph
        The graph to compare with; only its fingerprint counts.

    Raises
    ------
    InvalidPlan
        It was not; the message names ops that only one of them has, else the totals that differ.
    """
    if plan.graph_fingerprint == graph.fingerprint():
        return
    raise InvalidPlan(
        f"the plan was made for another graph ({plan.graph!r}), not for this {graph.name!r}: {_difference(plan, graph)}"
    )


def require_hardware(plan: Plan, hardware: Hardware) -> None:
    """Check that a plan was made for these devices and links, by their fingerprint.

    Parameters
    ----------
    plan
        A plan of any objective.
    hardware
        The devices and links to compare with; only their fingerprint counts.

    Raises
    ------
    InvalidPlan
        It was not; the message names devices that only one of them has.
    """
    if plan.hardware_fingerprint == hardware.fingerprint():
        return
    names = [use.device for use in plan.devices or plan.stages]
    listed = _listed(names, [device.name for device in hardware.devices], "devices")
    raise InvalidPlan(
        f"the plan was made for other hardware ({plan.hardware!r}), not for this {hardware.name!r}: "
        f"{listed or 'devices of these names, but with other rates, memories, batch sizes or links'}"
    )


def _difference(plan: Plan, graph: Graph) -> str:
    if plan.assignment is not None:
        listed = _listed(list(plan.assignment), graph.names, "ops")
        if listed:
            return listed
    apart = differing_totals(plan.graph_figures, figures_of(graph))
    if apart:
        return f"{apart}; was it imported with another batch size, dims or sharing?"
    return "the same ops in other costs, times, edges or groups; were its times measured or edited since?"


def _listed(planned: Sequence[str], given: Sequence[str], what: str) -> str:
    """Say which names only one side has; "" where both have the same."""
    parts = []
    for side, others, where in ((planned, given, "the plan"), (given, planned, "this one")):
        only = sorted(set(side) - set(others))
        if only:
            more = f" and {len(only) - _LIMIT:,} more" if len(only) > _LIMIT else ""
            parts.append(f"{what} in {where} only: {', '.join(map(repr, only[:_LIMIT]))}{more}")
    return "; ".join(parts)


def differing_totals(planned: Mapping[str, float], given: Mapping[str, float]) -> str:
    """Say which totals differ; "" where the plan has none or all agree.

    Parameters
    ----------
    planned, given
        Totals by their names in `figures_of`: the plan's, and those of the graph at hand.
    """
    return ", ".join(
        f"{given[key]:,.0f} {key.replace('_', ' ')} instead of {planned[key]:,.0f}"
        for key in given
        if key in planned and planned[key] != given[key]
    )
