"""Stage plans as scripts for torchrun: torch's own pipelining, cut where the plan cuts, each stage on its device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from rlinit.errors import InvalidPlan
from rlinit.exporters.op_devices import op_stages
from rlinit.exporters.split_spec import split_points
from rlinit.files import write_atomically
from rlinit.graph import Graph
from rlinit.plan import Plan
from rlinit.stages.groups.decoder_spans import rules_of_equal_shares


def stage_devices(plan: Plan, graph: Graph) -> tuple[str, ...]:
    """Return the device of each stage in the order in which the program runs them, which is that of the split points.

    Parameters
    ----------
    plan
        A plan with stages.
    graph
        The graph it was made for, its ops in the order of the program. Stages without ops are left out.

    Raises
    ------
    InvalidPlan
        The plan is for another graph, has no stages, or has several chunks a device.
    """
    stages = op_stages(plan, graph)
    if plan.chunks > 1:
        raise InvalidPlan(
            f"the plan has {plan.chunks} chunks a device; the script runs one stage in each process (plan without "
            "chunks, or take the split_spec)"
        )
    ops = [op for op, kind in zip(graph.names, graph.kinds, strict=True) if kind != "input"]
    return tuple(plan.stages[stage].device for stage in dict.fromkeys(stages[op] for op in ops))


def to_torchrun_script(
    plan: Plan,
    graph: Graph | None,
    path: str | Path,
    *,
    factory: str,
    devices: Mapping[str, str] | None = None,
    microbatches: int = 1,
) -> None:
    """Write a script that runs a model by `torch.distributed.pipelining` as a plan says, one process a stage.

    Parameters
    ----------
    plan, graph
        As for `rlinit.exporters.split_spec.split_points`. Stages of several devices need no graph.
    path
        The file to write; what is there is replaced. Beside it, a plan of stages of several devices is written with
        the ending ``.json``, for `rlinit.executors.groups`.
    factory
        ``"module:function"``, which every process imports and calls: it returns the model in eval mode and a tuple of
        its inputs, the same in all of them (torch's seed is set before). For stages of several devices a causal
        language model of transformers and its tokens (b, s).
    devices
        Device name of the plan -> "cpu" or "cuda:N". Devices that are not named are what they are called if that is
        "cpu" or "cuda:N", and else the CPU.
    microbatches
        Parts that the first dimension of the inputs is split into, at least 1.

    Raises
    ------
    InvalidPlan
        As for `split_points`; a factory or device of another form, no micro-batch, unequal shares of a batch, or no
        stages at all.
    """
    module, _, function = factory.partition(":")
    if not re.fullmatch(r"[A-Za-z_][\w.]*", module) or not function.isidentifier():
        raise InvalidPlan(f"factory is {factory!r}; expected 'module:function', such as 'models:make'")
    if microbatches < 1:
        raise InvalidPlan(f"microbatches is {microbatches}; expected >= 1")
    if plan.groups is not None:
        rules_of_equal_shares(plan, "processes run")
        plan.save(Path(path).with_suffix(".json"))
        _write(
            path,
            "torchrun_groups.txt",
            count=sum(len(use.devices) for use in plan.stages),
            module=module,
            function=function,
            plan=Path(path).with_suffix(".json").name,
            graph=_quoted(plan.graph),
        )
        return
    if graph is None:
        raise InvalidPlan("graph is None; give the graph that the plan was made for")
    places = [(devices or {}).get(name, _own(name)) for name in stage_devices(plan, graph)]
    for place in places:
        if _own(place) != place:
            raise InvalidPlan(f"a device is {place!r}; expected 'cpu' or 'cuda:N'")
    _write(
        path,
        "torchrun_script.txt",
        graph=_quoted(graph.name),
        count=len(places),
        factory=factory,
        points=json.dumps(split_points(plan, graph), indent=4),
        devices=json.dumps(places),
        module=module,
        function=function,
        microbatches=microbatches,
    )


def _write(path: str | Path, template: str, **fields: object) -> None:
    script = resources.files("rlinit.exporters").joinpath(template).read_text(encoding="utf-8")
    write_atomically(Path(path), script.format(name=Path(path).name, **fields))


def _quoted(name: str) -> str:
    return json.dumps(name)[1:-1].replace('"', "'")


def _own(name: str) -> str:
    return name if re.fullmatch(r"cpu|cuda(:\d+)?", name) else "cpu"
