"""Stage plans as split specifications of `torch.distributed.pipelining`: the modules at which stages begin."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rlinit.errors import InvalidPlan, first_line
from rlinit.exporters.device_map import module_paths
from rlinit.exporters.op_devices import op_stages
from rlinit.graph import Graph
from rlinit.importers.torch.export import export_program, import_torch
from rlinit.importers.torch.known_warnings import without_known_warnings
from rlinit.plan import Plan

if TYPE_CHECKING:
    from torch.distributed.pipelining import SplitPoint

Side = Literal["beginning", "end"]


def to_split_spec(
    plan: Plan,
    graph: Graph,
    *,
    model: Any = None,
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> dict[str, SplitPoint]:
    """Return the ``split_spec`` with which `torch.distributed.pipelining.pipeline` cuts a model as a plan does.

    See `split_points`, whose words are replaced by torch's own here.

    Parameters
    ----------
    plan
        A 'pipeline' or 'memory' plan.
    graph
        The graph it was made for, imported from torch.
    model, inputs, kwargs
        The model, so that the stages which torch makes of it are counted: see `check_stages`.

    Raises
    ------
    InvalidPlan
        As for `split_points`, and `check_stages`.
    BackendUnavailable
        torch is not installed.
    """
    import_torch()
    points = split_points(plan, graph)
    if model is not None:
        check_stages(points, model, inputs, kwargs)
    return _in_torch(points)


def _in_torch(points: Mapping[str, Side]) -> dict[str, SplitPoint]:
    from torch.distributed.pipelining import SplitPoint

    torchs = {"beginning": SplitPoint.BEGINNING, "end": SplitPoint.END}
    return {path: torchs[side] for path, side in points.items()}


def check_stages(
    points: Mapping[str, Side], model: Any, inputs: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """Cut a model by torch's own tracer, and count the stages; nothing is computed, and the model stays as it is.

    Parameters
    ----------
    points
        From `split_points`.
    model
        A ``torch.nn.Module``, or its ``torch.export.ExportedProgram``.
    inputs, kwargs
        Example inputs.

    Raises
    ------
    InvalidPlan
        Torch makes another number of stages, or cannot cut the model; the message says which.
    """
    torch = import_torch()
    from torch.distributed.pipelining import pipeline

    exported = isinstance(model, torch.export.ExportedProgram)
    program = model if exported else export_program(model, tuple(inputs), kwargs)
    try:
        with torch.no_grad(), without_known_warnings():
            whole = torch.export.unflatten(program)
            count = pipeline(whole, tuple(inputs), dict(kwargs or {}), split_spec=_in_torch(points)).num_stages
    except Exception as problem:  # whatever torch's tracer raises
        raise InvalidPlan(f"torch cannot cut the model into stages: {first_line(problem)}") from problem
    if count != len(points) + 1:
        raise InvalidPlan(
            f"torch makes {count} stages of the model where the plan has {len(points) + 1}; run the plan by "
            "PipelineExecutor, which cuts at any op"
        )


def split_points(plan: Plan, graph: Graph) -> dict[str, Side]:
    """Return module path -> whether a stage begins before the module or after it, in the order in which stages run.

    torch cuts the program of a model in the order in which it is written, whenever such a module is called. So each
    stage has to be one piece of the program, and begin with a module that is called once, or right after one; a
    ``ModuleList`` never is, where the graph says what runs (``scopes``). Modules are as large as possible. Stages
    without ops are left out, and inputs of the model belong to the first stage.

    Parameters
    ----------
    plan
        A plan with stages.
    graph
        What it was made for, its ops in the order of the program as `from_torch` gives them; the op attribute
        ``module`` gives each op's innermost module path, or the list of paths from the model to it.

    Raises
    ------
    InvalidPlan
        The plan is for another graph or has no stages, no op says which module it belongs to, a stage is not one piece
        of the program, as those of plans that are not contiguous seldom are, or begins inside a module (named, with the
        ops on both sides), or a chunk is empty.

    Notes
    -----
    Two calls of a module right after each other look like one, unless the graph is at module granularity.

    torch's own limits remain: see `PipelineExecutor` for plans that need an input of the model in a later stage, or
    cuts at any op.
    """
    stages = op_stages(plan, graph)
    if plan.chunks > 1 and len(set(stages.values())) < plan.num_stages:
        empty = min(set(range(plan.num_stages)) - set(stages.values()))
        raise InvalidPlan(
            f"stage {empty} of {plan.num_stages} has no ops, so the stages of a split_spec would not be on the devices "
            "that the plan's chunks are on (plan with fewer chunks)"
        )
    paths = module_paths(graph)
    if not any(paths.values()):
        raise InvalidPlan("no op of the graph says which module it belongs to; import the model with from_torch")
    ops = [op for op, kind in zip(graph.names, graph.kinds, strict=True) if kind != "input"]
    cuts = _cuts(ops, stages)
    running = {path for row in graph.extras.values() for path, _ in row.get("scopes", ())} | set(paths.values())
    told = any("scopes" in row for row in graph.extras.values())
    spans = {path: span for path, span in _spans(ops, paths).items() if path in running or not told}
    wanted: list[list[tuple[str, Side]]] = []
    for at in cuts:
        before: list[tuple[str, Side]] = [(path, "beginning") for path, (first, _) in spans.items() if first == at]
        after: list[tuple[str, Side]] = [(path, "end") for path, (_, end) in spans.items() if end == at]
        wanted.append(sorted(before, key=_depth) + sorted(after, key=_depth))
    found = _matched(wanted)
    for at, point in zip(cuts, found, strict=True):
        if point is None:
            left, right = ops[at - 1], ops[at]
            raise InvalidPlan(
                f"the plan cuts inside module {_common(paths.get(left, ''), paths.get(right, ''))!r}, between op "
                f"{left!r} on stage {stages[left]} and op {right!r} on stage {stages[right]}; no module called once "
                "begins or ends there (plan at module granularity, or run the plan by PipelineExecutor, which cuts at "
                "any op)"
            )
    return dict(point for point in found if point is not None)


def _cuts(ops: Sequence[str], stages: Mapping[str, int]) -> list[int]:
    """Return the places of the ops at which a stage begins, but for the first."""
    cuts = [at for at in range(1, len(ops)) if stages[ops[at]] != stages[ops[at - 1]]]
    begun = {stages[op] for op in ops[:1]}
    for at in cuts:
        stage = stages[ops[at]]
        if stage in begun:
            earlier = next(op for op in ops if stages[op] == stage)
            raise InvalidPlan(
                f"stage {stage} runs op {earlier!r} before, and op {ops[at]!r} after op {ops[at - 1]!r} of stage "
                f"{stages[ops[at - 1]]}; a split_spec cuts the program in its order (run the plan by PipelineExecutor)"
            )
        begun.add(stage)
    return cuts


def _spans(ops: Sequence[str], paths: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return the modules that are called once: path -> place of its first op, and past its last one."""
    spans: dict[str, tuple[int, int]] = {}
    again: set[str] = set()
    for at, op in enumerate(ops):
        parts = paths[op].split(".") if paths.get(op) else []
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            first, end = spans.get(path, (at, at))
            if end < at or (depth == len(parts) and op.startswith(f"{path}/call")):
                again.add(path)
            spans[path] = (first, at + 1)
    return {path: span for path, span in spans.items() if path not in again}


def _matched(wanted: Sequence[Sequence[tuple[str, Side]]]) -> list[tuple[str, Side] | None]:
    """Choose a point for each cut such that no module is used twice (augmenting paths); the first ones if possible."""
    chosen: list[tuple[str, Side] | None] = [None] * len(wanted)
    user: dict[str, int] = {}

    def place(cut: int, tried: set[str]) -> bool:
        for path, side in wanted[cut]:
            if path not in tried:
                tried.add(path)
                if path not in user or place(user[path], tried):
                    user[path], chosen[cut] = cut, (path, side)
                    return True
        return False

    for cut in range(len(wanted)):
        place(cut, set())
    return chosen


def _depth(point: tuple[str, Any]) -> tuple[int, str]:
    return point[0].count("."), point[0]


def _common(left: str, right: str) -> str:
    """Return the innermost module that holds two others."""
    return posixpath.commonpath([one.replace(".", "/") for one in (left, right)]).replace("/", ".")
