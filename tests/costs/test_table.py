"""Cost tables: round trips, edits, what they do to a graph, and what they refuse."""

from __future__ import annotations

import contextlib
import itertools
import math
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.costs.roofline import op_times
from rlinit.costs.table import CostRow, CostTable, InvalidCostTable
from rlinit.graph import Graph
from rlinit.hardware import Device
from tests.draws import draws

NAMES = st.text(string.printable + "é☃\u2028", min_size=1, max_size=8)
SECONDS = st.floats(0, 1e12) | st.sampled_from([0.0, 5e-324, 1e-9, 1.7e308])
ROWS = st.lists(
    st.builds(CostRow, NAMES, NAMES, st.integers(1, 2**40), SECONDS, SECONDS, st.integers(0, 9)),
    max_size=8,
    unique_by=lambda row: row.key,
)


def chain(ops: int = 3, **attributes: object) -> Graph:
    """Return a chain of ops op0, op1, ..."""
    names = [f"op{i}" for i in range(ops)]
    return Graph.build([(op, attributes) for op in names], itertools.pairwise(names), name="chain")


@pytest.mark.parametrize("suffix", [".csv", ".CSV"])
@given(rows=ROWS)
@settings(max_examples=draws(40), deadline=None)
def test_files_give_back_the_table(tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[CostRow]) -> None:
    """Any rows, with odd names and extreme seconds, come back from a file bit for bit."""
    table = CostTable(tuple(rows), "a table", {"device d": "4 threads: all", "empty": ""})
    path = tmp_path_factory.getbasetemp() / f"table{suffix}"
    table.save(path)
    assert CostTable.load(path) == table


def test_apply_replaces_times_and_keeps_the_rest() -> None:
    """Seconds of the table win; other devices, batch sizes and costs stay, and the first graph is untouched."""
    graph = chain(flops=2.0, out_bytes=4.0, time_s={"cpu": 1.0, "gpu": {1: 2.0, 4: 3.0}})
    table = CostTable(tuple(CostRow(f"op{i}", "gpu", 4, 10.0 + i, 0.1, 5) for i in range(3)))
    changed = table.apply(graph)
    assert changed.times["gpu", 4].tolist() == [10.0, 11.0, 12.0]
    assert changed.times["gpu", 1].tolist() == [2.0] * 3
    assert changed.times["cpu", 1].tolist() == [1.0] * 3
    assert changed.flops.tolist() == graph.flops.tolist()
    assert changed.fingerprint() != graph.fingerprint()
    assert graph.times["gpu", 4].tolist() == [3.0] * 3
    assert op_times(changed, Device("gpu"), 4).tolist() == [10.0, 11.0, 12.0]


def test_a_graph_and_its_table_agree() -> None:
    """The table of a graph's own times, applied, gives that graph."""
    graph = chain(time_s={"cpu": 1e-9, "gpu": {1: 2.0, 4: 1e12}})
    table = CostTable(
        tuple(
            CostRow(op, device, batch, float(seconds))
            for (device, batch), column in graph.times.items()
            for op, seconds in zip(graph.names, column, strict=True)
        )
    )
    assert len(table) == 9
    assert table.apply(graph) == graph
    assert table.apply(graph).fingerprint() == graph.fingerprint()


def test_apply_refuses_what_does_not_fit() -> None:
    """A row of an unknown op or an op without row is an error naming the op, unless partial tables are allowed."""
    graph = chain(flops=1e6)
    foreign = CostTable((*(CostRow(f"op{i}", "cpu", 1, 1.0) for i in range(3)), CostRow("other", "cpu", 1, 1.0)))
    with pytest.raises(InvalidCostTable, match="'other'"):
        foreign.apply(graph)
    assert foreign.apply(graph, partial=True).times["cpu", 1].tolist() == [1.0] * 3
    short = CostTable((CostRow("op0", "cpu", 1, 1.0),))
    with pytest.raises(InvalidCostTable, match=r"'op1' on 'cpu' at batch size 1 \(2 such ops\)"):
        short.apply(graph)
    mixed = op_times(short.apply(graph, partial=True), Device("cpu", flops_per_s=1e6))
    assert mixed.tolist() == [1.0, 1.0, 1.0]
    banned = chain(forbidden=["cpu"])
    assert np.isnan(short.apply(banned).times["cpu", 1][1:]).all()


def test_updated() -> None:
    """The other table's rows win."""
    old = CostTable((CostRow("a", "cpu", 1, 1.0), CostRow("b", "cpu", 1, 2.0)), "old", {"k": "1"})
    new = CostTable((CostRow("b", "cpu", 1, 5.0), CostRow("b", "cpu", 2, 6.0)), "new", {"k": "2"})
    both = old.updated(new)
    assert {row.key: row.seconds for row in both.rows} == {("a", "cpu", 1): 1, ("b", "cpu", 1): 5, ("b", "cpu", 2): 6}
    assert (both.name, both.notes) == ("old", {"k": "2"})


def test_noise_is_told() -> None:
    """Median, worst and overall spread come from measured rows; without any, that is what is said."""
    rows = [CostRow("a", "cpu", 1, 1.0, 0.1, 5), CostRow("b", "cpu", 1, 3.0, 1.5, 5), CostRow("c", "cpu", 1, 9.0)]
    (noise,) = CostTable(tuple(rows)).noise()
    assert (noise.num_measured, noise.num_rows, noise.total_s) == (2, 3, 13.0)
    assert noise.worst_op == "b"
    assert (noise.median_spread, noise.worst_spread, noise.total_spread) == pytest.approx((0.3, 0.5, 0.4))
    assert "b" in str(noise)
    (unknown,) = CostTable((CostRow("c", "cpu", 1, 9.0),)).noise()
    assert "nothing is known" in str(unknown)
    zero = CostTable((CostRow("z", "cpu", 1, 0.0, 1e-9, 3),)).noise()[0]
    assert math.isinf(zero.worst_spread)
    assert CostTable(()).noise() == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CostRow("", "cpu", 1, 1.0), "empty"),
        (lambda: CostRow("a", "cpu", 0, 1.0), "batch"),
        (lambda: CostRow("a", "cpu", True, 1.0), "batch"),
        (lambda: CostRow("a", "cpu", 1, -1.0), "seconds"),
        (lambda: CostRow("a", "cpu", 1, math.nan), "seconds"),
        (lambda: CostRow("a", "cpu", 1, math.inf), "seconds"),
        (lambda: CostRow("a", "cpu", 1, 1.0, math.nan), "spread_s"),
        (lambda: CostTable((CostRow("a", "cpu", 1, 1.0), CostRow("a", "cpu", 1, 2.0))), "two rows"),
        (lambda: CostTable((), "x", {"a:b": ""}), "colon"),
        (lambda: CostTable((), "x", {"a": "b\nc"}), "one line"),
        (lambda: CostTable((), "x", {"name": "b"}), "'name'"),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object], message: str) -> None:
    """Every malformed row or table says what is wrong."""
    with pytest.raises(InvalidCostTable, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "columns"),
        ("t.csv", "op,device,batch\na,cpu,1\n", "columns"),
        ("t.csv", "op,device,batch,seconds,colour\n", "columns"),
        ("t.csv", "op,device,batch,seconds\na,cpu,1\n", "line 2: 3 cells"),
        ("t.csv", "# k: v\nop,device,batch,seconds\na,cpu,one,1\n", "line 3"),
        ("t.csv", "op,device,batch,seconds\na,cpu,1,-2\n", "line 2.*seconds"),
        ("t.csv", "op,device,batch,seconds\na,cpu,1,nan\n", "seconds"),
        ("t.csv", "op,device,batch,seconds\na,cpu,1,1\na,cpu,1,2\n", "t.csv: two rows"),
        ("t.json", "{}", r"\.csv files"),
    ],
)
def test_malformed_files_name_the_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A file that makes no sense is refused with its path and the line or row."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidCostTable, match=message):
        CostTable.load(path)


@given(data=st.binary(max_size=60), at=st.integers(0, 400))
@settings(max_examples=draws(60), deadline=None)
def test_damaged_files_never_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    """Bytes written over a table give a table or an error of ours, nothing else."""
    table = CostTable(tuple(CostRow(f"op{i}", "cpu", 1, 1.0 / (i + 1), 0.1, 3) for i in range(4)))
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    table.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])
    with contextlib.suppress(InvalidCostTable):
        CostTable.load(path)


def test_a_hand_written_file_needs_little(tmp_path: Path) -> None:
    """Columns in any order, spreads left out or empty, comments and blank lines are fine; the file names the table."""
    path = tmp_path / "mine.csv"
    path.write_text("# a remark\n\ndevice,op,seconds,batch,spread_s\ncpu,a,1e-3,1,\n\ncpu,b,2,8,0.5\n")
    table = CostTable.load(path)
    assert table.rows == (CostRow("a", "cpu", 1, 1e-3), CostRow("b", "cpu", 8, 2.0, 0.5))
    assert (table.name, table.notes) == ("mine", {})
    path.write_text("op,device,batch,seconds\r\na,cpu,1,1\r\n")
    assert len(CostTable.load(path)) == 1
