"""Graphs from profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinit import load_graph
from rlinit.errors import InvalidGraph

SMALL = 'op,after,seconds,bytes\na,,1e-3,100\n"b, c",a,2e-3,\nd,"a; b, c",0,0\n'


def test_a_small_file_in_full(tmp_path: Path) -> None:
    """Ops, data flow, seconds and bytes; columns in any order, bytes left out."""
    (tmp_path / "net.csv").write_text(SMALL)
    graph = load_graph(tmp_path / "net.csv")
    assert graph.name == "net"
    assert graph.names == ("a", "b, c", "d")
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert graph.times["*", 1].tolist() == [1e-3, 2e-3, 0.0]
    assert graph.out_bytes.tolist() == [100.0, 0.0, 0.0]
    (tmp_path / "net.csv").write_text("seconds,op,after\n1,x,\n2,y,x\n")
    assert load_graph(tmp_path / "net.csv").times["*", 1].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns"),
        ("op,seconds\n", "columns"),
        ("op,after,seconds\n", "no ops"),
        ("op,after,seconds\na,,x\n", "line 2"),
        ("op,after,seconds\na,,-1\n", "line 2"),
        ("op,after,seconds\na,,1e400\n", "line 2"),
        ("op,after,seconds\na,,1,2\n", "line 2: 4 cells"),
        ("op,after,seconds\na,b,1\n", "b"),
        ("op,after,seconds\na,b,1\nb,a,1\n", "cycle"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused with the place."""
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(InvalidGraph, match=message):
        load_graph(tmp_path / "bad.csv")
    with pytest.raises(InvalidGraph, match="dtype"):
        load_graph(tmp_path / "bad.csv", dtype="fp16")
