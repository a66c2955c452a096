"""The reader of Moirai's instances: every figure of the files, and every malformed cell."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.datasets.published import moirai
from rlinit.datasets.published.location import instances_root
from rlinit.errors import BackendUnavailable, InvalidGraph
from tests.draws import draws


def sheet(d: int = 2) -> list[list[object]]:
    """Return a small sheet: 1 -> {3, 5}, 3 -> 5; a tensor of 1 takes 2 ms from p0 to p1 and 4 ms back."""
    links = [f"pc{i}{j}" for i in range(d) for j in range(d)]
    header: list[object] = ["task", "c_task", "dir_succ", "dir_succ_add", *[f"p{i}" for i in range(d)], *links, "mi"]
    header += [f"m{i}" for i in range(d)]
    return [
        header,
        [0.0, "", 1.0, 1.0, 0.0, 0.0, *[""] * d * d, 0.0, 800.0, 0.0],
        [1.0, "2,4", "3,5", "2,3,4,5", 1.0, 2.0, "0.0,0.0", "2.0,2.0", "4.0,4.0", "0.0,0.0", 80.0, "", ""],
        [3.0, 6.0, 5.0, "5,6", 0.5, "0.25", "0.0", "1.0", 2.0, "0.0", 0.0, "", ""],
        [5.0, "", "", "", 0.0, 1e-3, "", "", "", "", 16.0, "", ""],
    ]


def test_a_small_sheet_in_full() -> None:
    """Every column of the graph and every figure of the devices."""
    graph, hardware = moirai.from_rows(sheet(), "small")
    assert graph.name == hardware.name == "small"
    assert graph.names == ("1", "3", "5")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert graph.times["p0", 1].tolist() == [1e-3, 5e-4, 0.0]
    assert graph.times["p1", 1].tolist() == [2e-3, 2.5e-4, 1e-6]
    assert graph.param_bytes.tolist() == [10, 0, 2]
    assert [device.memory_bytes for device in hardware.devices] == [100, math.inf]
    assert graph.out_bytes[:2] / hardware.bandwidth[0, 1] == pytest.approx([2e-3, 1e-3], abs=5e-9)
    assert graph.out_bytes[:2] / hardware.bandwidth[1, 0] == pytest.approx([4e-3, 2e-3], abs=5e-9)
    assert graph.out_bytes[2] == 0


def test_several_virtual_sources() -> None:
    """Tasks that cost and move nothing and that nothing precedes are left out, in the first row or not."""
    rows = sheet()
    extra = [[9.0, "", "1,3", "", 0.0, 0.0, *[""] * 4, 0.0, "", ""], [8.0, "", 9, "", 0.0, 0.0, *[""] * 4, 0.0, "", ""]]
    graph, _ = moirai.from_rows([*rows, extra[0]], "small")
    assert graph == moirai.from_rows(rows, "small")[0]
    with pytest.raises(InvalidGraph, match="cell G6"):  # something precedes 9, so that it should say what it moves
        moirai.from_rows([*rows, *extra], "small")
    with pytest.raises(InvalidGraph, match="beside the virtual sources"):
        moirai.from_rows([*rows[:2], [9.0, "", "10", "", 0, 0, *[""] * 4, 0, "", ""]], "empty")


@settings(max_examples=draws(50), deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=2))
def test_transfers_are_reproduced_to_the_rounding(sizes: list[float], per_unit: list[float]) -> None:
    """Whatever sizes and rates were rounded away, the fitted ones give the times of the sheet back."""
    rows = sheet()[:2]
    for i, size in enumerate(sizes):
        times = [round(size * unit, 5) for unit in per_unit]
        rows.append([i + 1, "", i + 2, "", 0.0, 0.0, 0.0, times[0], times[1], 0.0, 0.0, "", ""])
    rows.append([len(sizes) + 1, "", "", "", 0.0, 0.0, "", "", "", "", 0.0, "", ""])
    graph, hardware = moirai.from_rows(rows, "random")
    for i, size in enumerate(sizes):
        for unit, rate in zip(per_unit, (hardware.bandwidth[0, 1], hardware.bandwidth[1, 0]), strict=True):
            assert graph.out_bytes[i] / rate * 1e3 == pytest.approx(round(size * unit, 5), abs=5.1e-6)


@pytest.mark.parametrize(
    ("row", "column", "content", "message"),
    [
        (2, 0, 3.0, "more than once"),
        (2, 0, 1.5, "cell A3.*integer"),
        (2, 2, "3,7", "cell C3.*unknown task 7"),
        (2, 4, "fast", "cell E3.*'fast'"),
        (2, 4, "1,2", "cell E3.*2 numbers"),
        (3, 5, -1.0, "cell F4"),
        (3, 10, "nan", "cell K4"),
        (2, 7, "2.0,3.0", "cell H3.*one and the same"),
        (2, 7, "2.0", "cell H3"),
        (2, 6, "1.0,1.0", "cell G3.*zero"),
        (3, 8, 2.1, "no sizes and bandwidths"),
        (1, 4, 1.0, "virtual source"),
        (0, 8, "pcx", "no column 'pc10'"),
        (0, 11, "", "no column 'm0'"),
    ],
)
def test_malformed_cells_are_named(row: int, column: int, content: object, message: str) -> None:
    """Each wrong cell is an error that says where it is."""
    rows = sheet()
    rows[row][column] = content
    with pytest.raises(InvalidGraph, match=message):
        moirai.from_rows(rows, "small")


def test_unreadable_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file, a file of another format and a missing package each say what to do."""
    pytest.importorskip("xlrd", reason="xlrd is not installed (extra: readers)")
    with pytest.raises(InvalidGraph, match=r"cannot read .*absent\.xls"):
        moirai.load(tmp_path / "absent.xls")
    for content in (b"", b"task,p0\n", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 truncated"):
        (tmp_path / "bad.xls").write_bytes(content)
        with pytest.raises(InvalidGraph, match=r"bad\.xls"):
            moirai.load(tmp_path / "bad.xls")
    with pytest.raises(InvalidGraph, match="at least one task"):
        moirai.from_rows(sheet()[:2], "empty")
    with pytest.raises(InvalidGraph, match="p0, p1"):
        moirai.from_rows([], "empty")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackendUnavailable, match=r"rlinit\[readers\]"):
        moirai.load(tmp_path / "absent.xls")


@pytest.mark.parametrize(("name", "num_ops", "num_edges"), [("GoogLeNet", 140, 166), ("yolov5x", 418, 460)])
def test_published_files_are_read_to_the_last_decimal(name: str, num_ops: int, num_edges: int) -> None:
    """Sizes and bandwidths give every link time of the file back, rounded as it is there."""
    root = instances_root()
    if root is None or not (root / "moirai").is_dir():
        pytest.skip("the published instances are absent (set RLINIT_INSTANCES)")
    xlrd = pytest.importorskip("xlrd", reason="xlrd is not installed (extra: readers)")
    path = root / "moirai" / f"{name}.xls"
    graph, hardware = moirai.load(path)
    assert (graph.num_ops, graph.num_edges, hardware.num_devices) == (num_ops, num_edges, 4)
    cells = xlrd.open_workbook(str(path)).sheet_by_index(0)
    checked = 0
    for row in range(2, cells.nrows):
        v = graph.index(str(int(cells.cell_value(row, 0))))
        for link in range(16):
            content = str(cells.cell_value(row, 8 + link))
            if content:
                seconds = graph.out_bytes[v] / hardware.bandwidth[divmod(link, 4)]
                assert seconds * 1e3 == pytest.approx(float(content.split(",")[0]), abs=5.0001e-6)
                checked += 1
    assert checked >= 16 * 100
    assert hardware.bandwidth[0, 3] * 8e-9 == pytest.approx(100.7222)
    if name == "GoogLeNet":
        assert graph.out_bytes[0] == pytest.approx(4 * 64 * 112 * 112, rel=1e-4)
        assert graph.param_bytes[-1] == 4 * 1025 * 1000
    assert np.isfinite(graph.out_bytes).all()
