"""Reader of the Standard Task Graph set: tasks with times and precedence for identical processors, P|prec|Cmax.

References
----------
Tobita, Kasahara: A standard task graph set for fair evaluation of multiprocessor scheduling algorithms, Journal of
Scheduling 5(5), 2002.
"""

from __future__ import annotations

from pathlib import Path

from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.files import read_text
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.limits import check_device_count

__all__ = ["load"]


def load(path: str | Path, processors: int) -> tuple[Graph, Hardware]:
    """Read a ``.stg`` file as a graph and identical processors, between which nothing has to be moved.

    The schedule length of the set is the `latency` objective of what is returned, in units of a second. The dummy tasks
    without time at both ends are kept; they change no schedule.

    Parameters
    ----------
    path
        The number of tasks, dummies not counted, then a line for each of them: task, time, number of predecessors,
        predecessors. What follows ``#`` is a comment.
    processors
        How many there are; the files do not say.

    Raises
    ------
    InvalidGraph
        An unreadable file, no processor, or a malformed line, which the message gives with its number.
    InvalidHardware
        More processors than `rlinit.limits.MAX_DEVICES`.
    """
    source = Path(path)
    if processors < 1:
        raise InvalidGraph(f"processors is {processors}; expected an integer >= 1")
    check_device_count(processors, InvalidHardware)
    text = read_text(source, InvalidGraph)
    lines = [(number, line.split("#", 1)[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    rows = [(number, _whole(words, f"{source}, line {number}")) for number, words in lines if words]
    if not rows or len(rows[0][1]) != 1 or not rows[0][1][0]:
        raise InvalidGraph(f"{source}: expected the number of tasks in the first line")
    ops: list[tuple[str, dict[str, float]]] = []
    edges: list[tuple[str, str]] = []
    for number, row in rows[1:]:
        if len(row) < 3 or row[2] != len(row) - 3:
            raise InvalidGraph(f"{source}, line {number}: expected task, time, number of predecessors, predecessors")
        task, seconds, _, *before = row
        ops.append((str(task), {"time_s": float(seconds), "out_bytes": 0.0, "param_bytes": 0.0}))
        edges += [(str(other), str(task)) for other in before]
    if len(ops) != rows[0][1][0] + 2:
        raise InvalidGraph(f"{source}: there are {len(ops)} tasks; expected {rows[0][1][0]} and a dummy at both ends")
    devices = [Device(f"p{i}", "processor") for i in range(processors)]
    return Graph.build(ops, edges, name=source.stem), Hardware.mesh(devices, float("inf"), name=f"{processors}p")


def _whole(words: list[str], where: str) -> list[int]:
    """Return the numbers of a line, all of them integers >= 0."""
    if not all(word.isascii() and word.isdigit() and len(word) <= 15 for word in words):
        raise InvalidGraph(f"{where}: expected integers >= 0, got {' '.join(words)!r:.80}")
    return [int(word) for word in words]
