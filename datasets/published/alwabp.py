"""Reader of assembly lines with workers: each task takes each worker another time, or cannot be done by him.

References
----------
Chaves, Miralles, Lorena: Clustering search approach for the assembly line worker assignment and balancing problem,
ICC&IE 2007. Borba, Ritt: A heuristic and a branch-and-bound algorithm for the assembly line worker assignment and
balancing problem, Computers & Operations Research 45, 2014. Data: github.com/mrpritt/ALWABP.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from rlinit.errors import InvalidGraph
from rlinit.files import read_text
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware

__all__ = ["best_known", "load"]


def load(path: str | Path) -> tuple[Graph, Hardware]:
    """Read an instance as a graph without bytes and one device for each worker.

    The `pipeline` objective is the least cycle time, where a unit of time in the file is a second here: every worker
    has one station, in any order. An op is a task, named by its number from 1; what a worker cannot do (``Inf``) is
    forbidden on his device.

    ==================  ===============================================================================
    in the file         here
    ==================  ===============================================================================
    first number        tasks n
    n rows              the workers' times of a task, as many in each row
    pairs to ``-1 -1``  precedence: the first task before the second; some files end without this
    ==================  ===============================================================================

    Raises
    ------
    InvalidGraph
        An unreadable file or a malformed line, which the message gives with its number, or precedence with a cycle.
    """
    source = Path(path)
    text = read_text(source, InvalidGraph)
    rows = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows or len(rows[0][1]) != 1:
        raise InvalidGraph(f"{source}: expected the number of tasks on the first line")
    n = _task(source, rows[0][0], rows[0][1][0], None)
    if len(rows) < n + 1:
        raise InvalidGraph(f"{source}: expected {n} rows of times, got {len(rows) - 1} rows in all")
    times = [_times(source, number, row, len(rows[1][1])) for number, row in rows[1 : n + 1]]
    workers = [f"worker{i}" for i in range(1, len(times[0]) + 1)]
    ops = []
    for task, row in enumerate(times, 1):
        given = {name: time for name, time in zip(workers, row, strict=True) if math.isfinite(time)}
        cannot = [name for name in workers if name not in given]
        values = {"time_s": given, "out_bytes": 0.0, "param_bytes": 0.0}
        ops.append((str(task), {**values, "forbidden": cannot} if cannot else values))
    graph = Graph.build(ops, _precedence(source, rows[n + 1 :], n), name=f"{source.parent.name}-{source.name}")
    return graph, Hardware.mesh([Device(name, name, io_bandwidth=math.inf) for name in workers], name=graph.name)


def best_known(folder: str | Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (lower, upper) proven bounds of the least cycle time by family and file, from ``best-known.csv``.

    Raises
    ------
    InvalidGraph
        An unreadable or malformed table.
    """
    source = Path(folder) / "best-known.csv"
    try:
        with source.open(encoding="utf-8", newline="") as file:
            return {
                (row["family"], row["number"]): (float(row["lower"]), float(row["upper"]))
                for row in csv.DictReader(file)
            }
    except (OSError, KeyError, ValueError, TypeError) as problem:
        raise InvalidGraph(f"cannot read {source} (family, number, lower, upper): {problem!r}") from problem


def _times(source: Path, number: int, row: list[str], num_workers: int) -> list[float]:
    """Return a task's times, one for each worker."""
    try:
        times = [float(value) for value in row]
    except ValueError:
        times = []
    if len(times) != num_workers or not all(time >= 0 for time in times):
        raise InvalidGraph(
            f"{source}, line {number}: expected {num_workers} times >= 0 or Inf, got {' '.join(row):.60}"
        )
    return times


def _precedence(source: Path, rows: list[tuple[int, list[str]]], num_tasks: int) -> list[tuple[str, str]]:
    """Return the pairs before ``-1 -1``, or all of them."""
    edges: list[tuple[str, str]] = []
    for number, row in rows:
        if len(row) != 2:
            raise InvalidGraph(f"{source}, line {number}: expected two tasks, got {' '.join(row):.60}")
        if row == ["-1", "-1"]:
            return edges
        u, v = (_task(source, number, value, num_tasks) for value in row)
        edges.append((str(u), str(v)))
    return edges


def _task(source: Path, number: int, text: str, num_tasks: int | None) -> int:
    """Return a whole number from 1, to `num_tasks` where that is given."""
    if not text.isdecimal() or int(text) < 1 or (num_tasks is not None and int(text) > num_tasks):
        most = "" if num_tasks is None else f" to {num_tasks}"
        raise InvalidGraph(f"{source}, line {number}: expected a whole number from 1{most}, got {text!r:.60}")
    return int(text)
