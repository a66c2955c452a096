"""Plans written into ONNX models: a device configuration, and the place of each node in it; written and read back.

Since IR version 11 a model can name the devices it is meant for (``ModelProto.configuration``), and a node its pipeline
stage and the devices of its tensors (``NodeProto.device_configurations``). Runtimes that do not know these fields
ignore them. Recent versions of ONNX Runtime read a third, ``layer_ann`` in the metadata of a node, by which a session
puts nodes on execution providers.

References
----------
The ONNX intermediate representation, "Multi-device execution". ONNX Runtime, "Graph partitioning with annotations and
memory constraints".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidPlan
from rlinit.exporters.onnx.external_data import loaded, open_onnx, save_onnx
from rlinit.exporters.onnx.node_mapping import OnnxFit, fit_onnx, renamed
from rlinit.exporters.op_devices import device_names, op_devices, op_stages, quotient_order
from rlinit.graph import Graph
from rlinit.importers.onnx.reader import sorted_nodes
from rlinit.plan import Plan

_CONFIGURATION = "rlinit"
_LEAST_IR = 11
_LAYER = "layer_ann"
"""The key of a node's metadata that ONNX Runtime reads."""
_DESIGNATORS = re.compile(r"(cpu|gpu|cuda|dml|npu|fpga|accelerator)(:[A-Za-z0-9]+)?")


@dataclass(frozen=True, slots=True)
class OnnxAnnotations:
    """What an annotated model says.

    Parameters
    ----------
    devices
        The devices of the configuration; for stage plans one for each stage.
    op2device
        Name of each annotated node -> device.
    op2stage
        The same -> stage in the order in which stages run; empty for placements.
    graph_fingerprint
        Of the graph that the plan was made for; "" where the file does not say.
    """

    devices: tuple[str, ...]
    op2device: Mapping[str, str]
    op2stage: Mapping[str, int]
    graph_fingerprint: str


def to_onnx_annotated(plan: Plan, graph: Graph, model: Any, path: str | Path) -> None:
    """Write an ONNX model with a plan in it, atomically; see `annotated_onnx`.

    Weights are held in memory while the file is written; beyond 1 GiB they go into ``<stem>.data`` beside it.

    Parameters
    ----------
    plan
        A plan with a schedule in which each op runs on one device.
    graph
        The graph imported from the model.
    model
        As for `annotated_onnx`: a path, or a loaded `ModelProto`.
    path
        The file to write; one that exists is replaced.

    Raises
    ------
    InvalidPlan, InvalidGraph, BackendUnavailable
        As for `annotated_onnx`.
    """
    save_onnx(annotated_onnx(plan, graph, model), Path(path))


def annotated_onnx(plan: Plan, graph: Graph, model: Any) -> Any:
    """Return a copy of an ONNX model in which each op of a plan has its device and, for stage plans, its stage.

    The copy computes what the model does: its sizes stay dynamic and nothing is folded. It is of IR version 11 at
    least, its functions are inlined and its nodes are in order and called like their ops, so that its import is the
    graph again.

    The configuration ``rlinit`` names the devices; stage plans have one for each stage, in the order in which stages
    run (which is the plan's own unless an edge goes to a smaller stage). All inputs and outputs of a node are
    given the node's device. The metadata ``rlinit.*`` say what the plan promises, and ``layer_ann`` of each node has
    its device for ONNX Runtime, see `layer_assignment`.

    Parameters
    ----------
    plan
        A plan with a schedule in which each op runs on one device.
    graph
        What it was made for, as `rlinit.load_graph` or `from_onnx` gives it.
    model
        The ``.onnx`` file that the graph is of, or the `onnx.ModelProto`.

    Raises
    ------
    InvalidPlan
        The plan is not for the graph or the graph not for the model, an op is split over devices, or stages read each
        other in a circle; the message names the node.
    InvalidGraph
        The model cannot be read.
    BackendUnavailable
        onnx is not installed.
    """
    fit = fit_onnx(plan, graph, model)
    devices, op2place, is_staged = _places(plan, graph)
    copied = _ordered(fit)
    configuration = copied.configuration.add(name=_CONFIGURATION, num_devices=len(devices))
    configuration.device.extend(devices)
    name2at = {name: op2place[op] for op in fit.op2places for name, _ in fit.nodes_of(op)}
    for node in copied.graph.node:
        at = name2at.get(node.name)
        if at is not None:
            entry = node.device_configurations.add(configuration_id=_CONFIGURATION)
            if is_staged:
                entry.pipeline_stage = at
            for tensor in dict.fromkeys(name for name in (*node.input, *node.output) if name):
                entry.sharding_spec.add(tensor_name=tensor, device=[at])
            kept = [said for said in node.metadata_props if said.key != _LAYER]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            node.metadata_props.add(key=_LAYER, value=_layer(devices[at]))
    _note(copied, plan)
    return copied


def layer_assignment(model: Any, devices: Mapping[str, str]) -> str:
    """Return the session option by which ONNX Runtime puts the nodes of an annotated model where the plan has them.

    It is the value of ``session.layer_assignment_settings``. A session has each kind of execution provider once, so
    that plans over several GPUs run as parts instead (`rlinit.exporters.onnx.stages.to_onnx_stages`). Where a provider
    has no kernel for a node, the session puts it on another one, and says so in its log.

    Parameters
    ----------
    model
        What `annotated_onnx` or `to_onnx_annotated` made.
    devices
        Device name of the plan -> "cpu", "gpu", "cuda", "dml", "npu", "fpga", "accelerator", or one with a vendor or
        number ("gpu:amd", "gpu:1").

    Raises
    ------
    InvalidPlan
        A device without a designator or with an unknown one, or two numbers of one kind; or as for
        `read_onnx_annotations`.
    InvalidGraph, BackendUnavailable
        As for `read_onnx_annotations`.
    """
    used = list(dict.fromkeys(read_onnx_annotations(model).op2device.values()))
    rules: dict[str, list[str]] = {}
    for name in used:
        designator = devices.get(name, "")
        if not _DESIGNATORS.fullmatch(designator):
            raise InvalidPlan(
                f"device {name!r} of the plan is {designator!r} for ONNX Runtime; expected cpu, gpu, cuda, dml, npu, "
                "fpga or accelerator, or one with a vendor or number (gpu:1)"
            )
        rules.setdefault(designator, []).append(f"={_layer(name)}")
    kinds = [designator.partition(":")[0] for designator in rules]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise InvalidPlan(f"a session of ONNX Runtime has one {kind}; run the plan in parts, see to_onnx_stages")
    return "; ".join(f"{designator}({', '.join(layers)})" for designator, layers in rules.items())


def _layer(device: str) -> str:
    """Return the annotation for a device: its name, without characters that mean something in the session option."""
    return "rlinit-" + re.sub(r"[^\w.-]", lambda found: f"_{ord(found[0]):x}_", device)


def _places(plan: Plan, graph: Graph) -> tuple[list[str], dict[str, int], bool]:
    """Return the devices, op -> its place among them, and whether these are stages, one a device in their order."""
    if plan.objective not in ("pipeline", "memory") or plan.chunks > 1 or not plan.contiguous:
        devices = device_names(plan, graph)
        return devices, {op: devices.index(name) for op, name in op_devices(plan, graph).items()}, False
    stages = op_stages(plan, graph)
    order = quotient_order(graph, stages, range(plan.num_stages))
    place = {stage: at for at, stage in enumerate(order)}
    return [plan.stages[stage].device for stage in order], {op: place[stage] for op, stage in stages.items()}, True


def _ordered(fit: OnnxFit) -> Any:
    """Return a copy of the model with its weights, its nodes in order and called like their ops."""
    copied = type(fit.model)()
    copied.CopyFrom(fit.model)
    graph = copied.graph
    if copied.ir_version < 4:  # stored tensors had to be inputs, which nobody means to override
        given = [value for value in graph.input if value.name not in fit.stored]
        del graph.input[:]
        graph.input.extend(given)
    copied.ir_version = max(copied.ir_version, _LEAST_IR)
    del graph.node[:]
    for at in sorted_nodes(fit.model.graph):
        node = fit.model.graph.node[at]
        graph.node.append(renamed(node, fit.place2name.get(at, node.name)))
    for node in graph.node:
        earlier = [entry for entry in node.device_configurations if entry.configuration_id != _CONFIGURATION]
        del node.device_configurations[:]
        node.device_configurations.extend(earlier)
    earlier = [entry for entry in copied.configuration if entry.name != _CONFIGURATION]
    del copied.configuration[:]
    copied.configuration.extend(earlier)
    if fit.source is not None:
        for tensor in graph.initializer:
            tensor.CopyFrom(loaded(tensor, fit.source))
    return copied


def _note(model: Any, plan: Plan) -> None:
    """Say in the metadata what the plan promises."""
    kept = [entry for entry in model.metadata_props if not str(entry.key).startswith("rlinit.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    facts = {
        "objective": plan.objective,
        "status": plan.status,
        "value": repr(plan.value),
        "bound": repr(plan.bound),
        "bound_source": plan.bound_source,
        "hardware": plan.hardware,
        "graph_fingerprint": plan.graph_fingerprint,
    }
    for key, value in facts.items():
        model.metadata_props.add(key=f"rlinit.{key}", value=value)


def read_onnx_annotations(model: Any, configuration: str = _CONFIGURATION) -> OnnxAnnotations:
    """Return what the nodes of an annotated ONNX model say about devices and stages.

    Parameters
    ----------
    model
        An ``.onnx`` file or an `onnx.ModelProto`.
    configuration
        Which of its configurations to read.

    Raises
    ------
    InvalidPlan
        The model has no such configuration, or a node (named) says something that is not one stage on one of its
        devices, or has no name of its own.
    InvalidGraph
        The file cannot be read.
    BackendUnavailable
        onnx is not installed.
    """
    proto, _ = open_onnx(model)
    found = [entry for entry in proto.configuration if entry.name == configuration]
    if len(found) != 1:
        names = [entry.name for entry in proto.configuration]
        raise InvalidPlan(f"the model has the device configurations {names}; expected one called {configuration!r}")
    devices = tuple(found[0].device)
    op2device: dict[str, str] = {}
    op2stage: dict[str, int] = {}
    for node in proto.graph.node:
        entries = [entry for entry in node.device_configurations if entry.configuration_id == configuration]
        if not entries:
            continue
        if len(entries) > 1 or not node.name or node.name in op2device:
            raise InvalidPlan(f"node {node.name!r} is annotated twice, or has no name of its own")
        used = {device for spec in entries[0].sharding_spec for device in spec.device}
        is_staged = entries[0].HasField("pipeline_stage")
        if len(used) != 1 or not 0 <= min(used) < len(devices) or (is_staged and entries[0].pipeline_stage < 0):
            raise InvalidPlan(
                f"node {node.name!r} is on the devices {sorted(used)} of {len(devices)}; expected one of them"
            )
        op2device[node.name] = devices[min(used)]
        if is_staged:
            op2stage[node.name] = int(entries[0].pipeline_stage)
    facts = {entry.key: entry.value for entry in proto.metadata_props}
    return OnnxAnnotations(devices, op2device, op2stage, facts.get("rlinit.graph_fingerprint", ""))
