"""Plans as device maps of accelerate: module path -> device, as coarse as the plan allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinit.errors import InvalidPlan
from rlinit.exporters.op_devices import check_graph
from rlinit.graph import Graph
from rlinit.plan import Plan

__all__ = ["module_paths", "to_device_map"]


def to_device_map(
    plan: Plan,
    graph: Graph | None = None,
    *,
    modules: Mapping[str, str] | None = None,
    devices: Mapping[str, str] | None = None,
    coarsen: bool = False,
) -> dict[str, str]:
    """Return the device map of a plan, for ``accelerate.dispatch_model``.

    A module appears where all ops in it, submodules included, run on one device and those of its parent do not; the
    map ``{"": device}`` puts the whole model on one.

    Parameters
    ----------
    plan
        A plan with a schedule; an op whose inputs are split over devices counts as cut.
    graph
        What it was made for; its op attribute ``module`` gives each op's innermost module path, or the list of paths
        from the model to it. Without a graph, the paths are those that the plan itself keeps.
    modules
        op -> module path, in place of the attribute.
    devices
        device name of the plan -> what the map shall say; the plan's names if not given.
    coarsen
        Put a module that has no submodule to tell its ops apart, but runs on several devices, on the one that runs most
        of its ops, rather than refuse. The plan's times and proof do not hold for such a map.

    Raises
    ------
    InvalidPlan
        The plan is for another graph or has no schedule, no op says which module it belongs to, or the plan cuts inside
        a module (named, with two ops that are apart).
    """
    where = _places(plan, graph)
    paths = dict(modules or (plan.modules if graph is None else module_paths(graph)))
    if not any(paths.values()):
        raise InvalidPlan(
            "no op of the plan's graph says which module it belongs to; plan a graph imported from a torch model, "
            "or give modules"
        )
    ops_of: dict[str, list[str]] = {}
    for op in where:
        if not paths.get(op):
            continue  # ops of the model's own forward: accelerate runs them where their inputs are
        parts = paths[op].split(".")
        for depth in range(len(parts) + 1):
            ops_of.setdefault(".".join(parts[:depth]), []).append(op)
    result: dict[str, str] = {}
    _cover("", ops_of, paths, where, result, coarsen=coarsen)
    names = devices or {}
    return {path: names.get(device, device) for path, device in result.items()}


def _cover(
    path: str,
    ops_of: Mapping[str, Sequence[str]],
    paths: Mapping[str, str],
    where: Mapping[str, tuple[str, ...]],
    result: dict[str, str],
    *,
    coarsen: bool,
) -> None:
    """Name a module, or, where its ops are apart, its submodules."""
    ops = ops_of[path]
    found = {device for op in ops for device in where[op]}
    if len(found) == 1:
        result[path] = found.pop()
        return
    children = sorted(child for child in ops_of if child and child.rpartition(".")[0] == path)
    own = [op for op in ops if paths[op] == path]
    if own or not children:
        if not coarsen:
            first = ops[0]
            other = next((op for op in ops if where[op] != where[first]), first)
            raise InvalidPlan(
                f"the plan cuts inside module {path!r}: op {first!r} runs on {', '.join(where[first])} and op "
                f"{other!r} on {', '.join(where[other])}; a device map cannot say that "
                "(plan at module granularity, or coarsen)"
            )
        counts = {device: sum(device in where[op] for op in ops) for device in sorted(found)}
        result[path] = max(counts, key=lambda device: counts[device])
        return
    for child in children:
        _cover(child, ops_of, paths, where, result, coarsen=coarsen)


def module_paths(graph: Graph) -> dict[str, str]:
    """Return op -> path of its innermost module, from the ``module`` attribute; "" where there is none."""
    paths = {}
    for at, op in enumerate(graph.names):
        given: Any = graph.extras.get(at, {}).get("module", "")
        if isinstance(given, (list, tuple)):
            given = given[-1] if given else ""
        paths[op] = str(given)
    return paths


def _places(plan: Plan, graph: Graph | None) -> dict[str, tuple[str, ...]]:
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to export")
    if graph is not None:
        check_graph(plan, graph)
    if plan.objective in ("pipeline", "memory"):
        return {op: (plan.stages[int(j)].device,) for op, j in plan.assignment.items()}
    where: dict[str, set[str]] = {op: set() for op in plan.assignment}
    for batch in plan.batches:
        where[batch.op].add(batch.device)
    return {op: tuple(sorted(found)) for op, found in where.items()}
