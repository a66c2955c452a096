"""Reader of the inputs of Piper: layers with variants at several tensor degrees, and a cluster of equal devices.

References
----------
Tarnawski, Narayanan, Phanishayee: Piper, multidimensional planner for DNN parallelization, NeurIPS 2021. Data:
github.com/msr-fiddle/piper (MIT license).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.files import read_json
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware

__all__ = ["load"]

_SIZES = {
    "timePerSample": "time_s",
    "parameterSize": "param_bytes",
    "memoryUsageA": "held_bytes",
    "memoryUsageB": "fixed_bytes",
}


def load(
    path: str | Path,
    *,
    devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth: float | None = None,
    microbatches: int | None = None,
) -> tuple[Graph, Hardware]:
    """Read an input as a graph with a menu, and its cluster.

    Parameters
    ----------
    path
        A JSON file: ``nodes`` with ``TMPCs`` (tensor degree -> variants), ``edges`` with ``communicationCost``.
    devices, memory_bytes, bandwidth
        In place of the file's ``maxDevices``, ``maxMemoryPerDevice`` (bytes) and ``bandwidth`` (bytes a second).
    microbatches
        In place of the file's ``mbsInBatch``.

    Returns
    -------
    Graph, Hardware
        Ops are named ``name.id``; every edge is a tensor of its own. Menus are for training, forward and backward
        together: the ``note`` of ops says so, and gives the micro-batches, which `schedule` goes by where nothing else
        is asked for; gradients go by a parameter server.

    Raises
    ------
    InvalidGraph
        An unreadable file, or one of another form; the message names what is missing.
    """
    data = read_json(path, None, InvalidGraph)
    try:
        names = {node["id"]: f"{node.get('name', 'op')}.{node['id']}" for node in data["nodes"]}
        batch = {"microbatches": int(microbatches or data["mbsInBatch"])}
        note = {"training": "1f1b", **batch, "exchange": "server"}
        ops = [
            (names[node["id"]], {"op": node.get("name", ""), "menu": _menu(node, names), "note": note})
            for node in data["nodes"]
        ]
        edges = [
            (names[edge["sourceId"]], names[edge["destId"]], float(edge["communicationCost"])) for edge in data["edges"]
        ]
        count = int(devices or data["maxDevices"])
        memory = float(memory_bytes or data["maxMemoryPerDevice"])
        rate = float(bandwidth or data["bandwidth"])
    except (KeyError, TypeError, ValueError) as problem:
        raise InvalidGraph(
            f"{path} is no input of Piper: {problem!r:.80}; expected nodes with TMPCs, and edges"
        ) from None
    rows = [Device(f"d{i}", "device", memory) for i in range(count)]
    return Graph.build(ops, edges, name=Path(path).stem), Hardware.mesh(rows, rate, name=f"{count}-devices")


def _menu(node: Any, names: dict[Any, str]) -> dict[str, list[dict[str, Any]]]:
    return {
        degree: [
            {
                "name": row["id"],
                **{ours: row[theirs] for theirs, ours in _SIZES.items()},
                "sync_bytes": {
                    names[int(other)]: size for way in ("syncTimeFw", "syncTimeBw") for other, size in row[way].items()
                },
            }
            for row in rows
        ]
        for degree, rows in node["TMPCs"].items()
    }
