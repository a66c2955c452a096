"""Placements for OpenVINO's HETERO device: a map from op to device, as JSON.

OpenVINO runs an op where its run-time attribute ``affinity`` says. With the map read back, ``affinities``, ``device`` =
``json.load(file)["affinities"], ["device"]``, a model is placed so::

    for op in model.get_ordered_ops():
        if op.get_friendly_name() in affinities:
            op.get_rt_info()["affinity"] = affinities[op.get_friendly_name()]
    # OpenVINO turns a node into several ops, of which one keeps its name; the others go with what reads them.
    for op in reversed(model.get_ordered_ops()):
        readers = [end.get_node() for out in op.outputs() for end in out.get_target_inputs()]
        if "affinity" not in op.get_rt_info() and readers:
            op.get_rt_info()["affinity"] = readers[0].get_rt_info()["affinity"]
    compiled = core.compile_model(model, device)

References
----------
The manual of OpenVINO, "Heterogeneous execution", manual mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinit.errors import InvalidPlan
from rlinit.exporters.op_devices import op_devices
from rlinit.files import write_json
from rlinit.graph import Graph
from rlinit.plan import Plan

_DEVICE = re.compile(r"[A-Z][A-Z0-9_]*(\.\w+)*")


def to_openvino_map(
    plan: Plan,
    graph: Graph,
    path: str | Path,
    *,
    devices: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write the affinities of a plan, atomically.

    The file holds ``{"device": "HETERO:GPU.0,CPU", "affinities": {name: device}}``, the devices in the plan's order.
    The module's text shows how a model is placed by them.

    Parameters
    ----------
    plan, graph, devices, names
        As for `openvino_affinities`.
    path
        The file to write; one that exists is replaced.

    Raises
    ------
    InvalidPlan
        As for `openvino_affinities`.
    """
    affinities = openvino_affinities(plan, graph, devices=devices, names=names)
    running = set(op_devices(plan, graph).values())
    listed = dict.fromkeys(use.device for use in (plan.stages or plan.devices))
    used = dict.fromkeys((devices or {}).get(device, device) for device in listed if device in running)
    write_json(path, {"device": f"HETERO:{','.join(used)}", "affinities": affinities})


def openvino_affinities(
    plan: Plan,
    graph: Graph,
    *,
    devices: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return OpenVINO's name of each op -> OpenVINO's name of its device.

    Parameters
    ----------
    plan
        A plan with a schedule in which each op runs on one device.
    graph
        What it was made for.
    devices
        device name of the plan -> OpenVINO's, such as "CPU" or "GPU.0"; devices that are not named keep their names.
    names
        op -> what OpenVINO calls it (the friendly name). By default, for graphs of ONNX models, the name of the node
        (besides ``node_output`` for each of several outputs) or, where it has none, of its last output; otherwise the
        op's name.

    Raises
    ------
    InvalidPlan
        The plan is for another graph, has no schedule or deals an op over devices; a device is not called as OpenVINO
        calls devices; or ops (named) that run on different devices are called the same.
    """
    where = op_devices(plan, graph)
    to_theirs = {device: (devices or {}).get(device, device) for device in dict.fromkeys(where.values())}
    for device, theirs in to_theirs.items():
        if not _DEVICE.fullmatch(theirs):
            raise InvalidPlan(
                f"{theirs!r} is no name of a device of OpenVINO; say which one it is: devices={{{device!r}: 'GPU.0'}}, "
                f"or --devices {device}=GPU.0 on the command line"
            )
    affinities: dict[str, str] = {}
    owner: dict[str, str] = {}
    for op, device in where.items():
        for name in [names[op]] if names is not None and op in names else _friendly_names(graph, op):
            first = owner.setdefault(name, op)
            if affinities.setdefault(name, to_theirs[device]) != to_theirs[device]:
                raise InvalidPlan(
                    f"ops {first!r} and {op!r} run on different devices, and are both called {name!r} in the model; "
                    "give the nodes distinct names, or say what OpenVINO calls them (names)"
                )
    return affinities


def _friendly_names(graph: Graph, op: str) -> list[str]:
    row = graph.extras.get(graph.index(op), {})
    own = [row.get("node", op), *(row.get("tensors") or [op])]
    return [name for node, *tensors in (*row.get("parts", ()), own) for name in _names_of_node(str(node), tensors)]


def _names_of_node(node: str, tensors: Sequence[str]) -> list[str]:
    if node == tensors[0]:  # it has no name of its own
        return [str(tensors[-1])]
    # Should its outputs be made by different ops of OpenVINO, each is called after its output.
    return [node, *(f"{node}_{tensor}" for tensor in tensors if len(tensors) > 1)]
