"""Reader of assembly lines (``.alb``): tasks with times and precedence, to be balanced over stations.

References
----------
Otto, Otto, Scholl: Systematic data generation and test design for solution algorithms on the example of SALBPGen for
assembly line balancing, European Journal of Operational Research 228, 2013. Data: assembly-line-balancing.de, and
github.com/jordipereiragude/salbp2instances.
"""

from __future__ import annotations

from pathlib import Path

from rlinit.errors import InvalidGraph
from rlinit.files import read_text
from rlinit.graph import Graph

__all__ = ["load"]

_COUNT, _TIMES, _PRECEDENCE = "number of tasks", "task times", "precedence relations"


def load(path: str | Path) -> Graph:
    """Read an instance of the *simple assembly line balancing problem* as a graph without bytes.

    On ``Hardware.pipeline(k)`` the `pipeline` objective of the graph is the least cycle time of k stations (the
    problem's type 2), where a unit of time in the file is a second here. Ops are the tasks, named by their numbers; a
    cycle time in the file (type 1) is not read.

    Raises
    ------
    InvalidGraph
        An unreadable file, a missing section, a malformed line, which the message gives with its number, or a cycle.
    """
    source = Path(path)
    sections = _sections(source)
    for name in (_COUNT, _TIMES, _PRECEDENCE):
        if name not in sections:
            raise InvalidGraph(f"{source}: expected a section <{name}>, got {', '.join(sections) or 'none'}")
    counts = _rows(source, sections[_COUNT], 1, " ")
    if len(counts) != 1:
        raise InvalidGraph(f"{source}: expected one number under <{_COUNT}>, got {len(counts)} lines")
    times = _rows(source, sections[_TIMES], 2, " ")
    n = int(counts[0][0])
    if len(times) != n or any(task != at for at, (task, _) in enumerate(times, 1)):
        raise InvalidGraph(f"{source}: expected a time for each task from 1 to {n} in order under <{_TIMES}>")
    ops = [(str(int(task)), {"time_s": time, "out_bytes": 0.0, "param_bytes": 0.0}) for task, time in times]
    edges = [(str(int(u)), str(int(v))) for u, v in _rows(source, sections[_PRECEDENCE], 2, ",")]
    return Graph.build(ops, edges, name=source.stem)


def _sections(source: Path) -> dict[str, list[tuple[int, str]]]:
    """Return the numbered lines under each ``<heading>`` that are not empty."""
    lines = read_text(source, InvalidGraph).splitlines()
    sections: dict[str, list[tuple[int, str]]] = {}
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("<") and line.endswith(">"):
            rows = sections.setdefault(line[1:-1], [])
        elif line:
            rows.append((number, line))
    return sections


def _rows(source: Path, lines: list[tuple[int, str]], width: int, separator: str) -> list[list[float]]:
    """Return the numbers of lines, `width` on each; only times may have a fraction."""
    rows = []
    for number, line in lines:
        parts = line.split() if separator == " " else line.split(separator)
        try:
            row = [float(part) for part in parts]
            whole = all(value == int(value) for value in row[: 2 if separator == "," else 1])
        except (ValueError, OverflowError):
            row, whole = [], False
        if len(row) != width or not whole:
            raise InvalidGraph(
                f"{source}, line {number}: expected {width} number(s), the task's whole, got {line!r:.60}"
            )
        rows.append(row)
    return rows
