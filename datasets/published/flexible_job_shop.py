"""Reader of flexible job shops: jobs are chains of operations, each of which some machines can run.

References
----------
Brandimarte: Routing and scheduling in a flexible job shop by tabu search, Annals of OR 41, 1993. Hurink, Jurisch,
Thole: Tabu search for the job-shop scheduling problem with multi-purpose machines, OR Spektrum 15, 1994. Data:
github.com/ScheduleOpt/benchmarks (CC BY-SA 4.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.files import read_text
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.limits import check_device_count

__all__ = ["load"]


def load(path: str | Path) -> tuple[Graph, Hardware]:
    """Read an instance as a graph and its machines, between which nothing has to be moved.

    Its makespan is the `latency` objective of what is returned, in units of a second. Op ``2.0`` is the first operation
    of the third job; machines that cannot run it are ``forbidden``.

    Parameters
    ----------
    path
        A line with the numbers of jobs and machines (and a third number that means nothing here), then a line for each
        job: the number of its operations, and for each of them the number of machines that can run it, and for each of
        these machine (from 1) and time.

    Raises
    ------
    InvalidGraph
        An unreadable file or a malformed line, which the message gives with its number.
    InvalidHardware
        More machines than `rlinit.limits.MAX_DEVICES`.
    """
    source = Path(path)
    lines = read_text(source, InvalidGraph).splitlines()
    rows = [(f"{source}, line {number}", line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows or len(rows[0][1]) < 2:
        raise InvalidGraph(f"{source}: expected the numbers of jobs and machines in the first line")
    head = _Numbers(rows[0][1][:2], rows[0][0])
    jobs, machines = head.next(1), head.next(1)
    check_device_count(machines, InvalidHardware, f"{source}: ")
    if len(rows) != jobs + 1:
        raise InvalidGraph(f"{source}: there are {len(rows) - 1} jobs; the first line says {jobs}")
    ops: list[tuple[str, dict[str, Any]]] = []
    edges: list[tuple[str, str]] = []
    for job, (where, words) in enumerate(rows[1:]):
        numbers = _Numbers(words, where)
        for at in range(numbers.next(1)):
            ops.append((f"{job}.{at}", _operation(numbers, machines)))
            edges += [(f"{job}.{at - 1}", f"{job}.{at}")] if at else []
        numbers.end()
    devices = [Device(f"m{i + 1}", "machine") for i in range(machines)]
    return Graph.build(ops, edges, name=source.stem), Hardware.mesh(devices, float("inf"), name=source.stem)


def _operation(numbers: _Numbers, machines: int) -> dict[str, Any]:
    """Return the attributes of the next operation of a job."""
    times: dict[str, float] = {}
    for _ in range(numbers.next(1)):
        machine = numbers.next(1, machines)
        times[f"m{machine}"] = float(numbers.next(0))
    other = [f"m{i + 1}" for i in range(machines) if f"m{i + 1}" not in times]
    return {"time_s": times, "forbidden": other, "out_bytes": 0.0, "param_bytes": 0.0}


class _Numbers:
    """Reads the integers of a line, one after the other."""

    def __init__(self, words: list[str], where: str) -> None:
        self._words: Iterator[str] = iter(words)
        self._where = where

    def next(self, least: int, most: int | None = None) -> int:
        """Return the next integer, which has to lie in a range."""
        word = next(self._words, "")
        fine = word.isascii() and word.isdigit() and len(word) <= 15
        if not fine or int(word) < least or (most is not None and int(word) > most):
            upper = "" if most is None else f" to {most}"
            raise InvalidGraph(f"{self._where}: {word!r:.20} where an integer from {least}{upper} is expected")
        return int(word)

    def end(self) -> None:
        """Refuse numbers that are left."""
        left = next(self._words, None)
        if left is not None:
            raise InvalidGraph(f"{self._where}: {left!r:.20} after the last operation")
