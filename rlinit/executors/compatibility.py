"""Whether a program is the one that a plan was made for, where the plan's graph is not at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlinit.checker.compatibility import differing_totals, figures_of
from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.graph import Graph
from rlinit.plan import Plan

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LASTING = ("ops", "edges", "param_bytes")
"""Totals that do not depend on the batch size."""


def require_program(plan: Plan, program: ExportedProgram) -> None:
    """Check that a program, imported op by op, has the ops and the totals that a plan keeps of its graph.

    Plans made by hand keep no totals; then there is nothing to compare.

    Parameters
    ----------
    plan
        A plan of any objective.
    program
        The exported program of the model that is to run.

    Raises
    ------
    InvalidPlan
        The program has other ops, edges or parameters; the message names them.
    """
    if not plan.graph_figures:
        return
    from rlinit.importers.torch.export import from_program

    advice = "give the plan's graph if it was made by hand, by module, or with other costs"
    try:
        require_totals(plan, (from_program(program, sharing=sharing) for sharing in ("hold", "copy")), advice)
    except InvalidGraph as problem:
        raise InvalidPlan(f"the model cannot be imported to compare it with the plan ({problem}); {advice}") from None


def require_totals(plan: Plan, graphs: Iterable[Graph], advice: str) -> None:
    """Check that one of several graphs of a model has the ops and the totals that a plan keeps.

    Parameters
    ----------
    plan
        A plan of any objective.
    graphs
        The model, imported in every way that it may have been.
    advice
        What to do about ops that differ.

    Raises
    ------
    InvalidPlan
        None has; the message names an op, or the totals.
    """
    apart = ""
    for graph in graphs:
        only = sorted(set(graph.names) ^ set(plan.assignment or ()))
        if only:
            where = "the model" if only[0] in graph.names else "the plan"
            raise InvalidPlan(
                f"op {only[0]!r} is in {where} only ({len(only):,} such ops); the plan was made for another model, "
                f"or for another version of it; {advice}"
            )
        found = figures_of(graph)
        apart = differing_totals(plan.graph_figures, {key: found[key] for key in _LASTING})
        if not apart:
            return
    raise InvalidPlan(f"the plan was made for another version of the model, which has {apart} now; schedule it again")
