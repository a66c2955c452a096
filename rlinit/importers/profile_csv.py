"""Profiles as graphs: a CSV file with a row for each op, as profilers and spreadsheets write them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.files import MAX_BYTES, read_text
from rlinit.graph import Graph

_COLUMNS = ("op", "after", "seconds", "bytes")


def load_profile(path: str | Path) -> Graph:
    """Read a graph from a CSV file with the columns ``op,after,seconds`` and, if wanted, ``bytes``.

    An op's seconds hold on every device; `rlinit.costs.table.CostTable` puts those of single devices in their place.

    Parameters
    ----------
    path
        A header, then a row for each op: its name, the ops whose outputs it reads (separated by ``;``, which names must
        not have then; may be empty), seconds, and bytes of its output (0 where there is no such column).

    Raises
    ------
    InvalidGraph
        A file that cannot be read, other columns, or a row that makes no sense; the message gives its line.
    """
    source = Path(path)
    text = read_text(source, InvalidGraph, encoding="utf-8-sig", most_bytes=MAX_BYTES)
    reader = csv.reader(text.splitlines(keepends=True))
    ops: list[tuple[str, dict[str, Any]]] = []
    edges: list[tuple[str, str]] = []
    try:
        columns = [title.strip() for title in next(reader, [])]
        if sorted(columns) not in (sorted(_COLUMNS), sorted(_COLUMNS[:3])):
            raise InvalidGraph(f"{source}: the columns are {columns}; expected op,after,seconds[,bytes]")
        for row in reader:
            where = f"{source}, line {reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns):
                raise InvalidGraph(f"{where}: {len(row)} cells; expected {len(columns)}")
            cells = dict(zip(columns, (cell.strip() for cell in row), strict=True))
            size, seconds = _number(cells.get("bytes") or "0", where), _number(cells["seconds"], where)
            ops.append((cells["op"], {"time_s": seconds, "out_bytes": size, "param_bytes": 0.0}))
            edges += [(before.strip(), cells["op"]) for before in cells["after"].split(";") if before.strip()]
    except csv.Error as problem:
        raise InvalidGraph(f"{source} is not CSV: {problem}") from problem
    return Graph.build(ops, edges, name=source.stem)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InvalidGraph(f"{where}: {text!r:.40} is no finite number >= 0")
    return value
