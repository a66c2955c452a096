"""Plans as device maps of accelerate: module path -> device, as coarse as the plan allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinit.errors import InvalidPlan
from rlinit.exporters.op_devices import check_graph, op_places
from rlinit.graph import Graph
from rlinit.plan import Plan


def to_device_map(
    plan: Plan, graph: Graph | None = None, *, devices: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the device map of a plan, for ``accelerate.dispatch_model``.

    A module appears where all ops in it, submodules included, run on one device and those of its parent do not; the
    map ``{"": device}`` puts the whole model on one. Plans of graphs at layer granularity (`Graph.group`) have one.

    What accelerate does with ``cpu`` beside another device differs from the plan: it *stores* the weights there, brings
    them to the first other device at each pass, and computes there. `rlinit.costs.offloading.offloaded` plans for that.

    Parameters
    ----------
    plan
        A plan with a schedule; an op whose inputs are split over devices counts as cut.
    graph
        What it was made for; its op attribute ``module`` gives each op's innermost module path, or the list of paths
        from the model to it. Without a graph, the paths are those that the plan itself keeps.
    devices
        device name of the plan -> what the map shall say; the plan's names if not given.

    Raises
    ------
    InvalidPlan
        The plan is for another graph or has no schedule, no op says which module it belongs to, the plan cuts inside
        a module (named, with two ops that are apart).
    """
    where = _places(plan, graph)
    paths = plan.modules if graph is None else module_paths(graph)
    if not any(paths.values()):
        raise InvalidPlan(
            "no op of the plan's graph says which module it belongs to; plan a graph imported from a torch model"
        )
    ops_of: dict[str, list[str]] = {}
    for op in where:
        if not paths.get(op):
            continue  # ops of the model's own forward: accelerate runs them where their inputs are
        parts = paths[op].split(".")
        for depth in range(len(parts) + 1):
            ops_of.setdefault(".".join(parts[:depth]), []).append(op)
    cover = _Cover(ops_of, paths, where, _follows(graph, where))
    cover.open("")
    if graph is not None:
        _add_folded(cover, graph)
    names = devices or {}
    return {path: names.get(device, device) for path, device in cover.result.items()}


@dataclass(slots=True)
class _Cover:
    """Names modules from the outermost in.

    Parameters
    ----------
    ops_of, paths, where
        module path -> its ops, submodules included; op -> module path; op -> devices.
    follows
        Ops that run where all runs that they read.
    result
        module path -> device.
    """

    ops_of: Mapping[str, Sequence[str]]
    paths: Mapping[str, str]
    where: Mapping[str, tuple[str, ...]]
    follows: frozenset[str]
    result: dict[str, str] = field(default_factory=dict)

    def open(self, path: str) -> None:
        """Name a module, or, where its ops are apart, its submodules.

        Raises
        ------
        InvalidPlan
            It has no submodules that tell its ops apart.
        """
        ops = self.ops_of[path]
        found = {device for op in ops for device in self.where[op]}
        if len(found) == 1:
            self.result[path] = found.pop()
            return
        children = sorted(child for child in self.ops_of if child and child.rpartition(".")[0] == path)
        own = [op for op in ops if self.paths[op] == path]
        if not children or any(op not in self.follows for op in own):
            raise InvalidPlan(_refusal(self, path))
        for child in children:
            self.open(child)


def _add_folded(cover: _Cover, graph: Graph) -> None:
    """Name the modules without an op, whose weights an importer folded into another's, by the device of that op."""
    for v, row in graph.extras.items():
        for path in row.get("holds", ()):
            around = [path[:end] for end in range(len(path) + 1) if end in (0, len(path)) or path[end : end + 1] == "."]
            if path not in cover.ops_of and not any(named in cover.result for named in around):
                cover.result[path] = cover.where[graph.names[v]][0]


def _follows(graph: Graph | None, where: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the ops that run on the one device on which everything that they read is made.

    A map need not name them: between the modules that it names, a model computes where its tensors are.
    """
    if graph is None:
        return frozenset()
    found = set()
    for v, op in enumerate(graph.names):
        reads = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()
        made = {where[graph.names[u]] for u in reads if graph.kinds[u] != "input"}
        if made <= {where[op]}:
            found.add(op)
    return frozenset(found)


def _refusal(cover: _Cover, path: str) -> str:
    ops, where = cover.ops_of[path], cover.where
    first = ops[0]
    other = next((op for op in ops if where[op] != where[first]), first)
    return (
        f"the plan cuts inside module {path!r}: op {first!r} runs on {', '.join(where[first])} and op "
        f"{other!r} on {', '.join(where[other])}; a device map cannot say that "
        "(plan graph.group('layer'))"
    )


def module_paths(graph: Graph) -> dict[str, str]:
    """Return op -> path of its innermost module, from the ``module`` attribute; "" where there is none."""
    paths = dict.fromkeys(graph.names, "")
    for at, row in graph.extras.items():
        given: Any = row.get("module", "")
        if isinstance(given, (list, tuple)):
            given = given[-1] if given else ""
        paths[graph.names[at]] = str(given)
    return paths


def _places(plan: Plan, graph: Graph | None) -> dict[str, tuple[str, ...]]:
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to export")
    if graph is not None:
        check_graph(plan, graph)
    return op_places(plan, [use.device for use in plan.stages])
