"""Reader of the optimal schedules of Sinnen's group: task graphs with delays on edges, P|prec, c_ij|Cmax, as GXL.

References
----------
Sinnen: Reducing the solution space of optimal task scheduling, Computers & Operations Research 43, 2014.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.files import read_text
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.limits import check_device_count

__all__ = ["best_known", "load"]

_PROCESSORS = "Number of processors"
_LENGTH = "Total schedule length"


def load(path: str | Path, processors: int | None = None) -> tuple[Graph, Hardware]:
    """Read a ``.gxl`` file as a graph and identical processors, all linked.

    The schedule length of the set is the `latency` objective of what is returned, in units of a second. The delay of
    an edge is paid where its ends are on different processors, and belongs to that edge alone: it is the bytes of a
    tensor of its own, over links of one byte a second.

    Parameters
    ----------
    path
        ``node`` elements with an integer attribute ``Weight``, the time, and ``edge`` elements with one, the delay.
    processors
        How many there are; None: as many as the file says.

    Raises
    ------
    InvalidGraph
        An unreadable file, no number of processors, or a node or edge without a weight; the message names it.
    InvalidHardware
        More processors than `rlinit.limits.MAX_DEVICES`.
    """
    source = Path(path)
    graph = _graph_element(source)
    count = _integer(graph, _PROCESSORS, str(source)) if processors is None else processors
    if count < 1:
        raise InvalidGraph(f"{source}: {count} processors; expected at least 1")
    check_device_count(count, InvalidHardware, f"{source}: ")
    ops = []
    for node in graph.findall("node"):
        name = _attribute(node, "id", f"{source}: a node")
        seconds = float(_integer(node, "Weight", f"{source}: node {name!r}"))
        ops.append((name, {"time_s": seconds, "param_bytes": 0.0}))
    edges = []
    for edge in graph.findall("edge"):
        u, v = (_attribute(edge, end, f"{source}: an edge") for end in ("from", "to"))
        edges.append((u, v, float(_integer(edge, "Weight", f"{source}: edge ({u!r}, {v!r})"))))
    devices = [Device(f"p{i}", "processor") for i in range(count)]
    return Graph.build(ops, edges, name=source.stem), Hardware.mesh(devices, 1.0, name=f"{count}p")


def best_known(path: str | Path) -> float:
    """Return the length of the schedule that a file gives, which is optimal for its number of processors.

    Raises
    ------
    InvalidGraph
        An unreadable file, or one without a schedule.
    """
    return float(_integer(_graph_element(Path(path)), _LENGTH, str(path)))


def _graph_element(source: Path) -> ElementTree.Element:
    text = read_text(source, InvalidGraph)
    if "<!ENTITY" in text:
        raise InvalidGraph(f"{source}: declares entities; expected plain GXL")
    try:
        found = ElementTree.fromstring(text).find("graph")
    except ElementTree.ParseError as problem:
        raise InvalidGraph(f"{source} is no XML: {problem}") from problem
    if found is None:
        raise InvalidGraph(f"{source}: has no <graph>; expected GXL")
    return found


def _attribute(element: ElementTree.Element, key: str, where: str) -> str:
    value = element.get(key)
    if not value:
        raise InvalidGraph(f"{where} has no {key!r}")
    return value


def _integer(element: ElementTree.Element, name: str, where: str) -> int:
    """Return the integer from 0 that an element's attribute of a name holds."""
    for attribute in element.findall("attr"):
        if attribute.get("name") == name:
            text = (attribute.findtext("int") or "").strip()
            if text.isascii() and text.isdigit() and len(text) <= 15:
                return int(text)
            raise InvalidGraph(f"{where}: {name!r} is {text!r:.40}; expected an integer >= 0")
    raise InvalidGraph(f"{where} gives no {name!r}")
