"""Reader of the workloads of Tarnawski et al.: operator and layer graphs, accelerators and CPU cores.

References
----------
Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: Efficient algorithms for device placement of DNN graph
operators, NeurIPS 2020. Data: github.com/msr-fiddle/dnn-partitioning (MIT license).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.files import read_json
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.limits import check_device_count
from rlinit.units import MS_PER_S

__all__ = ["ACCELERATOR", "CPU", "load"]

ACCELERATOR = "accelerator"
"""Kind of the devices the files call FPGA, whatever they are."""

CPU = "cpu"
"""Kind of a CPU core."""

_Row = Mapping[str, Any]


def load(path: str | Path) -> tuple[Graph, Hardware]:
    """Read one workload as a graph and the devices it is to be split over.

    The files' maximum load of a device is the `pipeline` objective of what is returned: a device's load is the time
    of its ops, plus, on an accelerator, the cost of each tensor that enters it and of each that leaves it, counted
    once however many ops use it there. A CPU core holds the data already and pays no transfer (its `io_bandwidth`
    is inf), and its memory is not limited.

    ======================  ==============================================================================
    in the file             here
    ======================  ==============================================================================
    ``id``                  the op's name, and the order of ops; ``name`` becomes the attribute ``label``
    ``fpgaLatency``         milliseconds, ``time_s`` on kind ``accelerator``; ``cpuLatency`` on kind ``cpu``
    ``supportedOnFpga``     false: ``forbidden`` on ``accelerator``
    ``size`` of a node      ``param_bytes``, against ``memory_bytes`` (``maxSizePerFPGA``) of an accelerator
    ``colorClass``          ``colocate``, where more than one forward node has it
    ``isBackwardNode``      ``backward_of`` the first forward node of its ``colorClass``: a training workload, for
                            ``schedule(..., training=..., optimizer=1)``, as sizes count all that is held
    ``cost`` of an edge     milliseconds to move its source's tensor, as ``out_bytes`` over the bandwidth
    ======================  ==============================================================================

    ``out_bytes / bandwidth`` equals ``cost`` in seconds to the last bit. Where edges give a ``size`` in bytes and
    one bandwidth explains all costs, sizes and bandwidth are those. Otherwise ``out_bytes`` is the cost in seconds
    and the bandwidth 1: a synthetic unit in which only the quotient means something. Nodes without consumers get no
    ``out_bytes``. Where the edges of one source give the same cost and different sizes, as in training workloads, the
    costs count.

    Raises
    ------
    InvalidGraph
        An unreadable or malformed file (the message names the node, edge or field), edges of one source with
        different costs, or a backward node without a forward node of its ``colorClass``.
    InvalidHardware
        No device at all, more than `rlinit.limits.MAX_DEVICES`, or an accelerator without memory.
    """
    source = Path(path)
    data = read_json(source, "workload", InvalidGraph)
    nodes, edges = data["nodes"], data["edges"]
    out_bytes, bandwidth = _tensors(edges, source, loose=any(node["isBackwardNode"] for node in nodes))
    shared: dict[Any, int] = {}
    nodes.sort(key=lambda node: int(node["id"]))
    ahead: dict[Any, str] = {}
    for node in nodes:
        if node.get("colorClass") is not None and not node["isBackwardNode"]:
            shared[node["colorClass"]] = shared.get(node["colorClass"], 0) + 1
            ahead.setdefault(node["colorClass"], str(int(node["id"])))
    ops = [
        (str(int(node["id"])), _attributes(node, out_bytes, shared) | _partner(node, ahead, source)) for node in nodes
    ]
    pairs = [(str(int(edge["sourceId"])), str(int(edge["destId"]))) for edge in edges]
    graph = Graph.build(ops, pairs, name=source.stem)
    return graph, _hardware(data, bandwidth, source)


def _tensors(edges: Sequence[_Row], source: Path, *, loose: bool) -> tuple[dict[int, float], float]:
    """Return the bytes of each source's tensor and the bandwidth, so that their quotient is the cost in seconds.

    Where `loose`, edges of one source may give different sizes; its own is then not known.
    """
    cost_ms: dict[int, float] = {}
    size: dict[int, float | None] = {}
    for edge in edges:
        u, cost = edge["sourceId"], float(edge["cost"])
        if cost_ms.setdefault(u, cost) != cost:
            raise InvalidGraph(
                f"{source}: edges from node {u} cost both {cost_ms[u]:g} and {cost:g} ms; expected one cost for each "
                "source, which has one output tensor"
            )
        if size.setdefault(u, edge.get("size")) != edge.get("size"):
            if not loose:
                raise InvalidGraph(f"{source}: edges from node {u} have different sizes; expected one for each source")
            size[u] = None
    cost_s = {u: cost / MS_PER_S for u, cost in cost_ms.items()}
    given = {u: float(bytes_) for u, bytes_ in size.items() if bytes_ is not None}
    costliest = max(cost_ms, key=cost_ms.__getitem__, default=None)
    if costliest is not None and len(given) == len(cost_ms) and given[costliest] > 0 and cost_ms[costliest] > 0:
        bandwidth = given[costliest] * MS_PER_S / cost_ms[costliest]
        if math.isfinite(bandwidth) and all(given[u] / bandwidth == cost_s[u] for u in cost_s):
            return given, bandwidth
    return cost_s, 1.0


def _attributes(node: _Row, out_bytes: Mapping[int, float], shared: Mapping[Any, int]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "time_s": {ACCELERATOR: node["fpgaLatency"] / MS_PER_S, CPU: node["cpuLatency"] / MS_PER_S},
        "param_bytes": node["size"],
    }
    if node["id"] in out_bytes:
        row["out_bytes"] = out_bytes[node["id"]]
    if shared.get(node.get("colorClass"), 0) > 1 and not node["isBackwardNode"]:
        row["colocate"] = node["colorClass"]
    if not node["supportedOnFpga"]:
        row["forbidden"] = [ACCELERATOR]
    if node.get("name"):
        row["label"] = str(node["name"])
    return row


def _partner(node: _Row, ahead: Mapping[Any, str], source: Path) -> dict[str, str]:
    """Return which forward node a backward node belongs to, as an attribute."""
    if not node["isBackwardNode"]:
        return {}
    if node.get("colorClass") not in ahead:
        raise InvalidGraph(
            f"{source}: backward node {node['id']} has colorClass {node.get('colorClass')!r}, which no forward node has"
        )
    return {"backward_of": ahead[node["colorClass"]]}


def _hardware(data: _Row, bandwidth: float, source: Path) -> Hardware:
    accelerators, cores = int(data["maxFPGAs"]), int(data["maxCPUs"])
    check_device_count(accelerators + cores, InvalidHardware, f"{source}: ")
    memory = float(data["maxSizePerFPGA"])
    devices = [Device(f"{ACCELERATOR}{i}", ACCELERATOR, memory, io_bandwidth=bandwidth) for i in range(accelerators)]
    devices += [Device(f"{CPU}{i}", CPU, io_bandwidth=math.inf) for i in range(cores)]
    return Hardware.mesh(devices, bandwidth, name=source.stem)
