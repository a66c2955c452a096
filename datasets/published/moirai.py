"""Reader of Moirai's instances: op graphs with times and transfers measured on a few unequal devices.

References
----------
Moirai, section III (the model) and table III. Data: github.com/moirai-placement/moirai (MIT license), ``sample-data``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import InvalidGraph, imported
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.units import MS_PER_S

__all__ = ["from_rows", "load"]

_BITS = 8.0
"""Of a byte: the files count memory in bits."""
_ROUNDING_MS = 0.5e-5  # transfers are rounded to five decimals of a millisecond
_FASTEST = 100.7222e9 / _BITS  # bytes/s, with which GoogLeNet's tensors are those of its layers in FP32
_ROUNDS = 200
"""Turns of sizes and bandwidths, each fitted to the other, until the times are explained."""


def load(path: str | Path) -> tuple[Graph, Hardware]:
    """Read an ``.xls`` file as a graph and the devices it was measured on.

    ====================  ====================================================================================
    in the file           here
    ====================  ====================================================================================
    ``task``              the op's name; virtual sources are left out: the first row, and others without times and
                          memory that nothing precedes and whose transfers are empty
    ``dir_succ``          edges; ``c_task`` numbers them as tasks of their own, which are not needed here
    ``p0``, ``p1``, ...   milliseconds: ``time_s`` on the device of that name
    ``pc01``, ...         milliseconds to move the op's output, one figure for each edge: ``out_bytes`` over
                          ``bandwidth``
    ``mi``                ``param_bytes``; ``m0``, ``m1``, ... of the first row: ``memory_bytes`` (both in bits)
    ====================  ====================================================================================

    A file gives times of transfers, but neither sizes nor bandwidths. Those returned are fitted: they reproduce every
    time to its last decimal. Their scale is free; it is such that the fastest link has 100.7 Gb/s.

    Raises
    ------
    InvalidGraph
        An unreadable or malformed file (the message names the cell), or transfers that no sizes and bandwidths
        explain.
    BackendUnavailable
        The package ``xlrd`` is not installed.
    """
    xlrd = imported("xlrd", "reading .xls", "rlinit[readers]")
    source = Path(path)
    try:
        with xlrd.open_workbook(str(source)) as book:
            sheet = book.sheet_by_index(0)
            rows = [sheet.row_values(row) for row in range(sheet.nrows)]
    except OSError as problem:
        raise InvalidGraph(f"cannot read {source}: {problem}") from problem
    except Exception as problem:  # damaged files come out as anything: AssertionError, struct.error, XLRDError, ...
        raise InvalidGraph(f"{source} is not a valid .xls file (truncated?): {problem!r}") from problem
    return from_rows(rows, source.stem)


def from_rows(rows: Sequence[Sequence[object]], name: str) -> tuple[Graph, Hardware]:
    """Build graph and hardware from the cells of a sheet, its header first.

    Parameters
    ----------
    rows
        Cells as numbers or text; several numbers in one cell are separated by commas.
    name
        The name of the graph and of the hardware.

    Raises
    ------
    InvalidGraph
        As for `load`.
    """
    table = _Table(rows, name)
    d = 0
    while f"p{d}" in table.columns:
        d += 1
    if d == 0 or len(rows) < 3:
        raise InvalidGraph(f"{name}: expected columns p0, p1, ..., a virtual source and at least one task")
    memory = [table.one(1, f"m{i}") / _BITS for i in range(d)]
    if any(table.one(1, f"p{i}") for i in range(d)) or table.one(1, "mi"):
        raise InvalidGraph(f"{name}: the first task has times or memory; expected a virtual source")
    tasks = {table.whole(row, "task"): row for row in range(2, len(rows))}
    if len(tasks) < len(rows) - 2:
        raise InvalidGraph(f"{name}: a task number appears more than once in column 'task'")
    preceded = {follower for row in tasks.values() for follower in table.many(row, "dir_succ")}
    tasks = {task: row for task, row in tasks.items() if task in preceded or not table.is_virtual(row, d)}
    if not tasks:
        raise InvalidGraph(f"{name}: expected at least one task beside the virtual sources")
    pairs: list[tuple[str, str]] = []
    moved = np.zeros((len(tasks), d, d))
    for i, (task, row) in enumerate(tasks.items()):
        followers = table.many(row, "dir_succ")
        for follower in followers:
            if follower not in tasks:
                raise InvalidGraph(f"{table.cell(row, 'dir_succ')} names the unknown task {follower:g}")
            pairs.append((str(task), str(int(follower))))
        if followers:
            moved[i] = table.transfers(row, d, len(followers))
    out_ms, ms_per_unit = _fit(moved.reshape(len(tasks), -1), name)
    fastest = ms_per_unit[ms_per_unit > 0].min(initial=math.inf)
    unit = _FASTEST / MS_PER_S * fastest if math.isfinite(fastest) else 0.0  # bytes of one unit of the fit
    ops = [
        (
            str(task),
            {
                "param_bytes": table.one(row, "mi") / _BITS,
                "out_bytes": float(out_ms[i] * unit),
                "time_s": {f"p{k}": table.one(row, f"p{k}") / MS_PER_S for k in range(d)},
            },
        )
        for i, (task, row) in enumerate(tasks.items())
    ]
    with np.errstate(divide="ignore"):
        bandwidth = np.where(ms_per_unit > 0, unit * MS_PER_S / ms_per_unit, np.inf).reshape(d, d)
    devices = tuple(Device(f"p{i}", f"p{i}", memory[i] or math.inf) for i in range(d))
    return Graph.build(ops, pairs, name=name), Hardware(devices, bandwidth, np.zeros((d, d)), name)


@dataclass(frozen=True, slots=True)
class _Table:
    """The cells of a sheet, by row and by name of the column; what is wrong with one is said with its place."""

    rows: Sequence[Sequence[object]]
    name: str

    @property
    def columns(self) -> list[str]:
        return [str(title).strip() for title in self.rows[0]] if self.rows else []

    def cell(self, row: int, column: str) -> str:
        """Name a cell as a spreadsheet does."""
        index = self.columns.index(column)
        letters = (chr(64 + index // 26) if index >= 26 else "") + chr(65 + index % 26)
        return f"{self.name}: cell {letters}{row + 1} (column {column!r})"

    def many(self, row: int, column: str) -> list[float]:
        """Return the numbers of a cell, all finite and at least 0."""
        if column not in self.columns:
            raise InvalidGraph(f"{self.name}: there is no column {column!r}; found {', '.join(self.columns)}")
        index = self.columns.index(column)
        content = self.rows[row][index] if index < len(self.rows[row]) else ""
        numbers = []
        for text in str(content).split(",") if str(content).strip() else []:
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            if not 0 <= number < math.inf:
                raise InvalidGraph(f"{self.cell(row, column)} is {content!r}; expected finite numbers >= 0")
            numbers.append(number)
        return numbers

    def one(self, row: int, column: str) -> float:
        """Return the only number of a cell."""
        numbers = self.many(row, column)
        if len(numbers) != 1:
            raise InvalidGraph(f"{self.cell(row, column)} has {len(numbers)} numbers; expected one")
        return numbers[0]

    def whole(self, row: int, column: str) -> int:
        """Return the only number of a cell, an integer."""
        number = self.one(row, column)
        if not number.is_integer():
            raise InvalidGraph(f"{self.cell(row, column)} is {number}; expected an integer")
        return int(number)

    def is_virtual(self, row: int, d: int) -> bool:
        """Return whether a task stands for nothing: it leads to others, costs nothing and moves nothing."""
        costs = ["mi", *(f"p{i}" for i in range(d))]
        moves = [f"pc{i}{j}" for i in range(d) for j in range(d)]
        return (
            bool(self.many(row, "dir_succ"))
            and not any(self.one(row, column) for column in costs)
            and not any(self.many(row, column) for column in moves)
        )

    def transfers(self, row: int, d: int, num_edges: int) -> NDArray[np.float64]:
        """Return (d, d) milliseconds to move the output of a task, which has one for all its edges."""
        moved = np.zeros((d, d))
        for i in range(d):
            for j in range(d):
                column = f"pc{i}{j}"
                times = self.many(row, column)
                if len(times) != num_edges or len(set(times)) > 1 or (i == j and times[0] != 0):
                    expected = "zero" if i == j else "one and the same time"
                    raise InvalidGraph(
                        f"{self.cell(row, column)} is {times}; expected {expected} for each of {num_edges} edges"
                    )
                moved[i, j] = times[0]
        return moved


def _fit(moved: NDArray[np.float64], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split (ops, links) times into sizes and times of a unit whose products round to them.

    Given the one, each of the others has an interval to lie in. Taking the middles in turn, from the links' times for
    the largest tensor, ends at once for files that have a solution.
    """
    if not moved.any():
        return np.zeros(len(moved)), np.zeros(moved.shape[1])
    sent, used = moved.any(axis=1), moved.any(axis=0)
    times = moved[np.ix_(sent, used)]
    per_unit = times[times.max(axis=1).argmax()].copy()
    for _ in range(_ROUNDS):
        if (per_unit <= 0).any():
            break
        size = _middle((times - _ROUNDING_MS) / per_unit, (times + _ROUNDING_MS) / per_unit, 1)
        if (np.abs(size[:, None] * per_unit - times) <= _ROUNDING_MS * (1 + 1e-6)).all():
            sizes, units = np.zeros(len(moved)), np.zeros(moved.shape[1])
            sizes[sent], units[used] = size, per_unit
            return sizes, units
        per_unit = _middle((times - _ROUNDING_MS) / size[:, None], (times + _ROUNDING_MS) / size[:, None], 0)
    raise InvalidGraph(f"{name}: no sizes and bandwidths explain the times of columns pc00, pc01, ... to five decimals")


def _middle(least: NDArray[np.float64], most: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the middle of what all intervals along an axis have in common (or of the gap between them)."""
    return np.asarray((np.maximum(least.max(axis=axis), 0.0) + most.min(axis=axis)) / 2, np.float64)
