"""``rlinit export``: plans in the formats of other tools."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rlinit import exporters
from rlinit.cli.inputs import (
    PICTURES,
    ReadingOptions,
    check_endings,
    check_folders,
    device_places,
    dimension_sizes,
    load_hardware,
    load_model,
)
from rlinit.errors import InvalidGraph, RlinitError
from rlinit.files import write_atomically, write_json
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

if TYPE_CHECKING:
    from rlinit.exporters.launchers import Server
    from rlinit.exporters.split_spec import Side

_STORES = (
    "accelerate stores the weights of 'cpu' there and brings them to the first other device at each pass; the plan "
    "computes on the CPU (rlinit.costs.offloading plans for accelerate, rlinit run does what the plan says)"
)


@dataclass(frozen=True)
class Export:
    """Write a plan in the formats of other tools."""

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """A plan that schedule wrote (.json)."""
    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = None
    """What the plan was made for, as for schedule.
    Needed by --dot, --report, --split-spec, --torchrun, --megatron, --openvino and --onnx-stages."""
    hw: str | None = None
    """The hardware that the plan was made for, as for schedule; --report needs it."""
    trace: Path | None = None
    """Write a timeline for Perfetto or chrome://tracing here (.json)."""
    dot: Path | None = None
    """Write the graph for Graphviz here (.dot), coloured by device or stage."""
    report: Path | None = None
    """Write one page with everything about the plan here (.html); it opens without a network."""
    plot: Path | None = None
    """Draw the plan here (.svg, .png, .pdf)."""
    device_map: Path | None = None
    """Write which module runs on which device here (.json), for accelerate."""
    split_spec: Path | None = None
    """Write the modules at which stages begin, and the devices, here (.json), for torch.distributed.pipelining."""
    torchrun: Path | None = None
    """Write a script here (.py) that runs the stages by torchrun."""
    factory: str | None = None
    """With --torchrun: MODULE:FUNCTION, which returns the model and a tuple of its inputs."""
    microbatches: int = 1
    """With --torchrun: parts that a batch is split into."""
    megatron: Path | None = None
    """Write Megatron's --pipeline-model-parallel-layout here (.txt).
    Of stages of several devices all flags, which need no MODEL."""
    torchtitan: Path | None = None
    """Write sections of torchtitan's configuration here (.toml), for stages of several devices."""
    vllm: Path | None = None
    """Write environment and flags of vllm serve here (.txt), for stages of several devices."""
    sglang: Path | None = None
    """Write environment and flags of SGLang here (.txt), for stages of several devices."""
    onnx_stages: Path | None = None
    """Write an ONNX file for each stage into this folder."""
    openvino: Path | None = None
    """Write affinities of OpenVINO's HETERO device here (.json)."""
    devices: tuple[str, ...] = ()
    """With --device-map, --torchrun and --openvino: what the plan's devices are called there, as NAME=DEVICE."""
    stages: int | None = None
    """Number of stages, where it was given to schedule."""
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ReadingOptions)
    json: bool = False
    """Print the names of the files as JSON."""


def export_plan(command: Export) -> int:
    """Carry out ``rlinit export``; return the exit code.

    Raises
    ------
    InvalidPlan
        The plan has no schedule, is for another model or hardware, or cannot be said in a format.
    RlinitError
        No format was asked for, what one needs was not given, or a folder does not exist.
    """
    targets = {name: getattr(command, name) for name in (*_ALONE, *_WITH_GRAPH)}
    wanted: dict[str, Path] = {name: path for name, path in targets.items() if path is not None}
    if not wanted:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise RlinitError(f"nothing to write; give at least one of {flags}")
    check_folders(*wanted.values())
    check_endings(command.plot, "--plot", *PICTURES)
    plan = Plan.load(command.plan)
    graph = None if command.model is None else _graph(command, command.model, plan)
    alone = _ALONE if plan.groups is None else {**_ALONE, **_OF_GROUPS}
    needing = [name.replace("_", "-") for name in wanted if graph is None and name not in alone]
    if needing:
        raise RlinitError(f"--{needing[0]} needs the model that the plan was made for; give it after the plan")
    for name, path in wanted.items():
        if name in alone:
            alone[name](plan, graph, command, path)
        else:
            assert graph is not None
            _WITH_GRAPH[name](plan, graph, command, path)
    if command.json:
        print(json.dumps({name: str(path) for name, path in wanted.items()}))
        return 0
    for name, path in wanted.items():
        print(f"{name.replace('_', ' ')}: {path}")
    if command.device_map is not None:
        on = set(json.loads(command.device_map.read_text(encoding="utf-8")).values())
        if "cpu" in on and len(on) > 1:
            print(f"note: {_STORES}")
    return 0


def _graph(command: Export, model: str, plan: Plan) -> Graph:
    """Return the graph of the model, in layers or modules where those alone make it the plan's."""
    is_graph = model.lower().endswith((".json", ".json.gz"))  # which says bytes, not types of numbers
    graph = load_model(model, command.reading if is_graph else command.reading.of(plan))
    for granularity in ("layer", "module") if plan.graph_fingerprint != graph.fingerprint() else ():
        with contextlib.suppress(InvalidGraph):  # a graph that does not tell its layers
            grouped = graph.group(granularity)
            if plan.graph_fingerprint == grouped.fingerprint():
                return grouped
    return graph


def _hardware(command: Export) -> Hardware:
    if command.hw is None:
        raise RlinitError("--report needs the hardware that the plan was made for; give it with --hw")
    return load_hardware(command.hw, command.stages)


def _plot(plan: Plan, graph: Graph | None, command: Export, path: Path) -> None:
    if plan.assignment is None:
        raise RlinitError(f"the plan is {plan.status}; there is no schedule to draw")
    plan.plot(path, graph, None if command.hw is None else _hardware(command))


def _device_map(plan: Plan, _graph: Graph | None, command: Export, path: Path) -> None:
    write_json(path, plan.to_device_map(devices=device_places(command.devices)))


def _split_spec(plan: Plan, graph: Graph, command: Export, path: Path) -> None:
    from rlinit.exporters.split_spec import split_points
    from rlinit.exporters.torchrun import stage_devices

    points = split_points(plan, graph)
    if (command.model or "").lower().endswith(".pt2"):
        _check_stages(points, Path(command.model or ""), command)
    write_json(path, {"split_spec": points, "devices": stage_devices(plan, graph)})


def _torchrun(plan: Plan, graph: Graph | None, command: Export, path: Path) -> None:
    if command.factory is None:
        raise RlinitError("--torchrun needs --factory MODULE:FUNCTION, which makes the model and its inputs")
    places, parts = device_places(command.devices), command.microbatches
    exporters.to_torchrun_script(plan, graph, path, factory=command.factory, devices=places, microbatches=parts)


def _server(plan: Plan, server: Server, path: Path) -> None:
    words = [
        f"{key} {value}" if key.startswith("-") else f"{key}={value}"
        for key, value in exporters.to_server_flags(plan, server).items()
    ]
    write_atomically(path, "\n".join(words) + "\n")


def _openvino(plan: Plan, graph: Graph, command: Export, path: Path) -> None:
    exporters.to_openvino_map(plan, graph, path, devices=device_places(command.devices))


def _onnx_stages(plan: Plan, graph: Graph, command: Export, path: Path) -> None:
    exporters.to_onnx_stages(plan, graph, command.model, path)


_ALONE: Mapping[str, Callable[[Plan, Graph | None, Export, Path], object]] = {
    "trace": lambda plan, _graph, _command, path: plan.to_trace(path),
    "plot": _plot,
    "device_map": _device_map,
    "torchtitan": lambda plan, _graph, _command, path: write_atomically(path, exporters.to_torchtitan(plan)),
    "vllm": lambda plan, _graph, _command, path: _server(plan, "vllm", path),
    "sglang": lambda plan, _graph, _command, path: _server(plan, "sglang", path),
}
"""What writes a format that the plan is enough for."""

_OF_GROUPS: Mapping[str, Callable[[Plan, Graph | None, Export, Path], object]] = {
    "torchrun": _torchrun,
    "megatron": lambda plan, _graph, _command, path: write_atomically(
        path, " ".join(exporters.to_megatron_flags(plan)) + "\n"
    ),
}
"""What needs no graph where stages have several devices."""

_WITH_GRAPH: Mapping[str, Callable[[Plan, Graph, Export, Path], object]] = {
    "dot": lambda plan, graph, _command, path: plan.to_dot(path, graph),
    "report": lambda plan, graph, command, path: plan.report(path, graph, _hardware(command)),
    "split_spec": _split_spec,
    "torchrun": _torchrun,
    "megatron": lambda plan, graph, _, path: write_atomically(path, exporters.to_megatron_layout(plan, graph) + "\n"),
    "onnx_stages": _onnx_stages,
    "openvino": _openvino,
}
"""What writes a format that needs the graph, too."""


def _check_stages(points: Mapping[str, Side], path: Path, command: Export) -> None:
    """Count the stages that torch makes of a saved program."""
    import torch
    from torch.utils import _pytree as pytree

    from rlinit.exporters.split_spec import check_stages
    from rlinit.importers.torch.pt2_file import load_program
    from rlinit.measurement.model_inputs import model_inputs

    program = load_program(path)
    dims = dimension_sizes(command.reading.dims)
    inputs, kwargs = model_inputs(program, batch=command.reading.batch, dims=dims)
    given, named = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (inputs, kwargs))  # as the weights are
    check_stages(points, program, given, named)
