"""Cost tables: measured or hand-written seconds of ops on devices, with how far they spread; CSV in and out.

A table is data to look at and edit. `CostTable.apply` puts its seconds into a graph, where they win over the roofline
model (see `rlinit.costs.roofline.op_times`).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlinit.errors import RlinitError
from rlinit.files import MAX_BYTES, read_text, write_atomically
from rlinit.graph import Graph
from rlinit.units import format_seconds

__all__ = ["CostRow", "CostTable", "InvalidCostTable", "Noise"]

_HEADER = ("op", "device", "batch", "seconds", "spread_s", "repeats")
_REQUIRED = frozenset({"op", "device", "batch", "seconds"})
_LARGEST = sys.float_info.max


class InvalidCostTable(RlinitError, ValueError):
    """A cost table is malformed; the message names the row."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """Seconds of one op on one device at one batch size.

    Parameters
    ----------
    op, device, batch
        Name of the op; name or kind of the device, or ``"*"``; inputs that run at once.
    seconds
        The median of the repeats, or a number of somebody's choice.
    spread_s
        Interquartile range of the repeats in seconds; 0 for one that was not measured.
    repeats
        Measurements behind the row; 0: none.

    Raises
    ------
    InvalidCostTable
        An empty name, a batch size or count out of range, seconds that are negative, infinite or NaN.
    """

    op: str
    device: str
    batch: int
    seconds: float
    spread_s: float = 0.0
    repeats: int = 0

    def __post_init__(self) -> None:
        where = f"op {self.op!r} on {self.device!r} at batch size {self.batch!r}"
        if not self.op or not self.device:
            raise InvalidCostTable(f"{where}: op and device must not be empty")
        for what, count, least in (("batch", self.batch, 1), ("repeats", self.repeats, 0)):
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise InvalidCostTable(f"{where}: {what} is {count!r}; expected an integer >= {least}")
        for what in ("seconds", "spread_s"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
                raise InvalidCostTable(f"{where}: {what} is {value!r}; expected a finite number >= 0")

    @property
    def key(self) -> tuple[str, str, int]:
        """Op, device and batch size."""
        return self.op, self.device, self.batch

    @property
    def relative_spread(self) -> float:
        """Spread over seconds; 0 where both are 0, inf where only the seconds are."""
        if self.spread_s == 0.0:
            return 0.0
        return self.spread_s / self.seconds if self.seconds > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the measurements of one device at one batch size spread.

    Parameters
    ----------
    device, batch
        Whose.
    num_measured, num_rows
        Rows that were measured (two times or more, so that they have a spread), of how many.
    total_s
        Sum of the seconds of all rows.
    median_spread, worst_spread, worst_op
        Relative spread (interquartile range over median) of the measured rows: the median, the largest and whose it
        is. 0 and "" without measured rows.
    total_spread
        Sum of the spreads over the sum of the seconds of the measured rows: the noise where the time goes.
    """

    device: str
    batch: int
    num_measured: int
    num_rows: int
    total_s: float
    median_spread: float
    worst_spread: float
    worst_op: str
    total_spread: float

    def __str__(self) -> str:
        start = f"{self.device} at batch size {self.batch}: {self.num_rows} ops, {format_seconds(self.total_s)}"
        if not self.num_measured:
            return f"{start}; no row was measured more than once, so nothing is known of the noise"
        return (
            f"{start}; {self.num_measured} measured, spread {self.median_spread:.0%} for the median op, "
            f"{self.total_spread:.0%} of the time, at most {self.worst_spread:.0%} ({self.worst_op})"
        )


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of ops by device and batch size.

    Parameters
    ----------
    rows
        At most one for each op, device and batch size, in any order.
    name
        A name for messages.
    notes
        What should be known about the numbers (machine, versions, threads), text by key.

    Raises
    ------
    InvalidCostTable
        Two rows for one op, device and batch size; a note with a line break, or a key with a colon.
    """

    rows: tuple[CostRow, ...]
    name: str = "costs"
    notes: Mapping[str, str] = field(default_factory=dict)
    _row_of: dict[tuple[str, str, int], CostRow] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[tuple[str, str, int], CostRow] = {}
        for row in self.rows:
            if row.key in found:
                raise InvalidCostTable(
                    f"two rows for op {row.op!r} on {row.device!r} at batch size {row.batch}; expected one"
                )
            found[row.key] = row
        for key, text in {**self.notes, "name": self.name}.items():
            if not key or key != key.strip() or ":" in key or len(key.splitlines()) > 1:
                raise InvalidCostTable(f"note {key!r}: expected a key of one line without colon")
            if not isinstance(text, str) or len(text.splitlines()) > 1 or text != text.strip():
                raise InvalidCostTable(f"note {key!r} is {text!r}; expected one line of text")
        if "name" in self.notes:
            raise InvalidCostTable("a note is called 'name', which is the table's own")
        object.__setattr__(self, "_row_of", found)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that have rows, in order of appearance."""
        return tuple(dict.fromkeys(row.device for row in self.rows))

    def get(self, op: str, device: str, batch: int = 1) -> CostRow | None:
        """Return the row of an op on a device at a batch size; None if there is none.

        Parameters
        ----------
        op
            Name of the op.
        device
            Name of the device.
        batch
            Inputs at once, at least 1.
        """
        return self._row_of.get((op, device, batch))

    def noise(self) -> tuple[Noise, ...]:
        """Return how noisy the numbers of each device at each batch size are."""
        groups: dict[tuple[str, int], list[CostRow]] = {}
        for row in self.rows:
            groups.setdefault((row.device, row.batch), []).append(row)
        return tuple(_noise(device, batch, rows) for (device, batch), rows in sorted(groups.items()))

    def updated(self, other: CostTable) -> CostTable:
        """Return this table with the rows and notes of another one put in; the other one's win."""
        return CostTable(
            tuple({**self._row_of, **other._row_of}.values()), self.name, {**self.notes, **dict(other.notes)}
        )

    def apply(self, graph: Graph, *, partial: bool = False) -> Graph:
        """Return the graph with the times of this table; times the table does not have stay as they are.

        Parameters
        ----------
        graph
            Its ops are found by name.
        partial
            Allow ops of the graph that have no row on some device (the roofline model may still cover them), and rows
            of ops that the graph does not have.

        Raises
        ------
        InvalidCostTable
            A row of an op that the graph lacks, or an op that may run on a device and has no row there.
        """
        position = {op: i for i, op in enumerate(graph.names)}
        times = {key: column.copy() for key, column in graph.times.items()}
        given: dict[tuple[str, int], np.ndarray[Any, np.dtype[np.bool_]]] = {}
        for row in self.rows:
            if row.op not in position:
                if partial:
                    continue
                raise InvalidCostTable(f"table {self.name!r} has op {row.op!r}, which graph {graph.name!r} lacks")
            key = row.device, row.batch
            times.setdefault(key, np.full(graph.num_ops, np.nan))[position[row.op]] = row.seconds
            given.setdefault(key, np.zeros(graph.num_ops, np.bool_))[position[row.op]] = True
        for (device, batch), known in given.items():
            missing = np.flatnonzero(~(known | graph.forbidden.get(device, np.zeros(graph.num_ops, np.bool_))))
            if len(missing) and not partial:
                raise InvalidCostTable(
                    f"table {self.name!r} has no row for op {graph.names[missing[0]]!r} on {device!r} at batch size "
                    f"{batch} ({len(missing)} such ops); allow it with partial=True"
                )
        return dataclasses.replace(graph, times=times)

    # -- files -------------------------------------------------------------------------------------------------

    def to_csv(self) -> str:
        """Return the table as CSV: ``# key: text`` lines, a header, and a row a line."""
        text = io.StringIO()
        for key, note in {"name": self.name, **self.notes}.items():
            text.write(f"# {key}: {note}\n")
        text.write(",".join(_HEADER) + "\n")
        # Quoted text keeps line ends of any kind, and floats are written so that they read back as they are.
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows(
            (row.op, row.device, row.batch, float(row.seconds), float(row.spread_s), row.repeats) for row in self.rows
        )
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``{"format": "rlinit-costs", "version": 1, "name", "notes", "rows": [{...}]}``."""
        return {
            "format": "rlinit-costs",
            "version": 1,
            "name": self.name,
            "notes": dict(self.notes),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }

    def save(self, path: str | Path) -> None:
        """Write the table as CSV, atomically.

        Raises
        ------
        InvalidCostTable
            Another suffix than ``.csv``.
        """
        _require_csv(path)
        write_atomically(path, self.to_csv())

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """Read a ``.csv`` table.

        It needs the columns op, device, batch and seconds, in any order; spread_s and repeats may be left
        out or empty. The name is the file's unless it says another.

        Raises
        ------
        InvalidCostTable
            Another suffix, a file that cannot be read, an unknown column, or a row that makes no sense; the
            message names the line.
        """
        _require_csv(path)
        # Line ends inside quotes stay as they are.
        return _from_csv(read_text(path, InvalidCostTable, encoding="utf-8-sig", most_bytes=MAX_BYTES), path)


def _require_csv(path: str | Path) -> None:
    if Path(path).suffix.lower() != ".csv":
        raise InvalidCostTable(f"{path}: cost tables are .csv files")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "costs"


def _noise(device: str, batch: int, rows: list[CostRow]) -> Noise:
    measured = [row for row in rows if row.repeats > 1]
    worst = max(measured, key=lambda row: row.relative_spread, default=None)
    total_s = math.fsum(row.seconds for row in measured)
    spread_s = math.fsum(row.spread_s for row in measured)
    return Noise(
        device,
        batch,
        len(measured),
        len(rows),
        math.fsum(row.seconds for row in rows),
        float(np.median([row.relative_spread for row in measured])) if measured else 0.0,
        worst.relative_spread if worst else 0.0,
        worst.op if worst and worst.relative_spread > 0 else "",
        spread_s / total_s if total_s > 0 else math.inf if spread_s > 0 else 0.0,
    )


def _from_csv(text: str, path: str | Path) -> CostTable:
    lines = text.splitlines(keepends=True)
    notes: dict[str, str] = {}
    skipped = 0
    for line in lines:
        if line.strip() and not line.startswith("#"):
            break
        skipped += 1
        key, colon, note = line.lstrip("#").partition(":")
        if colon:
            notes[key.strip()] = note.strip()
    reader = csv.reader(io.StringIO("".join(lines[skipped:]), newline=""))
    try:
        columns = [column.strip() for column in next(reader, [])]
        if not set(columns) >= _REQUIRED or not set(columns) <= set(_HEADER) or len(set(columns)) < len(columns):
            raise InvalidCostTable(f"{path}: the columns are {columns}; expected {', '.join(_HEADER)}")
        rows = []
        for cells in reader:
            where = f"{path}, line {skipped + reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise InvalidCostTable(f"{where}: {len(cells)} cells; expected {len(columns)}")
            rows.append(_row(dict(zip(columns, cells, strict=True)), where))
    except csv.Error as problem:
        raise InvalidCostTable(f"{path} is not CSV: {problem}") from problem
    try:
        return CostTable(tuple(rows), notes.pop("name", _one_line(Path(path).stem)), notes)
    except InvalidCostTable as problem:
        raise InvalidCostTable(f"{path}: {problem}") from None


def _row(cells: Mapping[str, str], where: str) -> CostRow:
    """Return the row of a line of CSV."""
    try:
        return CostRow(
            cells["op"],
            cells["device"],
            int(cells["batch"]),
            float(cells["seconds"]),
            float(cells.get("spread_s", "").strip() or 0),
            int(cells.get("repeats", "").strip() or 0),
        )
    except ValueError as problem:  # InvalidCostTable is one, too
        raise InvalidCostTable(f"{where}: {problem}") from None
